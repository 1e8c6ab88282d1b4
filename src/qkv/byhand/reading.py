"""Reading numbers and matrices as people write them.

A number: 3, -1/2, 0.25, 2 1/2, √2, 3/(2√2), 1/sqrt(2), e^(3/2). A matrix: rows apart by ; or a new line, cells
by spaces or commas. In a row with commas a cell may hold a mixed number (2 1/2); between spaces it would be two
cells.
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from qkv.byhand.number import Number, exponential, square_root

Rows = tuple[tuple[Number, ...], ...]
Cell = int | float | str | Fraction | Decimal
MatrixLike = str | Sequence[Sequence[Cell]]

LIMIT = 16  # rows or columns; larger than this nobody works by hand
LONGEST = 200  # characters of one number

_MIXED = re.compile(r"([+-]?)(\d+)\s+(\d+)/(\d+)")
_TOKEN = re.compile(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?(?![\d.])|\.\d+(?:[eE][+-]?\d+)?|sqrt|exp|e|√|\*\*|[-+*/^()·])")


def read_number(cell: Cell, where: str = "") -> Number:
    """One number, exactly as it was written.

    >>> from qkv.byhand.writing import plain
    >>> [plain(read_number(text)) for text in ("2 1/2", "-0.25", "3/(2√2)", "1/sqrt(2)", "e^(3/2)")]
    ['5/2', '-1/4', '3√2/4', '√2/2', 'e^(3/2)']
    """
    text = normal(cell)
    try:
        if len(text) > LONGEST:
            raise ValueError
        if mixed := _MIXED.fullmatch(text):
            sign, whole, above, below = mixed.groups()
            return Number.of((int(whole) + Fraction(int(above), int(below))) * (-1 if sign == "-" else 1))
        return _Expression(text).read()
    except ZeroDivisionError:
        raise ValueError(f"{_at(where)}{text!r} divides by zero: write another number there") from None
    except ValueError as error:
        told = f"; {error}" if str(error) else ""
        shown = text if len(text) <= 40 else text[:37] + "..."
        raise ValueError(f"{_at(where)}expected a number such as 3, -1/2, 0.25 or √2, got {shown!r}{told}") from None


def normal(cell: Cell) -> str:
    """A cell as text, with the plain minus sign."""
    if isinstance(cell, bool) or not isinstance(cell, int | float | str | Fraction | Decimal):
        return repr(cell)
    return str(cell).strip().replace("−", "-").replace("–", "-")


def read_matrix(given: MatrixLike, name: str) -> Rows:
    """A matrix of exact numbers, all rows of one length and neither too large nor empty.

    >>> len(read_matrix("1 -1; 0 2", "x")), len(read_matrix([["2 1/2", 0]], "x")[0])
    (2, 2)
    """
    cells = cells_of(given, name)
    return tuple(
        tuple(read_number(cell, f"{name}[{i},{j}]") for j, cell in enumerate(row, 1)) for i, row in enumerate(cells, 1)
    )


def cells_of(given: MatrixLike, name: str, limit: int = LIMIT) -> list[list[Cell]]:
    """The cells of a matrix, unread; its shape is checked here."""
    cells: list[list[Cell]]
    if isinstance(given, str):
        cells = _split(given)
    elif isinstance(given, Sequence) and all(isinstance(row, Sequence) and not isinstance(row, str) for row in given):
        cells = [[*row] for row in given]
    else:
        raise ValueError(f'{name}: expected a matrix, rows of numbers such as "1 -1; 0 2" or [[1, -1], [0, 2]]')
    if not cells or not all(cells):
        raise ValueError(f'{name}: the matrix has an empty row; write rows of numbers, such as "1 -1; 0 2"')
    width = len(cells[0])
    for i, row in enumerate(cells, 1):
        if len(row) != width:
            raise ValueError(
                f"{name} is ragged: row 1 has {width} numbers, row {i} has {len(row)}; give every row as many"
            )
    if max(len(cells), width) > limit:
        raise ValueError(
            f"{name} is {len(cells)}×{width}: by hand goes up to {limit}×{limit}; qkv.attention takes larger ones"
        )
    return cells


def _split(text: str) -> list[list[Cell]]:
    text = re.sub(r"\]\s*,?\s*\[", ";", text.strip())
    rows = [row.strip(" \t,") for row in re.split(r"[;\n]", text.strip("[]; \n\t"))]
    return [[*(re.split(r"\s*,\s*", row) if "," in row else row.split())] for row in rows]


def _at(where: str) -> str:
    return f"{where}: " if where else ""


class _Expression:
    """A reader of + - * / ^, brackets, roots and powers of e; it multiplies out as it goes."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        place = 0
        while place < len(text):
            found = _TOKEN.match(text, place)
            if not found:
                raise ValueError
            self.tokens.append(found[1].replace("·", "*").replace("**", "^"))
            place = found.end()
        self.tokens.append("")

    def read(self) -> Number:
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
        if self.take("^"):
            exponent = self.signed().fraction
            if exponent is None or exponent.denominator != 1 or not 0 <= exponent <= 12:
                raise ValueError("powers are whole numbers from 0 to 12, or of e")
            total = Number.of(1)
            for _ in range(int(exponent)):
                total = total * base
            return total
        return base

    def atom(self) -> Number:
        if self.take("("):
            inside = self.sum()
            if not self.take(")"):
                raise ValueError("a bracket is not closed")
            return inside
        if self.take("√", "sqrt"):
            inside = self.atom().fraction
            if inside is None:
                raise ValueError("a root takes a fraction")
            return square_root(inside)
        if self.take("exp"):
            return exponential(self.atom())
        token = self.tokens.pop(0)
        if not token or not (token[0].isdigit() or token[0] == "."):
            raise ValueError
        _, _, exponent = token.lower().partition("e")
        if len(exponent.lstrip("+-")) > 2:
            raise ValueError("its exponent is too large to work by hand")
        return Number.of(Fraction(token))
