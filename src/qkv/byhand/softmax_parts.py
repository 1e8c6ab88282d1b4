"""The exponentials of a softmax and their sums, as steps of an answer that has them.

Exponentials may be written in several right ways: with or without those that a mask hides, and with the maximum of each
row subtracted before, over all keys or over those that the mask shows. The answer shows which.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.expressions import Array, ExpBelowLargest, Expression, ref
from qkv.byhand.formulas import Formulas, StepFormulas
from qkv.byhand.graph import SOFTMAX_PARTS


def with_softmax_parts(
    problem: StepFormulas, parts: Mapping[str, Array], scaled: Array, unmasked: Array
) -> list[StepFormulas]:
    """The formulas with steps for the exponentials, the sums, or both, in the ways that the answer may have.

    One way if it gives all numbers of the answer; otherwise one for each kind of exponentials, the usual one first,
    since some wrong numbers may agree with the other kind by chance.
    parts: those that were written, as (heads, rows, columns). scaled: the scaled scores of the answer, in which −∞ may
    stand for masked ones. unmasked: the exact ones without a mask.
    """
    names = tuple(name for name in SOFTMAX_PARTS if name in parts)
    first = parts[names[0]]
    top = problem.formulas["weights"].args[0]
    powers = top.args[0] if top.op == "masked" else top
    functions = [powers]
    if powers.op == "apply":
        functions.append(powers.with_param(_find_largest(problem, names[0], first, scaled, unmasked)))
    found: list[Way] = []
    for function in functions:
        ways = _ways(top, function)
        counts = [_count_fitting(way, names[0], first, scaled) for way in ways]
        found.append(ways[counts.index(max(counts))])
        if max(counts) == first.size:
            return [_insert(problem, found[-1], names)]
    return [_insert(problem, way, names) for way in found]


Way = tuple[Expression, Expression]  # the exponentials as written, and what the sums and weights take of them


def _ways(top: Expression, function: Expression) -> list[Way]:
    """The right ways to write exponentials with and without those that a mask hides, the usual one first."""
    if top.op != "masked":
        return [(function, ref("exponentials"))]
    return [(top.with_args(function), ref("exponentials")), (function, top.with_args(ref("exponentials")))]


def _find_largest(problem: StepFormulas, first: str, written: Array, scaled: Array, unmasked: Array) -> ExpBelowLargest:
    """e^(x − max) with the maximum of each row that the answer has: of all keys, or of those that were not masked."""
    mask = problem.problem.mask
    shown = np.isfinite(scaled) if mask is None else np.isfinite(scaled) & np.array(mask, bool)
    hidden = np.where(np.isfinite(scaled), -np.inf, unmasked)  # a maximum of all keys was taken before −∞ was written
    least = hidden.max(-1, keepdims=True)
    over_all = ExpBelowLargest(np.ones_like(shown), least)
    over_shown = ExpBelowLargest(shown, np.full_like(least, -np.inf))
    errors: list[Array] = []
    for function in (over_all, over_shown):
        powers = np.where(shown, function(scaled), 0.0)
        if first == "exponentials":
            off = np.where(shown, np.abs(powers - written), 0.0)
        else:
            off = np.abs(powers.sum(-1, keepdims=True) - written)
        errors.append(np.minimum(np.where(np.isnan(off), 0.0, off), 1.0).sum(-1, keepdims=True))
    taken = errors[0] < errors[1]
    return ExpBelowLargest(shown | taken, np.where(taken, least, -np.inf))


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
