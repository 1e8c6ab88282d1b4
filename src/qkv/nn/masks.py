"""What a mask is, and its kinds. `qkv.nn.masks` makes them.

Axes: b batch · h heads · t queries · s keys.

A `Mask` is lazy: it shows any rectangle of itself (`tile`), says which keys a run of queries can reach at all
(`reach`), and becomes a tensor (`dense`) only where a kernel needs one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

__all__ = ["Band", "Both", "Dense", "Mask", "as_mask", "causal", "chunked", "prefix", "padding", "sliding_window"]


class Mask:
    """A rule that says, for each query and key, whether the query may attend to the key.

    The number of queries is None where the rule says nothing of them (as `present`).
    """

    @property
    def shape(self) -> tuple[int | None, int]:
        """Numbers of queries and of keys."""
        raise NotImplementedError

    def tile(
        self, rows: range, columns: range, device: torch.device | None = None
    ) -> Bool[
        Tensor,
        (
            ...  # t #s
        ),
    ]:
        """The part of the mask for these queries and keys; axes of size 1 stand for all."""
        raise NotImplementedError

    def reach(self, rows: range) -> range:
        """The narrowest run of keys known to hold every key these queries may attend to."""
        return range(self.shape[1])

    def open(self, rows: range) -> bool:
        """Whether these queries surely may attend to every key within their reach."""
        return False

    def dense(
        self, device: torch.device | str | None = None
    ) -> Bool[
        Tensor,
        (
            ...  # t s
        ),
    ]:
        """The whole mask as a tensor.

        >>> Band(2, 3, left=None, right=0).dense().int().tolist()
        [[1, 1, 0], [1, 1, 1]]
        """
        device = torch.device(device) if device is not None else None
        queries, keys = self.shape
        return self.tile(range(1 if queries is None else queries), range(keys), device)

    def __and__(self, other: Mask | Tensor) -> Mask:
        return Both.of(self, as_mask(other))

    def __rand__(self, other: Tensor) -> Mask:
        return Both.of(as_mask(other), self)

    __array_priority__ = 1000

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """Let `tensor & mask` reach `__rand__`; nothing else mixes masks and tensors."""
        if function is Tensor.__and__ and isinstance(args[1], Mask):
            return args[1].__rand__(args[0])
        return NotImplemented


@dataclass(frozen=True)
class Band(Mask):
    """Keys from `left` before the query's place to `right` after it; None is without bound.

    Causal is the band without a left bound and with right = 0.
    """

    t: int
    s: int
    left: int | None
    right: int | None

    @property
    def shape(self) -> tuple[int, int]:
        return self.t, self.s

    def tile(self, rows: range, columns: range, device: torch.device | None = None) -> Bool[Tensor, "t s"]:
        distance = _steps(columns, device)[None, :] - _steps(rows, device)[:, None] - (self.s - self.t)
        return within(distance, self.left, self.right)

    def reach(self, rows: range) -> range:
        first, last = rows.start + self.s - self.t, rows.stop - 1 + self.s - self.t
        start = 0 if self.left is None else first - self.left
        stop = self.s if self.right is None else last + self.right + 1
        return _clip(start, stop, self.s)

    def open(self, rows: range) -> bool:
        return len(rows) == 1 or (self.left is None and self.right is None)

    @property
    def is_causal(self) -> bool:
        return self.left is None and self.right == 0


@dataclass(frozen=True)
class Chunks(Mask):
    """Time is cut into chunks of `size`; a query sees its own whole, `left_chunks` before it, `right_chunks` after."""

    t: int
    s: int
    size: int
    left_chunks: int | None
    right_chunks: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        return self.t, self.s

    def tile(self, rows: range, columns: range, device: torch.device | None = None) -> Bool[Tensor, "t s"]:
        own = (_steps(rows, device) + self.s - self.t).div(self.size, rounding_mode="floor")
        keys = _steps(columns, device).div(self.size, rounding_mode="floor")
        return within(keys[None, :] - own[:, None], self.left_chunks, self.right_chunks)

    def reach(self, rows: range) -> range:
        first, last = (
            (rows.start + self.s - self.t) // self.size,
            (rows.stop - 1 + self.s - self.t) // self.size,
        )
        start = 0 if self.left_chunks is None else (first - self.left_chunks) * self.size
        return _clip(start, (last + 1 + self.right_chunks) * self.size, self.s)

    def open(self, rows: range) -> bool:
        return (rows.start + self.s - self.t) // self.size == (rows.stop - 1 + self.s - self.t) // self.size


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Causal, but the first `length` keys are seen by everybody; one length, or one for each row of the batch."""

    t: int
    s: int
    length: int | Int[Tensor, " b"]

    @property
    def shape(self) -> tuple[int, int]:
        return self.t, self.s

    def tile(self, rows: range, columns: range, device: torch.device | None = None) -> Bool[Tensor, "... t s"]:
        past = Band(self.t, self.s, None, 0).tile(rows, columns, device)
        if isinstance(self.length, int):
            return past | (_steps(columns, device) < self.length)
        return past | (_steps(columns, device) < self.length.to(device)[:, None, None, None])

    def reach(self, rows: range) -> range:
        if not isinstance(self.length, int):
            return range(self.s)
        return _clip(0, max(rows.stop + self.s - self.t, self.length), self.s)


