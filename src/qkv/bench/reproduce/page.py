"""The results page (docs/results.md): tables and curves drawn from the records."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from qkv._figures import INK, Curves, draw_svg
from qkv._files import write_atomic
from qkv.bench.report import Column, Table, markdown_table
from qkv.bench.reproduce.records import Record, group_by_label, read_records, record_file
from qkv.bench.reproduce.rows import ROWS, SYSTEMS, Metric, ResultRow, System

SCALE = 1.8  # pixels for each point of a figure
INTRODUCTION = """# Results

`qkv reproduce --draw` writes this page from the JSON files in `{folder}/`. Each row names the command that measures it.
`DATA` is a folder with the data (docs/training.md says where to get it).

Minutes are minutes of training, including evaluations but not the test. For a row with a time limit, qkv measures the
speed first and chooses as many steps as fit into the limit with the cores that it uses; the minutes shown are those
that the run took. One core makes more than half as many steps per minute as two cores, so it is faster to train two
parts in parallel (`--label`), each with `OMP_NUM_THREADS=1`.

For several seeds, a number is their mean, with the smallest and the largest in parentheses. ± is half of the 95%
interval of a proportion for this number of test items; it does not include the variation between training runs, which
the range of the seeds shows. *Published* numbers are results of others, with their source; if the protocol differs, the
row says how. A *control* is a simple method without training, on the same questions.

A part trained with `qkv train` has the number of steps in its command. Test data is used only at the end of a finished
recipe (docs/lab-log.md says how often), and choices are made on validation data; the preset nyu-hw4 for CIFAR-100
selects the best epoch on the test set, as the homework does.

