"""Measure a finished run: speed, operations (FLOPs), learning curve, and settings that differ from the row's."""

from __future__ import annotations

import copy
import json
import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from qkv._config import Table, flatten
from qkv.bench import machine
from qkv.bench.reproduce.records import Point, Record, StageSpeed
from qkv.bench.reproduce.rows import ResultRow, RowPart
from qkv.data.batches import Batch, Batches, MixedBatches, generator_for
from qkv.training import Objective, Run, TrainConfig, read_metrics
from qkv.training.checkpointing import CheckpointStore, read_state
from qkv.training.evaluation import move_to
from qkv.training.metrics import METRICS_FILE
from qkv.training.objectives import to_loss_sum
from qkv.training.recipes import get_recipe
from qkv.training.recipes.definition import RecipeConfig, Task
from qkv.training.run_state import read_status
from qkv.training.runs import UNKNOWN_COMMIT
from qkv.training.time_budget import cut_or_rescale, rescale_steps

MAX_POINTS = 60  # of a curve
COUNTED_BATCHES, SAMPLED_BATCHES = 6, 200  # of an epoch, from each source


def measure_run(
    run: Run,
    row: ResultRow,
    part: RowPart,
    *,
    task: Task | None,
    test: dict[str, Any],
    peak: float,
    command: str = "",
) -> Record:
    """The record of a finished run.

    task: its recipe, built; without it operations are not counted. peak: GFLOPS of matrix products.
    command: how the run was made; by default the `qkv train` that makes it again.
    """
    status, environment = read_status(run.folder), read_environment(run)
    stages = [_measure_stage(name, folder, task, peak) for name, folder in stage_folders(run)]
    minutes = max(sum(stage.minutes for stage in stages), 1e-9)
    share = None
    if all(stage.share_of_peak is not None for stage in stages):
        share = sum((stage.share_of_peak or 0.0) * stage.minutes for stage in stages) / minutes
    hardware = machine.describe_hardware()
    about = {name: hardware[name] for name in ("processor", "cores", "memory_gib", "python")}
    record = Record(
        label=part.label,
        seed=run.config.seed,
        command=command or train_command(part, run.config),
        commit=str(status.get("commit", UNKNOWN_COMMIT)),
        began=str(status.get("began", "")),
        machine={**about, "torch": environment["torch"]},
        threads=environment["threads"],
        peak_gigaflops=peak,
        parameters=run.parameters,
        minutes=run.seconds / 60,
        steps=sum(stage.steps for stage in stages),
        items_per_second=sum(stage.items_per_second * stage.minutes for stage in stages) / minutes,
        share_of_peak=share,
        stages=tuple(stages),
        test={name: value for name, value in test.items() if isinstance(value, int | float | str)},
        curve=tuple(read_curve(run, row.curve)),
        differs=find_differences(run.config, part),
    )
    return record.round()


def stage_folders(run: Run) -> list[tuple[str, Path]]:
    """The stages that were trained, each with the folder of its metrics."""
    names = list(run.config.stages)
    if (run.folder / METRICS_FILE).is_file():
        return [(names[-1], run.folder)]
    found = [(name, run.folder / name) for name in names if (run.folder / name / METRICS_FILE).is_file()]
    if not found:
        raise ValueError(f"{run.folder} has no {METRICS_FILE}: its speed and curve are lost")
    return found


def read_environment(run: Run) -> dict[str, Any]:
    """Threads and torch version of the run, from its newest checkpoint; the current ones if there is none."""
    store = CheckpointStore(stage_folders(run)[-1][1])
    current = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    if not store.steps():
        return current
    return {**current, **read_state(store.path(store.steps()[-1]))["environment"]}


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Compute with this many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _measure_stage(name: str, folder: Path, task: Task | None, peak: float) -> StageSpeed:
    lines = [line for line in read_metrics(folder) if "timing" in line]
    last = lines[-1] if lines else {"step": 0, "timing": {"seconds": 0.0}}
    speed = _average_speed([line["timing"] for line in lines if line["timing"]["items_per_second"] > 0])
    stage = None if task is None else next((stage for stage in task.stages if stage.name == name), None)
    share = flops = None
    if task is not None and stage is not None and peak > 0:
        epoch_flops, epoch_items = count_epoch_flops(task.model, stage.objective, stage.batches)
        share = round(epoch_flops / max(epoch_items, 1.0) * speed / (peak * 1e9), 4)
        epochs = last["step"] * task.config.stages[name].grad_accumulation / stage.batches.num_batches(0)
        flops = float(f"{epoch_flops * epochs:.4g}")
    return StageSpeed(name, last["step"], round(last["timing"]["seconds"] / 60, 3), round(speed, 1), share, flops)


