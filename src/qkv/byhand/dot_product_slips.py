"""Slips with the products and sums of a matrix product: signs, zeros, products left out, fractions."""

import math
from collections.abc import Iterator

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.expressions import Expression
from qkv.byhand.fraction_slips import NAMES, has_fractions
from qkv.byhand.slips import Change, Context


def arithmetic_changes(part: Expression, context: Context) -> Iterator[Change]:
    """A wrong rule for each product or sum of a matrix product."""
    left, right = part.args
    yield Change(
        part.with_args(ex.apply("|x|", left), ex.apply("|x|", right)), "all minus signs of the products were lost", 6
    )
    negative = ex.matmul(ex.apply("min(x, 0)", left), ex.apply("min(x, 0)", right))
    name = "the product of two negative numbers was taken as negative"
    yield Change(ex.subtract(part, ex.scale(negative, 2.0)), name, 5.5, scope="rows")
    zeros = [ex.apply("x = 0", arg) for arg in part.args]
    with_zeros = ex.add(ex.matmul(zeros[0], right), ex.matmul(left, zeros[1]))
    yield Change(ex.add(part, with_zeros), "products with 0 were taken as the other factor: x·0 is 0", 6, scope="rows")
    values = [ex.evaluate(arg, context.values)[:1] for arg in part.args]
    if any(has_fractions(array) for array in values) and all(_is_short(array) for array in values):
        for rule, name in NAMES.items():
            yield Change(ex.fractions(left, right, rule), name, 6, scope="rows")


def _is_short(array: ex.Array) -> bool:
    return bool((array == np.round(array)).all()) or has_fractions(array)


def product_changes(part: Expression, size: int) -> Iterator[Change]:
    """The same one of the products left out, counted twice or with the wrong sign in every dot product."""
    for k in range(size if size > 1 else 0):
        for factor, what in ((0.0, "was left out"), (2.0, "was counted twice"), (-1.0, "has the wrong sign")):
            inner = [1.0] * size
            inner[k] = factor
            name = f"the product number {k + 1} of each dot product {what}"
            yield Change(part.with_param(inner), name, 7 + math.log2(size), scope="rows")
        if size > 2:
            alone = [float(other == k) for other in range(size)]
            name = f"not added up: only the product number {k + 1} of each dot product was used"
            yield Change(part.with_param(alone), name, 5.5 + math.log2(size), scope="rows")
    if size > 2:
        signs = [1.0, *[-1.0] * (size - 1)]
        name = "the products were subtracted from the first one instead of added"
        yield Change(part.with_param(signs), name, 6.5, scope="rows")
        alternating = [(-1.0) ** k for k in range(size)]
        name = "the products were added and subtracted in turn"
        yield Change(part.with_param(alternating), name, 7, scope="rows")
