"""Read a problem or an answer from CSV: names, and below or beside each name its value or the rows of its matrix.

Cells are separated by commas, tabs or semicolons. In a file with tabs or semicolons, and in quotes, a comma inside a
number is a decimal comma.
"""

import csv
import re
from typing import Any

SCALARS = (  # settings with one value, which may stand on the line below
    *("heads", "scale", "beta", "β", "causal", "convention", "loss", "example"),
    *("title", "student", "sheet"),
)
WORDS = {"mask": ("causal",), "positions": ("sinusoidal",), "target": (), "upstream": ()}  # values that are no matrix
_COMMA_BETWEEN_DIGITS = re.compile(r"(?<=\d),(?=\d)")


def parse_csv(text: str) -> dict[str, Any]:
    """The values by their names; ValueError with the line that cannot be read."""
    content: dict[str, Any] = {}
    name = ""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if line.count('"') % 2:
            raise ValueError(f'line {number}: a quote (") is not closed')
    for number, line in enumerate(csv.reader(lines, delimiter=_delimiter(text)), 1):
        cells = [cell.strip() for cell in line]
        while cells and not cells[-1]:
            cells.pop()
        if not cells:
            continue
        if _is_value_of(name, cells, content):
            content[name] = _scalar(cells[0])
        elif _is_name(cells[0]):
            if _are_headings(cells):
                headings = ", ".join(cells)
                raise ValueError(f"line {number}: {headings} look like column headings; leave them out")
            name = cells[0].lower()
            if name in content:
                raise ValueError(f"line {number}: {name} is given twice; give it once")
            content[name] = _value_beside(name, cells[1:])
        elif not name:
            raise ValueError(f"line {number}: numbers before any name; put a line with x, wq, … above them")
        else:
            content[name] = [*_rows(content[name]), cells[1:] if not cells[0] else cells]
    return content


def _delimiter(text: str) -> str:
    """A tab or semicolon if the commas are not separators; a comma otherwise."""
    if "\t" in text:
        return "\t"
    unquoted = re.sub(r'"[^"]*"', "", text)
    return ";" if ";" in unquoted and "," not in _COMMA_BETWEEN_DIGITS.sub("", unquoted) else ","


def _are_headings(cells: list[str]) -> bool:
    """Whether a line has only words, such as dim1, dim2, but is no name with its value."""
    first = cells[0].lower()
    return len(cells) > 1 and all(map(_is_name, cells)) and first not in SCALARS and first not in WORDS


def _is_value_of(name: str, cells: list[str], content: dict[str, Any]) -> bool:
    """Whether a line is the one value of the name above it."""
    if content.get(name) != [] or len(cells) != 1:
        return False
    return name in SCALARS or cells[0].lower() in WORDS.get(name, ())


def _value_beside(name: str, cells: list[str]) -> Any:
    """What a line gives after its name: nothing yet, one value, or the first row of a matrix."""
    if not cells:
        return []
    return _scalar(cells[0]) if len(cells) == 1 else [cells]


def _scalar(cell: str) -> Any:
    return {"true": True, "false": False}.get(cell.lower(), cell)


def _rows(value: Any) -> list[list[str]]:
    return value if isinstance(value, list) else [[value]]


def _is_name(cell: str) -> bool:
    """Whether a cell is a name such as wq, not a number such as e^2 or sqrt(2), or −∞."""
    if cell.lower() in ("e", "sqrt", "inf", "infinity", "masked"):
        return False
    return cell[:1].isalpha() and "(" not in cell and "^" not in cell
