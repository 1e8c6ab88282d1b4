"""Which parameter is moved by what: groups with and without decay, AdamW and Muon; and their state as named tensors."""

from typing import Any

import torch
from torch import Tensor, nn

from qkv.training.config import Optimiser
from qkv.training.muon import Muon
from qkv.training.shards import copy_into

MATRICES = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd, nn.RNNBase)


def kinds(model: nn.Module) -> dict[str, str]:
    """What each trainable parameter is: "matrix" (multiplies), "table" (vectors that are looked up or added), or
    "plain" (norms, biases, single numbers). A shared parameter is what its first name says.

    >>> kinds(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)))
    {'0.weight': 'table', '1.weight': 'matrix', '1.bias': 'plain'}
    """
    found: dict[str, str] = {}
    owners = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        home, _, last = name.rpartition(".")
        if parameter.ndim < 2 or "bias" in last:
            found[name] = "plain"
        else:
            found[name] = "matrix" if isinstance(owners[home], MATRICES) or last == "weight" else "table"
        if isinstance(owners[home], nn.Embedding):
            found[name] = "table"
    return found


def hidden_matrices(model: nn.Module) -> list[str]:
    """The matrices inside a model's repeated parts (a list or sequence of modules): what Muon is for."""
    owners = dict(model.named_modules())
    names = [name for name, kind in kinds(model).items() if kind == "matrix"]
    inside = [name for name in names if any(part.isdigit() for part in name.split("."))]
    return [name for name in inside if isinstance(owners[name.rpartition(".")[0]], nn.Linear)]


def make_optimisers(model: nn.Module, chosen: Optimiser) -> list[torch.optim.Optimizer]:
    """AdamW, or Muon and AdamW. Each group has a `base`: the learning rate that the schedule scales."""
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    kind = kinds(model)
    by_muon = hidden_matrices(model) if chosen.name == "muon" else []
    if chosen.name == "muon" and not by_muon:
        raise ValueError(
            f"Muon is for matrices inside blocks, and {type(model).__name__} has none; use optimiser.name='adamw'"
        )
    decayed = ("matrix", "table") if chosen.decay_tables else ("matrix",)
    rest = [name for name in named if name not in set(by_muon)]
    split = {
        chosen.weight_decay: [named[name] for name in rest if kind[name] in decayed],
        0.0: [named[name] for name in rest if kind[name] not in decayed],
    }
    if not chosen.weight_decay:
        split = {0.0: [named[name] for name in rest]}
    groups = [{"params": members, "weight_decay": decay} for decay, members in split.items() if members]
    made: list[torch.optim.Optimizer] = []
    if by_muon:
        moved = [named[name] for name in by_muon]
        made.append(Muon(moved, lr=chosen.muon_lr, momentum=chosen.momentum, weight_decay=chosen.weight_decay))
    if groups:
        made.append(_adamw(groups, chosen))
    for optimiser in made:
        for group in optimiser.param_groups:
            group["base"] = group["lr"]
    return made


def set_rate(optimisers: list[torch.optim.Optimizer], factor: float) -> None:
    """Let each group's learning rate be its base times the factor."""
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = group["base"] * factor


def state_tensors(model: nn.Module, optimisers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """What the optimisers remember, as "parameter/what": everything else follows from the settings and the step."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    found = {
        f"{names[parameter]}/{what}": value
        for optimiser in optimisers
        for parameter, state in optimiser.state.items()
        for what, value in state.items()
    }
    return dict(sorted(found.items()))  # the order in which they came about is no part of what they are


def restore(model: nn.Module, optimisers: list[torch.optim.Optimizer], tensors: dict[str, Tensor]) -> None:
    """The inverse of `state_tensors`: whole tensors, spread again if the parameters are."""
    by_name: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        parameter, _, what = name.rpartition("/")
        by_name.setdefault(parameter, {})[what] = tensor
    named = dict(model.named_parameters())
    if unknown := sorted(set(by_name) - set(named)):
        raise ValueError(f"the optimiser's state is for a parameter that the model has not: {unknown[0]}")
    for optimiser in optimisers:
        for parameter in (member for group in optimiser.param_groups for member in group["params"]):
            name = next(name for name, other in named.items() if other is parameter)
            if name in by_name:
                optimiser.state[parameter] = {what: _as(value, parameter) for what, value in by_name[name].items()}


def _as(value: Tensor, parameter: nn.Parameter) -> Any:
    """A saved tensor as the optimiser holds it: like its parameter, or a number kept on the CPU."""
    if value.shape != parameter.shape:
        return value.clone()
    held = torch.zeros_like(parameter, dtype=value.dtype)
    copy_into(held, value)
    return held


def _adamw(groups: list[dict[str, Any]], chosen: Optimiser) -> torch.optim.AdamW:
    return torch.optim.AdamW(groups, lr=chosen.lr, betas=chosen.betas, eps=chosen.epsilon, fused=True)
