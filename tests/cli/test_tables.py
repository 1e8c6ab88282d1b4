"""Tables in terminals of any width: words are whole, and none is lost."""

import io

import pytest
from rich.console import Console

from qkv.bench.result import Column, Table
from qkv.cli.tables import grid

COLUMNS = (Column("what"), *(Column(f"figure of {word}") for word in ("minutes", "answers", "everything")))
TABLE = Table("Two ways", COLUMNS, (("no-pretraining", 1, 2.5, "34,567 (far away)"), ("ours", 8, 9.5, None)))


def printed(width: int) -> list[str]:
    console = Console(file=(said := io.StringIO()), width=width)
    console.print(grid(TABLE, width))
    return [line.rstrip() for line in said.getvalue().splitlines()]


@pytest.mark.parametrize("width", [200, 60, 50, 44])
def test_every_word_is_whole_at_any_width(width):
    cells = [cell for line in [[column.heading for column in COLUMNS], *TABLE.shown()] for cell in line]
    expected = sorted(" ".join([TABLE.title, *cells]).split())
    assert sorted(" ".join(printed(width)).split()) == expected


def test_what_is_too_wide_is_turned():
    assert printed(200)[-1].split() == ["ours", "8", "9.50", "–"]
    assert printed(44)[1].split() == ["what", "no-pretraining", "ours"]
