"""Plans of a KV cache that is a ring of slots, in which the newest tokens overwrite the oldest, read in a wrong order.

The order matters where positions or the mask are counted by the place in which a key is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from qkv.check.hypotheses.cache_plans import CachePlan, Piece

Order = Callable[[list[int], int], list[int]]  # from the tokens of a full ring, the oldest first, and their number

ORDERS: dict[str, Order] = {
    "in the order of slots, not of tokens": lambda held, size: sorted(held, key=lambda token: token % size),
    "one slot off: the newest comes first, as if it were the oldest": lambda held, size: held[-1:] + held[:-1],
    "one slot off: the oldest comes last, as if it were the newest": lambda held, size: held[1:] + held[:1],
    "in reverse order": lambda held, size: held[::-1],
    "rotated the wrong way round": lambda held, size: _turned(held, size),
}


def ring_plans(lengths: Sequence[int]) -> Iterator[tuple[str, str, CachePlan]]:
    """The bug family, the words and the plan; lengths: how many slots the ring may have."""
    for size in lengths:
        for words, order in ORDERS.items():
            what = f"once the ring of {size} slots has wrapped, cached keys and values are read {words}"
            for beside in (True, False):
                yield (
                    "cache order",
                    what,
                    CachePlan(reads=lambda p, held, n=size, o=order, b=beside: _read(p, n, o, beside=b), by_index=True),
                )


def _read(piece: Piece, size: int, order: Order, *, beside: bool) -> list[int]:
    """The tokens that a piece reads; beside: its own come after those of the ring, else they are in it."""
    end = piece.start if beside else piece.end
    held = list(range(max(end - size, 0), end))
    if end > size:
        held = order(held, size)
    return [*held, *range(piece.start, piece.end)] if beside else held


def _turned(held: list[int], size: int) -> list[int]:
    """The slots rolled by as many places as they should be, but in the other direction."""
    slots = sorted(held, key=lambda token: token % size)
    first = (held[0] % size) % len(slots)
    return slots[-first:] + slots[:-first] if first else slots
