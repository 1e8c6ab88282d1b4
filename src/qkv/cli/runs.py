"""`qkv runs`: what was trained here, side by side."""

from pathlib import Path
from typing import Any

from rich.table import Table

from qkv.cli.console import err, out, print_json


def runs(folder: Path = Path("runs"), /, *more: Path, json: bool = False) -> int:
    """List the runs of a folder, or compare the runs named.

    Examples:

        qkv runs
        qkv runs runs/vit-digits-1 runs/vit-digits-2

    Parameters
    ----------
    folder
        A folder of runs, which are listed; or a run.
    more
        More runs to compare with it: their numbers, and the settings in which they differ.
    json
        Print them as JSON.
    """
    from qkv.training.runs import RECIPE, open_run

    places = [folder, *more]
    if not more and not (folder / RECIPE).is_file():
        places = sorted(path.parent for path in folder.glob(f"*/{RECIPE}")) if folder.is_dir() else []
        if not places and folder != Path("runs"):
            raise ValueError(f"{folder} is not a run and holds none; a run's folder has a {RECIPE}")
    found = [open_run(place) for place in places]
    if json:
        print_json([run.as_dict() for run in found])
        return 0
    if not found:
        err().print("no runs here yet; begin with: qkv train vit-digits")
        return 0
    _show(found)
    if more:
        _differences(found)
    return 0


def _show(found: list[Any]) -> None:
    from qkv.training.recipes.report import figure

    rows = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("run", "recipe", "model", "seed", "parameters", "minutes"):
        rows.add_column(name, no_wrap=True)  # a run's name is there to be copied; what is long is folded in the result
    rows.add_column("result")
    for run in found:
        numbers = run.result.get("test") or run.result.get("validation") or {}
        shown = {name: figure(name, value) for name, value in numbers.items() if isinstance(value, int | float)}
        told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())
        rows.add_row(
            str(run.folder),
            run.recipe.system,
            run.recipe.kind,
            str(run.recipe.seed),
            f"{run.parameters:,}",
            f"{run.seconds / 60:.1f}",
            told if run.finished else "unfinished",
        )
    out().print(rows)


def _differences(found: list[Any]) -> None:
    from qkv.training.recipes.plain import differing

    differences = differing([run.recipe.to_table() for run in found])
    if not differences:
        out().print("\nThe same recipe.")
        return
    rows = Table("setting", *(run.folder.name for run in found), box=None, padding=(0, 2))
    for name, values in differences.items():
        rows.add_row(name, *(str(value) for value in values))
    out().print()
    out().print(rows)
