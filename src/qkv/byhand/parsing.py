"""Parse numbers and matrices as people write them.

A number: 3, -1/2, 0.25, 0,25, 2 1/2, √2, 3/(2√2), 1/sqrt(2), e^(3/2). A matrix: rows separated by ; or a new line,
cells by spaces or commas. In a row with commas a cell may be a mixed number (2 1/2); between spaces that would be two
cells. If the cells of some row only make sense with decimal commas (0,5 0,25), all commas of the matrix are decimal.
"""

import itertools
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TypeGuard

from qkv.byhand.numbers import Number, exponential, square_root

Rows = tuple[tuple[Number, ...], ...]
Cell = int | float | str | Fraction | Decimal
MatrixLike = str | Sequence[Sequence[Cell]]

MAX_SIZE = 16  # rows or columns
MAX_LENGTH = 200  # characters of one number

_MIXED = re.compile(r"([+-]?)(\d+)\s+(\d+)/(\d+)")
_DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d)")
_PLAIN = re.compile(r"[+-]?\d+(/\d+)?%?")
_CELL = re.compile(r"[+-]?\d+|[+-]?(\d+\s+)?\d+/\d+")  # between commas: a whole or a mixed number
_TOKEN = re.compile(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?(?![\d.])|\.\d+(?:[eE][+-]?\d+)?|sqrt|exp|e|√|\*\*|[-+*/^()·])")


def parse_number(cell: Cell, where: str = "") -> Number:
    """One number, exactly as it was written; `where` starts the error message.

    >>> from qkv.byhand.numbers import to_text
    >>> [to_text(parse_number(text)) for text in ("2 1/2", "-0.25", "3/(2√2)", "1/sqrt(2)", "e^(3/2)")]
    ['5/2', '-1/4', '3√2/4', '√2/2', 'e^(3/2)']
    """
    text = cell_text(cell)
    prefix = f"{where}: " if where else ""
    try:
        if len(text) > MAX_LENGTH:
            raise ValueError
        if mixed := _MIXED.fullmatch(text):
            sign, whole, above, below = mixed.groups()
            return Number.of((int(whole) + Fraction(int(above), int(below))) * (-1 if sign == "-" else 1))
        return _ExpressionParser(text).parse()
    except ZeroDivisionError:
        raise ValueError(f"{prefix}{text!r} divides by zero: write another number there") from None
    except ValueError as error:
        reason = f"; {error}" if str(error) else ""
        shown = text if len(text) <= 40 else text[:37] + "..."
        raise ValueError(f"{prefix}expected a number such as 3, -1/2, 0.25 or √2, got {shown!r}{reason}") from None


def cell_text(cell: Cell) -> str:
    """A cell as text, with the plain minus sign and a decimal point."""
    if isinstance(cell, bool) or not isinstance(cell, int | float | str | Fraction | Decimal):
        return repr(cell)
    return _DECIMAL_COMMA.sub(".", str(cell).strip().replace("−", "-").replace("–", "-"))


def parse_matrix(matrix: MatrixLike, name: str) -> Rows:
    """A matrix of exact numbers; it must not be ragged, empty or larger than 16×16.

    >>> len(parse_matrix("1 -1; 0 2", "x")), len(parse_matrix([["2 1/2", 0]], "x")[0])
    (2, 2)
    """
    cells = split_cells(matrix, name)
    return tuple(
        tuple(parse_number(cell, f"{name}[{i},{j}]") for j, cell in enumerate(row, 1)) for i, row in enumerate(cells, 1)
    )


def split_cells(matrix: MatrixLike, name: str, max_size: int | None = MAX_SIZE) -> list[list[Cell]]:
    """The cells of a matrix, not parsed yet; checks that it is not ragged, and its size unless `max_size` is None."""
    cells: list[list[Cell]]
    if isinstance(matrix, str):
        cells = split_text(matrix)
    elif isinstance(matrix, Sequence) and all(isinstance(row, Sequence) and not isinstance(row, str) for row in matrix):
        cells = [[*row] for row in matrix]
    elif is_flat(matrix):
        cells = _split_flat(matrix)
    else:
        raise ValueError(f'{name}: expected a matrix, rows of numbers such as "1 -1; 0 2" or [[1, -1], [0, 2]]')
    if not cells or not all(cells):
        raise ValueError(f'{name}: the matrix has an empty row; write rows of numbers, such as "1 -1; 0 2"')
    columns = len(cells[0])
    for i, row in enumerate(cells, 1):
        if len(row) != columns:
            raise ValueError(
                f"{name} is ragged: row 1 has {columns} numbers, row {i} has {len(row)}; give all rows the same length"
            )
    if max_size is not None and max(len(cells), columns) > max_size:
        raise ValueError(
            f"{name} is {len(cells)}×{columns}: by hand goes up to {max_size}×{max_size}; use qkv.attention instead"
        )
    return cells


