"""`qkv bench`: speed and memory compared with other libraries, measured in one run."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from qkv.cli.console import err, out, print_json, progress_line, rich_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qkv.bench.report import BenchmarkReport, Value


def bench(
    *names: str,
    quick: bool = False,
    report: Path | None = None,
    keep: bool = False,
    compare: tuple[Path, Path] | None = None,
    json: bool = False,
) -> int:
    """Compare speed and memory use with other libraries. The libraries are measured alternately.

    The benchmarks:

        attention  qkv, PyTorch's kernel and the formula, by length
        models     forward pass and training step of a ViT and a GPT
        generate   tokens per second, compared with transformers
        engines    the same for SmolLM2-135M, compared with llama.cpp,
                   CTranslate2 and OpenVINO GenAI
        load       time to load a checkpoint
        train      overhead of the training loop
        look       HTML attention pages, compared with BertViz; long texts
        studio     latency and size of the web app
        start-up   wall time of whole commands

    Libraries that are not installed are skipped and listed.

    All benchmarks together take about eight minutes, or one minute with --quick. Do not run other programs at the same
    time.

    Examples:

        qkv bench attention
        qkv bench --quick
        qkv bench --report docs/benchmarks.md
        qkv bench --compare before.json after.json

    Parameters
    ----------
    names
        The benchmarks to run. Omit NAMES to run all of them.
    quick
        Measure fewer rounds and smaller sizes, for rough numbers.
    report
        Write a Markdown page to this file, and the same numbers as JSON next to it.
    keep
        With --report: keep the results of other benchmarks that are already in the page.
    compare
        Compare the ratios in two JSON reports instead of measuring. The exit code is 1 if one got worse: its 95%
        interval is entirely below 0.97 times the old ratio.
    json
        Print the numbers as JSON.
    """
    from qkv import bench as benchmarks
    from qkv.bench.machine import describe_hardware
    from qkv.bench.report import BenchmarkReport, merge_report, write_report

    if compare is not None:
        return _compare(*compare, json=json)
    benchmarks.select_benchmarks(names)
    if keep and report is None:
        raise ValueError("--keep goes with --report: it keeps the other benchmarks of that page")
    if report is not None:
        if report.suffix != ".md":
            raise ValueError(f"--report must be a markdown page such as benchmarks.md, got {report}")
        if not report.resolve().parent.is_dir():
            raise ValueError(f"cannot write {report}: there is no folder {report.resolve().parent}")
        if keep:  # refuse a page of another machine now, not after minutes of measuring
            merge_report(report, BenchmarkReport(describe_hardware(), quick))
    with progress_line("") as show:
        found = benchmarks.run_benchmarks(names, quick=quick, on_note=show)
    if report is not None:
        data = write_report(merge_report(report, found) if keep else found, report)
        err().print(f"wrote {report} and {data}", style="dim")
    if json:
        print_json(found.to_dict())
    else:
        _print_report(found)
    if found.interrupted:
        err().print(f"interrupted: {', '.join(found.interrupted)} not measured", style="yellow")
        return 130
    return 0


def _compare(before: Path, after: Path, *, json: bool) -> int:
    from qkv.bench.compare import compare_reports, read_report

    table, worse = compare_reports(read_report(before), read_report(after))
    if json:
        names = ("benchmark", "ratio", "before", "after", "change")
        rows = [{**dict(zip(names, row, strict=False)), "worse": row[-1] == "worse"} for row in table.rows]
        print_json({"ratios": rows, "worse": worse})
    else:
        for row in sorted(table.rows, key=lambda row: row[-1] != "worse"):
            _print_change(row)
        out().print(Text(f"{worse} of {len(table.rows)} ratios got worse"))
    return 1 if worse else 0


def _print_change(row: "Sequence[Value]") -> None:
    """Two lines: the ratio's name, then its values. A table of six columns does not fit into a terminal."""
    benchmark, ratio, before, after, change, verdict = row
    out().print(Text(f"{benchmark}: {ratio}", style="bold red" if verdict else "bold"))
    out().print(Text(f"  {before} → {after}, {change:.2f} × before{', worse' if verdict else ''}"))


def _print_report(report: "BenchmarkReport") -> None:
    from qkv.bench.report import describe_machine

    out().print(Text(describe_machine(report.machine), style="dim"))
    for result in report.results:
        out().print(Text(f"\n{result.name}", style="bold"), Text(f"({result.seconds} s)", style="dim"))
        out().print(Text(result.about))
        for table in result.tables:
            out().print()
            out().print(rich_table(table, out().width))
        for note in result.notes:
            out().print(Text(note))
        if result.not_installed:
            out().print(Text(f"Not installed, so not measured: {', '.join(result.not_installed)}."))
