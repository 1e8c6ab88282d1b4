"""What a slip is: a change of formulas with a name and a cost in bits; `slip_rules` lists the families.

The cost is the length of the slip's description: log2 of how many such slips there are, less for common mistakes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from qkv.byhand import expressions as ex
from qkv.byhand.expressions import Array, Expression
from qkv.byhand.formulas import GIVEN, Formulas, StepFormulas, symbol

DIGITS = {0: "whole numbers", 1: "one digit", 2: "two digits", 3: "three digits"}
WEIGHT_MATRICES = ("wq", "wk", "wv", "wo")
AS_LIKELY = 1.2  # bits: slips with the same numbers that differ by less are all named
Bits = float | int  # the length of a description
Scope = Literal["cells", "rows", "heads", "whole"]  # the smallest part that a slip may be restricted to


@dataclass(frozen=True)
class Slip:
    """A slip by name, the formulas that it changes, and the length of its description in bits."""

    name: str
    cost: Bits
    changes: Mapping[str, Expression]
    rounding: bool = False
    scope: Scope = "cells"
    alternatives: tuple[str, ...] = ()  # other slips with the same effect
    single: bool = False  # in a single number
    solved: bool = False  # in one entry, whose value was solved for
    free: float = 0.0  # bits of numbers that were solved for: the sheet must tell as many more


@dataclass(frozen=True)
class Change:
    """A subexpression replaced by another one."""

    new: Expression
    name: str
    cost: Bits
    rounding: bool = False
    scope: Scope = "cells"
    alternatives: tuple[str, ...] = ()


@dataclass(frozen=True)
class Context:
    """What the names and the choice of slips depend on."""

    step: str
    problem: StepFormulas
    formulas: Formulas
    values: Mapping[str, Array]  # of every matrix, for its shape
    shown: bool = True  # the step is the one whose numbers are to be explained

    @property
    def columns(self) -> bool:
        return self.problem.problem.convention == "columns"

    def shape(self, expression: Expression) -> tuple[int, ...]:
        return ex.evaluate(expression, self.values).shape[1:]

    def describe(self, expression: Expression) -> str:
        match expression.op:
            case "ref":
                return symbol(expression.param.removeprefix(GIVEN))
            case "transpose":
                return self.describe(expression.args[0]) + "ᵀ"
            case "matmul":
                left, right = (self.describe(arg) for arg in expression.args)
                return f"{right} {left}" if self.columns else f"{left} {right}"
            case "apply" if expression.param == "exp":
                return "the exponentials"
            case "total":
                return "the sums"
            case "divide":
                return "the weights"
            case _:
                return self.describe(expression.args[0])


def is_plural(what: str) -> bool:
    return what.endswith("s") or what.startswith("the row sums")


def was(what: str) -> str:
    return f"{what} {'were' if is_plural(what) else 'was'}"


def join_names(names: Sequence[str]) -> str:
    """A list in a sentence: W_Q, W_K and W_V."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def describe_rounding(what: str, places: int, before: str = "") -> str:
    digits = DIGITS.get(places, f"{places} digits")
    return f"early rounding: {was(what)} rounded to {digits}" + (f" before {before}" if before else "")


def parts(expression: Expression) -> Iterator[Expression]:
    yield expression
    for arg in expression.args:
        yield from parts(arg)


def substitute(expression: Expression, old: Expression, new: Expression) -> Expression:
    """Every occurrence of `old` (the same object) replaced."""
    if expression is old:
        return new
    args = tuple(substitute(arg, old, new) for arg in expression.args)
    return (
        expression
        if all(a is b for a, b in zip(args, expression.args, strict=True))
        else replace(expression, args=args)
    )


def rename(expression: Expression, names: Mapping[str, str]) -> Expression:
    if expression.op == "ref":
        return ex.ref(names.get(expression.param, expression.param))
    return replace(expression, args=tuple(rename(arg, names) for arg in expression.args))


def is_weight_matrix(name: str) -> bool:
    return name in WEIGHT_MATRICES


def same_kind(first: str, second: str) -> bool:
    kinds = (WEIGHT_MATRICES, ("queries", "keys", "values"))
    return any(first in kind and second in kind for kind in kinds)


def distinct_factors(
    right: float, named: Sequence[tuple[float, str, Bits]]
) -> Iterator[tuple[float, str, Bits, tuple[str, ...]]]:
    """Each wrong factor once, with the names of slips about as likely that give the same one."""
    seen = [right]
    for value, name, cost in named:
        if all(not _is_same(value, other) for other in seen):
            seen.append(value)
            same = [n for v, n, c in named if n != name and _is_same(v, value) and 0 <= c - cost <= AS_LIKELY]
            yield value, name, cost, tuple(dict.fromkeys(same))


def _is_same(first: float, second: float) -> bool:
    return abs(first - second) <= 1e-9 * abs(second)
