"""Splitting a width into heads, and sharing keys among groups of heads.

Axes: b batch · h heads · t tokens · d head width · c model width = h·d.
"""

from jaxtyping import Float
from torch import Tensor


def split_heads(x: Float[Tensor, "b t c"], heads: int) -> Float[Tensor, "b h t d"]:
    """Cut the width into heads: head i holds the features from i·d to (i+1)·d.

    >>> import torch
    >>> split_heads(torch.zeros(1, 5, 8), heads=2).shape
    torch.Size([1, 2, 5, 4])
    """
    return x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(1, 2)


def merge_heads(x: Float[Tensor, "b h t d"]) -> Float[Tensor, "b t c"]:
    """Put the heads side by side again: the inverse of `split_heads`.

    >>> import torch
    >>> x = torch.randn(1, 5, 8)
    >>> torch.equal(merge_heads(split_heads(x, 2)), x)
    True
    """
    return x.transpose(1, 2).flatten(-2)


def repeat_heads(x: Float[Tensor, "b g s d"], heads: int) -> Float[Tensor, "b h s d"]:
    """Give each of `heads` queries' heads its group's keys: heads 0..h/g−1 share the first, and so on."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)
