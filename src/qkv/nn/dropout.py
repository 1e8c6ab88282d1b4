"""Dropout, with cheaper random bits on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 1 << 16  # the resolution of the drop probability


def dropout(x: Tensor, p: float) -> Tensor:
    """Set elements to 0 with probability p and divide the others by the fraction that is kept.

    On a CPU PyTorch spends most of dropout on drawing one random number per element. Here one draw of 64 bits serves
    four elements: p is rounded to 1/65536, and the kept elements grow by exactly the factor of the rounded p.
    """
    level = round(p * LEVELS)
    if x.device.type != "cpu" or level in (0, LEVELS) or torch.compiler.is_compiling():
        return F.dropout(x, p)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
    kept = bits >= level - LEVELS // 2
    return x * kept.to(x.dtype).mul_(LEVELS / (LEVELS - level))


class Dropout(nn.Dropout):
    """`nn.Dropout` with cheaper random bits on a CPU; see `dropout`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (its name in nn.Dropout)
        return dropout(input, self.p) if self.training else input
