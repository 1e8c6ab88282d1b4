"""Terminal output of all commands: results to stdout, progress to stderr, JSON, tables that fit the width."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from qkv._files import json_safe

if TYPE_CHECKING:
    from qkv.bench.report import Table

COLUMN_GAP = 2
LINE_SECONDS = 5.0  # between two lines of progress where stderr is not a terminal


@cache
def out() -> Console:
    """The console for results."""
    return _console(stderr=False)


@cache
def err() -> Console:
    """The console for progress and notes."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    return Console(stderr=stderr, highlight=False, no_color=True if "NO_COLOR" in os.environ else None, soft_wrap=False)


@contextmanager
def progress_line(first: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done on stderr: one line that changes on a terminal, otherwise a line every few seconds."""
    if err().is_terminal:
        with err().status(first) as status:
            yield status.update
        return
    last = -LINE_SECONDS

    def show(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_SECONDS:
            last = time.monotonic()
            err().print(Text(text))

    yield show


def print_json(result: object) -> None:
    """Print one JSON document to stdout."""
    text = json.dumps(json_safe(result), indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # a lone surrogate, from a file name that is not UTF-8; or a terminal without UTF-8
        text = json.dumps(json_safe(result), indent=2, allow_nan=False)
    sys.stdout.write(text + "\n")


def rich_table(table: "Table", width: int) -> RichTable:
    """A table for the terminal: names left, figures right, no word broken.

    If the longest words of a line do not fit into the width, rows and columns are exchanged.
    """
    lines = [[column.heading for column in table.columns], *table.cell_texts()]
    if sum(_longest_word(column) + COLUMN_GAP for column in zip(*lines, strict=True)) > width:
        lines = [list(line) for line in zip(*lines, strict=True)]
    columns = list(zip(*lines, strict=True))
    shown = RichTable(title=table.title, title_justify="left", box=None, padding=(0, COLUMN_GAP, 0, 0))
    for index, (column, size) in enumerate(zip(columns, _column_widths(columns, width), strict=True)):
        shown.add_column(column[0], justify="right" if index else "left", width=size, overflow="fold")
    for line in lines[1:]:
        shown.add_row(*line)
    return shown


def _column_widths(columns: Sequence[Sequence[str]], width: int) -> list[int]:
    """At least the longest word of each column; the rest goes to the columns with the longest cells."""
    widths = [_longest_word(column) for column in columns]
    wanted = [max(map(len, column)) for column in columns]
    for _ in range(width - sum(widths) - COLUMN_GAP * len(widths)):
        missing = [want - size for want, size in zip(wanted, widths, strict=True)]
        if max(missing) <= 0:
            break
        widths[missing.index(max(missing))] += 1
    return widths


def _longest_word(cells: Sequence[str]) -> int:
    return max((len(word) for cell in cells for word in cell.split()), default=0)
