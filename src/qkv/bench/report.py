"""Benchmark results as tables of figures, the same in the terminal, as JSON and as a markdown page."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from qkv._files import write_atomic

Value = str | int | float | None


@dataclass(frozen=True)
class Column:
    """A column's name, the unit of its figures, and the number of decimals shown."""

    name: str
    unit: str = ""
    decimals: int = 2

    @property
    def heading(self) -> str:
        return f"{self.name} [{self.unit}]" if self.unit else self.name

    def format(self, value: Value) -> str:
        """A figure as text.

        >>> Column("time", "ms", 1).format(1234.56)
        '1,234.6'
        """
        if value is None:
            return "–"
        if isinstance(value, float):
            return f"{value:,.{self.decimals}f}"
        return f"{value:,}" if isinstance(value, int) else value


@dataclass(frozen=True)
class Table:
    """Figures: one row for each library or size, one value for each column."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"{self.title}: a row needs one value for each of {len(self.columns)} columns; got {len(row)}"
                )

    def cell_texts(self) -> list[list[str]]:
        return [[column.format(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows]


@dataclass(frozen=True)
class BenchmarkResult:
    """The figures of one benchmark.

    not_installed: libraries that could not be compared. machine: as it was measured for this benchmark, if it was run
    separately from the rest of its report.
    """

    name: str
    about: str
    tables: tuple[Table, ...]
    not_installed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    machine: dict[str, Any] | None = None


@dataclass(frozen=True)
class BenchmarkReport:
    """A whole run: the machine, and the result of every benchmark. interrupted: benchmarks that were not measured."""

    machine: dict[str, Any]
    quick: bool
    results: tuple[BenchmarkResult, ...] = field(default=())
    interrupted: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "BenchmarkReport":
        """A report from its JSON."""
        results = []
        for result in content["results"]:
            tables = tuple(
                Table(t["title"], tuple(Column(**c) for c in t["columns"]), tuple(tuple(row) for row in t["rows"]))
                for t in result["tables"]
            )
            texts = {name: tuple(result[name]) for name in ("not_installed", "notes")}
            more = {"seconds": result["seconds"], "machine": result.get("machine")}
            results.append(BenchmarkResult(result["name"], result["about"], tables, **texts, **more))
        return cls(content["machine"], content["quick"], tuple(results))


def markdown_page(report: BenchmarkReport) -> str:
    """The report as a markdown page."""
    command = _command([result.name for result in report.results if result.machine is None], report.quick)
    lines = [
        "# Benchmarks",
        "",
        f"Measured by `{command}`, which wrote this page and the same figures as JSON next to it. All libraries run in "
        "one process and take turns, in a new random order for each round. Times are medians with quartiles; ratios "
        "have 95 % intervals (a bootstrap over rounds).",
        "",
        describe_machine(report.machine),
    ]
    for result in report.results:
        lines += ["", f"## {result.name}", "", result.about]
        for table in result.tables:
            lines += ["", f"**{table.title}**", "", *markdown_table(table)]
        lines += ["", *(f"{note}\n" for note in result.notes)] if result.notes else []
        if result.not_installed:
            lines += ["", f"Not installed, so not measured: {', '.join(result.not_installed)}."]
        if result.machine is not None:
            command = _command([result.name], report.quick, "--keep")
            lines += ["", f"Measured separately, by `{command}`; {_describe_speed(result.machine)}."]
    return "\n".join(lines).rstrip() + "\n"


def _command(names: list[str], quick: bool, *flags: str) -> str:
    return " ".join(["qkv bench", *names, *(["--quick"] if quick else []), *flags, "--report docs/benchmarks.md"])


def _describe_speed(machine: dict[str, Any]) -> str:
    return (
        f"at that time float32 matrix products reached {machine['peak_gigaflops']:,.1f} GFLOPS, "
        f"memory reads {machine['bandwidth']:,.1f} GB/s"
    )


def merge_report(page: Path, report: BenchmarkReport) -> BenchmarkReport:
    """The report behind a page, with the new results in place of its own; ValueError if they do not fit together."""
    data = page.with_suffix(".json")
    try:
        earlier = BenchmarkReport.from_dict(json.loads(data.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"--keep adds to an existing report, and {data} is none; run without --keep") from None
    same = ("processor", "cores", "threads", "python", "torch")
    if other := [name for name in same if earlier.machine.get(name) != report.machine.get(name)]:
        raise ValueError(
            f"{data} was measured on another machine or version ({', '.join(other)} differ); run all benchmarks again"
        )
    if earlier.quick != report.quick:
        flag = "with" if earlier.quick else "without"
        raise ValueError(f"{data} was measured {flag} --quick; run this {flag} it too")
    new = {result.name: replace(result, machine=report.machine) for result in report.results}
    results = [new.pop(result.name, result) for result in earlier.results]
    return replace(earlier, results=(*results, *new.values()))


def write_report(report: BenchmarkReport, page: Path) -> Path:
    """Write the page and its JSON next to it; returns the path of the JSON."""
    data = page.with_suffix(".json")
    write_atomic(data, json.dumps(report.to_dict(), indent=1, ensure_ascii=False) + "\n")
    write_atomic(page, markdown_page(report))
    return data


def describe_machine(machine: dict[str, Any]) -> str:
    """The machine in two sentences."""
    return (
        f"The machine: {machine['processor']}, {machine['cores']} cores, {machine['threads']} threads used, "
        f"{machine['memory_gib']} GiB of memory; instructions {', '.join(machine['instructions']) or 'unknown'}; "
        f"Python {machine['python']}, torch {machine['torch']}. Float32 matrix products reach "
        f"{machine['peak_gigaflops']:,.1f} GFLOPS, memory reads {machine['bandwidth']:,.1f} GB/s (both measured in "
        "this run)."
    )


def markdown_table(table: Table) -> Iterable[str]:
    """A table as markdown, line by line."""

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    yield line(column.heading for column in table.columns)
    yield line(["---", *["---:"] * (len(table.columns) - 1)])
    for row in table.cell_texts():
        yield line(row)
