"""Grades as CSV and as a terminal table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from qkv.check.grading.client import clean
from qkv.check.grading.grade import Grade
from qkv.check.grading.rubric import Rubric


def grades_csv(grades: Sequence[Grade], rubric: Rubric) -> str:
    """Grades as CSV, a row for each student: points by property, total, remark, seed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["student", *(csv_cell(part.name) for part in rubric.properties), "total", "remark", "seed"])
    for grade in grades:
        points = [f"{part.points:g}" for part in grade.properties]
        writer.writerow(
            [csv_cell(grade.student), *points, f"{grade.total:g}", csv_cell(grade.remark or ""), grade.seed]
        )
    return out.getvalue()


def csv_cell(text: str) -> str:
    """One line that no spreadsheet takes for a formula.

    >>> csv_cell("=1+1"), csv_cell("ada")
    ("'=1+1", 'ada')
    """
    line = clean(text, 1000)
    return f"'{line}" if line[:1] in ("=", "+", "-", "@") else line


def grades_table(grades: Sequence[Grade], rubric: Rubric) -> Group:
    """Grades for the terminal: a row for each student, and below what cost points.

    A column is a property, or an exercise if there are several.
    """
    columns = _columns(rubric)
    grid = Table(box=None, padding=(0, 1), show_header=True, header_style="dim")
    grid.add_column("student", overflow="fold")
    for number, _ in enumerate(columns, 1):
        grid.add_column(str(number), justify="right", no_wrap=True)
    grid.add_column("total", justify="right", no_wrap=True, style="bold")
    remarks = Table.grid(padding=(0, 2))
    for grade in grades:
        cells, start = [], 0
        for _, count in columns:
            parts = grade.properties[start : start + count]
            points, possible = sum(part.points for part in parts), sum(part.possible for part in parts)
            cells.append(Text(f"{points:g}", style="" if points == possible else "red"))
            start += count
        grid.add_row(Text(clean(grade.student)), *cells, f"{grade.total:g} of {grade.possible:g}")
        if grade.remark:
            remarks.add_row(Text(clean(grade.student), style="bold"), Text(grade.remark))
    key = Text("\n".join(f"{n} {words}" for n, (words, _) in enumerate(columns, 1)), style="dim")
    return Group(Text(rubric.title, style="bold"), key, Text(""), grid, Text(""), remarks)


def _columns(rubric: Rubric) -> list[tuple[str, int]]:
    """What each column stands for, and how many properties it holds."""
    if len(rubric.exercises) == 1:
        return [(f"{part.name} ({part.points:g})", 1) for part in rubric.properties]
    return [
        (f"{each.name} ({sum(part.points for part in each.properties):g})", len(each.properties))
        for each in rubric.exercises
    ]
