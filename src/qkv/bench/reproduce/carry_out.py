"""A row carried out: each part trained in a folder of its own, measured and kept; nothing is done twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qkv.bench import machine
from qkv.bench.reproduce.measured import Measured, keep, read
from qkv.bench.reproduce.reading import (
    differences,
    environment,
    part_recipe,
    read_run,
    threads,
    with_data,
    with_teacher,
)
from qkv.bench.reproduce.rows import Part, Row
from qkv.training.recipes import Run, Task, open_run, system, train
from qkv.training.recipes.source import UNKNOWN, checkout
from qkv.training.runs import Listener, read_status

RUNS = Path("runs/reproduce")
Note = Callable[[str], None]


@dataclass(frozen=True)
class Budget:
    """How long parts are trained, if not as long as the row says; one of the two, or neither."""

    minutes: float | int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.minutes is not None and self.steps is not None:
            raise ValueError("a row is given minutes or steps, not both")
        if self.minutes is not None and not self.minutes > 0:
            raise ValueError(f"minutes are above 0; got {self.minutes}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps are at least 1; got {self.steps}")

    @property
    def name(self) -> str:
        """As folders are called by it; "" for the row's own."""
        if self.minutes is not None:
            return f"{self.minutes:g}min"
        return "" if self.steps is None else f"{self.steps}steps"

    def of(self, part: Part) -> Part:
        """The part as it is then trained."""
        if self.steps is not None:
            return replace(part, minutes=None)
        return part if self.minutes is None else replace(part, minutes=self.minutes)


@dataclass(frozen=True)
class Reproduced:
    """What came of it. stopped: the signal that ended it before all parts were measured."""

    row: Row
    parts: tuple[Measured, ...]
    kept: Path | None
    stopped: str | None = None


def reproduce(
    row: Row,
    label: str | None = None,
    *,
    data: Path | None = None,
    seeds: int = 1,
    budget: Budget | None = None,
    home: Path = RUNS,
    kept: Path | None = None,
    listen: Listener | None = None,
    note: Note = lambda text: None,
) -> Reproduced:
    """Train and measure the parts of a row, seed by seed.

    label: one part alone, and before it the part that teaches it, if one does.
    data: the folder that holds what the parts read. home: where runs are kept. kept: where figures are.
    """
    budget = budget or Budget()
    if seeds < 1:
        raise ValueError(f"seeds are counted from 1; got {seeds}")
    chosen = row.parts if label is None else _with_teacher(row, row.part(label))
    found = {part.label: found_data(row, part, data) for part in chosen}
    kept = default_keep(home, budget) if kept is None else kept
    peak: dict[int, float] = {}
    parts: list[Measured] = []
    place: Path | None = None
    for seed in range(seeds):
        for part in chosen:
            note(f"{row.name}: {part.label}, seed {seed}")
            run = _trained(row, part, seed, found[part.label], budget, home, listen, note)
            if run.stopped:
                return Reproduced(row, tuple(parts), place, run.stopped)
            known = _known(kept, row, part.label, run)
            if known is None:
                known = _measured(
                    run, row, budget.of(part), found[part.label], peak, note, _command(row, label, seeds, budget)
                )
                place = keep(kept, row, known)
            parts.append(known)
    return Reproduced(row, tuple(parts), place or kept / f"{row.name}.json")


def _with_teacher(row: Row, part: Part) -> tuple[Part, ...]:
    return (row.part(part.teacher), part) if part.teacher else (part,)


def enter(
    row: Row,
    folder: Path,
    label: str | None = None,
    *,
    data: Path | None = None,
    kept: Path | None = None,
    commit: str | None = None,
    peak: float | int | None = None,
    note: Note = lambda text: None,
) -> Reproduced:
    """Keep the figures of a run that `qkv train` has finished already.

    label: which part of the row it is; found by its recipe if not given. commit: of qkv then, if the run does not tell.
    peak: GFLOPS of a large float32 matrix product with the run's threads; measured now if not given.
    """
    if peak is not None and not peak > 0:
        raise ValueError(f"the peak is above 0 GFLOPS; got {peak}")
    run = open_run(folder)
    if not run.finished:
        raise ValueError(f"{folder} is not finished: `qkv train` with its --folder goes on with it")
    part = row.part(label) if label is not None else matching(row, run)
    differences(run.recipe, part)  # before anything is measured: is it that part at all?
    path = found_data(row, part, data) if data is not None else None
    known = {} if peak is None else {environment(run)["threads"]: float(peak)}
    told = _measured(run, row, part, path, known, note, "")
    if told.commit == UNKNOWN:
        if commit is None:
            note(f"{folder} does not tell the commit of qkv that trained it; --commit says it")
        told = replace(told, commit=commit or UNKNOWN)
    kept = default_keep(RUNS) if kept is None else kept
    return Reproduced(row, (told,), keep(kept, row, told))


