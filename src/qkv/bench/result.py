"""What a benchmark found: tables of figures, the same for the terminal, for JSON and for the page."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from qkv._files import write_whole

Value = str | int | float | None


@dataclass(frozen=True)
class Column:
    """A column's name, the unit that its figures are in, and how many decimals are shown."""

    name: str
    unit: str = ""
    decimals: int = 2

    @property
    def heading(self) -> str:
        return f"{self.name} [{self.unit}]" if self.unit else self.name

    def shown(self, value: Value) -> str:
        """A figure as the terminal and the page show it.

        >>> Column("time", "ms", 1).shown(1234.56)
        '1,234.6'
        """
        if value is None:
            return "–"
        if isinstance(value, float):
            return f"{value:,.{self.decimals}f}"
        return f"{value:,}" if isinstance(value, int) else value


@dataclass(frozen=True)
class Table:
    """Figures: one row for each competitor or size, one value for each column."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: {len(self.columns)} columns want as many values; got {len(row)}")

    def shown(self) -> list[list[str]]:
        return [[column.shown(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows]


@dataclass(frozen=True)
class Result:
    """One benchmark's findings. absent: peers that are not installed.

    machine: as it was found then, where this was measured apart from the rest of its report.
    """

    name: str
    about: str
    tables: tuple[Table, ...]
    absent: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    machine: dict[str, Any] | None = None


@dataclass(frozen=True)
class Report:
    """A whole run: the machine, and every benchmark's findings."""

    machine: dict[str, Any]
    quick: bool
    results: tuple[Result, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> "Report":
        """A report from its JSON."""
        results = []
        for result in plain["results"]:
            tables = tuple(
                Table(t["title"], tuple(Column(**c) for c in t["columns"]), tuple(tuple(row) for row in t["rows"]))
                for t in result["tables"]
            )
            said = {name: tuple(result[name]) for name in ("absent", "notes")}
            more = {"seconds": result["seconds"], "machine": result.get("machine")}
            results.append(Result(result["name"], result["about"], tables, **said, **more))
        return cls(plain["machine"], plain["quick"], tuple(results))


def markdown(report: Report) -> str:
    """The report as a page."""
    command = _command([result.name for result in report.results if result.machine is None], report.quick)
    lines = [
        "# Benchmarks",
        "",
        f"Measured by `{command}`, which wrote this page and the same figures as JSON beside it. Competitors run in "
        "one process and in turns, in an order drawn anew for each round; times are medians with quartiles, ratios "
        "have 95 % intervals (a bootstrap over rounds).",
        "",
        machine_line(report.machine),
    ]
    for result in report.results:
        lines += ["", f"## {result.name}", "", result.about]
        for table in result.tables:
            lines += ["", f"**{table.title}**", "", *table_lines(table)]
        lines += ["", *(f"{note}\n" for note in result.notes)] if result.notes else []
        if result.absent:
            lines += ["", f"Not installed, so not measured: {', '.join(result.absent)}."]
        if result.machine is not None:
            lines += ["", f"Measured apart, by `{_command([result.name], report.quick, '--keep')}`; {_peaks(result)}."]
    return "\n".join(lines).rstrip() + "\n"


def _command(names: list[str], *flags: bool | str) -> str:
    said = [flag if isinstance(flag, str) else "--quick" for flag in flags if flag]
    return " ".join(["qkv bench", *names, *said, "--report docs/benchmarks.md"])


def _peaks(result: Result) -> str:
    machine = result.machine or {}
    return (
        f"then matrix products in float32 reached {machine['peak_gigaflops']:,.1f} GFLOPS, "
        f"reading memory {machine['bandwidth']:,.1f} GB/s"
    )


def kept(page: Path, report: Report) -> Report:
    """The report that a page shows, with what was measured now in place of its own; a ValueError if they do not fit."""
    data = page.with_suffix(".json")
    try:
        earlier = Report.of(json.loads(data.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"--keep adds to a report that is there; {data} is none") from None
    same = ("processor", "cores", "threads", "python", "torch")
    if other := [name for name in same if earlier.machine.get(name) != report.machine.get(name)]:
        raise ValueError(f"{data} was measured elsewhere ({', '.join(other)} differ); measure all of it anew")
    if earlier.quick != report.quick:
        raise ValueError(f"{data} was measured {'with' if earlier.quick else 'without'} --quick; so must this be")
    now = {result.name: replace(result, machine=report.machine) for result in report.results}
    results = [now.pop(result.name, result) for result in earlier.results]
    return replace(earlier, results=(*results, *now.values()))


def write(report: Report, page: Path) -> Path:
    """Write the page and, beside it, its JSON, each whole or not at all; the JSON's path."""
    data = page.with_suffix(".json")
    plain = json.dumps(report.as_dict(), indent=1, ensure_ascii=False) + "\n"
    for path, text in ((data, plain), (page, markdown(report))):
        write_whole(path, text)
    return data


def machine_line(machine: dict[str, Any]) -> str:
    """The machine in a sentence or two."""
    return (
        f"The machine: {machine['processor']}, {machine['cores']} cores, {machine['threads']} threads used, "
        f"{machine['memory_gib']} GiB of memory; instructions {', '.join(machine['instructions']) or 'not told'}; "
        f"Python {machine['python']}, torch {machine['torch']}. Matrix products in float32 reach "
        f"{machine['peak_gigaflops']:,.1f} GFLOPS, reading memory {machine['bandwidth']:,.1f} GB/s (both measured in "
        "this run)."
    )


def table_lines(table: Table) -> Iterable[str]:
    """A table as markdown, line by line."""

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    yield line(column.heading for column in table.columns)
    yield line(["---", *["---:"] * (len(table.columns) - 1)])
    for row in table.shown():
        yield line(row)