def _average_speed(timings: list[dict[str, Any]]) -> float:
    """Items a second of all lines together; lines without a number of items count equally.

    >>> _average_speed([{"items": 300, "items_per_second": 100.0}, {"items": 100, "items_per_second": 100.0}])
    100.0
    """
    items = [timing.get("items", 1.0) for timing in timings]
    seconds = [count / timing["items_per_second"] for count, timing in zip(items, timings, strict=True)]
    return sum(items) / sum(seconds) if timings else 0.0


def read_curve(run: Run, name: str) -> list[Point]:
    """A validation metric over the steps and minutes of all stages, with at most MAX_POINTS points."""
    points: list[Point] = []
    steps, minutes = 0, 0.0
    for _, folder in stage_folders(run):
        lines = read_metrics(folder)
        timed = [(0, 0.0), *((line["step"], line["timing"]["seconds"] / 60) for line in lines if "timing" in line)]
        at_steps, at_minutes = zip(*timed, strict=True)
        evaluated = [(line["step"], line["evaluation"].get(name)) for line in lines if "evaluation" in line]
        points += [
            (steps + step, minutes + float(np.interp(step, at_steps, at_minutes)), float(value))
            for step, value in evaluated
            if value is not None
        ]
        steps, minutes = steps + timed[-1][0], minutes + timed[-1][1]
    return thin_curve(points)


