"""Sums of fractions computed by a wrong rule, such as a/b + c/d = (a + c)/(b + d)."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from qkv.byhand.worlds import Array

LARGEST_DENOMINATOR = 60
RULES = ("both", "product", "common", "kept")  # see `add_wrongly`
NAMES = {
    "both": "fractions were added as (a + c)/(b + d): numerators and denominators each",
    "product": "numerators were added over the product of the denominators, without expanding the fractions",
    "common": "numerators were added over the common denominator, without expanding the fractions",
    "kept": "only the numerators of two fractions were multiplied: their denominators have to be multiplied too",
}
Terms = Sequence[tuple[float, float]]  # the factors of the products of a sum


def add_wrongly(terms: Terms, rule: str) -> float | None:
    """A sum of products by a wrong rule; None if the rule does not apply or the factors are no short fractions."""
    factors = [(_fraction(a), _fraction(b)) for a, b in terms if a and b]
    exact = [(a, b) for a, b in factors if a is not None and b is not None]
    if len(exact) < len(factors) or not exact:
        return None
    if rule == "kept":
        both = [a.denominator > 1 < b.denominator for a, b in exact]
        kept = [
            Fraction(a.numerator * b.numerator, max(a.denominator, b.denominator)) if pair else a * b
            for pair, (a, b) in zip(both, exact, strict=True)
        ]
        return float(sum(kept)) if any(both) else None
    products = [a * b for a, b in exact]
    denominators = [product.denominator for product in products]
    if len(products) < 2 or len(set(denominators)) < 2:
        return None
    bottom = {"both": sum(denominators), "product": math.prod(denominators), "common": math.lcm(*denominators)}[rule]
    return sum(product.numerator for product in products) / bottom


def wrong_sums(terms: Terms) -> Iterator[tuple[str, float, bool]]:
    """The wrong sums by each rule, with its name, and whether only one number of the sum is not whole."""
    few = sum(a * b != round(a * b) for a, b in terms) < 2
    for rule in RULES:
        value = add_wrongly(terms, rule)
        if value is not None:
            yield NAMES[rule], value, few and rule != "kept"


def has_fractions(array: Array) -> bool:
    """Whether numbers are short fractions, not all of them whole."""
    values = array.ravel().tolist()
    return any(value != round(value) for value in values) and all(_fraction(value) is not None for value in values)


def multiply_wrongly(left: Array, right: Array, rule: str) -> Array:
    """The matrix product with sums of fractions by a wrong rule; right where the rule does not apply."""
    if left.shape[-1] != right.shape[-2]:
        raise ValueError("shapes do not fit")
    product = left @ right
    if (left == left[:1]).all() and (right == right[:1]).all():  # the same in all worlds
        left, right = left[:1], right[:1]
    found = (left @ right).copy()
    for world, head, row, column in np.ndindex(*found.shape):
        own = left[min(world, len(left) - 1)], right[min(world, len(right) - 1)]
        a, b = own[0][min(head, len(own[0]) - 1), row], own[1][min(head, len(own[1]) - 1), :, column]
        value = add_wrongly(list(zip(a.tolist(), b.tolist(), strict=True)), rule)
        if value is not None:
            found[world, head, row, column] = value
    return np.broadcast_to(found, product.shape).copy()


def _fraction(value: float) -> Fraction | None:
    if not math.isfinite(value):
        return None
    fraction = Fraction(value).limit_denominator(LARGEST_DENOMINATOR)
    return fraction if abs(float(fraction) - value) < 1e-9 * max(1.0, abs(value)) else None
