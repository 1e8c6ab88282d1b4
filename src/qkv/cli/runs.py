"""`qkv runs`: list and compare training runs."""

from pathlib import Path
from typing import Any

from rich.table import Table

from qkv.cli.console import err, out, print_json


def runs(folder: Path = Path("runs"), /, *more: Path, json: bool = False) -> int:
    """List the runs of a folder, or compare runs.

    Examples:

        qkv runs
        qkv runs runs/vit-digits-1 runs/vit-digits-2

    Parameters
    ----------
    folder
        A folder of runs to list, or a run.
    more
        More runs to compare it with: their metrics, and the config fields in which they differ.
    json
        Print them as JSON.
    """
    from qkv.training.runs import RECIPE_FILE, open_run

    places = [folder, *more]
    if not more and not (folder / RECIPE_FILE).is_file():
        places = sorted(path.parent for path in folder.glob(f"*/{RECIPE_FILE}")) if folder.is_dir() else []
        if not places and folder != Path("runs"):
            raise ValueError(f"{folder} is not a run and contains none; a run directory has a {RECIPE_FILE}")
    found = [open_run(place) for place in places]
    if json:
        print_json([run.to_dict() for run in found])
        return 0
    if not found:
        err().print("no runs yet; start one with: qkv train vit-digits")
        return 0
    _print_runs(found)
    if more:
        _print_differences(found)
    return 0


def _print_runs(found: list[Any]) -> None:
    from qkv.training.report import format_metric

    rows = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("run", "recipe", "model", "seed", "parameters", "minutes"):
        rows.add_column(name, no_wrap=True)  # the name of a run is there to be copied; only the result is wrapped
    rows.add_column("result")
    for run in found:
        metrics = run.result.get("test") or run.result.get("validation") or {}
        shown = [
            f"{name.replace('_', ' ')} {format_metric(name, value)}"
            for name, value in metrics.items()
            if isinstance(value, int | float)
        ]
        rows.add_row(
            str(run.folder),
            run.config.recipe,
            run.config.model_kind,
            str(run.config.seed),
            f"{run.parameters:,}",
            f"{run.seconds / 60:.1f}",
            ", ".join(shown) if run.finished else "unfinished",
        )
    out().print(rows)


def _print_differences(found: list[Any]) -> None:
    from qkv._config import find_differences

    differences = find_differences([run.config.to_table() for run in found])
    if not differences:
        out().print("\nThe configs are the same.")
        return
    rows = Table("field", *(run.folder.name for run in found), box=None, padding=(0, 2))
    for name, values in differences.items():
        rows.add_row(name, *(str(value) for value in values))
    out().print()
    out().print(rows)
