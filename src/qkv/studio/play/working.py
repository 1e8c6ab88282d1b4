"""The exact working of what is given, by `qkv.byhand`; and how one number of it came about."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from qkv.byhand import Worked, make_problem, work_problem
from qkv.byhand.captions import agreement_sentence, setting_text
from qkv.byhand.matrices import Matrix
from qkv.byhand.steps import Step, explain
from qkv.byhand.working import STEPS
from qkv.byhand.writing import fixed, plain
from qkv.studio.play.given import Given
from qkv.studio.play.numbers import may_attend

TOKENS, WIDTH = 8, 8  # beyond this, exact numbers take longer than a person waits for a slider
BY_HAND = 16  # what `qkv byhand` itself takes


def settings(given: Given) -> dict[str, Any]:
    """The same problem as `qkv.byhand` is given it; only what differs from its defaults."""
    found: dict[str, Any] = {name: given.matrix(name) for name, _ in given.matrices}
    if given.heads > 1:
        found["heads"] = given.heads
    if given.beta and not given.hard:
        found["beta"] = given.beta
    if given.mask == "causal":
        found["causal"] = True
    elif given.mask != "none":
        rows = may_attend(given).int().tolist()
        found["mask"] = tuple(tuple(str(sign) for sign in row) for row in rows)
    if given.sinusoidal and given.form == "x":
        found["positions"] = "sinusoidal"
    return found


def too_large(given: Given, tokens: int = TOKENS, width: int = WIDTH) -> str:
    """Why the exact working is not made; nothing if it is."""
    if given.hard:
        return (
            "The hard choice is not a formula of exponentials: these numbers are qkv.attention(hard=True) in float64."
        )
    most = max(given.queries, given.keys)
    if most > tokens:
        return f"{most} tokens: exact fractions stop at {tokens}; these numbers are qkv.attention in float64."
    wide = max(len(matrix[0]) for _, matrix in given.matrices)
    if wide > width:
        return f"Width {wide}: exact fractions stop at {width}; these numbers are qkv.attention in float64."
    return ""


def worked(given: Given) -> Worked:
    """The exact working; the last few are remembered."""
    return _worked(json.dumps(settings(given)))


@lru_cache(16)
def _worked(written: str) -> Worked:
    return work_problem(make_problem(json.loads(written)))


@lru_cache(4)
def _steps(written: str) -> dict[str, Step]:
    return {step.key: step for step in explain(_worked(written))}


def exact_steps(given: Given) -> dict[str, Any]:
    """Every step, exact and with the decimals that `qkv byhand` prints, and what its float64 check says."""
    found = worked(given)
    joined = Matrix(found.joined)
    steps = {**{step: getattr(found, step) for step in STEPS}, "joined": joined}
    return {
        "steps": {name: shown(matrix) for name, matrix in steps.items()},
        "beta": plain(found.problem.beta),
        "setting": setting_text(found),
        "agreement": agreement_sentence(found),
    }


def shown(matrix: Matrix) -> dict[str, Any]:
    decimal = [[fixed(number.decimal) for number in row] for row in matrix.numbers]
    return {"exact": matrix.exact, "decimal": decimal}


def derivation(given: Given, step: str, row: int, column: int) -> dict[str, Any]:
    """How one number came about: its name, how it is written out, what it is, and the cells it was made from.

    step: a key of `qkv.byhand.steps`, such as scores, or scores-2 for the second head.
    """
    steps = _steps(json.dumps(settings(given)))
    if step not in steps:
        return {"name": "", "lines": [_told(given, step)], "sources": []}
    cells = steps[step].cells
    if not (0 <= row < len(cells) and 0 <= column < len(cells[0])):
        raise ValueError(f"{step} has no cell in row {row + 1}, column {column + 1}")
    cell = cells[row][column]
    exact, decimal = plain(cell.number), fixed(cell.number.decimal)
    lines = [cell.written]
    if not cell.says_exact and not exact.startswith("≈"):
        lines.append(f"= {exact}")
    if exact != decimal:
        lines.append(f"≈ {decimal}")
    return {"name": cell.name, "lines": lines, "sources": list(cell.sources)}


def _told(given: Given, step: str) -> str:
    if step.startswith("scaled"):
        return "β = 1: the scores as they are."
    return "This number was given."
