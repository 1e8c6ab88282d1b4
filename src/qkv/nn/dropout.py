"""Dropout: elements set to 0 at random, the others grown so that the mean stays."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 1 << 16  # how finely the share that is dropped is cut


def dropout(x: Tensor, share: float) -> Tensor:
    """The tensor with that share of its elements set to 0, the others divided by what is kept.

    On a CPU PyTorch spends most of dropout on drawing one random number for each element. Here one draw of 64 bits
    serves four: the share is rounded to 1/65536, and what is kept grows by exactly what that asks for.
    """
    level = round(share * LEVELS)
    if x.device.type != "cpu" or level in (0, LEVELS) or torch.compiler.is_compiling():
        return F.dropout(x, share)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
    kept = bits >= level - LEVELS // 2
    return x * kept.to(x.dtype).mul_(LEVELS / (LEVELS - level))


# Dropout as a module.


class Dropout(nn.Dropout):
    """`nn.Dropout`, with its bits drawn more quickly on a CPU; see `qkv.nn.dropout`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (its name in nn.Dropout)
        return dropout(input, self.p) if self.training else input
