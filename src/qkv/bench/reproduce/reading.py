"""What a finished run's folder tells: its speed, its curve, and in which settings it differs from a row's part."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qkv.bench import machine
from qkv.bench.reproduce.measured import Measured, Pace, Point, rounded
from qkv.bench.reproduce.rows import Part, Row
from qkv.bench.reproduce.work import operations_of_item
from qkv.training import Settings
from qkv.training.checkpointing import Store
from qkv.training.metrics_log import NAME as JOURNAL
from qkv.training.metrics_log import read as read_metrics
from qkv.training.recipes import Recipe, Run, Task, system
from qkv.training.recipes.plain import Table, flat
from qkv.training.recipes.source import UNKNOWN
from qkv.training.recipes.time_budget import of_steps
from qkv.training.runs import read_status
from qkv.training.snapshot import read_state

POINTS = 60  # of a curve


def read_run(
    run: Run, row: Row, part: Part, *, task: Task | None, test: dict[str, Any], peak: float, command: str = ""
) -> Measured:
    """A finished run as a measured part. task: its recipe built; without it operations are not counted.

    command: how it was made; the `qkv train` that makes it again if not given.
    """
    status, settled = read_status(run.folder), environment(run)
    paces = [_pace(name, folder, task, peak) for name, folder in stage_folders(run)]
    seconds = max(sum(pace.minutes for pace in paces), 1e-9)
    shares = [pace.share_of_peak for pace in paces]
    differs = differences(run.recipe, part)
    told = Measured(
        label=part.label,
        seed=run.recipe.seed,
        command=command or train_command(part, run.recipe),
        commit=str(status.get("commit", UNKNOWN)),
        began=str(status.get("began", "")),
        machine={**_about(), "torch": settled["torch"]},
        threads=settled["threads"],
        peak_gigaflops=peak,
        parameters=run.parameters,
        minutes=run.seconds / 60,
        steps=sum(pace.steps for pace in paces),
        items_per_second=sum(pace.items_per_second * pace.minutes for pace in paces) / seconds,
        share_of_peak=None
        if None in shares
        else sum((pace.share_of_peak or 0.0) * pace.minutes for pace in paces) / seconds,
        stages=tuple(paces),
        test={name: value for name, value in test.items() if isinstance(value, int | float | str)},
        curve=tuple(curve(run, row.curve)),
        differs=differs,
    )
    return rounded(told)


def stage_folders(run: Run) -> list[tuple[str, Path]]:
    """The stages that were carried out, each with the folder of its metrics."""
    names = list(run.recipe.stages)
    if (run.folder / JOURNAL).is_file():
        return [(names[-1], run.folder)]
    found = [(name, run.folder / name) for name in names if (run.folder / name / JOURNAL).is_file()]
    if not found:
        raise ValueError(f"{run.folder} has no {JOURNAL}: what was measured on the way is lost")
    return found


def environment(run: Run) -> dict[str, Any]:
    """Threads and version of torch that the run had, as its newest checkpoint tells; of now if none is left."""
    store = Store(stage_folders(run)[-1][1])
    now = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    return {**now, **read_state(store.place(store.steps()[-1]))["environment"]} if store.steps() else now


@contextmanager
def threads(count: int) -> Iterator[None]:
    """With so many threads; afterwards with those there were."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _pace(name: str, folder: Path, task: Task | None, peak: float) -> Pace:
    lines = [line for line in read_metrics(folder) if "timing" in line]
    speed = _speed([line["timing"] for line in lines if line["timing"]["items_per_second"] > 0])
    stage = None if task is None else next((stage for stage in task.stages if stage.name == name), None)
    share = None
    if task is not None and stage is not None and peak > 0:
        share = operations_of_item(task.model, stage.objective, stage.batches) * speed / (peak * 1e9)
    last = lines[-1] if lines else {"step": 0, "timing": {"seconds": 0.0}}
    return Pace(
        name, last["step"], round(last["timing"]["seconds"] / 60, 3), round(speed, 1), share and round(share, 4)
    )


def _speed(timings: list[dict[str, Any]]) -> float:
    """Items a second of all lines together; a line that does not tell how many it had counts as one of equal ones.

    >>> _speed([{"items": 300, "items_per_second": 100.0}, {"items": 100, "items_per_second": 100.0}])
    100.0
    """
    items = [timing.get("items", 1.0) for timing in timings]
    seconds = [many / timing["items_per_second"] for many, timing in zip(items, timings, strict=True)]
    return sum(items) / sum(seconds) if timings else 0.0


