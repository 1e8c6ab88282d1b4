"""Known wrong masks, as sets of the keys that each query sees; they are compared with what is solved from the outputs.

Axes: t queries · s keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.check.hypotheses.formula import Design, Sizes, causal_mask, full_mask

TILES = tuple((rows, columns) for rows in (8, 16, 32, 64, 128) for columns in (4, 8, 16, 32, 64) if columns < rows)


@dataclass(frozen=True)
class Pattern:
    """A bug family, what is wrong in words, and the mask (t, s) that has this bug."""

    family: str
    words: str
    mask: Callable[[Sizes], Tensor]


def simple_patterns(design: Design) -> Iterator[Pattern]:
    """Wrong masks without a size of their own."""
    if design.causal:
        yield from _causal_patterns(design.formula.mask, design)
    yield from _edge_patterns(design.formula.mask, design)


def patterns(design: Design, longest: int) -> Iterator[Pattern]:
    """Every known wrong mask of a design, the simple ones first; longest: of the sequences that are compared."""
    right = design.formula.mask
    yield from simple_patterns(design)
    for size in range(2, longest + 1):
        if design.causal:
            yield from _causal_blocks(right, design, size)
        yield from _blocks(right, size)
    if design.causal:
        yield from _tiles()


def places(sizes: Sizes) -> tuple[Tensor, Tensor]:
    """The positions of queries (t, 1) and of keys (1, s)."""
    return torch.arange(sizes.queries)[:, None] + sizes.offset, torch.arange(sizes.keys)[None]


def _pattern(family: str, words: str, see: Callable[[Tensor, Tensor, Sizes], Tensor]) -> Pattern:
    """see: from the positions of queries and keys, and the sizes, to what is seen."""
    return Pattern(family, words, lambda sizes: see(*places(sizes), sizes))


def _causal_patterns(right: Callable[[Sizes], Tensor], design: Design) -> Iterator[Pattern]:
    yield Pattern("no mask", "there is no causal mask on this path", full_mask)
    if design.window is not None:
        yield Pattern("window", f"queries see the whole past, required: {design.window}", causal_mask)
    off = "mask off by one"
    yield _pattern(off, "a query does not see itself", lambda i, j, s: j < i)
    yield _pattern(off, "a query does not see itself", lambda i, j, s: (j < i) | ((j == 0) & (i == 0)))
    yield _pattern(off, "a query does not see itself", lambda i, j, s: (j < i) | (j == 0))
    yield _pattern(off, "a query sees one key ahead", lambda i, j, s: j <= i + 1)
    last = "the last query does not see its own key"
    yield Pattern(off, last, lambda s: right(s) & ~((places(s)[0] == s.keys - 1) & (places(s)[1] == s.keys - 1)))
    yield _pattern("mask transposed", "the mask is transposed", lambda i, j, s: j >= i)
    yield _pattern("mask transposed", "the mask is inverted: queries see later keys only", lambda i, j, s: j > i)
    top_left = "with more keys than queries the mask is aligned at the start (top-left)"
    yield _pattern("alignment", top_left, lambda i, j, s: j <= i - s.offset)
    for dtype in (torch.int8, torch.uint8, torch.bfloat16):
        short = str(dtype).removeprefix("torch.")
        how = "large ones are rounded" if dtype.is_floating_point else "they overflow and wrap"
        words = f"the mask compares positions in {short}: {how}"
        yield _pattern("leak", words, lambda i, j, s, dtype=dtype: j.to(dtype) <= i.to(dtype))
    for row, words in ((0, "first"), (-1, "last")):
        yield _pattern(
            "leak", f"the {words} query sees every key", lambda i, j, s, row=row: (j <= i) | (i == i.flatten()[row])
        )


def _edge_patterns(right: Callable[[Sizes], Tensor], design: Design) -> Iterator[Pattern]:
    for key, words in ((0, "first"), (-1, "last")):
        unseen = lambda s, key=key: right(s) & (torch.arange(s.keys) != key % s.keys)  # noqa: E731
        yield Pattern("truncated", f"the {words} key is never seen", unseen)
    if not design.causal:
        yield _pattern("mask off by one", "a query does not see its own key", lambda i, j, s: i != j)
        yield _pattern("leak", "a causal mask hides later keys, although none is required", lambda i, j, s: j <= i)


def _causal_blocks(right: Callable[[Sizes], Tensor], design: Design, size: int) -> Iterator[Pattern]:
    n = size
    if design.window is not None:
        words = f"queries see a window of {n}, required: {design.window}"
        yield Pattern("window", words, lambda s: causal_mask(s, n))
    else:
        words = f"queries see a window of {n} keys, although the contract has no window"
        yield Pattern("window", words, lambda s: causal_mask(s, n))
    for family, words, see in (
        ("leak", f"the mask is cut into blocks of {n}: within a block, future tokens are visible",
         lambda i, j, s: j // n <= i // n),
        ("leak", f"the mask is built for {n} tokens: later queries are not masked",
         lambda i, j, s: (j <= i) | (i >= n)),
        ("leak", f"the mask is built for {n} tokens and enlarged by ones: beyond them everything is visible",
         lambda i, j, s: (j <= i) | (i >= n) | (j >= n)),
        ("leak", f"the mask is built for {n} tokens: later keys are not masked",
         lambda i, j, s: (j <= i) | (j >= n)),
        ("leak", f"each block of {n} keys is masked by its own positions, not by those of the sequence",
         lambda i, j, s: (j // n <= i // n) & (j % n <= i % n)),
        ("block", f"each block of {n} queries is masked as if it were the first: the block's offset is missing",
         lambda i, j, s: j <= (i - s.offset) % n + s.offset),
        ("leak", f"each block of {n} queries is masked as if it were the last: future tokens are visible",
         lambda i, j, s: j <= (i - s.offset) % n + s.keys - _count(i - s.offset, s.queries, n)),
        ("leak", f"positions in the mask start again after {n}", lambda i, j, s: j % n <= i % n),
        ("leak", f"the block of {n} keys after the one on the diagonal is visible",
         lambda i, j, s: (j <= i) | (j // n == i // n + 1)),
        ("block", f"the block of {n} keys on the diagonal is skipped", lambda i, j, s: j // n < i // n),
        ("alignment", f"blocks of {n} keys are read up to the query's own number: the offset keys − queries is missing",
         lambda i, j, s: (j <= i) & (j < ((i - s.offset) // n * n + n).clamp(max=s.queries))),
    ):  # fmt: skip
        yield _pattern(family, words, see)


def _count(row: Tensor, queries: int, size: int) -> Tensor:
    """How many queries are in the block of a row."""
    return (queries - row // size * size).clamp(max=size)


def _blocks(right: Callable[[Sizes], Tensor], size: int) -> Iterator[Pattern]:
    """Blocks and tables that are wrong with or without a causal mask."""
    n = size

    def among(words: str, see: Callable[[Tensor, Tensor, Sizes], Tensor], family: str = "block") -> Pattern:
        return Pattern(family, words, lambda s: right(s) & see(*places(s), s))

    yield among(
        f"the last, partial block of keys is dropped (blocks of {n})", lambda i, j, s: (j < s.keys // n * n) | (i < 0)
    )
    yield among(f"queries see their own block of {n} keys only", lambda i, j, s: i // n == j // n)
    yield among(f"keys after the first {n} are ignored", lambda i, j, s: (j < n) | (i < 0), "truncated")
    yield among(f"only the last {n} keys are used", lambda i, j, s: (j >= s.keys - n) | (i < 0), "truncated")
    yield among(f"the block of {n} keys on the diagonal is skipped", lambda i, j, s: i // n != j // n)
    corner = f"the last {n} queries do not see the last {n} keys"
    yield among(corner, lambda i, j, s: (i < s.keys - n) | (j < s.keys - n))


def _tiles() -> Iterator[Pattern]:
    """Tiles of other sizes for queries and keys."""
    for rows, columns in TILES:
        for which in ("first", "last"):
            words = (
                f"of the key blocks ({columns}) on the diagonal of a query block ({rows}), only the {which} is masked"
            )
            yield Pattern("leak", words, lambda s, r=rows, c=columns, w=which: _one_tile_masked(s, r, c, w == "first"))
    for rows, columns in (*TILES, *((size, size) for size in (8, 16, 32, 64, 128)), *((c, r) for r, c in TILES)):
        for words, end in (("begin", 0), ("end", columns - 1)):
            words = f"that {words} after the first query of a query block"
            words = f"key blocks ({columns}) {words} ({rows}) are skipped, although its later queries see them"
            yield _pattern(
                "block",
                words,
                lambda i, j, s, r=rows, c=columns, e=end: (
                    (j <= i) & (j // c * c + e <= (i - s.offset) // r * r + s.offset)
                ),
            )


def _one_tile_masked(sizes: Sizes, rows: int, columns: int, first: bool) -> Tensor:
    """Key blocks up to the end of the query block are read; of those that reach beyond it, one is masked."""
    i, j = places(sizes)
    start, end = i // rows * rows, (i // rows * rows + rows).clamp(max=sizes.keys)
    masked = start // columns if first else (end - 1) // columns
    return (j < end) & ((j <= i) | (j // columns != masked))


def match_pattern(design: Design, solved: Sequence[tuple[Sizes, Tensor]]) -> Iterator[Pattern]:
    """The known wrong masks that are, at all sizes, what queries see: seen (t, s)."""
    for pattern in patterns(design, max(sizes.keys for sizes, _ in solved)):
        if all(torch.equal(pattern.mask(sizes), seen) for sizes, seen in solved):
            yield pattern
