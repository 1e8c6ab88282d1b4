"""Attention masks: causal, sliding window, chunked, prefix, padding. True = may attend.

Axes: b batch · h heads · t queries · s keys.

Masks are lazy and compose with `&`. A `Mask` gives any rectangle of itself (`tile`) and the range of keys that some
queries can see at all (`key_range`); it becomes a tensor (`to_dense`) only where a kernel needs one. Query i stands at
key position i + (s − t): the last query sees the last key, so a cached prefix stays visible (bottom-right alignment).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

# Factories.


def causal(t: int, s: int | None = None) -> "Mask":
    """Causal mask: each query sees the keys up to its own position, i + (s − t).

    Args:
        t: number of queries.
        s: number of keys, default t.

    >>> causal(3).to_dense().int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    return BandMask(*_check_sizes(t, s), left=None, right=0)


def sliding_window(t: int, s: int | None = None, left: int | None = None, right: int | None = 0) -> "Mask":
    """Sliding-window (local) attention: each query sees `left` keys before its position, its own, and `right` after it.

    Args:
        left, right: numbers of keys; None is without bound.

    >>> sliding_window(4, 4, left=1, right=0).to_dense().int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    """
    for name, bound in (("left", left), ("right", right)):
        if bound is not None and bound < 0:
            raise ValueError(f"{name} of a sliding window must be 0 or more, or None for all keys, got {bound}")
    return BandMask(*_check_sizes(t, s), left=left, right=right)


def chunked(
    t: int, s: int | None = None, size: int = 1, left_chunks: int | None = None, right_chunks: int = 0
) -> "Mask":
    """Chunked attention for streaming: each query sees its own chunk of `size` keys and whole chunks around it.

    Args:
        left_chunks: number of chunks before its own, None for all.
        right_chunks: number of chunks after its own (look-ahead), for which a stream has to wait.

    >>> chunked(4, 4, size=2, left_chunks=0).to_dense().int().tolist()
    [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    """
    if size < 1:
        raise ValueError(f"the chunk size must be at least 1, got size={size}")
    if left_chunks is not None and left_chunks < 0:
        raise ValueError(f"left_chunks must be 0 or more, or None for all chunks, got {left_chunks}")
    if right_chunks < 0:
        raise ValueError(f"right_chunks must be 0 or more, got {right_chunks}")
    return ChunkedMask(*_check_sizes(t, s), size=size, left_chunks=left_chunks, right_chunks=right_chunks)


def prefix(t: int, s: int | None = None, prefix: int | Tensor = 0) -> "Mask":
    """Prefix-LM mask: causal, but every query sees the first `prefix` keys.

    Args:
        prefix: one number, or a tensor (b,) with one for each row of the batch.

    >>> prefix(3, 3, 2).to_dense().int().tolist()
    [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """
    if isinstance(prefix, int) and prefix < 0:
        raise ValueError(f"the prefix must be 0 keys or more, got {prefix}")
    if isinstance(prefix, Tensor) and (prefix.ndim != 1 or prefix.is_floating_point() or prefix.dtype == torch.bool):
        raise ValueError(
            f"the prefix must be an integer or an integer tensor (b,), got {prefix.dtype} of {tuple(prefix.shape)}"
        )
    return PrefixMask(*_check_sizes(t, s), length=prefix)


def padding(token_mask: Tensor) -> "Mask":
    """Padding mask: only real tokens are seen.

    Args:
        token_mask: (b, s), True for a real token and False for padding, wherever the padding is.

    >>> padding(torch.tensor([[False, True]])).to_dense().shape
    torch.Size([1, 1, 1, 2])
    """
    if token_mask.dtype != torch.bool or token_mask.ndim != 2:
        raise ValueError(
            f"token_mask must be a boolean tensor (b, s), True for real tokens, got {token_mask.dtype} of shape "
            f"{tuple(token_mask.shape)}"
        )
    return PaddingMask(token_mask)


def position_band(
    queries: Tensor, keys: Tensor, left: int | None = None, right: int | None = None, *, size: int = 1
) -> "Mask":
    """A sliding window, or chunks of `size`, over positions instead of indices; with padding the two differ."""
    return PositionBandMask(torch.atleast_2d(queries), torch.atleast_2d(keys), left, right, size)


def as_mask(mask: "Mask | Tensor") -> "Mask":
    """Turn a boolean tensor into a `Mask`; a `Mask` stays as it is."""
    if isinstance(mask, Mask):
        return mask
    if not isinstance(mask, Tensor):
        raise ValueError(f"mask must be a boolean tensor or a Mask, got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise ValueError(
            f"mask must be boolean (True = may attend), got {mask.dtype}; pass a matrix to add to the scores as bias="
        )
    if mask.ndim < 2:
        raise ValueError(f"the last axes of mask must be (queries, keys), got shape {tuple(mask.shape)}")
    return DenseMask(mask)


