"""The exact solution of a playground request by `qkv.byhand`, and how each of its numbers was computed."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from qkv.byhand import Solution, make_problem, solve_problem
from qkv.byhand.matrices import Matrix
from qkv.byhand.numbers import format_decimal, to_text
from qkv.byhand.solution import STEPS
from qkv.byhand.steps import SolutionStep, explain_steps
from qkv.byhand.symbols import describe_agreement, describe_setting
from qkv.studio.playground.attention import make_mask
from qkv.studio.playground.request import PlaygroundRequest, Texts

EXACT_TOKENS, EXACT_WIDTH = 8, 8  # beyond this, exact arithmetic is too slow for a slider
BYHAND_SIZE = 16  # the limit of `qkv byhand`


def why_not_exact(request: PlaygroundRequest, tokens: int = EXACT_TOKENS, width: int = EXACT_WIDTH) -> str:
    """Why there is no exact solution; "" if there is one."""
    if request.hard:
        return "Hard attention has no exponentials: these numbers are qkv.attention(hard=True) in float64."
    longest = max(request.queries, request.keys)
    if longest > tokens:
        return f"{longest} tokens: exact fractions stop at {tokens}; these numbers are qkv.attention in float64."
    widest = max(len(matrix[0]) for _, matrix in request.matrices)
    if widest > width:
        return f"Width {widest}: exact fractions stop at {width}; these numbers are qkv.attention in float64."
    return ""


def byhand_settings(request: PlaygroundRequest) -> dict[str, Any]:
    """The settings of the same problem for `qkv.byhand`; defaults are left out."""
    settings: dict[str, Any] = {name: request.matrix(name) for name, _ in request.matrices}
    if request.heads > 1:
        settings["heads"] = request.heads
    if request.scale and not request.hard:
        settings["scale"] = request.scale
    if request.mask == "causal":
        settings["causal"] = True
    elif request.mask != "none":
        rows = make_mask(request).int().tolist()
        settings["mask"] = tuple(tuple(str(digit) for digit in row) for row in rows)
    if request.sinusoidal and request.form == "x":
        settings["positions"] = "sinusoidal"
    return settings


def exact_solution(request: PlaygroundRequest) -> dict[str, Any]:
    """Every step, exact and in the decimals that `qkv byhand` prints, and how it agrees with float64."""
    solution = _solve(json.dumps(byhand_settings(request)))
    steps = {**{step: getattr(solution, step) for step in STEPS}, "joined": Matrix(solution.concatenated)}
    return {
        "steps": {name: _matrix_json(matrix) for name, matrix in steps.items()},
        "scale": to_text(solution.problem.scale),
        "setting": describe_setting(solution),
        "agreement": describe_agreement(solution),
    }


def explain_cell(request: PlaygroundRequest, step: str, row: int, column: int) -> dict[str, Any]:
    """How one number was computed: its name, the formula, its value, and the cells it was computed from.

    step: a key of `qkv.byhand.steps`, such as scores, or scores-2 for the second head.
    """
    steps = _explain(json.dumps(byhand_settings(request)))
    if step not in steps:
        text = "β = 1: equal to the scores." if step.startswith("scaled") else "This number is an input."
        return {"name": "", "lines": [text], "sources": []}
    cells = steps[step].cells
    if not (0 <= row < len(cells) and 0 <= column < len(cells[0])):
        raise ValueError(f"{step} has no cell in row {row + 1}, column {column + 1}")
    cell = cells[row][column]
    exact, decimal = to_text(cell.number), format_decimal(cell.number.decimal)
    lines = [cell.written]
    if not cell.states_exact and not exact.startswith("≈"):
        lines.append(f"= {exact}")
    if exact != decimal:
        lines.append(f"≈ {decimal}")
    return {"name": cell.name, "lines": lines, "sources": list(cell.sources)}


@lru_cache(16)
def _solve(settings: str) -> Solution:
    return solve_problem(make_problem(json.loads(settings)))


@lru_cache(4)
def _explain(settings: str) -> dict[str, SolutionStep]:
    return {step.key: step for step in explain_steps(_solve(settings))}


def _matrix_json(matrix: Matrix) -> dict[str, Any]:
    decimal = [[format_decimal(number.decimal) for number in row] for row in matrix.numbers]
    return {"exact": matrix.exact, "decimal": decimal}


def byhand_texts(request: PlaygroundRequest) -> dict[str, Any]:
    """The settings for `qkv byhand`, with matrices as text."""
    settings = byhand_settings(request)
    return {name: matrix_text(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def matrix_text(matrix: Texts) -> str:
    """A matrix as `qkv byhand` reads it; separated by commas where a cell contains a space.

    >>> matrix_text((("1", "1/2"), ("0", "2"))), matrix_text((("2 1/2", "0"),))
    ('1 1/2; 0 2', '2 1/2, 0')
    """
    separator = ", " if any(" " in cell.strip() for row in matrix for cell in row) else " "
    return "; ".join(separator.join(cell.strip() for cell in row) for row in matrix)