@dataclass(frozen=True, eq=False)
class PaddingMask(Mask):
    """Only keys that exist: `flags` is True for a token, False for padding, wherever the padding stands."""

    flags: Bool[Tensor, "b s"]

    @property
    def shape(self) -> tuple[None, int]:
        return None, self.flags.shape[-1]

    def tile(self, rows: range, columns: range, device: torch.device | None = None) -> Bool[Tensor, "b 1 1 s"]:
        return self.flags[:, None, None, columns.start : columns.stop].to(device)


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """A mask given as a tensor (…, t, s); axes of size 1 stand for all."""

    mask: Bool[Tensor, "... t s"]

    @property
    def shape(self) -> tuple[int | None, int]:
        queries, keys = self.mask.shape[-2:]
        return None if queries == 1 else queries, keys

    def tile(
        self, rows: range, columns: range, device: torch.device | None = None
    ) -> Bool[
        Tensor,
        (
            ...  # t #s
        ),
    ]:
        queries, keys = self.shape
        part = self.mask if queries is None else self.mask[..., rows.start : rows.stop, :]
        return (part if keys == 1 else part[..., columns.start : columns.stop]).to(device)


@dataclass(frozen=True, eq=False)
class BandOverPositions(Mask):
    """A band counted over positions instead of indices: the third token is third wherever padding has moved it to."""

    queries: Int[Tensor, "#b t"]
    keys: Int[Tensor, "#b s"]
    left: int | None
    right: int | None
    size: int = 1  # positions are counted in chunks of this size

    @property
    def shape(self) -> tuple[int, int]:
        return self.queries.shape[-1], self.keys.shape[-1]

    def tile(self, rows: range, columns: range, device: torch.device | None = None) -> Bool[Tensor, "#b 1 t s"]:
        queries = self.queries[:, None, rows.start : rows.stop, None].to(device)
        keys = self.keys[:, None, None, columns.start : columns.stop].to(device)
        return within(keys // self.size - queries // self.size, self.left, self.right)


@dataclass(frozen=True, eq=False)
class Both(Mask):
    """What every part allows."""

    parts: tuple[Mask, ...]

    @staticmethod
    def of(*masks: Mask) -> Both:
        parts = tuple(part for mask in masks for part in (mask.parts if isinstance(mask, Both) else (mask,)))
        for axis, what in enumerate(("queries", "keys")):
            named = [part.shape[axis] for part in parts if not (isinstance(part, Dense) and part.shape[axis] == 1)]
            sizes = {size for size in named if size is not None}
            if len(sizes) > 1:
                raise ValueError(f"masks for different numbers of {what} do not combine: {sorted(sizes)}")
        return Both(parts)

    @property
    def shape(self) -> tuple[int | None, int]:
        queries = [part.shape[0] for part in self.parts if part.shape[0] is not None]
        return max(queries, default=None), max(part.shape[1] for part in self.parts)

    def tile(
        self, rows: range, columns: range, device: torch.device | None = None
    ) -> Bool[
        Tensor,
        (
            ...  # t #s
        ),
    ]:
        mask = self.parts[0].tile(rows, columns, device)
        for part in self.parts[1:]:
            mask = mask & part.tile(rows, columns, device)
        return mask

    def reach(self, rows: range) -> range:
        spans = [part.reach(rows) for part in self.parts if part.shape[1] == self.shape[1]]
        start, stop = max(span.start for span in spans), min(span.stop for span in spans)
        return range(start, max(start, stop))

    def open(self, rows: range) -> bool:
        return all(part.open(rows) for part in self.parts)


def within(distance: Int[Tensor, "*shape"], left: int | None, right: int | None) -> Bool[Tensor, "*shape"]:
    """Whether −left ≤ distance ≤ right; None is without bound."""
    inside = torch.ones_like(distance, dtype=torch.bool) if right is None else distance <= right
    return inside if left is None else inside & (distance >= -left)


def as_mask(mask: Mask | Tensor) -> Mask:
    """A mask as it is, or a boolean tensor as a mask."""
    if isinstance(mask, Mask):
        return mask
    if not isinstance(mask, Tensor):
        raise ValueError(f"a mask is a boolean tensor or a Mask; got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise ValueError(
            f"a mask is boolean, True = may attend; got {mask.dtype}. A matrix to be added to the scores goes "
            "into bias="
        )
    if mask.ndim < 2:
        raise ValueError(f"a mask ends in (queries, keys); got shape {tuple(mask.shape)}")
    return Dense(mask)


def _steps(run: range, device: torch.device | None) -> Int[Tensor, " n"]:
    return torch.arange(run.start, run.stop, device=device)


def _clip(start: int, stop: int, s: int) -> range:
    start = min(max(start, 0), s)
    return range(start, max(start, min(stop, s)))


# Who may attend to whom. True = may attend.
#
# Axes: b batch · h heads · t queries · s keys.
#
# Each function makes a lazy `Mask`; masks are composed with `&` and turned into a tensor by `.dense()`. Query i stands
# at key position i + (s − t): the last query sees the last key, so a cached prefix stays visible.


def causal(t: int, s: int | None = None) -> Mask:
    """Each query sees the keys up to its own place, i + (s − t).

    >>> causal(3).dense().int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    return Band(*_sizes(t, s), left=None, right=0)


def sliding_window(t: int, s: int | None = None, left: int | None = None, right: int | None = 0) -> Mask:
    """Each query sees `left` keys before its place, its own, and `right` keys after it; None is without bound.

    >>> window(4, 4, left=1, right=0).dense().int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    """
    for name, bound in (("left", left), ("right", right)):
        if bound is not None and bound < 0:
            raise ValueError(f"a window's {name} is a number of keys, 0 or more, or None for all; got {bound}")
    return Band(*_sizes(t, s), left=left, right=right)


def chunked(t: int, s: int | None = None, size: int = 1, left_chunks: int | None = None, right_chunks: int = 0) -> Mask:
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


def padding(flags: Tensor) -> Mask:
    """Only the keys that exist: `flags` (b, s) is True for a token and False for padding.

    >>> present(torch.tensor([[False, True]])).dense().shape
    torch.Size([1, 1, 1, 2])
    """
    if flags.dtype != torch.bool or flags.ndim != 2:
        raise ValueError(
            f"present is a boolean tensor (b, s), True where a token exists; got {flags.dtype} of shape "
            f"{tuple(flags.shape)}"
        )
    return PaddingMask(flags)


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
