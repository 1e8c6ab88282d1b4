"""The results as a table, a page and pictures, drawn from what is kept."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from qkv._figures import INK, Curves, draw
from qkv._files import write_whole
from qkv.bench.reproduce.measured import Measured, by_label, file_of, read
from qkv.bench.reproduce.rows import ROWS, Figure, Row
from qkv.bench.result import Column, Table, table_lines

SCALE = 1.8  # pixels of a picture for each of its points
BEGINNING = """# Results

Drawn by `qkv reproduce --draw` from the JSON files in `{folder}/`; each row is measured by the command that it names.
`DATA` is a folder with the data (docs/train.md says where to get it), `RUN_OF_…` the folder of that part's run.

Minutes are minutes of training, evaluations on the way included, the test not. A row of so many minutes makes as many
steps as fit into them with the cores it uses, by a speed that is measured before; the minutes they took are shown.
With `OMP_NUM_THREADS=1` it uses one core, which makes more than half of the steps of two, so two parts side by side
(`--label`) are done sooner. A figure of several seeds is their mean, with the smallest and the largest. A part
that a `qkv train` made has the steps that its command names. Test data is touched at the end of a finished recipe
only; what is chosen is chosen by validation data (docs/lab-log.md says how often). *Share of the peak*: the
operations of a training step's forward and backward pass (matrix products; attention in full), divided by the time of
the step, data and optimiser included, and by the speed of a large float32 matrix product, measured with the same
threads."""


def table(row: Row, parts: Sequence[Measured], *, wide: bool = False) -> Table:
    """A line for each label, its seeds together. wide: with parameters, for a page."""
    columns = (
        Column("what"),
        *([Column("parameters")] if wide else []),
        Column("minutes"),
        Column("cores used"),
        Column("seeds"),
        *(Column(figure.said) for figure in row.figures),
        Column("course or public"),
        Column("items/s"),
        Column("share of peak", "%"),
    )
    public = {part.label: part.public for part in row.parts}
    rows = []
    for label, seeds in by_label(parts).items():
        rows.append(
            (
                label,
                *([spread([part.parameters for part in seeds], lambda value: f"{value:,.0f}")] if wide else []),
                spread([part.minutes for part in seeds], lambda value: f"{value:.1f}"),
                spread([part.threads for part in seeds], lambda value: f"{value:.0f}"),
                ", ".join(str(part.seed) for part in seeds),
                *(spread(values(figure, seeds), figure.shown) for figure in row.figures),
                public.get(label) or None,
                spread([part.items_per_second for part in seeds], lambda value: f"{value:,.0f}"),
                spread([part.share_of_peak for part in seeds], lambda value: f"{100 * value:.0f}"),
            )
        )
    return Table(row.what, columns, tuple(rows))


def values(figure: Figure, seeds: Sequence[Measured]) -> list[float | None]:
    """A figure of each seed, where the test has it."""
    return [part.test.get(figure.name) for part in seeds]


def spread(numbers: Sequence[float | int | None], shown: Callable[[float], str]) -> str | None:
    """The mean and, in brackets, the smallest and the largest where they look different; None without a number.

    >>> spread([1.0, 2.0, 4.5], "{:.1f}".format), spread([3.0], "{:.1f}".format), spread([None], "{:.1f}".format)
    ('2.5 (1.0–4.5)', '3.0', None)
    """
    known = [number for number in numbers if number is not None]
    if not known:
        return None
    least, most = shown(min(known)), shown(max(known))
    return shown(statistics.mean(known)) + (f" ({least}–{most})" if least != most else "")


def markdown(results: Mapping[str, Sequence[Measured]], folder: str = "results") -> str:
    """The page: an overview, then a section for each row. folder: where its pictures are, seen from the page."""
    lines = [BEGINNING.format(folder=folder), "", *table_lines(_overview(results))]
    for row in ROWS.values():
        if parts := results.get(row.name):
            lines += ["", *_section(row, parts, folder)]
    return "\n".join(lines) + "\n"


def _overview(results: Mapping[str, Sequence[Measured]]) -> Table:
    names = ("what", "minutes", "seeds", "figure", "course or public", "reach", "aim")
    rows = []
    for row in ROWS.values():
        for label, seeds in by_label(results.get(row.name, ())).items():
            told = ((figure, spread(values(figure, seeds), figure.shown)) for figure in row.figures)
            public = next((part.public for part in row.parts if part.label == label), "")
            rows.append(
                (
                    f"[{row.name}](#{row.name})",
                    label,
                    spread([part.minutes for part in seeds], lambda value: f"{value:.1f}"),
                    str(len(seeds)),
                    "; ".join(f"{figure.said}: {number or '–'}" for figure, number in told),
                    public or None,
                    row.reach or None,
                    row.aim or None,
                )
            )
        if row.name not in results:
            rows.append((row.name, "not measured yet", None, None, None, None, row.reach or None, row.aim or None))
    return Table("Results", tuple(Column(name) for name in ("row", *names)), tuple(rows))


def _section(row: Row, parts: Sequence[Measured], folder: str) -> list[str]:
    lines = [f"## {row.name}", "", f"{row.what}."]
    lines += [f"Within reach: {row.reach}."] if row.reach else []
    lines += [f"The aim: {row.aim}."] if row.aim else []
    lines += ["", *table_lines(table(row, parts, wide=True)), ""]
    if any(part.curve for part in parts):
        lines += [f"![{row.curve.replace('_', ' ')} over minutes]({folder}/{row.name}.svg)", ""]
    for command, labels in _commands(parts).items():
        lines += [f"- {', '.join(labels)}: `{command}`"]
    lines += [
        f"- {part.label}, seed {part.seed}, departs from the row: {', '.join(part.differs)}"
        for part in parts
        if part.differs
    ]
    lines += [
        f"- {part.label} learns what {part.teacher} answered after reading; {part.teacher}'s minutes come on top"
        for part in row.parts
        if part.teacher and part.label in by_label(parts)
    ]
    return [*lines, "", *_machines(parts)]


def _commands(parts: Sequence[Measured]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in parts:
        labels = found.setdefault(part.command, [])
        labels += [part.label] * (part.label not in labels)
    return found


def _machines(parts: Sequence[Measured]) -> list[str]:
    """What parts were measured on, each machine and commit once."""
    peaks: dict[str, list[float]] = {}
    for part in parts:
        about = part.machine
        said = (
            f"{about['processor']}, {about['cores']} cores, torch {about['torch']}, Python {about['python']}; "
            f"qkv at {part.commit}; matrix products with {part.threads} threads"
        )
        peaks.setdefault(said, []).append(part.peak_gigaflops)
    return [f"{said} {spread(found, lambda value: f'{value:,.1f}')} GFLOPS." for said, found in peaks.items()]


def picture(row: Row, parts: Sequence[Measured]) -> str | None:
    """The curves of a row over minutes, one colour for each label; None where nothing was watched."""
    series = {
        label: [([at for _, at, _ in part.curve], [value for *_, value in part.curve]) for part in seeds if part.curve]
        for label, seeds in by_label(parts).items()
    }
    series = {label: curves for label, curves in series.items() if curves}
    if not series:
        return None
    panel = Curves(f"{row.name}: {row.curve.replace('_', ' ')} in validation", "minutes of training", series=series)
    return standing(draw([panel], name=row.name)) + "\n"


def standing(svg: str) -> str:
    """A picture as a file of its own: its own size, ink and paper, whatever page shows it."""
    sized = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert sized is not None
    width, height = (round(SCALE * float(size)) for size in sized.groups())
    svg = re.sub(
        r'style="width:100%[^"]*"', f'width="{width}" height="{height}" style="background:#ffffff"', svg, count=1
    )
    return svg.replace("currentColor", INK)


def read_all(folder: Path) -> dict[str, list[Measured]]:
    """What is kept of every row that was measured."""
    found = {name: read(folder, name) for name in ROWS if file_of(folder, name).is_file()}
    return {name: parts for name, parts in found.items() if parts}


def write(folder: Path) -> list[Path]:
    """Draw the page beside the folder of results (docs/results.md) and a picture for each row into it; returns both."""
    results = read_all(folder)
    if not results:
        raise ValueError(f"{folder} has no results to draw; `qkv reproduce NAME` makes some")
    folder = folder.resolve()
    written = [folder.with_suffix(".md")]
    write_whole(written[0], markdown(results, folder.name))
    for name, parts in results.items():
        if (svg := picture(ROWS[name], parts)) is not None:
            written.append(folder / f"{name}.svg")
            write_whole(written[-1], svg)
    return written
