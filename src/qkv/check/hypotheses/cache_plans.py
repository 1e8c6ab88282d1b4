"""Plans of a KV cache, right and wrong: the slots that a piece writes and reads, its mask, and its positions.

Axes: t queries of a piece · s slots that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from qkv.check.hypotheses.formula import Sizes, causal_mask

PAGES = (4, 8, 16, 32, 64)
MORE = 4  # by so much is the sequence longer that runs before


@dataclass(frozen=True)
class Piece:
    """The tokens [start, end) of a sequence that runs in pieces of some sizes."""

    number: int
    sizes: tuple[int, ...]

    @cached_property
    def start(self) -> int:
        return sum(self.sizes[: self.number])

    @property
    def size(self) -> int:
        return self.sizes[self.number]

    @property
    def end(self) -> int:
        return self.start + self.size

    @cached_property
    def queries(self) -> Tensor:
        return torch.arange(self.start, self.end)

    def by_piece(self, value: Callable[[Piece], Tensor]) -> Tensor:
        """The values of the tokens of all pieces up to this one."""
        return torch.cat([value(Piece(number, self.sizes)) for number in range(self.number + 1)])


# -- positions ---------------------------------------------------------------------------------------------------------

Places = Callable[[Piece], tuple[Tensor, Tensor]]  # the positions of the queries of a piece and of all keys up to it


def right_places(piece: Piece) -> tuple[Tensor, Tensor]:
    return piece.queries, torch.arange(piece.end)


def places_from(piece: Piece, start: Callable[[Piece], int], roles: str) -> tuple[Tensor, Tensor]:
    """Positions that count from another start of each piece, for queries, keys or both."""

    def count(one: Piece) -> Tensor:
        return one.queries - one.start + (start(one) if one.number else 0)

    queries, keys = right_places(piece)
    return count(piece) if "q" in roles else queries, piece.by_piece(count) if "k" in roles else keys


def wrong_places(lengths: Sequence[int]) -> Iterator[tuple[str, Places]]:
    """Wrong positions with a cache; lengths: after which they may stop or restart."""
    starts: dict[str, Callable[[Piece], int]] = {
        "restart at 0 in each piece: the cache's length is not added": lambda p: 0,
        "are one too far: the cache's length plus 1 is added": lambda p: p.start + 1,
        "are one too early: the cache's length minus 1 is added": lambda p: p.start - 1,
        "count calls, not tokens": lambda p: p.number,
        "begin at the length of the last piece, not at that of the whole cache": lambda p: p.sizes[p.number - 1],
        "begin where the piece ends": lambda p: p.end,
        "count the cache's length twice": lambda p: 2 * p.start,
    }
    for n in lengths:
        starts[f"stop growing at {n}"] = lambda p, n=n: min(p.start, n)
        starts[f"start again after {n} tokens"] = lambda p, n=n: p.start % n
    for words, start in starts.items():
        for what, roles in (("positions", "qk"), ("positions of queries", "q"), ("positions of keys", "k")):
            yield f"with the cache, {what} {words}", partial(places_from, start=start, roles=roles)

    def first(piece: Piece) -> Tensor:
        return torch.full_like(piece.queries, piece.start) if piece.number else piece.queries

    def calls(piece: Piece) -> Tensor:
        return piece.number - piece.by_piece(lambda one: torch.full_like(one.queries, one.number))

    def scaled(factor: Callable[[Piece], Tensor]) -> Places:
        return lambda p: (p.queries, torch.arange(p.end) * factor(p))

    same, old = "with the cache, all tokens of a piece have the position of its first", "cached keys are rotated again"
    yield same, lambda p: (first(p), p.by_piece(first))
    yield f"{old} when they are read", scaled(lambda p: 1 + (torch.arange(p.end) < p.start).long())
    yield f"{old} in each call", scaled(lambda p: 1 + calls(p))
    yield "cached keys are not rotated", scaled(lambda p: (torch.arange(p.end) >= p.start).long())


# -- slots and masks ---------------------------------------------------------------------------------------------------

Writes = Callable[[Piece], Sequence[int]]  # the slots of the tokens of a piece
Reads = Callable[[Piece, dict[int, int]], Sequence[int]]  # the slots that a piece reads, from what is in them
Masks = Callable[[Piece, int], Tensor]  # (t, s): which of s slots each query sees


@dataclass(frozen=True)
class CachePlan:
    """How a cache is written, read and masked; the defaults are right.

    by_index: positions are counted by the places in which keys are read, the last being that of the newest token.
    """

    writes: Writes = lambda p: range(p.start, p.end)
    reads: Reads = lambda p, held: range(p.end)
    masks: Masks | None = None
    by_index: bool = False

    def __call__(self, piece: Piece, window: int | None, *, dirty: bool = False) -> tuple[list[int], Tensor]:
        """The tokens in the slots that a piece reads, as numbered by `candidates`, and which its queries see (t, s).

        dirty: the slots still hold the tokens of the earlier sequence.
        """
        held: dict[int, int] = {}
        for slot in range(sum(piece.sizes) + MORE if dirty else 0):
            held[slot] = piece.end + 1 + slot
        for number in range(piece.number + 1):
            one = Piece(number, piece.sizes)
            held |= dict(zip(self.writes(one), range(one.start, one.end), strict=True))
        tokens = [held.get(slot, piece.end) for slot in self.reads(piece, held)]
        if self.masks is not None and piece.number:
            return tokens, self.masks(piece, len(tokens))
        return tokens, causal_mask(Sizes(1, 1, 1, piece.size, len(tokens), 1), window)


def all_slots(piece: Piece, held: dict[int, int]) -> Sequence[int]:
    return sorted(held)


def allocated(size: int, piece: Piece, held: dict[int, int]) -> Sequence[int]:
    """The slots of the pages that were ever written to."""
    return range(min(piece.end, (max(held) // size + 1) * size))


def by_slot(piece: Piece, count: int) -> Tensor:
    return torch.arange(count) <= piece.queries[:, None]


def cache_plans(lengths: Sequence[int]) -> Iterator[tuple[str, str, CachePlan]]:
    """Wrong ways to use a cache: the bug family, the words and the plan; lengths: that it may keep at most."""
    cache, mask = "cache order", "mask with cache"
    masks: dict[str, Masks] = {
        "the mask is skipped when there is a cache: tokens of one piece see each other's future": lambda p, s: (
            torch.ones(p.size, s, dtype=torch.bool)
        ),
        "the mask of a piece is aligned at the start (top-left), so cached keys are hidden": lambda p, s: torch.ones(
            p.size, s, dtype=torch.bool
        ).tril(),
        "the mask of a piece hides its own key from a query": lambda p, s: by_slot(p, s + 1)[:, 1:],
        "the mask of a piece is off by one: a query sees one key ahead": lambda p, s: (
            by_slot(p, s + 1)[:, :-1] | (torch.arange(s) == p.queries[:, None] + 1)
        ),
        "all queries of a piece have the mask of its first": lambda p, s: by_slot(p, s)[:1].expand(p.size, -1),
        "a piece sees cached keys only, not its own": lambda p, s: (torch.arange(s) < p.start).expand(p.size, -1),
    }
    for words, masked in masks.items():
        yield mask, words, CachePlan(masks=masked)
        several = lambda p, s, masked=masked: masked(p, s) if p.size > 1 else by_slot(p, s)  # noqa: E731
        yield mask, f"{words}; pieces of one token are right", CachePlan(masks=several)
    newest = "new keys and values are put before the cached ones, so the mask hides and shows wrong ones"
    yield cache, newest, CachePlan(lambda p: range(-p.end, -p.start), all_slots)
    reads: dict[str, Reads] = {
        "a piece sees its own tokens only: what is cached is not used": lambda p, held: range(p.start, p.end),
        "the cache keeps the last piece only": lambda p, held: range(
            p.start - p.sizes[p.number - 1] if p.number else 0, p.end
        ),
        "the cache is not updated after the first piece": lambda p, held: (
            *range(p.sizes[0] if p.number else 0),
            *range(p.start, p.end),
        ),
        "the last token of a piece is lost when the next one comes": lambda p, held: [
            slot for slot in range(p.end) if slot >= p.start or not p.by_piece(_is_last)[slot]
        ],
        "the last token of the cache is not read": lambda p, held: range(p.start - 1 if p.number else p.end),
        "one slot too few is read: the newest token is missing": lambda p, held: range(max(p.end - 1, 1)),
        "only what was cached before the piece is read": lambda p, held: range(p.start or p.end),
        "one slot too many is read": lambda p, held: range(p.end + 1),
    }
    for n in lengths:
        reads[f"the oldest tokens are dropped: the cache keeps {n}"] = lambda p, held, n=n: range(
            max(p.end - n, 0), p.end
        )
        reads[f"the oldest tokens are dropped: the cache keeps {n}, beside the tokens of the piece"] = (
            lambda p, held, n=n: range(max(p.start - n, 0), p.end)
        )
        reads[f"tokens after the first {n} are not cached"] = lambda p, held, n=n: [
            *range(min(n, p.start)), *range(p.start, p.end)
        ]  # fmt: skip
    for words, read in reads.items():
        yield cache, words, CachePlan(reads=read)
    writes: dict[str, Writes] = {
        "new keys and values are written one slot late, so that one stays empty": lambda p: range(
            p.start + (p.number > 0), p.end + (p.number > 0)
        ),
        "new keys and values are written one slot early, over the last cached ones": lambda p: range(
            p.start - (p.number > 0), p.end - (p.number > 0)
        ),
        "each piece is written over the first slots": lambda p: range(p.size),
        "the write position counts calls, not tokens": lambda p: range(p.number, p.number + p.size),
    }
    for n in lengths:
        writes[f"after {n} tokens new ones are written over the first (wrap-around)"] = lambda p, n=n: [
            slot % n for slot in range(p.start, p.end)
        ]
        writes[f"once {n} slots are full, new tokens are written over the last"] = lambda p, n=n: [
            min(slot, n - 1) for slot in range(p.start, p.end)
        ]
    for n in PAGES:
        words = f"a piece that goes on in the next page of {n} is written there from the slot of the first, not from 0"
        writes[words] = partial(_paged, size=n)
        yield cache, words, CachePlan(writes[words], partial(allocated, n))
        words = f"a piece that reaches the end of a page of {n} begins again at the start of that page"
        writes[words] = lambda p, n=n: [p.start // n * n + slot % n for slot in range(p.start, p.end)]
    for words, write in writes.items():
        for read in (None, all_slots):
            for masked in (None, by_slot):
                plan = CachePlan(write, masks=masked)
                yield cache, words, plan if read is None else replace(plan, reads=read)


def _paged(piece: Piece, size: int) -> list[int]:
    """Slots in pages of which each begins where the first one does."""
    slots: list[int] = []
    first = piece.start % size
    while len(slots) < piece.size:
        page = (piece.start + len(slots)) // size
        slots += range(page * size + first, min((page + 1) * size, page * size + first + piece.size - len(slots)))
    return slots


def _is_last(piece: Piece) -> Tensor:
    return piece.queries == piece.end - 1
