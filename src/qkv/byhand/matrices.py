"""Matrices of exact numbers, as tuples of rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import TypeVar

from qkv.byhand.number import Number
from qkv.byhand.reading import Rows
from qkv.byhand.writing import plain

Entry = TypeVar("Entry")
ZERO = Number.of(0)


@dataclass(frozen=True)
class Matrix:
    """A matrix to be shown: `exact` as rows of text, `decimal` as rows of floats, `numbers` as they are."""

    numbers: Rows

    @cached_property
    def exact(self) -> list[list[str]]:
        return [[plain(number) for number in row] for row in self.numbers]

    @cached_property
    def decimal(self) -> list[list[float]]:
        return [[float(number.decimal) for number in row] for row in self.numbers]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.numbers), len(self.numbers[0])

    def as_dict(self) -> dict[str, object]:
        return {"exact": self.exact, "decimal": self.decimal}


def multiply(left: Rows, right: Rows) -> Rows:
    """The matrix product.

    >>> from qkv.byhand.reading import read_matrix
    >>> Matrix(multiply(read_matrix("1 2", "a"), read_matrix("3; 1/2", "b"))).exact
    [['4']]
    """
    columns = transpose(right)
    return tuple(tuple(dot(row, column) for column in columns) for row in left)


def dot(left: Sequence[Number], right: Sequence[Number]) -> Number:
    return sum((a * b for a, b in zip(left, right, strict=True)), start=ZERO)


def transpose(rows: Sequence[Sequence[Entry]]) -> tuple[tuple[Entry, ...], ...]:
    return tuple(zip(*rows, strict=True))


def each(rows: Rows, change: Callable[[Number], Number]) -> Rows:
    return tuple(tuple(change(number) for number in row) for row in rows)


def add(left: Rows, right: Rows) -> Rows:
    return tuple(tuple(a + b for a, b in zip(*pair, strict=True)) for pair in zip(left, right, strict=True))


def columns_of(rows: Rows, start: int, stop: int) -> Rows:
    return tuple(row[start:stop] for row in rows)


def side_by_side(parts: Sequence[Rows]) -> Rows:
    return tuple(tuple(number for row in rows for number in row) for rows in zip(*parts, strict=True))


def stacked(parts: Sequence[Rows]) -> Rows:
    return tuple(row for part in parts for row in part)


def decimals(rows: Rows) -> list[list[Decimal]]:
    return [[number.decimal for number in row] for row in rows]


def shape_text(rows: Sequence[Sequence[object]]) -> str:
    return f"{len(rows)}×{len(rows[0])}"
