"""Terminal tables of any width keep every word whole."""

import io

import pytest
from rich.console import Console

from qkv.bench.report import Column, Table
from qkv.cli.console import rich_table

COLUMNS = (Column("what"), *(Column(f"figure of {word}") for word in ("minutes", "answers", "everything")))
TABLE = Table("Two ways", COLUMNS, (("no-pretraining", 1, 2.5, "34,567 (far away)"), ("ours", 8, 9.5, None)))


def printed(width: int) -> list[str]:
    console = Console(file=(said := io.StringIO()), width=width)
    console.print(rich_table(TABLE, width))
    return [line.rstrip() for line in said.getvalue().splitlines()]


@pytest.mark.parametrize("width", [200, 60, 50, 44])
def test_rich_table_keeps_every_word_whole_at_any_width(width):
    cells = [cell for line in [[column.heading for column in COLUMNS], *TABLE.cell_texts()] for cell in line]
    expected = sorted(" ".join([TABLE.title, *cells]).split())
    assert sorted(" ".join(printed(width)).split()) == expected


def test_rich_table_exchanges_rows_and_columns_if_too_wide():
    assert printed(200)[-1].split() == ["ours", "8", "9.50", "–"]
    assert printed(44)[1].split() == ["what", "no-pretraining", "ours"]
