"""Formulas of steps as expression trees, evaluated on arrays of floats.

Arrays have four axes: worlds (see `worlds`), heads, rows, columns. A slip is a change of a tree.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from qkv.byhand.fraction_slips import multiply_wrongly
from qkv.byhand.worlds import Array, round_half_up, round_hidden

LARGEST_EXPONENT = 600.0


@dataclass(frozen=True, eq=False)
class Expression:
    """An operation, its arguments, and a parameter that is no expression (a name, a number, an axis, a mask)."""

    op: str
    args: tuple["Expression", ...] = ()
    param: Any = None

    def with_args(self, *args: "Expression") -> "Expression":
        return replace(self, args=args)

    def with_param(self, param: Any) -> "Expression":
        return replace(self, param=param)

    @cached_property
    def names(self) -> frozenset[str]:
        """The matrices that the expression reads."""
        if self.op == "ref":
            return frozenset((self.param,))
        return frozenset[str]().union(*(arg.names for arg in self.args))


def ref(name: str) -> Expression:
    return Expression("ref", (), name)


def matmul(left: Expression, right: Expression, inner: Any = None) -> Expression:
    """The matrix product; inner: a factor for each term of the dot products."""
    return Expression("matmul", (left, right), inner)


def fractions(left: Expression, right: Expression, rule: str) -> Expression:
    """The matrix product with fractions added by a wrong rule (see `fraction_slips`)."""
    return Expression("fractions", (left, right), rule)


def transpose(arg: Expression) -> Expression:
    return arg.args[0] if arg.op == "transpose" else Expression("transpose", (arg,))


def scale(arg: Expression, factor: float) -> Expression:
    return Expression("scale", (arg,), factor)


def add(left: Expression, right: Expression) -> Expression:
    return Expression("add", (left, right))


def subtract(left: Expression, right: Expression) -> Expression:
    return Expression("subtract", (left, right))


def times(left: Expression, right: Expression) -> Expression:
    """The product number by number."""
    return Expression("times", (left, right))


def divide(left: Expression, right: Expression) -> Expression:
    return Expression("divide", (left, right))


def apply(function: "str | ExpBelowLargest", arg: Expression) -> Expression:
    """A function of FUNCTIONS by its name, or e^(x − max) with a maximum of its own."""
    return Expression("apply", (arg,), function)


def total(arg: Expression, axis: str = "row") -> Expression:
    """The sums along an axis, "row", "column" or "all", or another summary of the rows: "largest", "count"."""
    return Expression("total", (arg,), (axis, None))


def masked(arg: Expression, mask: Array, fill: float = 0.0) -> Expression:
    """`fill` wherever the mask is 0."""
    return Expression("masked", (arg,), (mask, fill))


def split(arg: Expression, heads: int) -> Expression:
    """The columns of each head."""
    return Expression("split", (arg,), (heads, "blocks")) if heads > 1 else arg


def join(arg: Expression, heads: int) -> Expression:
    """The heads' columns side by side."""
    return Expression("join", (arg,), (heads, "blocks")) if heads > 1 else arg


def where(region: Array, inside: Expression, outside: Expression) -> Expression:
    return Expression("where", (inside, outside), region)


def patched(arg: Expression, index: tuple[int, int, int], value: float | Array) -> Expression:
    """One number (head, row, column) replaced, by the same value or by one for each world."""
    return Expression("patched", (arg,), (index, value))


def exchanged(arg: Expression, first: tuple[int, int, int], second: tuple[int, int, int]) -> Expression:
    """Two numbers in each other's place."""
    return Expression("exchanged", (arg,), (first, second))


def shift(arg: Expression, difference: float) -> Expression:
    return Expression("shift", (arg,), difference)


def reordered(arg: Expression, axis: int, order: tuple[int, ...]) -> Expression:
    """Heads (axis 1), rows (2) or columns (3) in another order."""
    return Expression("reordered", (arg,), (axis, order))


def rounded(arg: Expression, places: int) -> Expression:
    return Expression("rounded", (arg,), places)


def constant(array: Array) -> Expression:
    return Expression("constant", (), array)


def unwritten(arg: Expression, places: int) -> Expression:
    """A result in between that was not written down, so that it may have been rounded."""
    return Expression("unwritten", (arg,), places)


def round_parts(softmax: Expression, places: int) -> Expression:
    """A softmax whose exponentials and sums may have been rounded before the division; shared parts stay shared."""
    done: dict[int, Expression] = {}

    def walk(part: Expression) -> Expression:
        if id(part) not in done:
            args = tuple(walk(arg) for arg in part.args)
            changed = any(a is not b for a, b in zip(args, part.args, strict=True))
            new = replace(part, args=args) if changed else part
            done[id(part)] = unwritten(new, places) if part.op in ("apply", "total") else new
        return done[id(part)]

    return walk(softmax)


