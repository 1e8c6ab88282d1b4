"""A run: a folder in which a recipe is carried out, stage by stage, and can be gone on with at any time.

recipe.toml      what is done, resolved
run.json         when it began, what it ended with
metrics.jsonl    what was measured on the way (in a folder for each stage, if there are several), and checkpoints/
prepared.json    what the model of the stage before said, in the folder of a stage that learns from it
model/           the trained model, as `qkv.load`, `qkv use` and `qkv look` read it
samples.json     what the trained model does with a few inputs
report.html      curves, numbers and samples
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from qkv import __version__
from qkv._files import write_whole
from qkv._numbers import finite
from qkv.models import Model, folder
from qkv.training import Outcome, Report, Settings, World, alone, restored
from qkv.training import train as train_stage
from qkv.training.recipes import time_budget as pace
from qkv.training.recipes.building import at_work
from qkv.training.recipes.definition import Recipe, Stage, Task
from qkv.training.recipes.plain import difference, read_toml, to_toml
from qkv.training.recipes.prepared import learned_from
from qkv.training.recipes.registry import system
from qkv.training.recipes.source import commit

RECIPE, STATUS, MODEL, REPORT, PURPOSE = "recipe.toml", "run.json", "model", "report.html", "purpose.json"
SAMPLES = "samples.json"
Listener = Callable[[Stage, Settings], Report]


@dataclass(frozen=True)
class Run:
    """What came of a run, or where it stands.

    result: numbers of the last validation and of the test, by part; empty until the run is finished.
    """

    folder: Path
    recipe: Recipe
    finished: bool
    stopped: str | None
    seconds: float
    parameters: int
    result: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def model(self) -> Model:
        """The trained model."""
        from qkv.checkpoints import load

        return load(self.folder / MODEL)

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "recipe": self.recipe.to_table(),
            "finished": self.finished,
            "stopped": self.stopped,
            "seconds": round(self.seconds, 1),
            "parameters": self.parameters,
            "result": dict(self.result),
            "notes": list(self.notes),
        }


def train(
    recipe: Recipe | str,
    *changes: Mapping[str, Any],
    folder: str | Path | None = None,
    minutes: float | int | None = None,
    steps: int | None = None,
    resume: Literal["auto", "never", "always"] = "auto",
    listen: Listener | None = None,
    note: Callable[[str], None] | None = None,
    **choices: Any,
) -> Run:
    """Carry out a recipe, or go on with it where it stopped.

    recipe: resolved, or a name with changes ({"model.dim": 64}) and choices (preset=, model=, seed=).
    folder: where; runs/NAME-N if not given. A folder that holds this recipe is gone on with; another's is refused.
    minutes: how long; the speed is measured once, and the steps that fit are written into recipe.toml.
    listen: makes the listener of each stage. note: hears what was guessed or left out.
    """
    if isinstance(recipe, str):
        recipe = system(recipe).recipe(*changes, **choices)
    pace.check(minutes, steps)
    note = note or (lambda text: None)
    place = Path(folder) if folder is not None else chosen_folder(recipe, resume, minutes, steps)
    if place.exists() and not place.is_dir():
        raise ValueError(f"{place} is a file; a run wants a folder of its own")
    begun = (place / RECIPE).is_file()
    if begun and resume != "never":
        recipe = _held(place, recipe, minutes, steps)
    elif begun:
        raise ValueError(f"{place} holds a run already; go on with it (--resume auto), or name another folder")
    elif resume == "always":
        raise ValueError(f"{place} holds no run to go on with")
    if begun and (status := read_status(place)).get("finished"):
        note(f"{place} is finished already; its result is shown")
        return _finished(place, recipe, status)
    task = system(recipe.system).build(recipe)
    for text in task.notes:
        note(text)
    if not begun:
        try:
            task = pace.given(task, minutes, steps, note)
        except pace.StoppedError as stopped:
            return Run(place, task.recipe, False, str(stopped), 0.0, task.model.num_parameters, notes=task.notes)
        begin(place, task, minutes)
    return _carried_out(place, task, listen or (lambda stage, settings: Report()), note)


def begin(place: Path, task: Task, minutes: float | int | None = None) -> None:
    """Make the run's folder: what is done stands in it before anything is. minutes: those it was given, if any."""
    if not World.here().first:
        return
    place.mkdir(parents=True, exist_ok=True)
    # a status without a recipe is that of a run which was killed while it began
    if others := [path.name for path in place.iterdir() if not path.name.startswith(".") and path.name != STATUS]:
        raise ValueError(f"{place} holds other files ({others[0]}, …); a run wants a folder of its own")
    described = {
        "qkv": __version__,
        "commit": commit(),
        "recipe": task.recipe.system,
        "began": datetime.now().astimezone().isoformat(timespec="seconds"),
        "parameters": task.model.num_parameters,
        "finished": False,
        **({} if minutes is None else {"minutes": minutes}),
    }
    write_status(place, described)
    write_whole(place / RECIPE, to_toml(task.recipe.to_table(), comment="qkv train --config this-file"))


def _carried_out(place: Path, task: Task, listen: Listener, note: Callable[[str], None]) -> Run:
    seconds = 0.0
    outcome: Outcome | None = None
    task.model.files = {**task.model.files, **task.files}
    for stage in task.stages:
        model = at_work(task.model)  # training may spread it over processes for good
        if outcome is not None:  # the stage before is over: its best weights are what this one begins with
            model.load_state_dict(restored(outcome.best or outcome.checkpoint or place).state_dict())
        settings = task.recipe.stages[stage.name]
        home = stage_folder(place, task, stage)
        outcome = train_stage(
            model,
            learned_from(stage, model, home, note),
            stage.objective,
            settings,
            home,
            evaluate=stage.validate,
            report=listen(stage, settings),
        )
        seconds += outcome.seconds
        if outcome.stopped or not outcome.finished:  # asked to stop while the last step was made, too
            return Run(place, task.recipe, False, outcome.stopped, seconds, model.num_parameters, notes=task.notes)
    assert outcome is not None
    return finish(place, task, outcome, seconds, note)


