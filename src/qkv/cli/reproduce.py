"""`qkv reproduce`: train and measure a row of the results table again."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from qkv.cli.console import err, out, print_json, rich_table
from qkv.cli.train import exit_code

if TYPE_CHECKING:
    from qkv.bench import OnNote
    from qkv.bench.reproduce.rows import ResultRow
    from qkv.bench.reproduce.runner import ReproduceResult


def reproduce(
    row: str | None = None,
    /,
    *,
    data: Path | None = None,
    seeds: int | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    folder: Path | None = None,
    from_: Annotated[Path | None, Parameter(name="--from")] = None,
    label: str | None = None,
    commit: str | None = None,
    peak: float | None = None,
    results: Path | None = None,
    draw: bool = False,
    quiet: bool = False,
    json: bool = False,
) -> int:
    """Rerun an experiment (a row) of the results table: train and test its models, and store the numbers.

    A row has one or more parts, such as ours and nyu-hw4. Each part is trained in an ordinary run. If a run is killed,
    the same command resumes it; finished runs are not trained again. Omit ROW to list the rows and the data they need.
    Do not run other programs at the same time, because time and speed are measured.

    Examples:

        qkv reproduce
        qkv reproduce digits
        qkv reproduce cifar10-20 --data DATA --seeds 3
        qkv reproduce cifar10-20 --data DATA --label ours
        qkv reproduce cifar10-20 --from runs/vit-cifar10-1 --label ours --data DATA
        qkv reproduce --draw

    Parameters
    ----------
    row
        The row of the table. Omit ROW to list the rows.
    data
        A folder with birthplaces/, multi30k/, audiomnist/, spoken-digits/, cifar10.npz (or CIFAR-10's own
        cifar-10-batches-bin/) and cifar100/. Only the data of the row is needed.
    seeds
        Number of seeds, starting with 0. Default: 1.
    minutes
        Train each part for this many minutes, as a trial; the result is stored separately.
    steps
        Train each part for this many steps, as a trial.
    folder
        The folder for the runs; each run gets a folder ROW/PART-seedN in it. Default: runs/reproduce.
    from_
        Store the results of this finished run instead of training.
    label
        Train only this part of the row, such as ours. With --from: the part that the run belongs to, if it matches more
        than one.
    commit
        With --from: the qkv commit that trained the run, if it is not stored in the run.
    peak
        The peak speed of this machine in GFLOPS (a large float32 matrix product), for the column "share of peak".
        Default: qkv measures it.
    results
        The folder for the results, as JSON files. Default: docs/results in a checkout of qkv, otherwise
        runs/reproduce/results.
    draw
        Write the page of all results and its figures from the stored results.
    quiet
        Do not show progress.
    json
        Print the numbers as JSON; progress becomes JSON lines on stderr.
    """
    if row is None:
        needs_row = {"data": data, "seeds": seeds, "minutes": minutes, "steps": steps, "folder": folder, "from": from_}
        if used := _first_given(**needs_row, label=label, commit=commit, peak=peak):
            raise ValueError(f"--{used} needs a row; `qkv reproduce` lists them")
        return _draw_page(results, json) if draw else _list_rows(json)
    from qkv.bench.reproduce.rows import get_row
    from qkv.bench.reproduce.runner import RUNS, Budget, enter_run
    from qkv.bench.reproduce.runner import reproduce as run_row
    from qkv.cli.progress import make_callback

    chosen, on_note = get_row(row), _make_on_note(quiet or json)
    if from_ is not None:
        if used := _first_given(seeds=seeds, minutes=minutes, steps=steps, folder=folder):
            raise ValueError(f"--from takes a finished run; --{used} is for training one")
        found = enter_run(chosen, from_, label, data=data, results=results, commit=commit, peak=peak, on_note=on_note)
    else:
        if used := _first_given(commit=commit, peak=peak):
            raise ValueError(f"--{used} describes a finished run: it goes with --from RUN")
        found = run_row(
            chosen,
            label,
            data=data,
            seeds=1 if seeds is None else seeds,
            budget=Budget(minutes, steps),
            runs=RUNS if folder is None else folder,
            results=results,
            callback=lambda stage, settings: make_callback(stage.name, quiet=quiet, json_lines=json),
            on_note=on_note,
        )
    _print_result(found, json)
    if draw and found.file is not None and not found.stopped:
        _draw_page(found.file.parent, False, quiet=json)
    return exit_code(found.stopped)


def _first_given(**options: Any) -> str | None:
    return next((name for name, value in options.items() if value is not None), None)


def _make_on_note(quiet: bool) -> "OnNote":
    def on_note(text: str) -> None:
        if not quiet:
            err().print(text, style="dim", markup=False, highlight=False)

    return on_note


def _print_result(found: "ReproduceResult", json: bool) -> None:
    if json:
        file = None if found.file is None else str(found.file)
        records = [asdict(record) for record in found.records]
        print_json({"row": found.row.name, "parts": records, "file": file, "stopped": found.stopped})
        return
    from qkv.bench.reproduce.page import row_table

    row = found.row
    if found.records:
        out().print(rich_table(row_table(row, found.records), out().width))
        for record in found.records:
            if record.differs:
                text = f"{record.label}, seed {record.seed}, differs from the row: {', '.join(record.differs)}"
                out().print(Text(text, style="dim"))
        targets = (("target", row.target), ("stretch target", row.stretch_target))
        if row.target or row.stretch_target:
            out().print(Text("; ".join(f"{name}: {text}" for name, text in targets if text), style="dim"))
    if found.stopped:
        out().print(f"stopped ({found.stopped}); the same command resumes it", markup=False)
    elif found.file is not None:
        err().print(f"wrote {found.file}", style="dim", markup=False, highlight=False)


def _draw_page(results: Path | None, json: bool, quiet: bool = False) -> int:
    from qkv.bench.reproduce.page import write_results_page
    from qkv.bench.reproduce.runner import RUNS, default_results_folder

    written = write_results_page(default_results_folder(RUNS) if results is None else results)
    if json:
        print_json([str(path) for path in written])
    elif not quiet:
        err().print(f"wrote {', '.join(str(path) for path in written)}", style="dim", markup=False, soft_wrap=True)
    return 0


def _list_rows(json: bool) -> int:
    from qkv.bench.reproduce.rows import ROWS

    if json:
        print_json({row.name: _describe_row(row) for row in ROWS.values()})
        return 0
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("row", "minutes", "needs"):
        table.add_column(heading, no_wrap=True, justify="right" if heading == "minutes" else "left")
    table.add_column("what is measured")
    for row in ROWS.values():
        about = _describe_row(row)
        minutes = f"{about['minutes']:g}" if about["minutes"] else "by steps"
        table.add_row(row.name, minutes, ", ".join(about["needs"]) or "nothing", row.what)
    out().print(table)
    out().print(
        "\nMinutes are those of training, all parts of one seed together. By steps: as long as the recipes' own steps "
        "take, from a minute (digits) to hours; docs/results.md has the times. --data FOLDER contains what is needed."
    )
    return 0


def _describe_row(row: "ResultRow") -> dict[str, Any]:
    return {
        "what": row.what,
        "parts": [part.label for part in row.parts],
        "minutes": sum(part.minutes or 0 for part in row.parts),
        "needs": row.needs,
        "target": row.target,
        "stretch_target": row.stretch_target,
    }