# The lazy masks.


class Mask:
    """A rule that says, for each query and key, whether the query may attend to the key.

    The number of queries is None where the rule is the same for all of them (padding).
    """

    @property
    def shape(self) -> tuple[int | None, int]:
        """Numbers of queries and keys."""
        raise NotImplementedError

    def tile(self, rows: range, columns: range, device: torch.device | None = None) -> Bool[Tensor, "... #t #s"]:
        """The mask of these queries and keys as a tensor; axes of size 1 broadcast."""
        raise NotImplementedError

    def key_range(self, rows: range) -> range:
        """The narrowest known range that holds every key these queries may attend to."""
        return range(self.shape[1])

    def is_full(self, rows: range) -> bool:
        """Whether these queries are known to see every key in their `key_range`."""
        return False

    def to_dense(self, device: torch.device | str | None = None) -> Bool[Tensor, "... #t s"]:
        """The whole mask as a tensor.

        >>> causal(2, 3).to_dense().int().tolist()
        [[1, 1, 0], [1, 1, 1]]
        """
        device = torch.device(device) if device is not None else None
        queries, keys = self.shape
        return self.tile(range(1 if queries is None else queries), range(keys), device)

    def __and__(self, other: "Mask | Tensor") -> "Mask":
        return AndMask.of(self, as_mask(other))

    def __rand__(self, other: Tensor) -> "Mask":
        return AndMask.of(as_mask(other), self)

    __array_priority__ = 1000

    @classmethod
    def __torch_function__(
        cls, function: object, types: object, args: Sequence[Any] = (), kwargs: object = None
    ) -> Any:
        """Let `tensor & mask` reach `__rand__`; no other operation mixes masks and tensors."""
        if function is Tensor.__and__ and isinstance(args[1], Mask):
            return args[1].__rand__(args[0])
        return NotImplemented


@dataclass(frozen=True)
class BandMask(Mask):
    """Keys from `left` before the query's position to `right` after it; None is without bound.

    A causal mask is a band without a left bound and with right = 0.
    """

    t: int
    s: int
    left: int | None
    right: int | None

    @property
    def shape(self) -> tuple[int, int]:
        return self.t, self.s

    def tile(self, rows: range, columns: range, device: torch.device | None = None) -> Bool[Tensor, "t s"]:
        distance = _arange(columns, device)[None, :] - _arange(rows, device)[:, None] - (self.s - self.t)
        return is_within(distance, self.left, self.right)

    def key_range(self, rows: range) -> range:
        first, last = rows.start + self.s - self.t, rows.stop - 1 + self.s - self.t
        start = 0 if self.left is None else first - self.left
        stop = self.s if self.right is None else last + self.right + 1
        return _clip(start, stop, self.s)

    def is_full(self, rows: range) -> bool:
        return len(rows) == 1 or (self.left is None and self.right is None)

    @property
    def is_causal(self) -> bool:
        return self.left is None and self.right == 0


@dataclass(frozen=True)
class ChunkedMask(Mask):
    """A query sees its own chunk of `size` keys, `left_chunks` before it (None: all) and `right_chunks` after it."""

    t: int
    s: int
    size: int
    left_chunks: int | None
    right_chunks: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        return self.t, self.s

    def tile(self, rows: range, columns: range, device: torch.device | None = None) -> Bool[Tensor, "t s"]:
        queries = (_arange(rows, device) + self.s - self.t).div(self.size, rounding_mode="floor")
        keys = _arange(columns, device).div(self.size, rounding_mode="floor")
        return is_within(keys[None, :] - queries[:, None], self.left_chunks, self.right_chunks)

    def key_range(self, rows: range) -> range:
        first, last = self._chunks(rows)
        start = 0 if self.left_chunks is None else (first - self.left_chunks) * self.size
        return _clip(start, (last + 1 + self.right_chunks) * self.size, self.s)

    def is_full(self, rows: range) -> bool:
        first, last = self._chunks(rows)
        return first == last

    def _chunks(self, rows: range) -> tuple[int, int]:
        """The chunks of the first and the last query."""
        shift = self.s - self.t
        return (rows.start + shift) // self.size, (rows.stop - 1 + shift) // self.size


@dataclass(frozen=True, eq=False)
class PrefixMask(Mask):
    """Causal, but every query sees the first `length` keys; one length, or one for each row of the batch."""

    t: int
    s: int
    length: int | Int[Tensor, " b"]

    @property
    def shape(self) -> tuple[int, int]:
        return self.t, self.s

    def tile(self, rows: range, columns: range, device: torch.device | None = None) -> Bool[Tensor, "... t s"]:
        past = BandMask(self.t, self.s, None, 0).tile(rows, columns, device)
        length = self.length if isinstance(self.length, int) else self.length.to(device)[:, None, None, None]
        return past | (_arange(columns, device) < length)

    def key_range(self, rows: range) -> range:
        if not isinstance(self.length, int):
            return range(self.s)
        return _clip(0, max(rows.stop + self.s - self.t, self.length), self.s)


