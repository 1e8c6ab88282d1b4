"""Tables of figures in the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table as Grid

if TYPE_CHECKING:
    from qkv.bench.result import Table

GAP = 2


def grid(table: "Table", width: int) -> Grid:
    """A table as the terminal shows it: names to the left, figures to the right, and each word whole.

    Where the words of a line do not fit into the width, the table is turned: what were its columns are lines.
    """
    lines = [[column.heading for column in table.columns], *table.shown()]
    if sum(_room(column) + GAP for column in zip(*lines, strict=True)) > width:
        lines = [list(line) for line in zip(*lines, strict=True)]
    columns = list(zip(*lines, strict=True))
    shown = Grid(title=table.title, title_justify="left", box=None, padding=(0, GAP, 0, 0))
    for index, (column, size) in enumerate(zip(columns, _widths(columns, width), strict=True)):
        shown.add_column(column[0], justify="right" if index else "left", width=size, overflow="fold")
    for line in lines[1:]:
        shown.add_row(*line)
    return shown


def _widths(columns: Sequence[Sequence[str]], width: int) -> list[int]:
    """How wide each column is: its longest word at least, and what is left goes where most is still to be broken."""
    widths = [_room(column) for column in columns]
    wanted = [max(map(len, column)) for column in columns]
    for _ in range(width - sum(widths) - GAP * len(widths)):
        missing = [want - size for want, size in zip(wanted, widths, strict=True)]
        if max(missing) <= 0:
            break
        widths[missing.index(max(missing))] += 1
    return widths


def _room(cells: Sequence[str]) -> int:
    """What the longest word needs."""
    return max((len(word) for cell in cells for word in cell.split()), default=0)
