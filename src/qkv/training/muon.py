"""Muon: momentum, orthogonalised. Each matrix moves by a matrix whose singular values are all near 1.

Keller Jordan's optimiser (2024). PyTorch's own casts to bfloat16, which CPUs may have no fast product for: here the
Newton–Schulz iteration runs in float32 on the CPU, and in bfloat16 on GPUs that have it.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from qkv.training.shards import gathered, sharded_like

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # the quintic that lifts small singular values fastest


def orthogonalised(matrices: Tensor, *, rounds: int = 5) -> Tensor:
    """The nearest matrices with all singular values near 1 (between 0.68 and 1.14): of UΣVᵀ about UVᵀ.

    matrices: (…, rows, columns). x ← ax + (bA + cA²)x with A = xxᵀ, from x of norm 1, which moves every singular value
    by the same polynomial and leaves U and V as they are.
    """
    a, b, c = COEFFICIENTS
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x = _quick(matrices if wide else matrices.mT)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if wide else x.mT).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """For matrices only: m ← μm + g, then w ← (1 − lr·decay)·w − lr·√max(1, rows/columns)·orthogonalised(g + μm).

    Matrices of one shape are orthogonalised together. Its state is one tensor, `momentum`, for each parameter.
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
                    raise ValueError(f"Muon moves matrices; got a parameter of shape {tuple(parameter.shape)}")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            alike: dict[tuple[int, int], list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    alike.setdefault((parameter.shape[0], parameter.shape[1]), []).append(parameter)
            for (rows, columns), parameters in alike.items():
                wanted = torch.stack([gathered(self._with_momentum(p, group["momentum"])) for p in parameters])
                size = group["lr"] * max(1.0, rows / columns) ** 0.5
                for parameter, update in zip(parameters, orthogonalised(wanted), strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(sharded_like(update, parameter), alpha=-size)

    def _with_momentum(self, parameter: nn.Parameter, share: float) -> Tensor:
        """The gradient with the momentum that it has left behind (Nesterov's form)."""
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].mul_(share).add_(gradient)
        return gradient.add(state["momentum"], alpha=share)


def _quick(matrices: Tensor) -> Tensor:
    """In the dtype that the device multiplies well: bfloat16 on GPUs that have it, otherwise at least float32."""
    if matrices.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return matrices.bfloat16()
    return matrices.to(torch.promote_types(matrices.dtype, torch.float32))