@dataclass(frozen=True, eq=False)
class PaddingMask(Mask):
    """Only real tokens: `flags` (b, s) is True for a token, False for padding."""

    flags: Bool[Tensor, "b s"]

    @property
    def shape(self) -> tuple[None, int]:
        return None, self.flags.shape[-1]

    def tile(self, rows: range, columns: range, device: torch.device | None = None) -> Bool[Tensor, "b 1 1 s"]:
        return self.flags[:, None, None, columns.start : columns.stop].to(device)


@dataclass(frozen=True, eq=False)
class DenseMask(Mask):
    """A mask given as a tensor (…, t, s); axes of size 1 broadcast."""

    mask: Bool[Tensor, "... t s"]

    @property
    def shape(self) -> tuple[int | None, int]:
        queries, keys = self.mask.shape[-2:]
        return None if queries == 1 else queries, keys

    def tile(self, rows: range, columns: range, device: torch.device | None = None) -> Bool[Tensor, "... #t #s"]:
        queries, keys = self.shape
        part = self.mask if queries is None else self.mask[..., rows.start : rows.stop, :]
        return (part if keys == 1 else part[..., columns.start : columns.stop]).to(device)


@dataclass(frozen=True, eq=False)
class PositionBandMask(Mask):
    """A band over positions instead of indices: the third token is third wherever padding has moved it."""

    queries: Int[Tensor, "#b t"]
    keys: Int[Tensor, "#b s"]
    left: int | None
    right: int | None
    size: int = 1  # count positions in chunks of this size

    @property
    def shape(self) -> tuple[int, int]:
        return self.queries.shape[-1], self.keys.shape[-1]

    def tile(self, rows: range, columns: range, device: torch.device | None = None) -> Bool[Tensor, "#b 1 t s"]:
        queries = self.queries[:, None, rows.start : rows.stop, None].to(device)
        keys = self.keys[:, None, None, columns.start : columns.stop].to(device)
        return is_within(keys // self.size - queries // self.size, self.left, self.right)


@dataclass(frozen=True, eq=False)
class AndMask(Mask):
    """What all of its parts allow: the result of `&`."""

    parts: tuple[Mask, ...]

    @staticmethod
    def of(*masks: Mask) -> "AndMask":
        """Combine masks; nested combinations are flattened."""
        parts = tuple(part for mask in masks for part in (mask.parts if isinstance(mask, AndMask) else (mask,)))
        for axis, name in enumerate(("queries", "keys")):
            fixed = [part.shape[axis] for part in parts if not (isinstance(part, DenseMask) and part.shape[axis] == 1)]
            sizes = {size for size in fixed if size is not None}
            if len(sizes) > 1:
                raise ValueError(f"cannot combine masks for different numbers of {name}: {sorted(sizes)}")
        return AndMask(parts)

    @property
    def shape(self) -> tuple[int | None, int]:
        queries = [part.shape[0] for part in self.parts if part.shape[0] is not None]
        return max(queries, default=None), max(part.shape[1] for part in self.parts)

    def tile(self, rows: range, columns: range, device: torch.device | None = None) -> Bool[Tensor, "... #t #s"]:
        mask = self.parts[0].tile(rows, columns, device)
        for part in self.parts[1:]:
            mask = mask & part.tile(rows, columns, device)
        return mask

    def key_range(self, rows: range) -> range:
        ranges = [part.key_range(rows) for part in self.parts if part.shape[1] == self.shape[1]]
        start, stop = max(each.start for each in ranges), min(each.stop for each in ranges)
        return range(start, max(start, stop))

    def is_full(self, rows: range) -> bool:
        return all(part.is_full(rows) for part in self.parts)


def is_within(distance: Int[Tensor, "*shape"], left: int | None, right: int | None) -> Bool[Tensor, "*shape"]:
    """Whether −left ≤ distance ≤ right; None is without bound."""
    inside = torch.ones_like(distance, dtype=torch.bool) if right is None else distance <= right
    return inside if left is None else inside & (distance >= -left)


def _arange(run: range, device: torch.device | None) -> Int[Tensor, " n"]:
    return torch.arange(run.start, run.stop, device=device)


def _clip(start: int, stop: int, s: int) -> range:
    start = min(max(start, 0), s)
    return range(start, max(start, min(stop, s)))


def _check_sizes(t: int, s: int | None) -> tuple[int, int]:
    s = t if s is None else s
    if t < 0 or s < 0:
        raise ValueError(f"numbers of queries and keys must be 0 or more, got t={t}, s={s}")
    return t, s