def is_flat(matrix: object) -> TypeGuard[Sequence[Cell]]:
    """Whether a matrix was given as one list of cells, or of rows as text."""
    return isinstance(matrix, Sequence) and bool(matrix) and all(isinstance(cell, Cell) for cell in matrix)


def _split_flat(matrix: Sequence[Cell]) -> list[list[Cell]]:
    """["1 0", "0 1"] has a row in each text; [1, 0] is one row."""
    rows: list[list[list[Cell]]] = [split_text(cell) if isinstance(cell, str) else [[cell]] for cell in matrix]
    if any(len(found) != 1 for found in rows) or all(len(found[0]) > 1 for found in rows):
        return list(itertools.chain.from_iterable(rows))
    return [list(matrix)]


def split_text(text: str, decimal_commas: bool | None = None) -> list[list[Cell]]:
    """The cells of rows as text. decimal_commas: whether commas belong to the numbers; None to decide by the cells."""
    text = re.sub(r"\]\s*+,?\s*+\[", ";", text.strip())  # possessive: a long gap takes no quadratic time
    rows = [row.strip(" \t,") for row in re.split(r"[;\n]", text.strip("[]; \n\t"))]
    if decimal_commas is None:
        decimal_commas = any(map(_needs_decimal_commas, rows))
    if decimal_commas:
        return [[*re.split(r"\s*;\s*|\s+", _DECIMAL_COMMA.sub(".", row).replace(",", " ").strip())] for row in rows]
    return [[cell.strip() for cell in row.split(",")] if "," in row else [*row.split()] for row in rows]


def _needs_decimal_commas(row: str) -> bool:
    """Whether commas as separators would leave cells with several numbers, as in 0,5 0,25."""
    cells = [cell.strip() for cell in row.split(",")]
    crowded = [cell for cell in cells if len(cell.split()) > 1 and not _CELL.fullmatch(cell)]
    return bool(_DECIMAL_COMMA.search(row)) and any(all(map(_PLAIN.fullmatch, cell.split())) for cell in crowded)


class _ExpressionParser:
    """Recursive-descent parser of + - * / ^, brackets, roots and powers of e; it multiplies out as it goes."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        position = 0
        while position < len(text):
            found = _TOKEN.match(text, position)
            if not found:
                raise ValueError
            self.tokens.append(found[1].replace("·", "*").replace("**", "^"))
            position = found.end()
        self.tokens.append("")

    def parse(self) -> Number:
        number = self.sum()
        if self.tokens != [""]:
            raise ValueError
        return number

    def take(self, *wanted: str) -> str:
        return self.tokens.pop(0) if self.tokens[0] in wanted else ""

    def sum(self) -> Number:
        total = self.product()
        while sign := self.take("+", "-"):
            other = self.product()
            total = total + other if sign == "+" else total - other
        return total

    def product(self) -> Number:
        if sign := self.take("-", "+"):
            return -self.product() if sign == "-" else self.product()
        total = self.power()
        while True:
            if self.take("*"):
                total = total * self.signed()
            elif self.take("/"):
                total = total * self.signed().inverse()
            elif self.tokens[0] in ("√", "sqrt", "e", "exp", "("):  # 3√2, 2e^8, 2(1+√2)
                total = total * self.power()
            else:
                return total

    def signed(self) -> Number:
        return -self.power() if self.take("-") else self.power()

    def power(self) -> Number:
        if self.take("e"):
            return exponential(self.signed() if self.take("^") else Number.of(1))
        base = self.atom()
        if not self.take("^"):
            return base
        exponent = self.signed().fraction
        if exponent is None or exponent.denominator != 1 or not 0 <= exponent <= 12:
            raise ValueError("powers are whole numbers from 0 to 12, or powers of e")
        total = Number.of(1)
        for _ in range(int(exponent)):
            total = total * base
        return total

    def atom(self) -> Number:
        if self.take("("):
            inside = self.sum()
            if not self.take(")"):
                raise ValueError("a bracket is not closed")
            return inside
        if self.take("√", "sqrt"):
            radicand = self.atom().fraction
            if radicand is None:
                raise ValueError("a root takes a fraction")
            return square_root(radicand)
        if self.take("exp"):
            return exponential(self.atom())
        token = self.tokens.pop(0)
        if not token or not (token[0].isdigit() or token[0] == "."):
            raise ValueError
        _, _, exponent = token.lower().partition("e")
        if len(exponent.lstrip("+-")) > 2:
            raise ValueError("its exponent is too large to solve by hand")
        return Number.of(Fraction(token))
