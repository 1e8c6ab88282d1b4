"""Read a person's steps: each number with its value and the unit of its last digit."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.byhand.expressions import Array
from qkv.byhand.matrices import transpose
from qkv.byhand.parsing import Cell, MatrixLike, cell_text, is_flat, parse_number, split_cells, split_text

WHOLE_NUMBER_UNIT = 0.01
VECTORS = ("r", "sums")  # one number for each query, in a row or in a column
UNKNOWN = "?"  # a number that was not filled in
SHARES = ("weights", "probabilities")
_DECIMAL = re.compile(r"[+-]?(\d*)\.(\d*)(?:[eE]([+-]?\d+))?|[+-]?(\d+)[eE]([+-]?\d+)")
_INTEGER = re.compile(r"[+-]?\d+")
_MINUS_INFINITY = re.compile(r"-(inf|infinity|∞|oo)|-|masked", re.IGNORECASE)


@dataclass(frozen=True)
class WrittenStep:
    """One step of an answer, one token per row. values and unit: (heads, rows, columns)."""

    step: str
    texts: list[list[str]]
    values: Array  # NaN for a ?
    unit: Array  # of the last digit written; 0 for a fraction, a root or an integer among integers
    generous_unit: Array  # the same for a number that has fewer digits than its neighbors
    transposed: bool = False  # it was given with rows for columns

    @property
    def places(self) -> int:
        """Digits after the point of the coarsest decimal; 0 if none is a decimal."""
        units = self.unit[self.unit > 0]
        return max(0, -round(math.log10(float(units.max())))) if units.size else 0

    def text(self, head: int, row: int, column: int) -> str:
        return self.texts[head * self.values.shape[1] + row][column]

    def with_whole_numbers(self, exact: Array) -> "WrittenStep":
        """Read whole numbers of a step without decimals, such as 1 and 0 for weights, at two digits.

        This holds only where digits were dropped: the exact number is not whole.
        """
        exact = np.where(np.isfinite(exact), exact, 0.0)
        whole = (self.unit == 0) & (self.values == np.round(self.values)) & (np.abs(exact - np.round(exact)) > 1e-12)
        unit = np.where(whole & np.isfinite(self.values), WHOLE_NUMBER_UNIT, self.unit)
        return replace(self, unit=unit, generous_unit=np.where(whole, 10 * unit, self.generous_unit))

    def number(self, place: tuple[int, int, int]) -> tuple[float, float]:
        """A number and the unit of its last digit."""
        return float(self.values[place]), float(self.unit[place])

    @property
    def writes_minus_infinity(self) -> bool:
        return bool(np.isinf(self.values).any())


def read_step(step: str, matrix: MatrixLike, shape: tuple[int, int, int], columns: bool) -> WrittenStep:
    """Read a step of an answer whose array must have this shape: heads, rows, columns, one token per row.

    An integer or a short decimal among longer ones, such as 0.5 beside 0.333, is read at their precision.
    """
    heads, rows, width = shape
    expected = (heads * rows, width)
    texts = [
        [cell_text(cell).removeprefix("≈").strip() for cell in row] for row in _cells(step, matrix, shape, columns)
    ]
    if columns:
        texts = [list(row) for row in transpose(texts)]
    got = len(texts), len(texts[0])
    transposed = False
    if got != expected and heads > 1 and got == (rows, heads * width):  # heads side by side
        texts = [row[h * width : (h + 1) * width] for h in range(heads) for row in texts]
    elif got != expected and got == expected[::-1]:
        texts = [list(row) for row in transpose(texts)]
        transposed = step not in VECTORS and not is_flat(matrix)
    elif got != expected:
        raise ValueError(_shape_error(step, shape, got, columns))
    values = [[_value(text, f"{step}[{i},{j}]") for j, text in enumerate(row, 1)] for i, row in enumerate(texts, 1)]
    if step in SHARES and _are_percent(values, _units(texts)[0]):
        texts = [[f"{text}%" for text in row] for row in texts]
        values = [[value / 100 for value in row] for row in values]
    unit, generous = (units.reshape(shape) for units in _units(texts))
    return WrittenStep(step, texts, np.array(values).reshape(shape), unit, generous, transposed)


def _cells(step: str, matrix: MatrixLike, shape: tuple[int, int, int], columns: bool) -> Sequence[Sequence[Cell]]:
    """The cells of a matrix; of several heads as one matrix; with decimal commas if only then the shape fits."""
    nested = _join_heads(matrix, step, shape[0], columns)
    cells = split_cells(nested, step, max_size=None)
    size = math.prod(shape)
    if isinstance(nested, str) and sum(map(len, cells)) != size:
        decimal = split_text(nested, decimal_commas=True)
        if sum(map(len, decimal)) == size and len({len(row) for row in decimal}) == 1:
            return decimal
    return cells


def _shape_error(step: str, shape: tuple[int, int, int], got: tuple[int, int], columns: bool) -> str:
    heads, rows, width = shape
    (a, b), (c, d) = ((x, y) if not columns else (y, x) for x, y in ((heads * rows, width), got))
    if heads > 1 and got == (rows, width):
        rule = f"write one {'beside' if columns else 'below'} the other"
        return f"{step}: expected {a}×{b} numbers, got {c}×{d}: that is 1 matrix for {heads} heads; {rule}"
    return f"{step}: expected {a}×{b} numbers, got {c}×{d}; give the whole matrix"


def _join_heads(matrix: Any, step: str, heads: int, columns: bool) -> Any:
    """The matrices of several heads, given one by one, as one matrix: below or beside each other."""
    if not isinstance(matrix, list) or not matrix or not all(_is_matrix(head) for head in matrix):
        return matrix
    if len(matrix) != heads:
        count = f"{len(matrix)} matri{'x' if len(matrix) == 1 else 'ces'}"
        raise ValueError(f"{step}: got {count} for {heads} head{'s' if heads > 1 else ''}; give one for each head")
    if columns:
        return [list(itertools.chain.from_iterable(rows)) for rows in zip(*matrix, strict=False)]
    return [row for head in matrix for row in head]


def _is_matrix(rows: object) -> bool:
    return isinstance(rows, list) and bool(rows) and all(isinstance(row, list) for row in rows)


def _are_percent(values: Sequence[Sequence[float]], unit: Array) -> bool:
    """Whether weights were written in percent without the sign: each row adds up to about 100.

    After a slip some rows may add up to less. Then the others tell only if they are 100 up to rounding: exponentials
    that were not divided by their sum may also come near 100.
    """
    shares = [[value for value in row if not math.isnan(value)] for row in values]
    if min(itertools.chain.from_iterable(shares), default=-1.0) < 0:
        return False
    sums = [sum(row) for row in shares]
    if all(len(row) == len(values[0]) and abs(sum_ - 100) <= len(row) for row, sum_ in zip(shares, sums, strict=True)):
        return True
    slack = len(values[0]) * (float(unit.max()) or 1.0) / 2 + 1e-9
    whole = [abs(sum_ - 100) <= slack for row, sum_ in zip(shares, sums, strict=True) if len(row) == len(values[0])]
    return any(whole) and max(sums) <= 100 + slack


def _value(text: str, where: str) -> float:
    if text == UNKNOWN:
        return math.nan
    if _MINUS_INFINITY.fullmatch(text):
        return -math.inf
    if text.endswith("%"):
        return float(parse_number(text[:-1].strip(), where).decimal) / 100
    value = float(parse_number(text, where).decimal)
    return -math.inf if value <= -10_000 and where.startswith(("scores", "scaled")) else value


def _units(texts: Sequence[Sequence[str]]) -> tuple[Array, Array]:
    """The unit of the last digit of each number, and of the digits that it has or may have if it is read generously.

    Neighbors agree in their number of places or of significant digits; zeros at the end may be missing.
    """
    flat = [text for row in texts for text in row]
    found = [_digits(text) for text in flat]
    decimals = [digits for text, digits in zip(flat, found, strict=True) if digits and not _INTEGER.fullmatch(text)]
    units, generous = np.zeros(len(flat)), np.zeros(len(flat))
    significant = max((count for _, count in decimals), default=0)
    full = [place for place, count in decimals if count == significant]  # without missing zeros at the end
    scientific = len(set(full)) > 1 or any("e" in text.lower() and "." in text for text in flat)
    for index, (text, digits) in enumerate(zip(flat, found, strict=True)):
        if not decimals or digits is None:
            continue
        integer, value = bool(_INTEGER.fullmatch(text)), abs(_value(text, ""))
        places = min(full) if integer else max(place for place, _ in decimals)
        by_digits = significant - 1 - (math.floor(math.log10(value)) if value and math.isfinite(value) else -1)
        own = 0 if integer else digits[0]
        units[index] = 10.0 ** -max(by_digits if scientific else places, own)
        if integer:
            own = by_digits if significant > 2 else places
        generous[index] = max(units[index], 10.0**-own if integer or digits[1] > 1 else 0.0)
    shape = len(texts), len(texts[0])
    return units.reshape(shape), generous.reshape(shape)


def _digits(text: str) -> tuple[int, int] | None:
    """Places after the point (negative before it) and significant digits of a decimal or integer; None for others."""
    percent = 2 if text.endswith("%") else 0
    text = text.removesuffix("%").strip()
    if _INTEGER.fullmatch(text):
        return percent, len(text.lstrip("+-").lstrip("0"))
    found = _DECIMAL.fullmatch(text)
    if not found:
        return None
    whole, places, exponent, integer, integer_exponent = found.groups()
    power = int(exponent or integer_exponent or 0)
    digits = ((whole or "") + (places or "") or (integer or "")).lstrip("0")
    return len(places or "") - power + percent, len(digits)
