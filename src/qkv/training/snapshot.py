"""What a checkpoint holds: a model's folder that `qkv.load` reads, and beside it what is needed to go on.

    config.json, model.safetensors   the model (config.json for qkv's own models), with what travels with it
    average.safetensors              the average of the weights, if there is one
    optimiser.safetensors            what the optimisers remember, as "parameter/what"
    state.json                       step, place in the data, sums since the last log line, best, settings
    manifest.json                    sizes and SHA-256 of the others, written last

The tensors are whole whatever processes they were spread over: any number of processes reads them again.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv import __version__
from qkv.models import Model, folder
from qkv.training.ema import Average
from qkv.training.manifest import Writer
from qkv.training.optimizers import restore, state_tensors
from qkv.training.shards import copy_into, gathered

MODEL, AVERAGE, OPTIMISER, STATE = folder.WEIGHTS, "average.safetensors", "optimiser.safetensors", "state.json"


class Snapshot:
    """Everything that a run is, gathered into the memory of the first process; all processes must take part."""

    def __init__(
        self,
        model: nn.Module,
        optimisers: list[torch.optim.Optimizer],
        average: Average | None,
        state: dict[str, Any],
        keep: bool = True,
    ) -> None:
        self.model, self.state = model, state
        self.tensors = {
            MODEL: _gathered(weights(model), keep),
            OPTIMISER: _gathered(state_tensors(model, optimisers), keep),
        }
        if average is not None:
            self.tensors[AVERAGE] = _gathered(average.held, keep)

    def write(self, writer: Writer) -> None:
        for name, tensors in self.tensors.items():
            writer.tensors(name, tensors)
        if isinstance(self.model, Model):
            for name, content in self.model.files.items():
                writer.bytes(name, [content])
            described = folder.describe(self.model, writer.written[MODEL]["sha256"])
            writer.json(folder.CONFIG, described)
        writer.json(STATE, self.state)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's tensors, one with two names under the first of them only."""
    kept: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            kept[name] = tensor.detach()
    return kept


def read_state(place: Path) -> dict[str, Any]:
    """The numbers of a checkpoint."""
    return json.loads((place / STATE).read_text(encoding="utf-8"))


def load_into(place: Path, model: nn.Module, optimisers: list[torch.optim.Optimizer], average: Average | None) -> None:
    """Bring model, optimisers and average to what a checkpoint holds."""
    saved, own = folder.read_tensors(place / MODEL), weights(model)
    _check_names(place / MODEL, saved, own)
    for name, tensor in saved.items():
        copy_into(own[name], tensor)
    restore(model, optimisers, folder.read_tensors(place / OPTIMISER))
    if average is not None:
        # a run that had none begins its average now
        path = place / AVERAGE
        average.restore(folder.read_tensors(path) if path.is_file() else {n: gathered(own[n]) for n in average.held})


def environment(device: torch.device, processes: int) -> dict[str, Any]:
    """What the bits of a result depend on beside the settings."""
    return {
        "qkv": __version__,
        "torch": torch.__version__,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "processes": processes,
    }


def _gathered(tensors: dict[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """The whole tensors on the CPU; in the processes that do not keep them nothing, one after another."""
    made = {}
    for name, tensor in tensors.items():
        whole = gathered(tensor)
        if keep:
            made[name] = whole.cpu()
    return made


def _check_names(where: Path, saved: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    for name in own:
        if name not in saved:
            raise ValueError(f"{where} is of another model: it lacks {name}")
        if saved[name].shape != own[name].shape:
            raise ValueError(
                f"{where} is of another model: {name} is {tuple(saved[name].shape)} there, "
                f"{tuple(own[name].shape)} here"
            )
    if extra := sorted(set(saved) - set(own)):
        raise ValueError(f"{where} is of another model: it has {extra[0]}")
