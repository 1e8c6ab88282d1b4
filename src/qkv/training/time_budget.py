"""Time budget of a run: how many steps fit into some minutes, and a recipe with another number of steps.

The speed is measured once, before the run; the number of steps is then fixed.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from qkv.training.config import MAX_STEPS, TrainConfig
from qkv.training.distributed import World
from qkv.training.loop import train
from qkv.training.metrics import Progress, TrainCallback
from qkv.training.recipes import get_recipe
from qkv.training.recipes.definition import RecipeConfig, Stage, Task, copy_to_device
from qkv.training.schedules import TokenCosine

MIN_TRIAL_STEPS, MAX_TRIAL_STEPS = 16, 500  # the first quarter of them is not timed
TRIAL_SHARE = 0.02  # of a stage's time: batches differ, so a few steps say little
FEW_STEPS, SLOW_SECONDS = 4, 20.0  # so few steps are enough if they take longer than so many seconds
TRAINING_SHARE = 0.97  # the rest is for logging and checkpoints
MAX_MINUTES = 60 * 24 * 366
MAX_EVALUATIONS = 10  # of a run with a time budget
EVALUATION_SHARE = 0.2  # of its time, at most
MIN_STEPS = 10  # of a stage with a time budget
TRIAL_STEPS, TRIAL_ITEMS = 50, 256  # a run of fewer steps is evaluated on so many items
TRIAL_EVALUATIONS = 2  # and each of its stages so often: evaluations would take longer than its steps


def check_length(minutes: float | int | None, steps: int | None, epochs: int | None = None) -> None:
    """Raise a ValueError if no run can have this length."""
    if sum(length is not None for length in (minutes, steps, epochs)) > 1:
        raise ValueError("give one of minutes, steps and epochs, not two")
    if epochs is not None and not 1 <= epochs <= MAX_STEPS:
        raise ValueError(f"epochs must be at least 1 and at most {MAX_STEPS:,}, got {epochs}")
    if minutes is not None and not 0 < minutes <= MAX_MINUTES:
        raise ValueError(f"minutes must be above 0 and at most {MAX_MINUTES:,} (a year), got {minutes}")
    if steps is not None and not 1 <= steps <= MAX_STEPS:
        raise ValueError(f"steps must be at least 1 and at most {MAX_STEPS:,}, got {steps}")


def fit_to_length(
    task: Task,
    minutes: float | int | None,
    steps: int | None,
    on_note: Callable[[str], None],
    epochs: int | None = None,
) -> Task:
    """Fit the stages of a task to minutes, steps or epochs; without a length return it unchanged."""
    check_length(minutes, steps, epochs)
    if steps is not None:
        return replace(task, config=with_steps(task.config, steps))
    if epochs is not None:
        return replace(task, config=with_epochs(task, epochs))
    if minutes is None:
        return task
    shares = get_recipe(task.config.recipe).stage_shares(task.config)
    stages = dict(task.config.stages)
    for stage in task.stages:
        config = stages[stage.name]
        seconds = 60 * minutes * shares[stage.name] * TRAINING_SHARE
        step_time, evaluation_time = measure_speed(task, stage, config, trial_seconds=TRIAL_SHARE * seconds)
        evaluations = count_evaluations(seconds, evaluation_time)
        fitting = int((seconds - (evaluations + 1) * evaluation_time) / step_time)
        count = max(fitting, MIN_STEPS)
        stages[stage.name] = rescale_steps(config, count, evaluations=evaluations)
        on_note(f"{stage.name}: {describe_fit(fitting, step_time, 60 * minutes * shares[stage.name])}")
    return replace(task, config=replace(task.config, stages=stages))


def describe_fit(fitting: int, step_time: float, seconds: float | int) -> str:
    """Say how many steps fit into a stage's time, and how long it takes if that is fewer than the minimum.

    >>> describe_fit(250, 0.2, 60)
    '200 ms per step, so 250 steps fit into 60 s'
    >>> describe_fit(2, 20.0, 60)
    '20000 ms per step; fewer than 10 steps fit into 60 s, so the minimum of 10 is made in about 200 s'
    """
    speed = f"{step_time * 1000:.0f} ms per step"
    if fitting >= MIN_STEPS:
        return f"{speed}, so {fitting:,} steps fit into {seconds:.0f} s"
    return (
        f"{speed}; fewer than {MIN_STEPS} steps fit into {seconds:.0f} s, so the minimum of {MIN_STEPS} is made in "
        f"about {MIN_STEPS * step_time:.0f} s"
    )


def count_evaluations(seconds: float | int, evaluation_time: float | int) -> int:
    """Return how often to evaluate in a run of so many seconds.

    >>> count_evaluations(600, 1), count_evaluations(100, 5), count_evaluations(10, 60)
    (10, 3, 1)
    """
    return max(min(MAX_EVALUATIONS, int(EVALUATION_SHARE * seconds / max(evaluation_time, 1e-9)) - 1), 1)


def with_steps(config: RecipeConfig, steps: int) -> RecipeConfig:
    """Give a config so many steps in all; each stage that it runs gets its share.

    >>> config = with_steps(get_recipe("birthplaces").resolve(), 100)
    >>> {name: stage.steps for name, stage in config.stages.items()}
    {'pretrain': 60, 'finetune': 40}
    """
    check_length(None, steps)
    shares = get_recipe(config.recipe).stage_shares(config)
    stages = {name: rescale_steps(config.stages[name], max(round(steps * share), 1)) for name, share in shares.items()}
    if steps < TRIAL_STEPS:
        stages = {name: _limit_evaluations(stage, TRIAL_EVALUATIONS) for name, stage in stages.items()}
    return replace(config, stages={**config.stages, **stages})


def _limit_evaluations(config: TrainConfig, most: int) -> TrainConfig:
    """Evaluate a stage at most so often."""
    every = config.checkpoint.evaluate_every
    if every == 0:
        return config
    return replace(config, checkpoint=replace(config.checkpoint, evaluate_every=max(every, -(-config.steps // most))))


def with_epochs(task: Task, epochs: int) -> RecipeConfig:
    """Give the only stage of a task so many epochs; a schedule with `total_steps` stays laid out over these."""
    if len(task.stages) != 1:
        names = " and ".join(f"{stage.name}.steps" for stage in task.stages)
        raise ValueError(f"epochs are for a recipe with one stage; {task.config.recipe} has several: set {names}")
    (stage,), config = task.stages, task.config
    accumulated = config.stages[stage.name].grad_accumulation
    steps = sum(stage.batches.num_batches(epoch) for epoch in range(epochs)) // accumulated
    return replace(config, stages={**config.stages, stage.name: cut_or_rescale(config.stages[stage.name], steps)})


def cut_or_rescale(config: TrainConfig, steps: int) -> TrainConfig:
    """Change the number of steps: of a schedule with `total_steps` this is the first part, others are rescaled."""
    if config.schedule.total_steps is None and config.schedule.tokens is None:
        return rescale_steps(config, steps)
    return replace(config, steps=steps)


def with_length_of(config: RecipeConfig, other: RecipeConfig) -> RecipeConfig:
    """Give a config the steps that a time budget gave another one, evaluated and saved as often."""
    stages = dict(config.stages)
    for name in get_recipe(config.recipe).stage_shares(config):
        like = other.stages[name]
        stage = rescale_steps(stages[name], like.steps)
        intervals = {key: getattr(like.checkpoint, key) for key in ("evaluate_every", "checkpoint_every")}
        stages[name] = replace(stage, checkpoint=replace(stage.checkpoint, **intervals))
    return replace(config, stages=stages)


def total_steps(config: RecipeConfig) -> int:
    """Return the steps of all stages that a config runs.

    >>> recipe = get_recipe("birthplaces")
    >>> total_steps(recipe.resolve()), total_steps(recipe.resolve({"data.pretrain": False}))
    (4000, 2000)
    """
    return sum(config.stages[name].steps for name in get_recipe(config.recipe).stage_shares(config))


def trial_items(config: RecipeConfig) -> int | None:
    """Return on how many items at most a run is validated and tested; None for all, unless it has very few steps.

    >>> recipe = get_recipe("vit-digits")
    >>> trial_items(with_steps(recipe.resolve(), 10)), trial_items(recipe.resolve())
    (256, None)
    """
    return TRIAL_ITEMS if total_steps(config) < TRIAL_STEPS else None


def rescale_steps(config: TrainConfig, steps: int, evaluations: int | None = None) -> TrainConfig:
    """Change the number of steps; warm-up, decay and the intervals keep their share.

    evaluations: number of evaluations and checkpoints, instead of the same share.

    >>> from qkv.training.schedules import ScheduleConfig
    >>> rescale_steps(TrainConfig(steps=1000, schedule=ScheduleConfig(warmup_steps=100)), 50).schedule.warmup_steps
    5
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    ratio, schedule, checkpoint = steps / config.steps, config.schedule, config.checkpoint
    decay = None if schedule.decay_steps is None else int(schedule.decay_steps * ratio)

    def rescale_interval(interval: int) -> int:
        if interval == 0:
            return 0
        return max(steps // evaluations if evaluations else round(interval * ratio), 1)

    return replace(
        config,
        steps=steps,
        schedule=replace(
            schedule,
            warmup_steps=int(schedule.warmup_steps * ratio),
            decay_steps=decay,
            total_steps=None if schedule.total_steps is None else max(round(schedule.total_steps * ratio), 1),
            tokens=None if schedule.tokens is None else _rescale_tokens(schedule.tokens, ratio),
        ),
        checkpoint=replace(
            checkpoint,
            log_every=min(checkpoint.log_every, max(steps // 5, 1)),
            evaluate_every=rescale_interval(checkpoint.evaluate_every),
            checkpoint_every=rescale_interval(checkpoint.checkpoint_every),
        ),
    )


def _rescale_tokens(tokens: TokenCosine, ratio: float) -> TokenCosine:
    warmup = int(tokens.warmup * ratio)
    return replace(tokens, warmup=warmup, final=max(round(tokens.final * ratio), warmup + 1))


def measure_speed(task: Task, stage: Stage, config: TrainConfig, trial_seconds: float) -> tuple[float, float]:
    """Measure the seconds of a step and of an evaluation, on a copy of the model that is then discarded.

    trial_seconds: how long to try steps; several processes make a fixed number of steps instead, to stop together.
    """
    world = World.current()
    single = world.size == 1
    timer = _StepTimer(trial_seconds if single else None)
    trial = replace(
        config,
        steps=MAX_TRIAL_STEPS if single else MIN_TRIAL_STEPS,
        schedule=replace(config.schedule, warmup_steps=0, decay_steps=None),
        checkpoint=replace(config.checkpoint, log_every=1, evaluate_every=0, checkpoint_every=0, best_metric=""),
    )
    with tempfile.TemporaryDirectory() as folder, suppress(_EnoughError):
        result = train(copy_to_device(task.model), stage.batches, stage.objective, trial, folder, callback=timer)
        if result.stopped:
            raise StoppedError(result.stopped)
    evaluation_time = 0.0
    if stage.validate is not None:
        start = time.perf_counter()
        stage.validate(copy_to_device(task.model))  # the copy above may be sharded over processes by now
        evaluation_time = time.perf_counter() - start
    times = json.loads(world.broadcast_text(json.dumps([timer.step_time, evaluation_time])))  # rank zero's clock counts
    return times[0], times[1]


class StoppedError(Exception):
    """A signal to stop arrived while the speed was measured: no run exists yet."""


class _EnoughError(Exception):
    """The speed is known well enough."""


class _StepTimer(TrainCallback):
    """Records when steps end. trial_seconds: when to stop the trial; None for its last step."""

    def __init__(self, trial_seconds: float | None) -> None:
        self.times: list[float] = []
        self.trial_seconds = trial_seconds

    @property
    def step_time(self) -> float:
        """Mean seconds of a step, without the first quarter of the steps."""
        timed = self.times[len(self.times) // 4 :]
        return max((timed[-1] - timed[0]) / (len(timed) - 1), 1e-6) if len(timed) > 1 else 0.0

    def on_log(self, progress: Progress) -> None:
        self.times.append(time.perf_counter())
        if self.trial_seconds is None:
            return
        count, elapsed = len(self.times), self.times[-1] - self.times[0]
        enough = count >= MIN_TRIAL_STEPS and elapsed >= self.trial_seconds
        if enough or (count >= FEW_STEPS and elapsed > SLOW_SECONDS):
            raise _EnoughError
