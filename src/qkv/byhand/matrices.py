"""Matrices of exact numbers, as tuples of rows: product, sum, transpose."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import TypeVar

from qkv.byhand.numbers import Number, to_text
from qkv.byhand.parsing import Rows

Entry = TypeVar("Entry")
ZERO = Number.of(0)


@dataclass(frozen=True)
class Matrix:
    """A result: `exact` as rows of text, `decimal` as rows of floats, `numbers` as exact numbers."""

    numbers: Rows

    @cached_property
    def exact(self) -> list[list[str]]:
        return [[to_text(number) for number in row] for row in self.numbers]

    @cached_property
    def decimal(self) -> list[list[float]]:
        return [[float(number.decimal) for number in row] for row in self.numbers]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.numbers), len(self.numbers[0])

    def to_dict(self) -> dict[str, object]:
        return {"exact": self.exact, "decimal": self.decimal}


def multiply(left: Rows, right: Rows) -> Rows:
    """The matrix product.

    >>> from qkv.byhand.parsing import parse_matrix
    >>> Matrix(multiply(parse_matrix("1 2", "a"), parse_matrix("3; 1/2", "b"))).exact
    [['4']]
    """
    columns = transpose(right)
    return tuple(
        tuple(sum((a * b for a, b in zip(row, column, strict=True)), start=ZERO) for column in columns) for row in left
    )


def add(left: Rows, right: Rows) -> Rows:
    return tuple(tuple(a + b for a, b in zip(*pair, strict=True)) for pair in zip(left, right, strict=True))


def transpose(rows: Sequence[Sequence[Entry]]) -> tuple[tuple[Entry, ...], ...]:
    return tuple(zip(*rows, strict=True))


def to_decimals(rows: Rows) -> list[list[Decimal]]:
    return [[number.decimal for number in row] for row in rows]


def shape_text(rows: Sequence[Sequence[object]]) -> str:
    return f"{len(rows)}×{len(rows[0])}"
