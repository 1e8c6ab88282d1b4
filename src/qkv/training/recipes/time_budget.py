"""How many steps fit into some minutes: the speed is measured once, before the run, and the steps are then fixed."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from qkv.training import Report, Settings, World
from qkv.training import train as train_stage
from qkv.training.config import MOST_STEPS
from qkv.training.recipes.building import at_work
from qkv.training.recipes.definition import Recipe, Stage, Task
from qkv.training.recipes.registry import system

TRIED, MOST_TRIED = 16, 500  # steps that are tried at the least and at the most; the first quarter is not timed
TRYING = 0.02  # of a stage's time: batches differ, and a few steps tell little
LEAST, LONG = 4, 20.0  # so many steps are enough where they take longer than so many seconds
SPARE = 0.97  # the rest is for logging and checkpoints
MOST_MINUTES = 60 * 24 * 366
LOOKS = 10  # evaluations of a run that is given minutes, at the most
LOOKING = 0.2  # of its time, at the most


def check(minutes: float | int | None, steps: int | None) -> None:
    """A ValueError if no run can be so long."""
    if minutes is not None and steps is not None:
        raise ValueError("a run is given minutes or steps, not both")
    if minutes is not None and not 0 < minutes <= MOST_MINUTES:
        raise ValueError(f"minutes are above 0 and at most {MOST_MINUTES:,} (a year); got {minutes}")
    if steps is not None and not 1 <= steps <= MOST_STEPS:
        raise ValueError(f"a run has at least 1 step, and at most {MOST_STEPS:,}; got {steps}")


def given(task: Task, minutes: float | int | None, steps: int | None, note: Callable[[str], None]) -> Task:
    """The task with its stages fitted to minutes, or to a number of steps; as it was if neither is given."""
    check(minutes, steps)
    if steps is not None:
        return replace(task, recipe=with_steps(task.recipe, steps))
    if minutes is None:
        return task
    shares = system(task.recipe.system).shares(task.recipe)
    fitted = dict(task.recipe.stages)
    for stage in task.stages:
        share, settings = shares[stage.name], task.recipe.stages[stage.name]
        seconds = 60 * minutes * share * SPARE
        step, look = step_seconds(task, stage, settings, trying=TRYING * seconds)
        looks = looks_in(seconds, look)
        count = max(int((seconds - (looks + 1) * look) / step), LOOKS)
        fitted[stage.name] = of_steps(settings, count, looks=looks)
        note(f"{stage.name}: {step * 1000:.0f} ms a step, so {count:,} steps fit into {60 * minutes * share:.0f} s")
    return replace(task, recipe=replace(task.recipe, stages=fitted))


def looks_in(seconds: float | int, look: float | int) -> int:
    """How often a run of so many seconds is evaluated, if it takes so long each time.

    >>> looks_in(600, 1), looks_in(100, 5), looks_in(10, 60)
    (10, 3, 1)
    """
    return max(min(LOOKS, int(LOOKING * seconds / max(look, 1e-9)) - 1), 1)


def with_steps(recipe: Recipe, steps: int) -> Recipe:
    """The recipe with so many steps in all; each stage that it carries out gets its share.

    >>> recipe = with_steps(system("birthplaces").recipe(), 100)
    >>> {name: settings.steps for name, settings in recipe.stages.items()}
    {'pretrain': 60, 'finetune': 40}
    """
    check(None, steps)
    parts = system(recipe.system).shares(recipe)
    fitted = {name: of_steps(recipe.stages[name], max(round(steps * part), 1)) for name, part in parts.items()}
    return replace(recipe, stages={**recipe.stages, **fitted})


def as_long_as(recipe: Recipe, other: Recipe) -> Recipe:
    """The recipe, fitted as minutes have fitted another: to its steps, evaluated and saved as often."""

    def fitted(settings: Settings, like: Settings) -> Settings:
        found = of_steps(settings, like.steps)
        every = {name: getattr(like.saving, name) for name in ("evaluate_every", "checkpoint_every")}
        return replace(found, saving=replace(found.saving, **every))

    parts = system(recipe.system).shares(recipe)
    return replace(
        recipe, stages={**recipe.stages, **{name: fitted(recipe.stages[name], other.stages[name]) for name in parts}}
    )


def steps_of(recipe: Recipe) -> int:
    """All steps of the stages that a recipe carries out.

    >>> steps_of(system("birthplaces").recipe()), steps_of(system("birthplaces").recipe({"data.pretrain": False}))
    (4000, 2000)
    """
    return sum(recipe.stages[name].steps for name in system(recipe.system).shares(recipe))


def of_steps(settings: Settings, steps: int, looks: int | None = None) -> Settings:
    """The settings for another number of steps: warm-up, decay and what is done every so often keep their share.

    >>> from qkv.training import Schedule
    >>> of_steps(Settings(steps=1000, schedule=Schedule(warmup=100)), 50).schedule.warmup
    5
    """
    if steps < 1:
        raise ValueError(f"a run has at least 1 step; got {steps}")
    ratio, schedule, saving = steps / settings.steps, settings.schedule, settings.saving
    decay = None if schedule.decay is None else int(schedule.decay * ratio)

    def every(count: int) -> int:
        if count == 0:
            return 0
        return max(steps // looks if looks else round(count * ratio), 1)

    return replace(
        settings,
        steps=steps,
        schedule=replace(schedule, warmup=int(schedule.warmup * ratio), decay=decay),
        saving=replace(
            saving,
            log_every=min(saving.log_every, max(steps // 5, 1)),
            evaluate_every=every(saving.evaluate_every),
            checkpoint_every=every(saving.checkpoint_every),
        ),
    )


def step_seconds(task: Task, stage: Stage, settings: Settings, trying: float) -> tuple[float, float]:
    """Seconds of a step and of an evaluation, measured on a copy of the model that is then thrown away.

    trying: for how many seconds steps are tried, if there is only one process.
    """
    world = World.here()
    alone = world.size == 1  # several processes end the trial together: after a number of steps
    model, clock = at_work(task.model), _Clock(trying if alone else None)
    saving = replace(settings.saving, log_every=1, evaluate_every=0, checkpoint_every=0, best="")
    schedule = replace(settings.schedule, warmup=0, decay=None)
    trial = replace(settings, steps=MOST_TRIED if alone else TRIED, saving=saving, schedule=schedule)
    with tempfile.TemporaryDirectory() as folder, suppress(_EnoughError):
        outcome = train_stage(model, stage.batches, stage.objective, trial, folder, report=clock)
        if outcome.stopped:
            raise StoppedError(outcome.stopped)
    look = 0.0
    if stage.validate is not None:
        began = time.perf_counter()
        stage.validate(at_work(task.model))  # the copy above may be spread over processes by now
        look = time.perf_counter() - began
    step, look = json.loads(world.text(json.dumps([clock.step, look])))  # all processes go by the first one's clock
    return step, look


class StoppedError(Exception):
    """A signal to stop came while the speed was measured: nothing has begun yet."""


class _EnoughError(Exception):
    """The speed is known well enough."""


class _Clock(Report):
    """When steps ended. trying: how many seconds the trial goes on; None: to its last step."""

    def __init__(self, trying: float | None) -> None:
        self.seconds: list[float] = []
        self.trying = trying

    @property
    def step(self) -> float:
        """Seconds of a step; of those that were seen, but the first quarter."""
        timed = self.seconds[len(self.seconds) // 4 :]
        return max((timed[-1] - timed[0]) / (len(timed) - 1), 1e-6) if len(timed) > 1 else 0.0

    def progress(self, progress) -> None:
        self.seconds.append(time.perf_counter())
        if self.trying is None:
            return
        count, elapsed = len(self.seconds), self.seconds[-1] - self.seconds[0]
        if (count >= TRIED and elapsed >= self.trying) or (count >= LEAST and elapsed > LONG):
            raise _EnoughError
