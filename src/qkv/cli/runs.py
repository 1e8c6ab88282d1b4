"""`qkv runs`: list and compare training runs."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from qkv.cli.console import err, out, print_json

if TYPE_CHECKING:
    from qkv.training.records import RunRecord

RESULT_WIDTH = 40  # of the last column, below which results get lines of their own


def runs(folder: Path = Path("runs"), /, *other_runs: Path, json: bool = False) -> int:
    """List the runs in a folder, or compare runs.

    Examples:

        qkv runs
        qkv runs runs/vit-digits-1 runs/vit-digits-2
        qkv runs --json

    Parameters
    ----------
    folder
        A folder that contains runs, or a run.
    other_runs
        More runs: compare their metrics, and show the settings that differ.
    json
        Print the runs as JSON.
    """
    from qkv._config import RECIPE_FILE
    from qkv.training.records import read_record

    places, named = [folder, *other_runs], True
    if not other_runs and not (folder / RECIPE_FILE).is_file():
        places = sorted(path.parent for path in folder.glob(f"*/{RECIPE_FILE}")) if folder.is_dir() else []
        if not folder.exists() and folder != Path("runs"):
            raise ValueError(f"there is no folder {folder}")
        if not places and folder != Path("runs"):
            raise ValueError(f"{folder} is not a run and contains none; a run directory has a {RECIPE_FILE}")
        named = False
    if json:
        from qkv.training.runs import open_run

        print_json([run.to_dict() for run in _read_all(places, open_run, named=named)])
        return 0
    found = _read_all(places, read_record, named=named)
    if not found:
        err().print("no runs yet; start one with: qkv train vit-digits")
        return 0
    _print_runs(found)
    if other_runs:
        _print_differences(places)
    return 0


def _read_all(places: list[Path], read: Callable[[Path], Any], *, named: bool) -> list[Any]:
    """Read the runs; one that is damaged does not hide the others, unless it was named."""
    found = []
    for place in places:
        try:
            found.append(read(place))
        except (ValueError, OSError) as error:
            if named:
                raise
            err().print(f"note: left out {place}: {error}", markup=False)
    return found


def _print_runs(found: "list[RunRecord]") -> None:
    """A line for each run. In a narrow terminal the result gets a line of its own; into a pipe no line is broken."""
    header = ("run", "recipe", "model", "seed", "parameters", "minutes")
    rows = [
        (
            str(run.folder),
            run.recipe,
            run.model_kind,
            str(run.seed),
            f"{run.parameters:,}",
            f"{run.seconds / 60:.1f}",
        )
        for run in found
    ]
    widths = [max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]
    lines = ["  ".join(set_cell_size(cell, width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    headline = "  ".join(set_cell_size(name, width) for name, width in zip(header, widths, strict=True))
    used = cell_len(headline) + 2
    if not out().is_terminal:
        texts = [f"{headline}  result", *(f"{line}  {_result(run)}" for line, run in zip(lines, found, strict=True))]
        for text in texts:
            out().print(Text(text.rstrip()), soft_wrap=True)
        return
    beside = out().width - used >= RESULT_WIDTH
    out().print(Text(f"{headline}  result" if beside else headline, style="bold"))
    for line, run in zip(lines, found, strict=True):
        if not beside:
            out().print(Text(line), soft_wrap=True)
        row = Table.grid(padding=(0, 2, 0, 0))
        row.add_column(no_wrap=True, width=cell_len(line) if beside else 2)
        row.add_column()
        row.add_row(Text(line if beside else ""), Text(_result(run)))
        out().print(row)


def _result(run: "RunRecord") -> str:
    """The metrics of a finished run, or how far it is."""
    from qkv.training.records import format_metric

    if not run.finished:
        return _describe_state(run)
    part = "test" if run.result.get("test") else "validation"
    shown = [
        f"{name.replace('_', ' ')} {format_metric(name, value)}"
        for name, value in run.result.get(part, {}).items()
        if isinstance(value, int | float)
    ]
    return f"{part}: {', '.join(shown)}" if shown else ""


def _describe_state(run: "RunRecord") -> str:
    """How far an unfinished run is, and why it ended."""
    from qkv.training.run_state import UNFINISHED

    if run.state == "failed":
        return f"failed: {run.error}"
    text = f"{run.state} at step {run.progress.step:,} of {run.steps:,}"
    return f"{text}: {UNFINISHED}" if run.state == "unfinished" else text


def _print_differences(places: list[Path]) -> None:
    from qkv._config import find_differences
    from qkv.training.runs import open_run

    found = [open_run(place) for place in places]
    differences = find_differences([run.config.to_table() for run in found])
    if not differences:
        out().print("\nThe settings are the same.")
        return
    rows = Table("setting", *(run.folder.name for run in found), box=None, padding=(0, 2))
    for name, values in differences.items():
        rows.add_row(name, *(str(value) for value in values))
    out().print()
    out().print(rows)
