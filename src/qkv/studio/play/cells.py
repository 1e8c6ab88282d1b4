"""Cells as people type them, read once: a number in exact form, and its float64."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from qkv.byhand.number import Number
from qkv.byhand.reading import read_number
from qkv.byhand.writing import digits, plain, readable

Texts = tuple[tuple[str, ...], ...]
LARGEST = Decimal(1_000_000)  # of a cell: its square is far from the end of float64
SMALLEST = Decimal("1e-30")
LONGEST = 80  # characters of a cell
REMEMBERED = 1 << 16


@dataclass(frozen=True)
class BadCell:
    """A place that cannot be read, counted from 0, and the sentence that says why."""

    matrix: str
    row: int
    column: int
    sentence: str

    def as_plain(self) -> dict[str, Any]:
        return {"matrix": self.matrix, "row": self.row, "column": self.column, "sentence": self.sentence}


class BadCellsError(ValueError):
    """Some cells cannot be read; all of them are named."""

    def __init__(self, cells: Iterable[BadCell]) -> None:
        self.cells = tuple(cells)
        super().__init__(self.cells[0].sentence)


@lru_cache(REMEMBERED)
def exact(text: str) -> Number:
    """The number that a cell says; ValueError is one sentence.

    >>> plain(exact("1/2")), plain(exact("0.25"))
    ('1/2', '1/4')
    """
    if not text.strip():
        raise ValueError("the cell is empty: write a number such as 3, -1/2 or 0.25")
    if len(text) > LONGEST:
        raise ValueError(f"a cell is at most {LONGEST} characters long; this one has {len(text)}")
    try:
        number = read_number(text)
    except RecursionError:
        raise ValueError("the cell has more brackets than can be read: write the number itself") from None
    size = abs(number.decimal)
    if size > LARGEST or 0 < size < SMALLEST:
        raise ValueError(f"{text.strip()!r} is out of reach: a cell is 0, or between 1e-30 and 1,000,000 in size")
    return number


@lru_cache(REMEMBERED)
def value(text: str) -> float:
    """The same in float64."""
    return float(exact(text).decimal)


@lru_cache(REMEMBERED)
def scaled(text: str, by: str) -> str:
    """A cell times a factor, as text that is read back to the same number.

    >>> scaled("1/2", "3"), scaled("√2", "1")
    ('3/2', '√2')
    """
    if by == "1":
        return text
    number = exact(text) * exact(by)
    return plain(number) if readable(number) else digits(number.decimal, 17)


def texts(given: Any, name: str, rows: int, columns: int) -> Texts:
    """A matrix of text cells, bounded in size; numbers that came as numbers become text."""
    if not isinstance(given, list) or not given or not all(isinstance(row, list) and row for row in given):
        raise ValueError(f"{name}: expected rows of cells such as [['1', '1/2']], none of them empty")
    width = len(given[0])
    if any(len(row) != width for row in given):
        raise ValueError(f"{name} is ragged: every row needs as many cells as the first, {width}")
    if len(given) > rows or width > columns:
        raise ValueError(f"{name} is {len(given)}×{width}: the playground takes up to {rows}×{columns}")
    return tuple(tuple(text(cell, name) for cell in row) for row in given)


def text(cell: Any, name: str) -> str:
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        raise ValueError(f"{name}: a cell is text or a number, got {type(cell).__name__}")
    written = str(cell)
    return (
        written if len(written) <= 2 * LONGEST else written[: 2 * LONGEST]
    )  # too long either way: it is refused later


def bad_cells(name: str, matrix: Sequence[Sequence[str]]) -> list[BadCell]:
    """Every cell that cannot be read."""
    found = []
    for i, row in enumerate(matrix):
        for j, cell in enumerate(row):
            try:
                value(cell)
            except ValueError as problem:
                found.append(BadCell(name, i, j, str(problem)))
    return found