def thin_curve(points: list[Point]) -> list[Point]:
    """At most MAX_POINTS of the points, always with the last.

    >>> [step for step, *_ in thin_curve([(step, 0.0, 0.0) for step in range(100)])][-3:]
    [96, 98, 99]
    """
    every = -(-len(points) // MAX_POINTS) if points else 1
    kept = points[::every]
    return kept if not points or kept[-1] == points[-1] else [*kept[: MAX_POINTS - 1], points[-1]]


def part_config(part: RowPart, seed: int) -> RecipeConfig:
    """The resolved recipe of a part, without the place of its data."""
    return get_recipe(part.recipe).resolve(part.changes, preset=part.preset, model=part.model, seed=seed)


def find_differences(config: RecipeConfig, part: RowPart) -> tuple[str, ...]:
    """Settings of a run that differ from the part's, as NAME=VALUE, except those that data and minutes decide."""
    own, wanted = flatten(config.to_table()), flatten(_expected_config(part, config).to_table())
    if config.recipe != part.recipe or own["model.kind"] != wanted["model.kind"]:
        raise ValueError(
            f"{part.label} is a run of {part.recipe}, {wanted['model.kind']}; this one is of {config.recipe}, "
            f"{own['model.kind']}"
        )
    return _list_changes(own, wanted, config)


def _list_changes(own: Table, wanted: Table, config: RecipeConfig) -> tuple[str, ...]:
    ignored = {"seed", "data.path", *(f"model.{name}" for name in get_recipe(config.recipe).data_fields)}
    return tuple(
        f"{name}={'none' if value is None else json.dumps(value, ensure_ascii=False)}"
        for name, value in own.items()
        if value != wanted.get(name) and name not in ignored
    )


def _expected_config(part: RowPart, config: RecipeConfig) -> RecipeConfig:
    """The part's config, fitted to the number of steps of a run."""
    wanted = _with_same_teacher(part_config(part, config.seed), part, config)
    if wanted.stages.keys() != config.stages.keys():
        return wanted
    stages = {name: _fit_steps(wanted.stages[name], own, part) for name, own in config.stages.items()}
    return replace(wanted, stages=stages)


def _fit_steps(wanted: TrainConfig, own: TrainConfig, part: RowPart) -> TrainConfig:
    """The stage of a part with the steps of a run: any number if it is to take some minutes or epochs."""
    intervals = {name: getattr(own.checkpoint, name) for name in ("log_every", "evaluate_every", "checkpoint_every")}
    rescaled = (rescale_steps if part.epochs is None else cut_or_rescale)(wanted, own.steps)
    steps = wanted.steps if part.minutes is None and part.epochs is None else own.steps
    return replace(rescaled, steps=steps, checkpoint=replace(rescaled.checkpoint, **intervals))


def _with_same_teacher(wanted: RecipeConfig, part: RowPart, config: RecipeConfig) -> RecipeConfig:
    """The part's config with the run's teacher, if it has one: the folder of the teacher's run does not matter."""
    return with_teacher(wanted, config.data.teacher or _teacher_placeholder(part)) if part.teacher else wanted


def _teacher_placeholder(part: RowPart) -> str:
    return f"RUN_OF_{part.teacher.upper()}"


def train_command(part: RowPart, config: RecipeConfig, data: str = "DATA") -> str:
    """The `qkv train` that makes a run of a part again, step by step.

    DATA stands for the data folder, RUN_OF_… for the folder of the teacher's run.
    """
    words = [f"qkv train {part.recipe}"]
    words += [f"--{name} {value}" for name, value in (("model", part.model), ("preset", part.preset)) if value]
    words += [f"--data {data}" if part.whole_folder else f"--data {data}/{part.data[0]}"] if part.data else []
    words += [f"--set {name}={json.dumps(value)}" for name, value in part.changes.items()]
    words += [f"--set data.teacher={_teacher_placeholder(part)}"] if part.teacher else []
    wanted = _with_same_teacher(part_config(part, config.seed), part, config)
    changes = _list_changes(flatten(config.to_table()), flatten(wanted.to_table()), config)
    words += [f"--set {shlex.quote(change)}" for change in changes]
    return " ".join([*words, f"--seed {config.seed}"])


def with_data(config: RecipeConfig, path: str | None) -> RecipeConfig:
    """The config with its data at another place."""
    return config if path is None else replace(config, data=replace(config.data, path=path))


def with_teacher(config: RecipeConfig, run: str) -> RecipeConfig:
    """The config with the pseudo-labels of another run."""
    return replace(config, data=replace(config.data, teacher=run))


def count_flops(model: nn.Module, objective: Objective, batch: Batch) -> tuple[float, float]:
    """Operations (FLOPs) of one forward and backward pass, and the number of items that the batch scores.

    Only matrix products are counted, not the optimizer. Attention is counted in full by the formula, causal or not.
    """
    model = copy.deepcopy(model).train()
    device = next(model.parameters()).device
    with torch.random.fork_rng(), _countable_operations(), FlopCounterMode(display=False) as counter:
        loss = to_loss_sum(objective(model, move_to(batch, device)), batch)
        loss.total.backward()
    return float(counter.get_total_flops()), float(loss.count)


def count_epoch_flops(model: nn.Module, objective: Objective, batches: Batches) -> tuple[float, float]:
    """Operations of an epoch and its items (images, tokens), estimated from some batches of each source."""
    flops = items = 0.0
    for source in batches.sources if isinstance(batches, MixedBatches) else [batches]:
        counted = _count_sample(model, objective, source)
        flops += sum(work for work, _ in counted) * source.num_batches(0) / len(counted)
        items += sum(number for _, number in counted) * source.num_batches(0) / len(counted)
    return flops, items


def _count_sample(model: nn.Module, objective: Objective, source: Batches) -> list[tuple[float, float]]:
    """Operations and items of a sample of batches, each computed once or like another one of the same shapes."""
    by_shape: dict[tuple[Any, ...], tuple[float, float]] = {}
    sample: list[tuple[float, float]] = []
    for index in torch.randperm(source.num_batches(0), generator=generator_for(0))[:SAMPLED_BATCHES].tolist():
        batch = source.batch(0, index)
        shapes = tuple((name, tuple(tensor.shape)) for name, tensor in batch.items())
        if len(sample) < COUNTED_BATCHES:
            by_shape[shapes] = count_flops(model, objective, batch)
        elif shapes not in by_shape:  # there are many shapes: those counted stand for the others
            break
        sample.append(by_shape[shapes])
    return sample


@contextmanager
def _countable_operations() -> Iterator[None]:
    """Run the plain forms of fused attention and fused recurrences, which the counter cannot see into."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # switching oneDNN off warns about missing graphics cards
        with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
            yield
