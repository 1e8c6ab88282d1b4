"""The exponentials of a softmax and their sums, as steps of an answer that has them.

Exponentials may be written in several right ways: with or without those that a mask hides, and with the maximum of each
row subtracted before. The answer shows which.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.expressions import Array, Expression, ref
from qkv.byhand.formulas import Formulas, StepFormulas
from qkv.byhand.graph import SOFTMAX_PARTS
from qkv.byhand.slips import parts as subexpressions


def with_softmax_parts(
    problem: StepFormulas, parts: Mapping[str, Array], scaled: Array, exact: Mapping[str, Array]
) -> list[StepFormulas]:
    """The formulas with steps for the exponentials, the sums, or both, in the ways that the answer may have.

    One way if it gives all numbers of the answer; otherwise one for each kind of exponentials, the usual one first,
    since some wrong numbers may agree with the other kind by chance.
    parts: those that were written, as (heads, rows, columns). scaled: the scaled scores of the answer.
    """
    names = tuple(name for name in SOFTMAX_PARTS if name in parts)
    first = parts[names[0]]
    best: dict[str, tuple[int, Way]] = {}
    for way in _ways(problem.formulas["weights"], exact["scaled"]):
        function = next(part.param for part in subexpressions(way[0]) if part.op == "apply")
        count = _count_fitting(way, names[0], first, scaled)
        if count == first.size:
            return [_insert(problem, way, names)]
        if function not in best or count > best[function][0]:
            best[function] = count, way
    return [_insert(problem, way, names) for _, way in best.values()]


Way = tuple[Expression, Expression]  # the exponentials as written, and what the sums and weights take of them


def _ways(weights: Expression, exact: Array) -> list[Way]:
    """The right ways to write exponentials, the usual one first."""
    top = weights.args[0]
    powers = top.args[0] if top.op == "masked" else top
    functions = [powers]
    if powers.op == "apply" and np.isfinite(exact).all():
        functions.append(powers.with_param("exp of x − max"))
    ways = []
    for function, hidden in itertools.product(functions, (True, False)):
        if top.op != "masked":
            ways.append((function, ref("exponentials")))
        elif hidden:
            ways.append((top.with_args(function), ref("exponentials")))
        else:
            ways.append((function, top.with_args(ref("exponentials"))))
    return ways


def _count_fitting(way: Way, first: str, written: Array, scaled: Array) -> int:
    """How many numbers of the first step that was written agree with a way, within a hundredth."""
    powers, taken = way
    values = {"scaled": scaled[None]}
    values["exponentials"] = ex.evaluate(powers, values)
    found = ex.evaluate(ref("exponentials") if first == "exponentials" else ex.total(taken), values)
    with np.errstate(invalid="ignore"):
        near = np.abs(found[0] - written) <= 0.01 * np.maximum(1.0, np.abs(written))
    return int((near | np.isnan(written)).sum())


def _insert(problem: StepFormulas, way: Way, names: tuple[str, ...]) -> StepFormulas:
    powers, taken = way
    if "exponentials" not in names:
        taken = powers if taken.op == "ref" else taken.with_args(powers)
    new = {"exponentials": powers, "sums": ex.total(taken)}
    formulas: Formulas = {}
    for name, formula in problem.formulas.items():
        if name == "weights":
            formulas |= {part: new[part] for part in names}
            formula = ex.divide(taken, ref("sums") if "sums" in names else ex.total(taken))
        formulas[name] = formula
    before = problem.steps.index("weights")
    steps = (*problem.steps[:before], *names, *problem.steps[before:])
    return replace(problem, formulas=formulas, steps=steps)
