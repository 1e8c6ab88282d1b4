"""Optimizers: AdamW, Adam and Muon, parameter groups for weight decay, and optimizer state as named tensors."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from qkv.training.distributed import copy_into, full_tensor, shard_like

MATRIX_MODULES = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd, nn.RNNBase)
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # the quintic polynomial that lifts small singular values fastest


@dataclass(frozen=True)
class OptimizerConfig:
    """Which optimizer to use and its numbers.

    name: "adamw"; "adam", whose weight decay is coupled (added to the gradient) and applies to every parameter, as
        `torch.optim.Adam(model.parameters(), weight_decay=…)` does; or "muon": Muon for the matrices inside blocks and
        AdamW for everything else.
    lr: maximum learning rate of AdamW or Adam.
    muon_lr: that of Muon, whose updates differ in size. The schedule scales both.
    weight_decay: decoupled weight decay of matrices; never of norms and biases; of embeddings if `decay_embeddings`.
        Adam's is coupled and of all parameters.
    """

    name: Literal["adamw", "adam", "muon"] = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decay_embeddings: bool = False
    muon_lr: float = 0.02
    muon_momentum: float = 0.95

    def __post_init__(self) -> None:
        if self.name not in ("adamw", "adam", "muon"):
            raise ValueError(f"optimizer.name must be adamw, adam or muon, got {self.name!r}")
        for name in ("lr", "muon_lr", "weight_decay"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"optimizer.{name} must be at least 0, got {value}")
        if not 0 < self.eps < math.inf:
            raise ValueError(f"optimizer.eps must be above 0, got {self.eps}")
        for name, value in (("betas", self.betas[0]), ("betas", self.betas[1]), ("muon_momentum", self.muon_momentum)):
            if not 0 <= value < 1:
                raise ValueError(f"optimizer.{name} must be in [0, 1), got {value}")


def make_optimizers(model: nn.Module, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """Build AdamW, Adam, or Muon and AdamW. Each group has a `base_lr`, the learning rate that the schedule scales."""
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    kinds = parameter_kinds(model)
    muon_names = hidden_matrices(model) if config.name == "muon" else []
    if config.name == "muon" and not muon_names:
        raise ValueError(
            f"Muon needs matrices inside blocks and {type(model).__name__} has none; use optimizer.name='adamw'"
        )
    optimizers: list[torch.optim.Optimizer] = []
    if muon_names:
        matrices = [named.pop(name) for name in muon_names]
        optimizers.append(
            Muon(matrices, lr=config.muon_lr, momentum=config.muon_momentum, weight_decay=config.weight_decay)
        )
    if config.name == "adam":
        options: dict[str, Any] = {"lr": config.lr, "betas": config.betas, "eps": config.eps}
        optimizers.append(
            torch.optim.Adam(list(named.values()), weight_decay=config.weight_decay, fused=True, **options)
        )
        named = {}
    decayed = {"matrix", "embedding"} if config.decay_embeddings else {"matrix"}
    if not config.weight_decay:
        decayed = set()
    groups = [
        {"params": [p for name, p in named.items() if kinds[name] in decayed], "weight_decay": config.weight_decay},
        {"params": [p for name, p in named.items() if kinds[name] not in decayed], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if groups:
        optimizers.append(torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return optimizers


def parameter_kinds(model: nn.Module) -> dict[str, str]:
    """Classify each trainable parameter: "matrix" (multiplied), "embedding" (looked up or added) or "other" (norms,
    biases, single numbers). The first name of a shared parameter counts.

    >>> parameter_kinds(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)))
    {'0.weight': 'embedding', '1.weight': 'matrix', '1.bias': 'other'}
    """
    kinds: dict[str, str] = {}
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        owner, _, last = name.rpartition(".")
        module = modules[owner]
        if isinstance(module, nn.Embedding):
            kinds[name] = "embedding"
        elif parameter.ndim < 2 or "bias" in last:
            kinds[name] = "other"
        elif isinstance(module, MATRIX_MODULES) or last == "weight":
            kinds[name] = "matrix"
        else:
            kinds[name] = "embedding"
    return kinds


def hidden_matrices(model: nn.Module) -> list[str]:
    """List the matrices of linear layers inside repeated parts (a module list or sequence): those that Muon updates."""
    modules = dict(model.named_modules())
    return [
        name
        for name, kind in parameter_kinds(model).items()
        if kind == "matrix"
        and any(part.isdigit() for part in name.split("."))
        and isinstance(modules[name.rpartition(".")[0]], nn.Linear)
    ]


def scale_lr(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    """Set each group's learning rate to its `base_lr` times the factor."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor


