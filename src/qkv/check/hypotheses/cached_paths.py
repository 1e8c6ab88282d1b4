"""Bugs of a path that only some pieces take, such as one new token with a cache: it computes another formula.

The keys of the tokens that came in such pieces are made by that formula, and so are the scores of their queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.check.hypotheses.cache_plans import Piece
from qkv.check.hypotheses.formula import Design, Formula, Observation, Sizes, merge_heads
from qkv.check.hypotheses.known_bugs import known_bugs

SIZES = (16, 32, 64, 128)  # of tables and blocks


@dataclass(frozen=True)
class Path:
    """A formula, and which pieces take it."""

    takes: Callable[[Piece], bool]
    formula: Formula

    def of_tokens(self, piece: Piece) -> Tensor:
        """Which tokens up to the end of a piece came in pieces that take the path."""
        return piece.by_piece(lambda one: torch.full_like(one.queries, int(self.takes(one)))).bool()


PATHS: dict[str, Callable[[Piece], bool]] = {
    "with one new token and a cache": lambda p: p.size == 1 and p.number > 0,
    "with several new tokens and a cache": lambda p: p.size > 1 and p.number > 0,
    "in every piece after the first": lambda p: p.number > 0,
    "in every piece of one token": lambda p: p.size == 1,
    "in the first piece": lambda p: p.number == 0,
    "with a cache": lambda p: True,
}


def wrong_paths(design: Design, pieces: Sequence[Piece], first: Observation) -> Iterator[tuple[str, str, Path]]:
    """The bug family, the words and the path; first: what was observed of the first wrong piece, which is one of all
    `pieces`."""
    taken: set[tuple[bool, ...]] = set()
    mask = design.formula.mask(first.sizes)
    bugs = [  # wrong masks are plans of the cache
        bug
        for bug in known_bugs(design, first, blocks=SIZES, elsewhere=True)
        if bug.formula.merge is merge_heads and torch.equal(bug.formula.mask(first.sizes), mask)
    ]
    for words, takes in PATHS.items():
        which = tuple(takes(piece) for piece in pieces)
        if which in taken or not any(which):  # these pieces cannot tell two paths apart
            continue
        taken.add(which)
        for bug in bugs:
            yield bug.family, f"{words}: {bug.words}", Path(takes, bug.formula)


def observe_piece(q: Tensor, k: Tensor, v: Tensor, out: Tensor, sizes: Sizes, tolerance: float) -> Observation:
    """A piece (b, h, t, d) that reads keys and values (b, s, g·d) as one call with more keys than queries."""
    whole = Sizes(sizes.batch, sizes.heads, sizes.kv_heads, q.shape[1], k.shape[1], sizes.head_dim)
    return Observation(q, k, v, out.transpose(1, 2).flatten(2), whole, tolerance=tolerance)


def describe_pieces(wrong: Sequence[Piece], right: Sequence[Piece]) -> str:
    """Which pieces are wrong, in words; empty if all are that come after the first.

    >>> steps = [Piece(number, (1,) * 6) for number in range(6)]
    >>> describe_pieces(steps[4:], steps[:4])
    'once 4 tokens are cached'
    """
    later = [piece for piece in right if piece.number]
    if not later:
        return ""
    start, end, size = (min(getattr(piece, name) for piece in wrong) for name in ("start", "end", "size"))
    single = all(piece.size == 1 for piece in wrong)
    alone = single and any(piece.size > 1 and piece.end >= end for piece in later)
    same = [piece for piece in later if piece.size == 1] if alone else later
    with_one = "with one new token and a cache" if alone else ""
    if not same:
        return with_one
    before = max(piece.start for piece in same)
    if before < start:
        words = f"once {start} tokens are cached" + (f" (not with {before})" if before < start - 1 else "")
        return f"{with_one}, {words}" if with_one else words
    if max(piece.size for piece in same) < size:
        return f"in pieces of {size} tokens (not of {max(piece.size for piece in same)})"
    if max(piece.end for piece in same) < end:
        return f"once there are {end} tokens with those of the piece"
    first = min(wrong, key=lambda piece: piece.end)
    return f"in some pieces, such as {first.size} token{'' if first.size == 1 else 's'} after {first.start}"
