"""Tables of figures in the terminal."""

from typing import TYPE_CHECKING

from rich.table import Table as Grid

if TYPE_CHECKING:
    from qkv.bench.result import Table


def grid(table: "Table") -> Grid:
    """A table as the terminal shows it: names to the left, figures to the right."""
    shown = Grid(title=table.title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for index, column in enumerate(table.columns):
        word = max(map(len, column.heading.split()), default=0)  # headings are broken between words only
        side = "left" if index == 0 else "right"
        shown.add_column(column.heading, justify=side, min_width=word, overflow="fold")  # broken, but never cut off
    for row in table.shown():
        shown.add_row(*row)
    return shown