def optimizer_tensors(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Collect the optimizer state as "parameter/name": everything else follows from the config and the step."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    tensors = {
        f"{names[parameter]}/{key}": value
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }
    return dict(sorted(tensors.items()))  # the order in which they were created does not matter


def restore_optimizers(model: nn.Module, optimizers: list[torch.optim.Optimizer], tensors: dict[str, Tensor]) -> None:
    """Inverse of `optimizer_tensors`: load full tensors, sharded again where the parameters are."""
    states: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        parameter, _, key = name.rpartition("/")
        states.setdefault(parameter, {})[key] = tensor
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    if unknown := sorted(set(states) - set(names.values())):
        raise ValueError(f"the optimizer state has {unknown[0]}, which is not a parameter of the model")
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if names[parameter] in states:
                    state = states[names[parameter]]
                    optimizer.state[parameter] = {key: _like(value, parameter) for key, value in state.items()}


def _like(value: Tensor, parameter: nn.Parameter) -> Tensor:
    """Place a saved tensor as the optimizer holds it: like its parameter, or a number on the CPU."""
    if value.shape != parameter.shape:
        return value.clone()
    tensor = torch.zeros_like(parameter, dtype=value.dtype)
    copy_into(tensor, value)
    return tensor


class Muon(torch.optim.Optimizer):
    """Muon (Keller Jordan, 2024): momentum, orthogonalized, for matrices only.

        m ← μm + g        w ← (1 − lr·decay)·w − lr·√max(1, rows/columns)·orthogonalize(g + μm)

    PyTorch's own Muon casts to bfloat16, which CPUs may have no fast product for. Here the Newton–Schulz iteration runs
    in float32 on CPUs (its products in bfloat16 inside `torch.autocast`) and in bfloat16 on GPUs that support it.
    Matrices of the same shape are orthogonalized together. The state of each parameter is one tensor, `momentum`.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        *,
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim != 2:
                    raise ValueError(f"Muon updates matrices only; got a parameter of shape {tuple(parameter.shape)}")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, int], list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault((parameter.shape[0], parameter.shape[1]), []).append(parameter)
            for (rows, columns), parameters in by_shape.items():
                momenta = torch.stack([full_tensor(self._add_momentum(p, group["momentum"])) for p in parameters])
                size = group["lr"] * max(1.0, rows / columns) ** 0.5
                for parameter, update in zip(parameters, orthogonalize(momenta), strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(shard_like(update, parameter), alpha=-size)

    def _add_momentum(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        """Update the momentum and return the gradient plus momentum (Nesterov's form)."""
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].mul_(momentum).add_(gradient)
        return gradient.add(state["momentum"], alpha=momentum)


def orthogonalize(matrices: Tensor, *, iterations: int = 5) -> Tensor:
    """Compute nearby matrices with all singular values near 1 (between 0.68 and 1.14): about UVᵀ for UΣVᵀ.

    Newton–Schulz: x ← ax + (bA + cA²)x with A = xxᵀ, starting from x of norm 1. It applies the same polynomial to every
    singular value and keeps U and V. matrices: (…, rows, columns).
    """
    a, b, c = NEWTON_SCHULZ
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x = matrices if wide else matrices.mT
    if x.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        x = x.bfloat16()
    else:
        x = x.to(torch.promote_types(x.dtype, torch.float32))
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if wide else x.mT).to(matrices.dtype)
