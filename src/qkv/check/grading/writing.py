"""Grades as a table in the terminal and as CSV."""

import csv
import io
from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from qkv.check.grading.grading import Grade
from qkv.check.grading.remote import clean
from qkv.check.grading.rubric import Rubric


def as_csv(grades: Sequence[Grade], rubric: Rubric) -> str:
    """A row for each student: points by property, total, remark, seed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["student", *(safe(part.name) for part in rubric.properties), "total", "remark", "seed"])
    for grade in grades:
        points = [number(part.points) for part in grade.earned]
        writer.writerow([safe(grade.student), *points, number(grade.total), safe(grade.remark or ""), grade.seed])
    return out.getvalue()


def safe(text: str) -> str:
    """A cell that no spreadsheet takes for a formula, on one line.

    >>> safe("=1+1"), safe("ada")
    ("'=1+1", 'ada')
    """
    line = clean(text, 1000)
    return f"'{line}" if line[:1] in ("=", "+", "-", "@") else line


def number(points: float) -> str:
    """
    >>> number(2.0), number(0.5)
    ('2', '0.5')
    """
    return f"{points:g}"


def table(grades: Sequence[Grade], rubric: Rubric) -> Group:
    """Students down, properties across, and below what cost each of them points."""
    grid = Table(box=None, padding=(0, 1), show_header=True, header_style="dim")
    grid.add_column("student", overflow="fold")
    for place, _ in enumerate(rubric.properties, 1):
        grid.add_column(str(place), justify="right", no_wrap=True)
    grid.add_column("total", justify="right", no_wrap=True, style="bold")
    for grade in grades:
        cells = [
            Text(number(part.points), style="" if part.points == part.possible else "red") for part in grade.earned
        ]
        grid.add_row(Text(clean(grade.student)), *cells, f"{number(grade.total)} of {number(grade.possible)}")
    key = Text("\n".join(f"{n} {p.name} ({number(p.points)})" for n, p in enumerate(rubric.properties, 1)), style="dim")
    remarks = Table.grid(padding=(0, 2))
    for grade in grades:
        if grade.remark:
            remarks.add_row(Text(clean(grade.student), style="bold"), Text(grade.remark))
    return Group(Text(rubric.title, style="bold"), key, Text(""), grid, Text(""), remarks)
