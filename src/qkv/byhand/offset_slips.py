"""Numbers added to a whole step, as if there were a bias, or a factor of all its numbers; solved for."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.entry_slips import short_number, short_text
from qkv.byhand.expressions import Array, Expression
from qkv.byhand.formulas import Formulas
from qkv.byhand.sheet import WrittenStep
from qkv.byhand.slips import Slip

WORLDS_TO_TRY = (0, 1)  # computed from unrounded or from written numbers
BIAS = 7.0  # bits for a bias, without its numbers
FACTOR = 10.0  # bits for a factor
MIN_FACTORS = 3  # different numbers that show a factor
COMMON_NUMBER, SHORT_NUMBER = 1.5, 3.0  # bits


def offset_slips(formula: Expression, prediction: Array, sheet: WrittenStep, columns: bool) -> Iterator[Slip]:
    """The same number added to all numbers of a step, or the same row added to each of its rows."""
    _, rows, width = sheet.values.shape
    if sheet.values.size < 2 or not np.isfinite(prediction[: len(WORLDS_TO_TRY)]).all():
        return
    if not np.isfinite(sheet.values).all():
        return
    slack = float(sheet.unit.max()) / 2 + 1e-9
    seen: set[tuple[float, ...]] = set()
    for world in WORLDS_TO_TRY:
        yield from _factor_slips(formula, prediction[world], sheet, seen)
        differences = sheet.values - prediction[world]
        offset = short_number(float(np.median(differences)), slack)
        near = 4 * slack  # all numbers must agree: some offset explains most of a few short numbers by chance
        if offset and (offset,) not in seen and (np.abs(differences - offset) <= near).all():
            seen.add((offset,))
            verb = "added to" if offset > 0 else "subtracted from"
            name = f"{abs(offset):.4g} was {verb} every number (there is no bias)"
            yield Slip(name, BIAS - 2 + _bits(offset), {sheet.step: ex.shift(formula, offset)}, scope="whole")
        if rows < 2 or width < 2:
            continue
        offsets = [short_number(float(value), slack) for value in np.median(differences, (0, 1))]
        bias = tuple(value for value in offsets if value is not None)
        if len(bias) < width or not any(bias) or (np.abs(differences - np.array(bias)) > near).any():
            continue
        if len(set(bias)) > 1 and bias not in seen:
            seen.add(bias)
            line = "column" if columns else "row"
            numbers = ", ".join(f"{value:.4g}" for value in bias)
            name = f"the same numbers were added to every {line}, as by a bias: {numbers}"
            added = ex.add(formula, ex.constant(np.array(bias)[None, None, None]))
            yield Slip(name, BIAS + sum(_bits(value) for value in bias), {sheet.step: added}, scope="whole")


def _factor_slips(
    formula: Expression, prediction: Array, sheet: WrittenStep, seen: set[tuple[float, ...]]
) -> Iterator[Slip]:
    """All numbers of a step multiplied by the same factor, whatever it is."""
    known = np.abs(prediction) > 10 * sheet.unit + 1e-9
    if len(set(np.round(np.abs(prediction[known]), 9).tolist())) < MIN_FACTORS:
        return
    off = sheet.unit / 2 * (1 + 1e-9) + 1e-9
    bounds = np.sort(np.stack([(sheet.values - off) / prediction, (sheet.values + off) / prediction]), 0)[:, known]
    low, high = float(bounds[0].max()), float(bounds[1].min())  # the factors that give all numbers
    if low > high:
        return
    factor, slack = (low + high) / 2, (high - low) / 2
    short = short_number(factor, slack)
    factor = factor if short is None else short
    known_factors = [1.0, -1.0, *(other[-1] for other in seen if other[0] == 0.0)]
    if not factor or any(abs(factor - other) <= 3 * slack for other in known_factors):
        return
    if (np.abs(sheet.values - factor * prediction) > off).any():
        return
    seen.add((0.0, factor))
    name = f"every number is {_digits(factor, slack)} times the right one"
    if formula.op == "scale":
        name += f": {_name_scale(factor * formula.param, slack * abs(formula.param), formula.param)}"
    free = math.log2(max(2.0, abs(factor) / max(slack, 1e-6)))
    yield Slip(name, FACTOR, {sheet.step: ex.scale(formula, factor)}, scope="whole", free=free)


def scale_slips(formulas: Formulas, values: Mapping[str, Array], sheet: WrittenStep) -> Iterator[Slip]:
    """Weights with another scale of scores that were not written down, whatever it is."""
    scale = formulas["scaled"]
    if sheet.step != "weights" or scale.op != "scale" or not sheet.unit.any():
        return
    weights, scores = sheet.values, values["scaled"][0]
    with np.errstate(all="ignore"):
        logarithms = np.log(weights)
    if scores.shape != weights.shape:
        return
    telling = np.isfinite(logarithms) & (weights > sheet.unit) & np.isfinite(scores)
    share = np.where(telling, weights, 0.0)
    total = np.maximum(share.sum(-1, keepdims=True), 1e-9)
    x, y = (np.where(telling, table, 0.0) for table in (scores, logarithms))
    x, y = (table - (share * table).sum(-1, keepdims=True) / total for table in (x, y))
    steepness = float((share * x * x).sum())
    if steepness < 1e-9:
        return
    factor = float((share * x * y).sum()) / steepness
    slack = float((sheet.unit / 2 / np.maximum(np.abs(share * x), 1e-9))[telling].min())
    solved = factor * scale.param
    inverse = short_number(1 / solved, slack * abs(scale.param) / solved**2) if solved else None
    for used in (1 / inverse if inverse else None, short_number(solved, slack * abs(scale.param)), solved):
        if used and abs(used / scale.param - 1) > slack:
            name = _name_scale(used, slack * abs(scale.param), scale.param)
            free = math.log2(max(2.0, abs(factor) / max(slack, 1e-6)))
            yield Slip(name, FACTOR, {"scaled": scale.with_param(used)}, scope="whole", free=free)


def _name_scale(used: float, slack: float, right: float) -> str:
    inverse = short_number(1 / used, slack / used**2)
    root = "" if inverse is None else f" = 1/{inverse:.4g}"
    return f"the scale was {_digits(used, slack)}{root} instead of {right:.4g}"


def _digits(number: float, slack: float) -> str:
    """The digits of a number that are known, without zeros at the end."""
    return f"{float(short_text(number, slack)):g}"


def _bits(number: float) -> float:
    return COMMON_NUMBER if abs(number) in (0.0, 1.0) else SHORT_NUMBER
