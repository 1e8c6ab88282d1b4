"""Dropout as a module."""

from torch import Tensor, nn

from qkv.ops.dropout import dropout


class Dropout(nn.Dropout):
    """`nn.Dropout`, with its bits drawn more quickly on a CPU; see `qkv.ops.dropout`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (its name in nn.Dropout)
        return dropout(input, self.p) if self.training else input