def curve(run: Run, name: str) -> list[Point]:
    """A number of validation over the steps and minutes of all stages, in at most POINTS points; the last one stays."""
    points: list[Point] = []
    steps, minutes = 0, 0.0
    for _, folder in stage_folders(run):
        lines = read_metrics(folder)
        timed = [(0, 0.0), *((line["step"], line["timing"]["seconds"] / 60) for line in lines if "timing" in line)]
        at = [step for step, _ in timed], [time for _, time in timed]
        looked = [(line["step"], line["evaluation"].get(name)) for line in lines if "evaluation" in line]
        points += [
            (steps + step, minutes + float(np.interp(step, *at)), float(value))
            for step, value in looked
            if value is not None
        ]
        steps, minutes = steps + timed[-1][0], minutes + timed[-1][1]
    return thinned(points)


def thinned(points: list[Point]) -> list[Point]:
    """
    >>> [step for step, *_ in thinned([(step, 0.0, 0.0) for step in range(100)])][-3:]
    [96, 98, 99]
    """
    every = -(-len(points) // POINTS) if points else 1
    kept = points[::every]
    return kept if not points or kept[-1] == points[-1] else [*kept[: POINTS - 1], points[-1]]


def part_recipe(part: Part, seed: int) -> Recipe:
    """The recipe of a part, where its data is left open."""
    return system(part.recipe).recipe(part.changes, preset=part.preset, model=part.model, seed=seed)


def differences(recipe: Recipe, part: Part) -> tuple[str, ...]:
    """Settings of a run that are not the part's, as NAME=VALUE; what data and minutes decide is left out."""
    own, wanted = flat(recipe.to_table()), flat(_expected(part, recipe).to_table())
    if recipe.system != part.recipe or own["model.kind"] != wanted["model.kind"]:
        raise ValueError(
            f"{part.label} is a run of {part.recipe}, {wanted['model.kind']}; this one is of {recipe.system}, "
            f"{own['model.kind']}"
        )
    return _changes(own, wanted, recipe)


def _changes(own: Table, wanted: Table, recipe: Recipe) -> tuple[str, ...]:
    free = {"seed", "data.path", *(f"model.{name}" for name in system(recipe.system).fills)}
    return tuple(
        f"{name}={'none' if value is None else json.dumps(value, ensure_ascii=False)}"
        for name, value in own.items()
        if value != wanted.get(name) and name not in free
    )


def _expected(part: Part, recipe: Recipe) -> Recipe:
    """The part's recipe, fitted to as many steps as a run has made."""
    wanted = _taught(part_recipe(part, recipe.seed), part, recipe)
    if wanted.stages.keys() != recipe.stages.keys():
        return wanted
    free = part.minutes is not None
    return replace(
        wanted, stages={name: _fitted(wanted.stages[name], own, free) for name, own in recipe.stages.items()}
    )


def _taught(wanted: Recipe, part: Part, recipe: Recipe) -> Recipe:
    """The part's recipe with the run's teacher, if it should have one: where that one's run stands does not count."""
    return with_teacher(wanted, recipe.data.teacher or _run_of(part)) if part.teacher else wanted


def _run_of(part: Part) -> str:
    """What stands for the folder of the run that teaches a part."""
    return f"RUN_OF_{part.teacher.upper()}"


def _fitted(settings: Settings, own: Settings, free: bool) -> Settings:
    counts = {name: getattr(own.saving, name) for name in ("log_every", "evaluate_every", "checkpoint_every")}
    short = of_steps(settings, own.steps)
    return replace(short, steps=own.steps if free else settings.steps, saving=replace(short.saving, **counts))


def train_command(part: Part, recipe: Recipe, data: str = "DATA") -> str:
    """The `qkv train` that makes a run of a part again, step by step; DATA stands for the data folder, RUN_OF_… for the
    folder of the run that teaches."""
    words = [f"qkv train {part.recipe}"]
    words += [f"--{name} {value}" for name, value in (("model", part.model), ("preset", part.preset)) if value]
    words += [f"--data {data}/{part.data[0]}"] if part.data else []
    words += [f"--set {name}={json.dumps(value)}" for name, value in part.changes.items()]
    words += [f"--set data.teacher={_run_of(part)}"] if part.teacher else []
    own, wanted = flat(recipe.to_table()), flat(_taught(part_recipe(part, recipe.seed), part, recipe).to_table())
    words += [f"--set {shlex.quote(change)}" for change in _changes(own, wanted, recipe)]
    return " ".join([*words, f"--seed {recipe.seed}"])


def with_data(recipe: Recipe, path: str | None) -> Recipe:
    """The recipe with its data found at another place."""
    return recipe if path is None else replace(recipe, data=replace(recipe.data, path=path))


def with_teacher(recipe: Recipe, run: str) -> Recipe:
    """The recipe, taught by that run."""
    return replace(recipe, data=replace(recipe.data, teacher=run))


def _about() -> dict[str, Any]:
    told = machine.about()
    return {name: told[name] for name in ("processor", "cores", "memory_gib", "python", "torch")}
