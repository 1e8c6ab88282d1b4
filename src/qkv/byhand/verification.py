"""Verify a person's calculation step by step: the first wrong number, what follows from it, the slip by name.

Each number is compared with the exact one at the precision at which it was written: 0.06 stands for everything that
rounds to it, 3/2 for itself. The slips are those of the shortest description of the whole sheet (see `hypotheses`). A
number that differs only because of them is no new mistake: it follows from an earlier slip, or from rounding early.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.expressions import Array
from qkv.byhand.formulas import StepFormulas, build_formulas
from qkv.byhand.graph import SOFTMAX_PARTS
from qkv.byhand.parsing import Rows
from qkv.byhand.problem import Problem
from qkv.byhand.report import Report, Verification
from qkv.byhand.search import Search
from qkv.byhand.sheet import WrittenStep, read_step
from qkv.byhand.softmax_parts import with_softmax_parts
from qkv.byhand.solution import solve_problem

TOLERANCE = 0.02  # how far early rounding may move a number and still be accepted


def verify(problem: Problem, answer: Mapping[str, Any], tolerance: float = TOLERANCE) -> Verification:
    """Compare a person's steps with the exact ones.

    answer: matrices by step, any of them: queries, keys, values, scores, scaled, exponentials, sums, weights,
        concatenated, output; for a problem with a loss also dO, dV, dA, r, dZ, dS, dQ, dK, dW_Q, dW_K, dW_V, dW_O, dX.
    tolerance: how far early rounding may move a number and still be accepted. What follows from rounded numbers that
        were written down is accepted if their last digits count no more than that (0.01 with two digits).

    >>> from qkv.byhand import make_problem
    >>> problem = make_problem({"q": "1 0", "k": "1 0; 0 1", "v": "4; 8"})
    >>> verify(problem, {"scores": "1 0", "scaled": "1 0"}).first.sentence
    'scaled[1,1]: expected √2/2 ≈ 0.7071, got 1: forgotten 1/√d: the scores were not scaled...'
    """
    solved = solve_problem(problem)
    solution, graph = solved.tables, solved.graph
    graph.check_steps(answer)
    formulas = build_formulas(graph)
    exact = _exact_values(formulas)
    columns = problem.convention == "columns"
    order = [step for step in formulas.formulas if step in solution]
    written = {step: read_step(step, answer[step], exact[step].shape, columns) for step in order if step in answer}
    masked_step = next((step for step, sheet in written.items() if sheet.writes_minus_infinity), "")
    unmasked = exact["scaled"]
    hides_gradients = "dA" in written and _hides(written["dA"], problem)
    if masked_step or hides_gradients:
        formulas = build_formulas(graph, masked_step, hides_gradients=hides_gradients)
        exact = _exact_values(formulas)
    parts = {
        step: read_step(step, answer[step], _part_shape(step, exact), columns)
        for step in SOFTMAX_PARTS
        if step in answer
    }
    if parts:
        scaled = written["scaled"].values if "scaled" in written else exact["scaled"]
        scaled = np.where(np.isnan(scaled), exact["scaled"], scaled)  # cells left blank
        values = {step: sheet.values for step, sheet in parts.items()}
        ways = with_softmax_parts(formulas, values, scaled, unmasked)
        reports = [_find_report(way, written | parts, solution, _exact_values(way), tolerance) for way in ways]
    else:
        reports = [_find_report(formulas, written, solution, exact, tolerance)]
    return min(reports, key=lambda report: report.best.bits).build()


def _find_report(
    formulas: StepFormulas,
    written: Mapping[str, WrittenStep],
    solution: Mapping[str, Rows],
    exact: Mapping[str, Array],
    tolerance: float,
) -> Report:
    """The report on the shortest explanation of a sheet."""
    written = {step: written[step] for step in formulas.formulas if step in written}
    for step, sheet in written.items():
        if step not in solution or any(number.fraction is None for row in solution[step] for number in row):
            written[step] = sheet.with_whole_numbers(exact[step])
    formulas = replace(formulas, places=max((sheet.places for sheet in written.values()), default=0))
    with np.errstate(all="ignore"):  # wrong formulas may divide by 0
        search = Search(formulas, written, exact, tolerance)
        return Report(formulas, written, solution, exact, search.run(), search, tolerance)


def _hides(sheet: WrittenStep, problem: Problem) -> bool:
    """Whether a sheet has 0 at all masked places."""
    return problem.mask is not None and not sheet.values[:, ~np.array(problem.mask, bool)].any()


def _part_shape(step: str, exact: Mapping[str, Array]) -> tuple[int, int, int]:
    heads, rows, columns = exact["weights"].shape
    return heads, rows, 1 if step == "sums" else columns


def _exact_values(formulas: StepFormulas) -> dict[str, Array]:
    """Every step without rounding: heads, rows, columns."""
    values = dict(formulas.given)
    for name, formula in formulas.formulas.items():
        values[name] = ex.evaluate(formula, values)
    return {name: value[0] for name, value in values.items()}
