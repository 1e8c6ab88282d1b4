"""Rows or columns in the wrong order, or one written in place of another."""

import itertools
import math
from collections.abc import Iterator

from qkv.byhand import expressions as ex
from qkv.byhand.expressions import Expression
from qkv.byhand.slips import Change, Context


def order_changes(part: Expression, shape: tuple[int, ...], what: str, context: Context) -> Iterator[Change]:
    """Rows or columns permuted, or one written in place of another."""
    for axis, row in ((2, "row"), (3, "column")):
        size = shape[axis - 1]
        if size < 2 or size > 8:
            continue
        name = ("column" if row == "row" else "row") if context.columns else row
        orders = list(_permutations(size))
        for order in orders:
            if order == tuple(range(size))[::-1]:
                text = f"the {name}s of {what} are in reverse order"
                yield Change(ex.reordered(part, axis, order), text, 6, scope="whole")
            else:
                text = ", ".join(str(i + 1) for i in order)
                cost = 6.5 + math.log2(len(orders))
                moved = [i for i, j in enumerate(order) if i != j]
                if len(moved) == 2:
                    text = f"{name}s {moved[0] + 1} and {moved[1] + 1} of {what} are exchanged"
                    cost -= 0.5
                else:
                    text = f"the {name}s of {what} are in the wrong order: {text}"
                yield Change(ex.reordered(part, axis, order), text, cost, scope="whole")
        for text, order in _shifts(size):
            yield Change(ex.reordered(part, axis, order), text.format(name, what), 7.5, scope="whole")
        for order in _copies(size):
            wrong = next(i for i, j in enumerate(order) if i != j)
            text = f"{name} {order[wrong] + 1} of {what} copied in place of {name} {wrong + 1}"
            cost = (5.5 if row == "row" else 6.7) + math.log2(size * (size - 1))  # more often of another token
            yield Change(ex.reordered(part, axis, order), text, cost, scope="whole")


def _shifts(size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every line taken from its neighbor, or all from the same one."""
    if size > 2:
        yield "each {0} of {1} is the one after it", (*range(1, size), size - 1)
        yield "each {0} of {1} is the one before it", (0, *range(size - 1))
        for k in range(size):
            yield f"{{0}} {k + 1} of {{1}} was used for every {{0}}", (k,) * size


def _permutations(size: int) -> Iterator[tuple[int, ...]]:
    """All orders but the right one; of many, only the reverse, the cyclic and those that exchange two."""
    right = tuple(range(size))
    if size <= 4:
        yield from (order for order in itertools.permutations(right) if order != right)
        return
    yield right[::-1]
    for shift in (1, size - 1):
        yield right[shift:] + right[:shift]
    for i, j in itertools.combinations(right, 2):
        order = list(right)
        order[i], order[j] = j, i
        yield tuple(order)


def _copies(size: int) -> Iterator[tuple[int, ...]]:
    for i, j in itertools.permutations(range(size), 2):
        yield tuple(j if k == i else k for k in range(size))
