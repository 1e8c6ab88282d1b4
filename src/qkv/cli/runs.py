"""`qkv runs`: list and compare training runs."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from qkv.cli.console import err, out, print_json

if TYPE_CHECKING:
    from qkv.training.records import RunRecord


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
    from qkv.training.records import format_metric
    from qkv.training.run_state import UNFINISHED

    rows = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("run", "recipe", "model", "seed", "parameters", "minutes"):
        rows.add_column(name, no_wrap=True)  # the name of a run is there to be copied; only the result is wrapped
    rows.add_column("result")
    for run in found:
        part = "test" if run.result.get("test") else "validation"
        shown = [
            f"{name.replace('_', ' ')} {format_metric(name, value)}"
            for name, value in run.result.get(part, {}).items()
            if isinstance(value, int | float)
        ]
        result = f"{run.state}: {UNFINISHED}" if run.state == "unfinished" else run.state
        if run.finished:
            result = f"{part}: {', '.join(shown)}" if shown else ""
        rows.add_row(
            str(run.folder),
            run.recipe,
            run.model_kind,
            str(run.seed),
            f"{run.parameters:,}",
            f"{run.seconds / 60:.1f}",
            result,
        )
    out().print(rows)


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
