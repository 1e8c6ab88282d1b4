"""Who may attend to whom. True = may attend.

Axes: b batch · h heads · t queries · s keys.

Each function makes a lazy `Mask`; masks are composed with `&` and turned into a tensor by `.dense()`. Query i stands
at key position i + (s − t): the last query sees the last key, so a cached prefix stays visible.
"""

import torch
from torch import Tensor

from qkv.ops.mask_kinds import Band, BandOverPositions, Both, Chunks, Dense, Mask, Prefix, Present, as_mask

__all__ = ["Band", "Both", "Dense", "Mask", "as_mask", "causal", "chunks", "prefix", "present", "window"]


def causal(t: int, s: int | None = None) -> Mask:
    """Each query sees the keys up to its own place, i + (s − t).

    >>> causal(3).dense().int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    return Band(*_sizes(t, s), left=None, right=0)


def window(t: int, s: int | None = None, left: int | None = None, right: int | None = 0) -> Mask:
    """Each query sees `left` keys before its place, its own, and `right` keys after it; None is without bound.

    >>> window(4, 4, left=1, right=0).dense().int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    """
    for name, bound in (("left", left), ("right", right)):
        if bound is not None and bound < 0:
            raise ValueError(f"a window's {name} is a number of keys, 0 or more, or None for all; got {bound}")
    return Band(*_sizes(t, s), left=left, right=right)


def chunks(t: int, s: int | None = None, size: int = 1, left_chunks: int | None = None, right_chunks: int = 0) -> Mask:
    """Each query sees its own chunk of `size` keys whole and `left_chunks` chunks before it (None: all of them).

    right_chunks: how many chunks after its own it sees too: what it has to wait for.

    >>> chunks(4, 4, size=2, left_chunks=0).dense().int().tolist()
    [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    """
    if size < 1:
        raise ValueError(f"a chunk holds at least 1 key; got size={size}")
    if left_chunks is not None and left_chunks < 0:
        raise ValueError(f"left_chunks is a number of chunks, 0 or more, or None for all; got {left_chunks}")
    if right_chunks < 0:
        raise ValueError(f"right_chunks is a number of chunks, 0 or more; got {right_chunks}")
    return Chunks(*_sizes(t, s), size=size, left_chunks=left_chunks, right_chunks=right_chunks)


def prefix(t: int, s: int | None = None, prefix: int | Tensor = 0) -> Mask:
    """Causal, and the first `prefix` keys are seen by every query (one number, or one for each row of the batch).

    >>> prefix(3, 3, 2).dense().int().tolist()
    [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """
    if isinstance(prefix, int) and prefix < 0:
        raise ValueError(f"a prefix is a number of keys, 0 or more; got {prefix}")
    if isinstance(prefix, Tensor) and (prefix.ndim != 1 or prefix.is_floating_point() or prefix.dtype == torch.bool):
        raise ValueError(
            f"a prefix is a whole number, or a tensor (b,) of them; got {prefix.dtype} of {tuple(prefix.shape)}"
        )
    return Prefix(*_sizes(t, s), length=prefix)


def present(flags: Tensor) -> Mask:
    """Only the keys that exist: `flags` (b, s) is True for a token and False for padding.

    >>> present(torch.tensor([[False, True]])).dense().shape
    torch.Size([1, 1, 1, 2])
    """
    if flags.dtype != torch.bool or flags.ndim != 2:
        raise ValueError(
            f"present is a boolean tensor (b, s), True where a token exists; got {flags.dtype} of shape "
            f"{tuple(flags.shape)}"
        )
    return Present(flags)


def band_over_positions(
    queries: Tensor, keys: Tensor, left: int | None = None, right: int | None = None, *, size: int = 1
) -> Mask:
    """A window, or chunks of `size`, counted over positions: with holes, those differ from indices."""
    return BandOverPositions(torch.atleast_2d(queries), torch.atleast_2d(keys), left, right, size)


def _sizes(t: int, s: int | None) -> tuple[int, int]:
    s = t if s is None else s
    if t < 0 or s < 0:
        raise ValueError(f"a mask has a number of queries and of keys, 0 or more; got t={t}, s={s}")
    return t, s