def found_data(row: Row, part: Part, data: Path | None) -> str | None:
    """Where a part's data is; None if it needs none. What is missing is a ValueError."""
    if not part.data:
        return None
    wanted = " or ".join(part.data)
    if data is None:
        raise ValueError(f"{row.name} reads {wanted}: --data FOLDER says which folder has it")
    if not data.is_dir():
        raise ValueError(f"--data {data} is not a folder; expected one that has {wanted}")
    path = next((data / name for name in part.data if (data / name).exists()), None)
    if path is None:
        raise ValueError(f"{data} has no {wanted}, which {row.name} reads; docs/train.md says where to get it")
    return str(path)


def default_keep(home: Path, budget: Budget | None = None) -> Path:
    """Where figures go: into the checkout's docs, beside the runs if there is none; apart if it is but a trial."""
    if budget is not None and budget.name:
        return home / "trials"
    root = checkout()
    return home / "results" if root is None else root / "docs" / "results"


def matching(row: Row, run: Run) -> Part:
    """The one part of a row that has a run's recipe."""
    found = [part for part in row.parts if part.recipe == run.recipe.system and _same(run, part)]
    if len(found) != 1:
        labels = ", ".join(part.label for part in row.parts)
        raise ValueError(f"{run.folder} is none of {row.name}'s parts by its recipe; --label says which: {labels}")
    return found[0]


def _same(run: Run, part: Part) -> bool:
    try:
        return not differences(run.recipe, part)
    except ValueError:  # another model
        return False


def _trained(
    row: Row, part: Part, seed: int, data: str | None, budget: Budget, home: Path, listen: Listener | None, note: Note
) -> Run:
    recipe = with_data(part_recipe(part, seed), data)
    if part.teacher:
        recipe = with_teacher(recipe, str(_place(row, row.part(part.teacher), seed, budget, home)))
    return train(
        recipe,
        folder=_place(row, part, seed, budget, home),
        minutes=budget.of(part).minutes,
        steps=budget.steps,
        listen=listen,
        note=note,
    )


def _place(row: Row, part: Part, seed: int, budget: Budget, home: Path) -> Path:
    """The folder of a part's run."""
    words = [part.label, *([budget.name] if budget.name else []), f"seed{seed}"]
    return home / (part.home or row.name) / "-".join(words)


def _known(kept: Path, row: Row, label: str, run: Run) -> Measured | None:
    """What was kept of this very run."""
    began = read_status(run.folder).get("began")
    same = (part for part in read(kept, row.name) if (part.label, part.seed) == (label, run.recipe.seed))
    return next((part for part in same if part.began == began), None)


def _measured(
    run: Run, row: Row, part: Part, data: str | None, peaks: dict[int, float], note: Note, command: str
) -> Measured:
    recipe, count = with_data(run.recipe, data), environment(run)["threads"]
    with threads(count):
        if count not in peaks:
            note(f"measuring the speed of matrix products with {count} threads")
            peaks[count] = machine.peak_gigaflops()
        task = _built(run, recipe, note)
        test: dict[str, Any] = dict(run.result.get("test", {}))
        if row.measure == "answers":
            from qkv.bench.reproduce.answers import asked

            note("asking the trained model")
            test = asked(run, recipe)
        return read_run(run, row, part, task=task, test=test, peak=peaks[count], command=command)


def _built(run: Run, recipe: Any, note: Note) -> Task | None:
    """The run's data and model, to count operations by; None if the data cannot be read any more."""
    try:
        return system(recipe.system).build(recipe)
    except (ValueError, OSError) as error:
        note(f"the operations of {run.folder} are not counted: {error} (--data FOLDER says where its data is)")
        return None


def _command(row: Row, label: str | None, seeds: int, budget: Budget) -> str:
    words = [f"qkv reproduce {row.name}"]
    words += [f"--label {label}"] if label is not None else []
    words += ["--data DATA"] if any(part.data for part in row.parts) else []
    words += [f"--seeds {seeds}"] if seeds > 1 else []
    words += [f"--minutes {budget.minutes:g}"] if budget.minutes is not None else []
    words += [f"--steps {budget.steps}"] if budget.steps is not None else []
    return " ".join(words)