def evaluate(expression: Expression, values: Mapping[str, Array], memo: dict[int, Array] | None = None) -> Array:
    """The array of an expression; ValueError if shapes do not fit. memo: results by the id of a subexpression."""
    if expression.op == "ref":
        return values[expression.param]
    if memo is not None and id(expression) in memo:
        return memo[id(expression)]
    result = _OPERATIONS[expression.op](*(evaluate(arg, values, memo) for arg in expression.args), expression.param)
    if memo is not None:
        memo[id(expression)] = result
    return result


def exponential(values: Array) -> Array:
    """e^x; rows with numbers too large for a float are divided by their largest exponential."""
    finite = values[np.isfinite(values)]
    if finite.size and float(finite.max()) > LARGEST_EXPONENT:
        values = values - values.max(-1, keepdims=True)
    return np.exp(values)


@dataclass(frozen=True, eq=False)
class ExpBelowLargest:
    """e^(x − max) with the maximum of each row over some of its keys.

    keys: flags of the keys that count. least: what the maximum of each row is at least.
    """

    keys: Array
    least: Array

    def __call__(self, values: Array) -> Array:
        largest = np.where(self.keys, values, -np.inf).max(-1, keepdims=True)
        largest = np.maximum(largest, self.least)
        with np.errstate(over="ignore"):  # the exponential of a key that does not count may be large
            return np.exp(values - np.where(np.isfinite(largest), largest, 0.0))


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "exp": exponential,
    "power of 3": lambda x: np.power(3.0, np.minimum(x, 600)),
    "power of 2.7": lambda x: np.power(2.7, np.minimum(x, 600)),
    "power of 2.72": lambda x: np.power(2.72, np.minimum(x, 600)),
    "1": np.ones_like,
    "power of 2": lambda x: np.exp2(np.minimum(x, 1000)),
    "power of 10": lambda x: np.power(10.0, np.minimum(x, 300)),
    "exp of −x": lambda x: exponential(-x),
    "e⁰ = 0": lambda x: np.where(np.abs(x) < 1e-12, 0.0, exponential(x)),
    "e⁰ = e": lambda x: np.where(np.abs(x) < 1e-12, np.e, exponential(x)),
    "x": lambda x: np.where(np.isfinite(x), x, 0.0),
    "|x|": np.abs,
    "exp of 2x": lambda x: exponential(2 * x),
    "exp of |x|": lambda x: exponential(np.abs(x)),
    "x²": np.square,
    "ln x": lambda x: np.log(np.maximum(x, 1e-300)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "exp of x − max": lambda x: np.exp(x - x.max(-1, keepdims=True)),
    "1 at the largest, else exp": lambda x: np.where(x == x.max(-1, keepdims=True), 1.0, exponential(x)),
    "1 + x + x²/2": lambda x: 1 + x + x * x / 2,
    "length 1": lambda x: x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-300),
    "max(x, 0)": lambda x: np.maximum(x, 0),
    "min(x, 0)": lambda x: np.minimum(x, 0),
    "x = 0": lambda x: (x == 0).astype(float),
    "1 − x": lambda x: 1 - x,
    "x > 0": lambda x: (x > 0).astype(float),
    "√|x|": lambda x: np.sqrt(np.abs(x)),
    "1/x": lambda x: np.where(x == 0, 0.0, 1 / np.where(x == 0, 1.0, x)),
    "clipped to 1": lambda x: np.clip(x, -1, 1),
    "clipped to 2": lambda x: np.clip(x, -2, 2),
    "clipped to 0 … 1": lambda x: np.clip(x, 0, 1),
    "sign of x": np.sign,
    "whole part of x": lambda x: np.trunc(x + np.sign(x) * 1e-9),
    "nearest whole number": lambda x: round_half_up(x, 0),
    "upper half on both sides": lambda x: np.triu(x) + np.swapaxes(np.triu(x, 1), -1, -2),
    "lower half on both sides": lambda x: np.tril(x) + np.swapaxes(np.tril(x, -1), -1, -2),
    "only the diagonal": lambda x: x * np.eye(x.shape[-2], x.shape[-1]),
    "sum of heads": lambda x: np.broadcast_to(x.sum(1, keepdims=True), x.shape),
    "mean of heads": lambda x: np.broadcast_to(x.mean(1, keepdims=True), x.shape),
    "1 + x": lambda x: 1 + x,
    "e·x": lambda x: np.e * x,
    "−x": np.negative,
    "1 at the largest": lambda x: (x == x.max(-1, keepdims=True)).astype(float),
    "1 at the smallest": lambda x: (x == x.min(-1, keepdims=True)).astype(float),
    "1/n": lambda x: np.full_like(x, 1 / x.shape[-1]),
    "0 if negative": lambda x: np.where(x < 0, 0.0, exponential(x)),
    "−e^x if negative": lambda x: np.where(x < 0, -exponential(x), exponential(x)),
    "−e^|x| if negative": lambda x: np.where(x < 0, -exponential(-x), exponential(x)),
}


