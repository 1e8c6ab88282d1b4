"""Numbers added to a whole step, as if there were a bias, or a factor of all its numbers; solved for."""

from collections.abc import Iterator

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.entry_slips import short_number
from qkv.byhand.expressions import Array, Expression
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
    """All numbers of a step multiplied by the same factor."""
    known = np.abs(prediction) > 10 * sheet.unit + 1e-9
    if len(set(np.round(prediction[known], 9).tolist())) < MIN_FACTORS:
        return
    largest = np.unravel_index(int(np.argmax(np.abs(prediction))), prediction.shape)
    slack = (float(sheet.unit[largest]) / 2 + 1e-9) / abs(float(prediction[largest]))
    factor = short_number(float(sheet.values[largest] / prediction[largest]), slack)
    if not factor or factor in (1.0, -1.0) or (0.0, factor) in seen:
        return
    seen.add((0.0, factor))
    if (np.abs(sheet.values - factor * prediction) <= sheet.unit / 2 + 1e-9).all():
        size = f"{factor:.4g} times the right one"
        yield Slip(f"every number is {size}", FACTOR, {sheet.step: ex.scale(formula, factor)}, scope="whole")


def _bits(number: float) -> float:
    return COMMON_NUMBER if abs(number) in (0.0, 1.0) else SHORT_NUMBER