*Share of peak* is the number of operations in the forward and backward pass of a training step (matrix products;
attention counts in full), divided by the time of the step, including data and optimizer, and by the speed of a large
float32 matrix product with the same threads. In bfloat16 it can be above 100%."""

OPERATIONS = """The figures show the validation metric over the operations (FLOPs) spent so far, for the course's recipe
and for ours. The published curve of NYU DL HW4 and that of the row cifar100-nyu-hw4 are measured on the test set
instead. If a record has no count of operations, the figure uses its time multiplied by its share of the peak speed."""


def row_table(row: ResultRow, records: Sequence[Record], *, wide: bool = False) -> Table:
    """One line for each label, with all its seeds. wide: with protocol and parameters, for the page."""
    protocols = {part.label: part.protocol for part in row.parts if part.protocol and wide}
    columns = (
        Column("part"),
        *([Column("protocol")] if protocols else []),
        *([Column("parameters")] if wide else []),
        Column("minutes"),
        Column("cores used"),
        Column("seeds"),
        *(Column(metric.title) for metric in row.metrics),
        Column("published"),
        *([Column("operations")] if wide else []),
        Column("items/s"),
        Column("share of peak", "%"),
    )
    published = {part.label: part.published for part in row.parts}
    rows = []
    for label, seeds in group_by_label(records).items():
        parameters = format_range([record.parameters for record in seeds], lambda value: f"{value:,.0f}")
        rows.append(
            (
                label,
                *([protocols.get(label)] if protocols else []),
                *([parameters] if wide else []),
                format_range([record.minutes for record in seeds], lambda value: f"{value:.1f}"),
                format_range([record.threads for record in seeds], lambda value: f"{value:.0f}"),
                ", ".join(str(record.seed) for record in seeds),
                *(format_metric(metric, seeds) for metric in row.metrics),
                published.get(label) or None,
                *([format_range([record.flops for record in seeds], "{:.1e}".format)] if wide else []),
                format_range([record.items_per_second for record in seeds], lambda value: f"{value:,.0f}"),
                format_range([record.share_of_peak for record in seeds], lambda value: f"{100 * value:.0f}"),
            )
        )
    return Table(row.what, columns, tuple(rows))


def format_metric(metric: Metric, seeds: Sequence[Record]) -> str | None:
    """A metric over all seeds, with the 95 % interval of its mean where it is a share; None if no test has it."""
    return format_range([record.test.get(metric.name) for record in seeds], metric.format, metric.interval)


def format_range(
    numbers: Sequence[float | int | None],
    format_one: Callable[[float], str],
    interval: Callable[[float], str] = lambda mean: "",
) -> str | None:
    """The mean, with smallest and largest in brackets if they differ as shown; None without a number.

    interval: what follows the mean after "±"; "" for nothing.

    >>> [format_range(numbers, "{:.1f}".format) for numbers in ([1.0, 2.0, 4.5], [3.0], [None])]
    ['2.5 (1.0–4.5)', '3.0', None]
    """
    known = [number for number in numbers if number is not None]
    if not known:
        return None
    mean, low, high = statistics.mean(known), format_one(min(known)), format_one(max(known))
    around = f" ± {interval(mean)}" if interval(mean) else ""
    return format_one(mean) + around + (f" ({low}–{high})" if low != high else "")


def results_markdown(results: Mapping[str, Sequence[Record]], folder: str = "results") -> str:
    """The page: an overview, then a section for each row. folder: of the figures, relative to the page."""
    lines = [INTRODUCTION.format(folder=folder), "", *markdown_table(_overview(results))]
    if drawn := [system for system in SYSTEMS if system_series(system, results)]:
        lines += ["", "## Quality over operations", "", OPERATIONS]
        lines += [f"\n![{system.title} over operations]({folder}/{figure_name(system)}.svg)" for system in drawn]
    for row in ROWS.values():
        if records := results.get(row.name):
            lines += ["", *_section(row, records, folder)]
    return "\n".join(lines) + "\n"


def _overview(results: Mapping[str, Sequence[Record]]) -> Table:
    names = ("row", "part", "minutes", "seeds", "metrics", "published", "target", "stretch target")
    rows = []
    for row in ROWS.values():
        targets = (row.target or None, row.stretch_target or None)
        measured = [metric for metric in row.metrics if not metric.control]
        for label, seeds in group_by_label(results.get(row.name, ())).items():
            published = next((part.published for part in row.parts if part.label == label), "")
            rows.append(
                (
                    f"[{row.name}](#{row.name})",
                    label,
                    format_range([record.minutes for record in seeds], lambda value: f"{value:.1f}"),
                    str(len(seeds)),
                    "; ".join(f"{metric.title}: {format_metric(metric, seeds) or '–'}" for metric in measured),
                    published or None,
                    *targets,
                )
            )
        if row.name not in results:
            rows.append((row.name, "not measured yet", None, None, None, None, *targets))
    return Table("Results", tuple(Column(name) for name in names), tuple(rows))


def _section(row: ResultRow, records: Sequence[Record], folder: str) -> list[str]:
    lines = [f"## {row.name}", "", f"{row.what}."]
    lines += [f"Target: {row.target}."] if row.target else []
    lines += [f"Stretch target: {row.stretch_target}."] if row.stretch_target else []
    lines += ["", *markdown_table(row_table(row, records, wide=True)), ""]
    if any(record.curve for record in records):
        lines += [f"![{row.curve.replace('_', ' ')} over minutes]({folder}/{row.name}.svg)", ""]
    for command, labels in _group_by_command(records).items():
        lines += [f"- {', '.join(labels)}: `{command}`"]
    lines += [
        f"- {record.label}, seed {record.seed}, differs from the row: {', '.join(record.differs)}"
        for record in records
        if record.differs
    ]
    lines += [
        f"- {part.label} learns the pseudo-labels of {part.teacher} (`RUN_OF_{part.teacher.upper()}` in commands is "
        f"its run directory); the minutes of {part.teacher} come in addition"
        for part in row.parts
        if part.teacher and part.label in group_by_label(records)
    ]
    return [*lines, "", *_describe_machines(records)]


def _group_by_command(records: Sequence[Record]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for record in records:
        labels = found.setdefault(record.command, [])
        if record.label not in labels:
            labels.append(record.label)
    return found


def _describe_machines(records: Sequence[Record]) -> list[str]:
    """Each machine and commit once."""
    peaks: dict[str, list[float]] = {}
    for record in records:
        about = record.machine
        text = (
            f"{about['processor']}, {about['cores']} cores, torch {about['torch']}, Python {about['python']}; "
            f"qkv at {record.commit}; matrix products with {record.threads} thread{'s' if record.threads != 1 else ''}:"
        )
        peaks.setdefault(text, []).append(record.peak_gigaflops)
    return [f"{text} {format_range(found, lambda value: f'{value:,.1f}')} GFLOPS." for text, found in peaks.items()]


def draw_curves(row: ResultRow, records: Sequence[Record]) -> str | None:
    """The curves of a row over minutes as SVG, one color for each label; None if there are none."""
    series = {
        label: [([at for _, at, _ in r.curve], [value for *_, value in r.curve]) for r in seeds if r.curve]
        for label, seeds in group_by_label(records).items()
    }
    series = {label: curves for label, curves in series.items() if curves}
    if not series:
        return None
    panel = Curves(f"{row.name}: {row.curve.replace('_', ' ')} in validation", "minutes of training", series=series)
    return _make_standalone(draw_svg([panel], name=row.name)) + "\n"


def system_series(
    system: System, results: Mapping[str, Sequence[Record]]
) -> dict[str, list[tuple[list[float], list[float]]]]:
    """The curves of a system over operations, by row and part, and those published; {} if it has no curve of ours."""
    series: dict[str, list[tuple[list[float], list[float]]]] = {}
    records = [(name, record) for name in system.rows for record in results.get(name, ())]
    for name, record in records:
        points = [(flops, value) for step, _, value in record.curve if (flops := record.flops_at(step))]
        rows = {row for row, other in records if other.label == record.label}
        label = record.label if len(rows) == 1 else f"{name}: {record.label}"
        if points:
            series.setdefault(label, []).append(_unzip(points))
    return series | {label: [_unzip(points)] for label, points in system.published.items()} if series else {}


def _unzip(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def figure_name(system: System) -> str:
    return f"{system.name}-operations"


def draw_system(system: System, results: Mapping[str, Sequence[Record]]) -> str | None:
    """The quality of a system over the operations of training as SVG; None if it has no curve."""
    if not (series := system_series(system, results)):
        return None
    panel = Curves(system.title, "operations of training", series=series, logx=True, legend_outside=True)
    return _make_standalone(draw_svg([panel], name=figure_name(system), width=5.6)) + "\n"


def _make_standalone(svg: str) -> str:
    """An SVG file with its own size, ink and background, independent of the page that shows it."""
    sized = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert sized is not None
    width, height = (round(SCALE * float(size)) for size in sized.groups())
    svg = re.sub(
        r'style="width:100%[^"]*"', f'width="{width}" height="{height}" style="background:#ffffff"', svg, count=1
    )
    return svg.replace("currentColor", INK)


def read_all_records(folder: Path) -> dict[str, list[Record]]:
    """The records of every row that was measured."""
    found = {name: read_records(folder, name) for name in ROWS if record_file(folder, name).is_file()}
    return {name: records for name, records in found.items() if records}


def write_results_page(folder: Path) -> list[Path]:
    """Draw the page next to the folder of records (docs/results.md) and the figures of rows and systems into it."""
    results = read_all_records(folder)
    if not results:
        raise ValueError(f"{folder} has no results to draw; `qkv reproduce NAME` makes some")
    folder = folder.resolve()
    written = [folder.with_suffix(".md")]
    write_atomic(written[0], results_markdown(results, folder.name))
    figures = {name: draw_curves(ROWS[name], records) for name, records in results.items()}
    figures |= {figure_name(system): draw_system(system, results) for system in SYSTEMS}
    for name, svg in figures.items():
        if svg is not None:
            written.append(folder / f"{name}.svg")
            write_atomic(written[-1], svg)
    return written
