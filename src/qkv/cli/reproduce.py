"""`qkv reproduce`: a row of the results table, trained and measured again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from qkv.cli.console import err, out, print_json
from qkv.cli.train import stopped_by

if TYPE_CHECKING:
    from qkv.bench.reproduce.carry_out import Reproduced
    from qkv.bench.reproduce.rows import Row


def reproduce(
    name: str | None = None,
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
    keep: Path | None = None,
    draw: bool = False,
    quiet: bool = False,
    json: bool = False,
) -> int:
    """Rerun a row of the results table end to end: train its parts, test them, measure speed, keep the figures.

    Each training is an ordinary run. Kill it at any instant: the same command goes on where it stopped, and what is
    finished is not trained again. Without a name the rows are listed, with what each needs. Nothing else should run on
    the machine meanwhile: the minutes and the speeds are measured.

    Examples:

        qkv reproduce
        qkv reproduce digits
        qkv reproduce cifar10-20 --data DATA --seeds 3
        qkv reproduce cifar10-20 --data DATA --label ours
        qkv reproduce cifar10-20 --from runs/vit-cifar10-1 --label ours --data DATA
        qkv reproduce --draw

    Parameters
    ----------
    name
        Which row; without one, those there are.
    data
        A folder laid out like the course's: birthplaces/, multi30k/, spoken-digits/, cifar10.npz (or CIFAR-10's own
        cifar-10-batches-bin/).
    seeds
        How many seeds, 0 first; one if not given.
    minutes
        Train each part for so long, instead of as long as the row says: a trial, kept apart from the results.
    steps
        Train each part for so many steps: a trial, too.
    folder
        Where the runs are kept; runs/reproduce if not given, with a folder ROW/PART-seedN for each.
    from_
        A finished run of `qkv train`: its figures are entered, and nothing is trained.
    label
        Which part of the row: the only one that is trained; with --from, which that run is, if its recipe does not
        tell.
    commit
        The commit of qkv that trained it, if the run does not tell.
    peak
        GFLOPS of a large float32 matrix product with that run's threads; measured now if not given.
    keep
        Where figures are kept as JSON; docs/results in a checkout of qkv, otherwise runs/reproduce/results.
    draw
        Write the page of all results, and its pictures, from what is kept.
    quiet
        No progress.
    json
        Print the figures as JSON; progress becomes JSON lines on stderr.
    """
    if name is None:
        given = {"data": data, "seeds": seeds, "minutes": minutes, "steps": steps, "folder": folder}
        if used := _used(**given, **{"from": from_}, label=label, commit=commit, peak=peak):
            raise ValueError(f"--{used} goes with the name of a row; `qkv reproduce` lists them")
        return _drawn(keep, json) if draw else _listed(json)
    from qkv.bench.reproduce.rows import row

    chosen = row(name)
    if from_ is not None:
        if used := _used(seeds=seeds, minutes=minutes, steps=steps, folder=folder):
            raise ValueError(f"--from enters a run that is finished; --{used} is for training one")
        found = _entered(chosen, from_, label, data, keep, commit, peak, quiet or json)
    else:
        if used := _used(commit=commit, peak=peak):
            raise ValueError(f"--{used} tells about a finished run: it goes with --from RUN")
        found = _run(chosen, label, data, 1 if seeds is None else seeds, minutes, steps, folder, keep, quiet, json)
    _show(found, json)
    if draw and found.kept is not None and not found.stopped:
        _drawn(found.kept.parent, False, quiet=json)
    return stopped_by(found.stopped)


def _used(**options: Any) -> str | None:
    """The first of some options that was given."""
    return next((name for name, value in options.items() if value is not None), None)


def _note(quiet: bool):
    def note(text: str) -> None:
        if not quiet:
            err().print(text, style="dim", markup=False, highlight=False)

    return note


def _run(row, label, data, seeds, minutes, steps, folder, keep, quiet: bool, json: bool) -> "Reproduced":
    from qkv.bench.reproduce.carry_out import RUNS, Budget
    from qkv.bench.reproduce.carry_out import reproduce as carry_out
    from qkv.cli.progress import listener

    return carry_out(
        row,
        label,
        data=data,
        seeds=seeds,
        budget=Budget(minutes, steps),
        home=RUNS if folder is None else folder,
        kept=keep,
        listen=lambda stage, settings: listener(stage.name, quiet=quiet, json_lines=json),
        note=_note(quiet or json),
    )


def _entered(row, place, label, data, keep, commit, peak, quiet: bool) -> "Reproduced":
    from qkv.bench.reproduce.carry_out import enter

    return enter(row, place, label, data=data, kept=keep, commit=commit, peak=peak, note=_note(quiet))


def _show(found: "Reproduced", json: bool) -> None:
    from dataclasses import asdict

    if json:
        kept = None if found.kept is None else str(found.kept)
        parts = [asdict(part) for part in found.parts]
        print_json({"row": found.row.name, "parts": parts, "kept": kept, "stopped": found.stopped})
        return
    from qkv.bench.reproduce.page import table
    from qkv.cli.tables import grid

    row = found.row
    if found.parts:
        out().print(grid(table(row, found.parts), out().width))
        for part in found.parts:
            if part.differs:
                said = f"{part.label}, seed {part.seed}, departs from the row: {', '.join(part.differs)}"
                out().print(Text(said, style="dim"))
        goals = [f"{said}: {goal}" for said, goal in (("within reach", row.reach), ("the aim", row.aim)) if goal]
        if goals:
            out().print(Text("; ".join(goals), style="dim"))
    if found.stopped:
        out().print(f"stopped ({found.stopped}); the same command goes on", markup=False)
    elif found.kept is not None:
        err().print(f"kept in {found.kept}", style="dim", markup=False, highlight=False)


def _drawn(keep: Path | None, json: bool, quiet: bool = False) -> int:
    from qkv.bench.reproduce.carry_out import RUNS, default_keep
    from qkv.bench.reproduce.page import write

    written = write(default_keep(RUNS) if keep is None else keep)
    if json:
        print_json([str(path) for path in written])
    elif not quiet:
        err().print(f"wrote {', '.join(str(path) for path in written)}", style="dim", markup=False, soft_wrap=True)
    return 0


def _listed(json: bool) -> int:
    from qkv.bench.reproduce.rows import ROWS

    if json:
        print_json({row.name: _told(row) for row in ROWS.values()})
        return 0
    rows = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("row", "minutes", "needs"):
        rows.add_column(heading, no_wrap=True, justify="right" if heading == "minutes" else "left")
    rows.add_column("what is measured")
    for row in ROWS.values():
        told = _told(row)
        time = f"{told['minutes']:g}" if told["minutes"] else "by steps"
        rows.add_row(row.name, time, ", ".join(told["needs"]) or "nothing", row.what)
    out().print(rows)
    out().print(
        "\nMinutes are those of training, all parts of one seed together. By steps: as long as the recipes' own steps "
        "take, a minute for digits, up to hours for the others; docs/results.md says how long it was. --data FOLDER "
        "has what is needed."
    )
    return 0


def _told(row: "Row") -> dict[str, Any]:
    return {
        "what": row.what,
        "parts": [part.label for part in row.parts],
        "minutes": sum(part.minutes or 0 for part in row.parts),
        "needs": list(dict.fromkeys(part.data[0] for part in row.parts if part.data)),
        "reach": row.reach,
        "aim": row.aim,
    }
