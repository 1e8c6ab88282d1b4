"""Slips with heads: one missing, twice or in another's place, or all added up instead of put side by side."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.expressions import Expression
from qkv.byhand.slips import Change, Context

SIDE_BY_SIDE = ("queries", "keys", "values", "concatenated", "dH", "dQ", "dK", "dV")  # the heads are columns
IN_ROWS = ("dW_O",)
IN_COLUMNS = (*SIDE_BY_SIDE, "dW_Q", "dW_K", "dW_V")
COMBINED = (
    ("sum of heads", "{} were added up over the heads: every head uses the sum", 5.5),
    ("mean of heads", "{} were averaged over the heads: every head uses the mean", 5.5),
)


def head_changes(part: Expression, context: Context) -> Iterator[Change]:
    """Slips where columns are split into heads, or heads are joined."""
    heads, order = part.param
    what = context.describe(part.args[0])
    if order == "blocks":
        if part.op == "join":
            name = "the heads' outputs are interleaved instead of concatenated"
        else:
            name = f"the columns of {what} are dealt to the heads in turn instead of in blocks"
        yield Change(part.with_param((heads, "interleaved")), name, 5, scope="whole")
    if part.op == "split":
        yield from head_order_changes(part, heads, what)
        yield from combined_heads(part, heads, what)
        return
    inside = part.args[0]
    for change in itertools.chain(
        head_order_changes(inside, heads, "the heads' outputs"), combined_heads(inside, heads, "the heads' outputs")
    ):
        name = change.name.replace("of the heads' outputs are", "are joined")
        yield replace(change, new=part.with_args(change.new), name=name)
    for head, name, cost in _missing_heads(heads):
        keep = np.ones((1, heads, 1, 1))
        keep[:, head] = 0
        yield Change(part.with_args(ex.masked(inside, keep)), f"{name}: its output was taken as 0", cost)


def head_order_changes(part: Expression, heads: int, what: str) -> Iterator[Change]:
    """The heads of a matrix in another order, or one in place of another."""
    if heads == 1:
        return
    for order, name, cost in head_orders(heads, what):
        yield Change(ex.reordered(part, 1, order), name, cost, scope="whole")


def combined_heads(part: Expression, heads: int, what: str) -> Iterator[Change]:
    """The sum or the mean of all heads in place of each."""
    for function, name, cost in COMBINED if heads > 1 else ():
        yield Change(ex.apply(function, part), name.format(what), cost, scope="whole")


def head_product_changes(part: Expression, context: Context) -> Iterator[Change]:
    """Slips in a product that adds up over all heads, as [H1 H2] W_O does."""
    heads, left = context.problem.problem.heads, part.args[0]
    if heads == 1 or left.op != "ref" or left.param not in SIDE_BY_SIDE:
        return
    size = context.shape(left)[-1]
    width, what = size // heads, context.describe(left)
    for head, name, cost in _missing_heads(heads):
        text = f"{name}: its part of {what} was not used"
        yield Change(part.with_param(head_factors(heads, size, head)), text, cost, scope="rows")
    for order, name, cost in head_orders(heads, what):
        yield Change(part.with_args(ex.reordered(left, 3, _columns(order, width)), part.args[1]), name, cost)
    turns = tuple(head * width + k for k in range(width) for head in range(heads))
    name = f"the columns of {what} are interleaved: the heads are side by side"
    yield Change(part.with_args(ex.reordered(left, 3, turns), part.args[1]), name, 5.5, scope="whole")
    everywhere = ex.join(ex.apply("sum of heads", ex.split(left, heads)), heads)
    for factor, verb, cost in ((1.0, "added up", 5.0), (1 / heads, "averaged", 5.0)):
        total = ex.scale(everywhere, factor)
        name = f"the heads were {verb} instead of put side by side in {what}"
        yield Change(part.with_args(total, part.args[1]), name, cost, scope="whole")
        for used in range(heads):
            only = [float(k // width == used) for k in range(size)]
            text = f"{name}, and only the rows of head {used + 1} of {context.describe(part.args[1])} were used"
            yield Change(part.with_args(total, part.args[1]).with_param(only), text, cost + 1, scope="whole")


def head_result_changes(part: Expression, context: Context) -> Iterator[Change]:
    """The heads of a whole result missing, in another order, or one in place of another."""
    heads, step = context.problem.problem.heads, context.step
    axis = 3 if step in IN_COLUMNS else 2 if step in IN_ROWS else 0
    if heads == 1 or not axis or part.op == "join":
        return
    size = context.shape(part)[axis - 1]
    if size % heads or size == heads:
        return
    what = context.describe(ex.ref(step))
    for order, name, cost in head_orders(heads, what):
        yield Change(ex.reordered(part, axis, _columns(order, size // heads)), name, cost + 0.5, scope="whole")
    for head, name, cost in _missing_heads(heads):
        keep = np.array(head_factors(heads, size, head))
        mask = keep[None, None, None, :] if axis == 3 else keep[None, None, :, None]
        yield Change(ex.masked(part, mask), f"{name}: its part of {what} was taken as 0", cost, scope="whole")


def head_factors(heads: int, size: int, missing: int) -> list[float]:
    """1 for each column of all heads, 0 for those of one head."""
    return [float(k // (size // heads) != missing) for k in range(size)]


def _missing_heads(heads: int) -> Iterator[tuple[int, str, float]]:
    for head in range(heads):
        yield head, f"head {head + 1} is missing", 4.5 + math.log2(heads)


def head_orders(heads: int, what: str) -> Iterator[tuple[tuple[int, ...], str, float]]:
    """Wrong orders of the heads, with their names and costs."""
    right = tuple(range(heads))
    for order in itertools.permutations(right) if heads <= 4 else (right[::-1],):
        if order != right:
            name = f"the heads of {what} are in the wrong order: {', '.join(str(i + 1) for i in order)}"
            yield order, name, 5 + math.log2(max(1, heads - 1))
    for wrong, used in itertools.permutations(right, 2):
        order = tuple(used if k == wrong else k for k in right)
        yield order, f"{what} of head {used + 1} used for head {wrong + 1}", 5.5 + math.log2(max(1, heads - 1))


def _columns(order: Sequence[int], width: int) -> tuple[int, ...]:
    """The order of columns for an order of heads."""
    return tuple(head * width + k for head in order for k in range(width))
