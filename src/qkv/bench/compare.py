"""Compare two benchmark reports: every ratio with a 95 % interval, before and after."""

import json
import re
from pathlib import Path
from typing import Any

from qkv.bench.measure import Ratio
from qkv.bench.report import BenchmarkReport, Column, Table

RATIO = re.compile(r"(\d+\.\d+) \((\d+\.\d+)–(\d+\.\d+)\)")
WORSE = 0.97  # a ratio got worse if its interval lies wholly below this share of what it was
COLUMNS = (Column("benchmark"), Column("ratio"), Column("before"), Column("after"), Column("change", "×"), Column(""))


def read_report(path: Path) -> BenchmarkReport:
    """The report in a JSON file that `qkv bench --report` or `--json` wrote."""
    try:
        return BenchmarkReport.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is not a benchmark report; `qkv bench --report FILE.md` writes FILE.json") from None


def compare_reports(before: BenchmarkReport, after: BenchmarkReport) -> tuple[Table, int]:
    """A table of the ratios that both reports have, and the number of those that got worse."""
    old, new = find_ratios(before), find_ratios(after)
    rows, worse = [], 0
    for place in old:
        if place in new:
            is_worse = new[place].high < WORSE * old[place].value
            worse += is_worse
            change = new[place].value / old[place].value
            rows.append((*place, str(old[place]), str(new[place]), change, "worse" if is_worse else ""))
    if not rows:
        raise ValueError("the two reports have no ratio in common")
    return Table("Ratios before and after", COLUMNS, tuple(rows)), worse


def find_ratios(report: BenchmarkReport) -> dict[tuple[str, str], Ratio]:
    """All ratios of a report by benchmark, and by table, row and column."""
    found: dict[tuple[str, str], Ratio] = {}
    for result in report.results:
        for table in result.tables:
            for row in table.rows:
                for column, value in zip(table.columns, row, strict=True):
                    if isinstance(value, str) and (match := RATIO.fullmatch(value)):
                        label = f"{table.title}, {_row_name(row)}: {column.name}"
                        found[result.name, label] = Ratio(*map(float, match.groups()))
    return found


def _row_name(row: tuple[Any, ...]) -> str:
    """The names at the start of a row: its first cell, and the texts that follow it."""
    names = [str(row[0])]
    for value in row[1:]:
        if not isinstance(value, str):
            break
        names.append(value)
    return " ".join(names)