def finish(place: Path, task: Task, outcome: Outcome, seconds: float, note: Callable[[str], None]) -> Run:
    """Take the best weights, test them once, and leave model, numbers and report."""
    best = restored(outcome.best or outcome.checkpoint or place)
    run = Run(place, task.recipe, True, None, seconds, best.num_parameters, notes=task.notes)
    if not World.here().first:
        return run
    with alone():  # the others have gone
        return _tested(run, task, best, note)


def _tested(run: Run, task: Task, best: Model, note: Callable[[str], None]) -> Run:
    from qkv.training.recipes.report import report_page

    place, seconds = run.folder, run.seconds
    note("testing the best checkpoint")
    tested = time.perf_counter()
    validation = task.stages[-1].validate
    result = {"validation": {} if validation is None else validation(best), "test": task.test(best)}
    best.files = {**task.files, PURPOSE: json.dumps(task.purpose(best), ensure_ascii=False).encode()}
    best.save(place / MODEL)
    run = replace(run, result=result)
    status = {**read_status(place), "finished": True, "seconds": round(seconds, 1), "result": result}
    samples = task.samples(best)
    write_whole(place / SAMPLES, json.dumps(samples, ensure_ascii=False) + "\n")
    write_whole(place / REPORT, report_page(run, task, samples))
    write_status(
        place, {**status, "testing_seconds": round(time.perf_counter() - tested, 1), "notes": list(task.notes)}
    )
    return run


def stage_folder(place: Path, task: Task, stage: Stage) -> Path:
    """Where a stage keeps its metrics and checkpoints: in the run's folder, or in one of its own beside others."""
    return place if len(task.stages) == 1 else place / stage.name


def chosen_folder(
    recipe: Recipe, resume: str, minutes: float | int | None, steps: int | None, home: Path = Path("runs")
) -> Path:
    """The newest unfinished run of this very recipe and length, if it may be gone on with; otherwise a new one."""
    named = sorted(home.glob(f"{recipe.system}-*"), key=_number, reverse=True)
    if resume != "never":
        for place in named:
            if (place / RECIPE).is_file() and not read_status(place).get("finished"):
                held = system(recipe.system).read(read_toml(place / RECIPE))
                if _otherwise(place, held, recipe, minutes, steps) is None:
                    return place
    return home / f"{recipe.system}-{max(map(_number, named), default=0) + 1}"


def read_status(place: Path) -> dict[str, Any]:
    """The run.json of a folder."""
    return folder.read_json(place / STATUS, "a run's folder has recipe.toml and run.json")


def write_status(place: Path, status: dict[str, Any]) -> None:
    write_whole(place / STATUS, json.dumps(finite(status), indent=2, ensure_ascii=False) + "\n")


def open_run(place: str | Path) -> Run:
    """A run as its folder tells it."""
    place = Path(place)
    if not (place / RECIPE).is_file():
        raise ValueError(f"{place} is not a run: it has no {RECIPE}. `qkv runs` lists those there are")
    table = read_toml(place / RECIPE)
    return _finished(place, system(str(table.get("recipe"))).read(table), read_status(place))


def _finished(place: Path, recipe: Recipe, status: Mapping[str, Any]) -> Run:
    return Run(
        folder=place,
        recipe=recipe,
        finished=bool(status.get("finished")),
        stopped=None,
        seconds=float(status.get("seconds", 0.0)),
        parameters=int(status.get("parameters", 0)),
        result=status.get("result", {}),
        notes=tuple(status.get("notes", ())),
    )


def _held(place: Path, wanted: Recipe, minutes: float | int | None, steps: int | None) -> Recipe:
    """The recipe that a folder holds; a ValueError if it is another than the one wanted."""
    table = read_toml(place / RECIPE)
    if table.get("recipe") != wanted.system:
        raise ValueError(f"{place} holds a run of {table.get('recipe')}, not of {wanted.system}; name another folder")
    held = system(wanted.system).read(table)
    if what := _otherwise(place, held, wanted, minutes, steps):
        raise ValueError(f"{place} holds a run {what}. Name another folder, or take this back")
    return held


def _otherwise(place: Path, held: Recipe, wanted: Recipe, minutes: float | int | None, steps: int | None) -> str | None:
    """In what a run that a folder holds is not the one wanted, as a phrase; None if it is."""
    if steps is not None:
        wanted = pace.with_steps(wanted, steps)
        if pace.steps_of(held) != pace.steps_of(wanted):
            return f"of {pace.steps_of(held):,} steps, not of {steps:,}"
    if minutes is not None:
        given = read_status(place).get("minutes")
        if given != minutes:
            return f"{'that was given no minutes' if given is None else f'of {given:g} minutes'}, not of {minutes:g}"
        wanted = pace.as_long_as(wanted, held)
    what = difference(_comparable(held), _comparable(wanted))
    return what and f"with other settings: {what}"


def _comparable(recipe: Recipe) -> dict[str, Any]:
    """A recipe without what the data fills in."""
    table = recipe.to_table()
    for name in system(recipe.system).fills:
        table["model"].pop(name, None)
    return table


def _number(place: Path) -> int:
    tail = place.name.rpartition("-")[2]
    return int(tail) if tail.isdigit() else 0
