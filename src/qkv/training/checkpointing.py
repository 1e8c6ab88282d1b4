"""Training checkpoints: save complete or not at all, checksums, keep the last N and the best, restore, export.

`checkpoints/step-00001234/` is a model folder that `qkv.load` reads, plus what resuming needs:

    config.json, model.safetensors   the model (config.json for qkv's own models) and the files that belong to it
    ema.safetensors                  exponential moving average of the weights, if there is one
    optimizer.safetensors            optimizer state, as "parameter/name"
    state.json                       TrainState, train config, environment
    manifest.json                    sizes and SHA-256 of the others, written last

A checkpoint is written next to its final place, all files flushed to the disk, the manifest last; then one rename moves
it. A process killed at any instant leaves older checkpoints as they were, and at most a hidden directory that the
next start removes. Tensors are gathered from all processes, so any number of processes can read them.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv import __version__
from qkv._files import fsync, read_limited
from qkv.models import Model
from qkv.models import folder as model_folder
from qkv.models.folder import safetensors_pieces
from qkv.training.distributed import copy_into, full_tensor
from qkv.training.ema import WeightEMA
from qkv.training.metrics import DISK_FULL
from qkv.training.optimizers import optimizer_tensors, restore_optimizers
from qkv.training.run_progress import CHECKPOINTS, checkpoint_steps

MODEL, EMA, OPTIMIZER = model_folder.WEIGHTS, "ema.safetensors", "optimizer.safetensors"
STATE, MANIFEST = "state.json", "manifest.json"


class CheckpointStore:
    """The checkpoints of one run; used by one process at a time (see `lock`)."""

    def __init__(self, run_folder: Path) -> None:
        self.folder = run_folder / CHECKPOINTS
        if self.folder.is_symlink():  # a run folder of somebody else must not write elsewhere
            raise ValueError(f"{self.folder} is a symbolic link; a run keeps its checkpoints in its own directory")

    def path(self, step: int) -> Path:
        """Return the directory of a step's checkpoint."""
        return self.folder / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """List the steps that have a checkpoint, complete or not, in order."""
        return checkpoint_steps(self.folder.parent)

    def save(self, step: int, write: Callable[["FileWriter"], None]) -> Path:
        """Let `write` fill a checkpoint, then move it to its place."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(step)
        scratch = self.folder / f".{path.name}.writing"
        try:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            writer = FileWriter(scratch)
            write(writer)
            writer.write_manifest()
            fsync(scratch)
            if path.exists():
                os.rename(path, self.folder / f".{path.name}.replaced")
            os.rename(scratch, path)
            fsync(self.folder)
        except OSError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise self._explain(error, step) from error
        self._remove_hidden()
        return path

    def newest(self, on_note: Callable[[str], None]) -> Path | None:
        """Return the newest complete checkpoint. Damaged ones are renamed, with a note."""
        for step in reversed(self.steps()):
            path = self.path(step)
            damage = find_damage(path)
            if damage is None:
                return path
            aside = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(path, aside)
            on_note(f"{path} is damaged: {damage}. Renamed to {aside.name}; trying the checkpoint before it")
        return None

    def clean_up(self) -> None:
        """Remove what a killed process left unfinished, and restore what it was about to replace."""
        if not self.folder.is_dir():
            return
        for hidden in self.folder.glob(".step-*.replaced"):
            path = hidden.with_name(hidden.name[1:].removesuffix(".replaced"))
            if not path.exists():
                os.rename(hidden, path)
        self._remove_hidden()

    def prune(self, keep_last: int, best: int | None) -> None:
        """Remove all checkpoints but the last few and the best."""
        for step in self.steps()[:-keep_last]:
            if step != best:
                hidden = self.folder / f".step-{step:08d}.old"
                os.rename(self.path(step), hidden)  # a half-removed one must not look like a damaged checkpoint
                shutil.rmtree(hidden, ignore_errors=True)

    def _remove_hidden(self) -> None:
        for path in self.folder.glob(".step-*"):
            shutil.rmtree(path, ignore_errors=True)

    def _explain(self, error: OSError, step: int) -> OSError:
        reason = "the disk is full" if error.errno in DISK_FULL else (error.strerror or str(error))
        steps = self.steps()
        kept = f"The checkpoint of step {steps[-1]} is complete" if steps else "There is no earlier checkpoint"
        message = (
            f"could not write the checkpoint of step {step}: {reason}. {kept}; free space and start again to resume"
        )
        return OSError(error.errno, message, str(self.folder))


class FileWriter:
    """Writes files into one directory, flushed to the disk, and records their sizes and SHA-256.

    Tensors are safetensors (an 8-byte length, a JSON header, the bytes), written here piece by piece so that the
    checksum needs no second reading and a full disk raises an OSError at the piece that does not fit.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: dict[str, dict[str, Any]] = {}

    def write_bytes(self, name: str, pieces: Iterable[Any]) -> None:
        digest, size = hashlib.sha256(), 0
        with (self.folder / name).open("wb") as file:
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
                size += len(piece)
            file.flush()
            os.fsync(file.fileno())
        self.written[name] = {"bytes": size, "sha256": digest.hexdigest()}

    def write_json(self, name: str, value: object) -> None:
        self.write_bytes(name, [(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()])

    def write_tensors(self, name: str, tensors: dict[str, Tensor]) -> None:
        self.write_bytes(name, safetensors_pieces(tensors))

    def write_manifest(self) -> None:
        """List what was written; a directory without this file is not complete."""
        self.write_json(MANIFEST, {"files": self.written})


def find_damage(path: Path) -> str | None:
    """Check a directory against its manifest: return what is wrong, or None if it is complete."""
    try:
        files = json.loads(read_limited(path / MANIFEST))["files"]
        listed = {name: (entry["bytes"], entry["sha256"]) for name, entry in files.items()}
    except FileNotFoundError:
        return f"it has no {MANIFEST}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"its {MANIFEST} is damaged"
    for name, (size, digest) in listed.items():
        file_path = path / name
        if not file_path.is_file():
            return f"{name} is missing"
        if file_path.stat().st_size != size:
            return f"{name} has {file_path.stat().st_size} bytes instead of {size}"
        with file_path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                return f"the SHA-256 of {name} differs from the one in {MANIFEST}"
    return None


class Snapshot:
    """Everything a checkpoint holds, gathered into the memory of rank zero (`keep`); all processes must take part."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: list[torch.optim.Optimizer],
        ema: WeightEMA | None,
        state: dict[str, Any],
        keep: bool = True,
    ) -> None:
        self.model, self.state = model, state
        self.tensors = {
            MODEL: _gather(model_folder.get_untied_state(model), keep),
            OPTIMIZER: _gather(optimizer_tensors(model, optimizers), keep),
        }
        if ema is not None:
            self.tensors[EMA] = _gather(ema.average, keep)

    def write(self, writer: FileWriter) -> None:
        """Write all files but the manifest."""
        for name, tensors in self.tensors.items():
            writer.write_tensors(name, tensors)
        if isinstance(self.model, Model):
            for name, content in self.model.extra_files.items():
                writer.write_bytes(name, [content])
            writer.write_json(model_folder.CONFIG, model_folder.describe(self.model, writer.written[MODEL]["sha256"]))
        writer.write_json(STATE, self.state)


def read_state(path: Path) -> dict[str, Any]:
    """Read the state.json of a checkpoint."""
    return json.loads(read_limited(path / STATE))


def restore_tensors(
    path: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer], ema: WeightEMA | None
) -> None:
    """Load model, optimizers and EMA from a checkpoint."""
    saved, own = model_folder.read_tensors(path / MODEL), model_folder.get_untied_state(model)
    _check_names(path / MODEL, saved, own)
    for name, tensor in saved.items():
        copy_into(own[name], tensor)
    restore_optimizers(model, optimizers, model_folder.read_tensors(path / OPTIMIZER))
    if ema is None:
        return
    if (path / EMA).is_file():
        ema.restore(model_folder.read_tensors(path / EMA))
    else:  # the run had no EMA so far: it starts at the current weights
        ema.restore({name: full_tensor(own[name]) for name in ema.average})


def environment(device: torch.device, processes: int) -> dict[str, Any]:
    """Describe what the bits of a result depend on besides the config."""
    return {
        "qkv": __version__,
        "torch": torch.__version__,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "processes": processes,
    }


def load_checkpoint(source: str | Path, *, ema: bool = True, average_last: int = 1) -> Model:
    """Load the model of a checkpoint, or of a run's newest complete one, with the EMA weights if there are any.

    Args:
        ema: False takes the weights themselves.
        average_last: checkpoint averaging: the mean of the weights of so many newest complete checkpoints of a run, or
            of all if there are fewer.
    """
    paths = find_checkpoints(source, average_last)
    model = model_folder.load(paths[0], Model.registry)
    if len(paths) == 1 and not (ema and (paths[0] / EMA).is_file()):
        return model
    own = model_folder.get_untied_state(model)
    sums = {name: torch.zeros_like(own[name], dtype=torch.float64) for name in own if own[name].is_floating_point()}
    for path in paths:
        saved = model_folder.read_tensors(path / MODEL)
        _check_names(path / MODEL, saved, own)
        if ema and (path / EMA).is_file():
            saved |= model_folder.read_tensors(path / EMA)
        for name, total in sums.items():
            total += saved[name]
    for name, total in sums.items():
        own[name].copy_(total / len(paths))
    return model


def export_model(source: str | Path, target: str | Path, *, ema: bool = True, average_last: int = 1) -> Model:
    """Write the model of a checkpoint as a model folder that `qkv.load` reads; return the model."""
    model = load_checkpoint(source, ema=ema, average_last=average_last)
    model.save(target)
    return model


def find_checkpoints(source: str | Path, count: int = 1) -> list[Path]:
    """Return the checkpoint itself, or the `count` newest complete ones of a run directory, the newest first."""
    if count < 1:
        raise ValueError(f"average_last must be at least 1, got {count}")
    source = Path(source)
    if (source / model_folder.CONFIG).is_file():
        if (damage := find_damage(source)) is not None:
            raise ValueError(f"{source} is not a complete checkpoint: {damage}")
        if count > 1:
            raise ValueError(f"{source} is one checkpoint; averaging the last {count} needs the run directory")
        return [source]
    store, found = CheckpointStore(source), []
    for step in reversed(store.steps()):
        if find_damage(store.path(step)) is None:
            found.append(store.path(step))
        if len(found) == count:
            break
    if not found:
        raise ValueError(f"{source} is neither a checkpoint nor a run directory with a complete one")
    return found


def _gather(tensors: dict[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """Gather full tensors on the CPU, one after the other; empty in the processes that do not keep them."""
    gathered = {}
    for name, tensor in tensors.items():
        full = full_tensor(tensor)
        if keep:
            gathered[name] = full.cpu()
    return gathered


def _check_names(path: Path, saved: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    for name in own:
        if name not in saved:
            raise ValueError(f"{path} belongs to another model: it has no {name}")
        if saved[name].shape != own[name].shape:
            raise ValueError(
                f"{path} belongs to another model: {name} has shape {tuple(saved[name].shape)} there and "
                f"{tuple(own[name].shape)} here"
            )
    if extra := sorted(set(saved) - set(own)):
        raise ValueError(f"{path} belongs to another model: it also has {extra[0]}")
