"""Normalization layers: LayerNorm and RMSNorm."""

from typing import Literal

from torch import nn

NormKind = Literal["layer", "rms"]


def make_norm(kind: NormKind, dim: int, *, eps: float = 1e-5, bias: bool = True) -> nn.Module:
    """Make a LayerNorm (mean 0, deviation 1, then scale and shift) or an RMSNorm (root mean square 1, then scale).

    >>> make_norm("rms", 8)
    RMSNorm((8,), eps=1e-05, elementwise_affine=True)
    """
    if kind == "layer":
        return nn.LayerNorm(dim, eps=eps, bias=bias)
    if kind == "rms":
        return nn.RMSNorm(dim, eps=eps)
    raise ValueError(f"norm must be 'layer' or 'rms', got {kind!r}")
