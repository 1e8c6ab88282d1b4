"""Layouts of q, k and v: how heads, tokens and rows are arranged in the arguments of an attention function.

Axes: b batch · h query heads · g key heads · t queries · s keys · d head dim · c = h·d.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

Unpack = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Layout:
    """One arrangement.

    Args:
        axes: of q, for "one sequence at a time" and for masks.
        pack: from q (b, h, t, d), k and v (b, g, s, d) to the arguments.
        unpack: from the output and q to (b, h, t, d).
        shape: the shape of the output for q and v, to recognize it among others.
        takes: "qkv" (three arguments), "packed" (one), "kv" (q, and keys with values), "ragged" (three, with the
            tokens of all rows one after the other).
        splits_heads: the function splits the heads itself and needs their number.
        shared: how many query heads share a key head in every call; 0 if all share one.
    """

    words: str
    axes: int
    pack: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
    unpack: Unpack
    shape: Callable[[Tensor, Tensor], tuple[int, ...]]
    takes: Literal["qkv", "packed", "kv", "ragged"] = "qkv"
    splits_heads: bool = False
    shared: int = 1

    def key_heads(self, heads: int) -> int:
        """The number of key heads for a number of query heads."""
        if self.shared == 0:
            return 1
        return heads if heads % self.shared else heads // self.shared


def merge_heads(x: Tensor) -> Tensor:
    """(b, h, t, d) to (b, t, h·d)."""
    return x.transpose(1, 2).flatten(2)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(b, t, h·d) to (b, h, t, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _shape4(q: Tensor, v: Tensor) -> tuple[int, ...]:
    return (*q.shape[:3], v.shape[-1])


def _swapped(q: Tensor, v: Tensor) -> tuple[int, ...]:
    b, h, t, d = _shape4(q, v)
    return b, t, h, d


def _merged(q: Tensor, v: Tensor) -> tuple[int, ...]:
    b, h, t, d = _shape4(q, v)
    return b, t, h * d


HEADS_SECOND = Layout("(b, h, t, d)", 4, lambda q, k, v: (q, k, v), lambda out, q: out, _shape4)
HEADS_THIRD = Layout(
    "(b, t, h, d)",
    4,
    lambda q, k, v: tuple(x.transpose(1, 2) for x in (q, k, v)),
    lambda out, q: out.transpose(1, 2),
    _swapped,
)
TOKENS_THEN_ROWS = Layout(
    "(t, b, h, d)",
    4,
    lambda q, k, v: tuple(x.permute(2, 0, 1, 3) for x in (q, k, v)),
    lambda out, q: out.permute(1, 2, 0, 3),
    lambda q, v: (q.shape[2], q.shape[0], q.shape[1], v.shape[3]),
)
MERGED = Layout(
    "(b, t, c), which it splits into heads",
    3,
    lambda q, k, v: tuple(merge_heads(x) for x in (q, k, v)),
    lambda out, q: split_heads(out, q.shape[1]),
    _merged,
    splits_heads=True,
)
ROWS = Layout(
    "(b, t, d)",
    3,
    lambda q, k, v: tuple(x.flatten(0, 1) for x in (q, k, v)),  # heads become rows of the batch
    lambda out, q: out.unflatten(0, q.shape[:2]),
    lambda q, v: (q.shape[0] * q.shape[1], q.shape[2], v.shape[3]),
)
TOKENS_FIRST = Layout(
    "(t, b, d)",
    3,
    lambda q, k, v: tuple(x.flatten(0, 1).transpose(0, 1) for x in (q, k, v)),
    lambda out, q: out.transpose(0, 1).unflatten(0, q.shape[:2]),
    lambda q, v: (q.shape[2], q.shape[0] * q.shape[1], v.shape[3]),
)
ONE_SEQUENCE = Layout(
    "(t, d)", 2, lambda q, k, v: (q, k, v), lambda out, q: out, lambda q, v: (q.shape[-2], v.shape[-1])
)
RAGGED = Layout(
    "(tokens of all rows, h, d)",
    3,
    lambda q, k, v: tuple(x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)),
    lambda out, q: out.unflatten(0, (q.shape[0], q.shape[2])).transpose(1, 2),
    lambda q, v: (q.shape[0] * q.shape[2], q.shape[1], v.shape[3]),
    takes="ragged",
)
RAGGED_PACKED = replace(
    RAGGED,
    words="(tokens of all rows, 3, h, d)",
    axes=4,
    pack=lambda q, k, v: (torch.stack([x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)], dim=1),),
)
PLAIN = (HEADS_SECOND, MERGED, ROWS, ONE_SEQUENCE)


def _sharing() -> Iterator[Layout]:
    """Layouts of functions that take fewer key heads than query heads and no others (multi-query, grouped-query)."""
    for layout, key in ((HEADS_SECOND, "(b, {}, s, d)"), (HEADS_THIRD, "(b, s, {}, d)")):
        yield replace(layout, words=f"q {layout.words}, k and v {key.format('h/2')}", shared=2)
        yield replace(layout, words=f"q {layout.words}, k and v {key.format(1)}", shared=0)
        one = lambda q, k, v, pack=layout.pack: (pack(q, k, v)[0], k[:, 0], v[:, 0])  # noqa: E731
        yield replace(layout, words=f"q {layout.words}, k and v (b, s, d)", pack=one, shared=0)


SHARING = tuple(_sharing())


def _packed(words: str, pack: Callable[..., Tensor], *, axes: int = 5, splits_heads: bool = False) -> list[Layout]:
    """Layouts with q, k and v in one tensor, for each arrangement of the output."""
    outputs: list[tuple[Unpack, Any]] = [
        (lambda out, q: out.transpose(1, 2), _swapped),
        (lambda out, q: out, _shape4),
        (lambda out, q: split_heads(out, q.shape[1]), _merged),
    ]
    return [
        Layout(words, axes, lambda *qkv: (pack(*qkv),), unpack, shape, "packed", splits_heads)
        for unpack, shape in outputs
    ]


PACKED = (
    *_packed("(b, t, 3, h, d)", lambda *qkv: torch.stack([x.transpose(1, 2) for x in qkv], dim=2)),
    *_packed("(b, t, 3·c)", lambda *qkv: torch.cat([merge_heads(x) for x in qkv], -1), axes=3, splits_heads=True),
    *_packed("(3, b, h, t, d)", lambda *qkv: torch.stack(qkv)),
    *_packed("(b, 3, h, t, d)", lambda *qkv: torch.stack(qkv, dim=1)),
    *_packed("(b, h, t, 3·d)", lambda *qkv: torch.cat(qkv, -1), axes=4),
    *_packed("(b, t, h, 3·d)", lambda *qkv: torch.cat([x.transpose(1, 2) for x in qkv], -1), axes=4),
    *_packed("(b, t, h, 3, d)", lambda *qkv: torch.stack([x.transpose(1, 2) for x in qkv], dim=3)),
)
KEYS_AND_VALUES = (
    Layout(
        "q (b, t, h, d) and kv (b, s, 2, h, d)",
        4,
        lambda q, k, v: (q.transpose(1, 2), torch.stack([k.transpose(1, 2), v.transpose(1, 2)], dim=2)),
        lambda out, q: out.transpose(1, 2),
        _swapped,
        "kv",
    ),
    Layout(
        "q (b, h, t, d) and kv (2, b, h, s, d)",
        4,
        lambda q, k, v: (q, torch.stack([k, v])),
        lambda out, q: out,
        _shape4,
        "kv",
    ),
)