def _matmul(left: Array, right: Array, inner: Any) -> Array:
    if left.shape[-1] != right.shape[-2]:
        raise ValueError("shapes do not fit")
    return (left if inner is None else left * np.asarray(inner)) @ right


def _divide(left: Array, right: Array, param: Any) -> Array:
    with np.errstate(all="ignore"):
        quotient = left / right
    return np.where(right == 0, 0.0, quotient)


def _total(values: Array, param: tuple[str, int | None]) -> Array:
    axis, without = param
    if without is not None:
        values = np.delete(values, without, -1)
    match axis:
        case "row":
            return values.sum(-1, keepdims=True)
        case "column":
            return values.sum(-2, keepdims=True)
        case "all":
            return values.sum((-2, -1), keepdims=True)
        case "all heads":
            return values.sum((-3, -2, -1), keepdims=True)
        case "row of all heads":
            return values.sum((-3, -1), keepdims=True)
        case "largest":
            return values.max(-1, keepdims=True)
        case "heads":
            return values.sum(-3, keepdims=True)
        case "squares":
            return np.sqrt(np.square(values).sum(-1, keepdims=True))
        case "mean":
            return values.mean(-1, keepdims=True)
        case "one more":
            return values.sum(-1, keepdims=True) + 1
        case "first":
            return values[..., :1]
        case "running":
            return values.cumsum(-1)
        case "others":
            return values.sum(-1, keepdims=True) - values
        case _:
            return np.full((*values.shape[:-1], 1), float(values.shape[-1]))


def _masked(values: Array, param: tuple[Array, float]) -> Array:
    mask, fill = param
    return np.where(mask > 0, values, fill)


def _split(values: Array, param: tuple[int, str]) -> Array:
    heads, order = param
    worlds, one, rows, columns = values.shape
    if one != 1 or columns % heads:
        raise ValueError("shapes do not fit")
    if order == "interleaved":
        return values.reshape(worlds, rows, columns // heads, heads).transpose(0, 3, 1, 2)
    return values.reshape(worlds, rows, heads, columns // heads).transpose(0, 2, 1, 3)


def _join(values: Array, param: tuple[int, str]) -> Array:
    _, order = param
    worlds, heads, rows, columns = values.shape
    axes = (0, 2, 3, 1) if order == "interleaved" else (0, 2, 1, 3)
    return values.transpose(*axes).reshape(worlds, 1, rows, heads * columns)


def _patched(values: Array, param: tuple[tuple[int, int, int], float | Array]) -> Array:
    (head, row, column), value = param
    changed = values.copy() if np.ndim(value) == 0 or len(values) > 1 else np.repeat(values, np.size(value), 0)
    changed[:, head, row, column] = value
    return changed


def _exchanged(values: Array, param: tuple[tuple[int, int, int], tuple[int, int, int]]) -> Array:
    first, second = ((slice(None), *place) for place in param)
    changed = values.copy()
    changed[first], changed[second] = values[second], values[first]
    return changed


_OPERATIONS: dict[str, Callable[..., Array]] = {
    "matmul": _matmul,
    "fractions": multiply_wrongly,
    "transpose": lambda values, param: np.swapaxes(values, -1, -2),
    "scale": lambda values, factor: values * factor,
    "add": lambda left, right, param: left + right,
    "subtract": lambda left, right, param: left - right,
    "times": lambda left, right, param: left * right,
    "divide": _divide,
    "apply": lambda values, function: (FUNCTIONS[function] if isinstance(function, str) else function)(values),
    "total": _total,
    "masked": _masked,
    "split": _split,
    "join": _join,
    "where": lambda inside, outside, region: np.where(region, inside, outside),
    "patched": _patched,
    "exchanged": _exchanged,
    "shift": lambda values, difference: values + difference,
    "reordered": lambda values, param: np.take(values, param[1], axis=param[0]),
    "rounded": round_half_up,
    "constant": lambda array: array,
    "unwritten": lambda values, places: round_hidden(values, places, "unwritten"),
}
