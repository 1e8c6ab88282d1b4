"""Runs: `run_recipe` trains a recipe in a run directory, stage by stage, and resumes it at any time.

recipe.toml      the resolved config
run.json         when the run started, its results
metrics.jsonl    metrics during training, and checkpoints/ (in a subdirectory for each stage, if there are several)
prepared.json    what the model of the previous stage produced for a stage that learns from it (pseudo-labels)
model/           the trained model, as `qkv.load`, `qkv use` and `qkv look` read it
samples.json     example inputs and outputs of the trained model
report.html      curves, metrics and samples
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import torch

import qkv
from qkv import __version__
from qkv._config import RECIPE_FILE, find_differences, read_toml, to_toml
from qkv._files import read_json, write_atomic
from qkv.data.batches import Batches
from qkv.models import Model
from qkv.models import folder as model_folder
from qkv.models.folder import MODEL_FOLDER
from qkv.training import time_budget
from qkv.training.checkpointing import load_checkpoint
from qkv.training.config import TrainConfig
from qkv.training.device import use_device
from qkv.training.distributed import World, single_process
from qkv.training.loop import train
from qkv.training.metrics import TrainCallback, TrainResult
from qkv.training.optimizers import make_optimizers
from qkv.training.recipes import get_recipe
from qkv.training.recipes.definition import PICKED_ON_TEST, RecipeConfig, Stage, Task, copy_to_device
from qkv.training.run_progress import RunProgress, read_progress
from qkv.training.run_state import (
    STATUS_FILE,
    RunState,
    change_status,
    find_state,
    read_status,
    recorded_end,
    recorded_test,
    write_status,
)

REPORT_FILE = "report.html"
PURPOSE_FILE, SAMPLES_FILE, PREPARED_FILE = "purpose.json", "samples.json", "prepared.json"
MAX_PREPARED_BYTES = 2**30
UNKNOWN_COMMIT = "unknown"
CallbackFactory = Callable[[Stage, TrainConfig], TrainCallback]


@dataclass(frozen=True)
class Run:
    """The result of a run, or its current state.

    result: metrics of the last validation and of the test, by part; empty until the run is finished. If the best epoch
        was picked on the test set there is no validation, and "best" says so: the metric, its epoch and `picked_on`.
    stopped: the signal that stopped it, if one did.
    """

    folder: Path
    config: RecipeConfig
    finished: bool
    stopped: str | None
    seconds: float
    parameters: int
    result: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def model(self) -> Model:
        """Load the trained model."""
        return model_folder.load(self.folder / MODEL_FOLDER, Model.registry)

    @property
    def stage_folders(self) -> dict[str, Path]:
        """The directory of each stage's metrics and checkpoints; a run with one stage keeps them in its own."""
        names = list(self.config.stages)
        return {name: self.folder if len(names) == 1 else self.folder / name for name in names}

    @property
    def progress(self) -> RunProgress:
        """Read how far the run is from its directory: the last step and the seconds of training by then."""
        return read_progress(self.stage_folders.values())

    @property
    def state(self) -> RunState:
        """Read the present state of the run from its directory."""
        return find_state(self.folder, self.stage_folders.values())

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data for JSON."""
        progress = self.progress
        return {
            "folder": str(self.folder),
            "state": self.state if (self.folder / STATUS_FILE).is_file() else "stopped",
            "recipe": self.config.to_table(),
            "finished": self.finished,
            "stopped": self.stopped,
            "step": progress.step,
            "seconds": round(self.seconds or progress.seconds, 1),
            "parameters": self.parameters,
            "result": dict(self.result),
            "notes": list(self.notes),
        }


def run_recipe(
    recipe: RecipeConfig | str,
    *overrides: Mapping[str, Any],
    folder: str | Path | None = None,
    minutes: float | int | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    resume: Literal["auto", "never", "always"] = "auto",
    device: str | None = None,
    tensorboard: bool = False,
    callback: CallbackFactory | None = None,
    on_note: Callable[[str], None] | None = None,
    **options: Any,
) -> Run:
    """Train a recipe, or resume it where it stopped.

    Args:
        recipe: a resolved config, or the name of a recipe with overrides ({"model.dim": 64}) and options (preset=,
            model=, seed=).
        folder: run directory; runs/NAME-N by default. A directory with a run of this config is resumed; with another
            run it is refused.
        minutes: training time; the speed is measured once, and the steps that fit are written into recipe.toml.
        steps: number of steps in all, instead of the recipe's.
        epochs: number of epochs of a recipe with one stage. A schedule with `total_steps` stays laid out over these; a
            finished run of fewer epochs in `folder` then resumes from its last checkpoint.
        device: cpu, cuda, cuda:1, mps …; a GPU if there is one by default. Under torchrun each process has its own.
        tensorboard: also write the curves for TensorBoard.
        callback: makes the TrainCallback of each stage. on_note: receives what was guessed or left out.

    >>> run = run_recipe("vit-digits", {"model.dim": 32}, steps=200)  # doctest: +SKIP
    >>> run.result["test"]["accuracy"], run.model  # doctest: +SKIP
    """
    config = get_recipe(recipe).resolve(*overrides, **options) if isinstance(recipe, str) else recipe
    time_budget.check_length(minutes, steps, epochs)
    on_note = on_note or (lambda text: None)
    run_folder = Path(folder) if folder is not None else choose_folder(config, resume, minutes, steps, epochs)
    if run_folder.exists() and not run_folder.is_dir():
        raise ValueError(f"{run_folder} is a file; a run needs its own directory")
    started = (run_folder / RECIPE_FILE).is_file()
    if started and resume == "never":
        raise ValueError(f"{run_folder} contains a run already; resume it (--resume auto) or choose another directory")
    if not started and resume == "always":
        raise ValueError(f"{run_folder} contains no run to resume")
    if started and epochs is not None:
        World.current().run_on_first(lambda: extend_run(run_folder, config, epochs))
    if started:
        config = _read_config(run_folder, config, minutes, steps, epochs)
        if read_status(run_folder).get("finished"):
            on_note(f"{run_folder} is finished already; this is its result")
            return open_run(run_folder)
    with use_device(device):
        on_note("reading the data …")
        task = _build_task(config)
        for text in task.notes:
            on_note(text)
        if not started:
            try:
                task = _start_run(run_folder, task, minutes, steps, epochs, on_note)
            except time_budget.StoppedError as stopped:
                size = task.model.num_parameters
                return Run(run_folder, task.config, False, str(stopped), 0.0, size, notes=task.notes)
        with recorded_end(run_folder) if World.current().is_first else nullcontext():
            return _train_and_test(run_folder, task, callback, on_note, tensorboard)


def _start_run(
    run_folder: Path,
    task: Task,
    minutes: float | int | None,
    steps: int | None,
    epochs: int | None,
    on_note: Callable[[str], None],
) -> Task:
    """Fit a task to its length and create its run directory."""
    _check_stages(task)
    fitted = time_budget.fit_to_length(task, minutes, steps, on_note, epochs)
    if time_budget.trial_items(fitted.config) != time_budget.trial_items(task.config):  # evaluated on other items
        before, fitted = task.notes, _build_task(fitted.config)
        for text in fitted.notes:
            if text not in before:
                on_note(text)
    create_run(run_folder, fitted, minutes, epochs)
    return fitted


def _build_task(config: RecipeConfig) -> Task:
    """Build the task of a config; a run of very few steps evaluates a sample, and says so."""
    limit = time_budget.trial_items(config)
    task = get_recipe(config.recipe).build(config, limit)
    if limit is None:
        return task
    note = (
        f"a trial run of {time_budget.total_steps(config)} steps: validation and test use at most {limit} items; "
        f"runs of {time_budget.TRIAL_STEPS} steps and more use all"
    )
    return replace(task, notes=(*task.notes, note))


def _train_and_test(
    run_folder: Path,
    task: Task,
    callback: CallbackFactory | None,
    on_note: Callable[[str], None],
    tensorboard: bool,
) -> Run:
    """Train the stages of a task in its run directory, from where they stopped, and test the best model."""
    result, best, seconds = None, None, 0.0
    task.model.extra_files = {**task.model.extra_files, **task.files}
    for stage in task.stages:
        model = copy_to_device(task.model)  # training may shard it over processes for good
        if best is not None:  # start with the best weights of the previous stage
            model.load_state_dict(best.state_dict())
        stage_config, home = task.config.stages[stage.name], task.stage_folder(run_folder, stage)
        batches = _prepare_batches(stage, model, home, on_note)
        events = None if callback is None else callback(stage, stage_config)
        result = train(
            model,
            batches,
            stage.objective,
            stage_config,
            home,
            evaluate=stage.validate,
            callback=events,
            tensorboard=tensorboard,
        )
        seconds += result.seconds
        if result.stopped or not result.finished:  # also when asked to stop during the last step
            if World.current().is_first:
                change_status(run_folder, stopped=result.stopped)
            return Run(run_folder, task.config, False, result.stopped, seconds, model.num_parameters, notes=task.notes)
        best = _best_model(result, stage_config)
    assert result is not None and best is not None
    run = Run(run_folder, task.config, True, None, seconds, best.num_parameters, notes=task.notes)
    if not World.current().is_first:
        return run
    with single_process(), recorded_test(run_folder):  # the other processes have left
        return _finish(run, task, best, on_note, _describe_best(task, result))


def _check_stages(task: Task) -> None:
    """Raise on an optimizer or a metric that training would refuse later, before anything is written.

    The metrics of a stage are known from an evaluation; it is made only if the config changes the recipe's best_metric.
    """
    usual = get_recipe(task.config.recipe).stages
    for stage in task.stages:
        config = task.config.stages[stage.name]
        make_optimizers(task.model, config.optimizer)
        name = config.checkpoint.best_metric
        if not name or stage.validate is None or name == usual[stage.name].checkpoint.best_metric:
            continue
        with torch.random.fork_rng(), torch.no_grad():
            metrics = stage.validate(copy_to_device(task.model).eval())
        if name not in metrics:
            raise ValueError(f"{stage.name}.checkpoint.best_metric must be one of {', '.join(metrics)}, got {name!r}")


def create_run(run_folder: Path, task: Task, minutes: float | int | None = None, epochs: int | None = None) -> None:
    """Create the run directory with run.json and recipe.toml, before anything is trained."""
    if not World.current().is_first:
        return
    run_folder.mkdir(parents=True, exist_ok=True)
    # run.json without recipe.toml belongs to a run that was killed while it was created
    others = [path.name for path in run_folder.iterdir() if not path.name.startswith(".") and path.name != STATUS_FILE]
    if others:
        raise ValueError(f"{run_folder} contains other files ({others[0]}, …); a run needs its own directory")
    status = {
        "qkv": __version__,
        "commit": git_commit(),
        "recipe": task.config.recipe,
        "began": datetime.now().astimezone().isoformat(timespec="seconds"),
        "parameters": task.model.num_parameters,
        "finished": False,
    }
    if minutes is not None:
        status["minutes"] = minutes
    if epochs is not None:
        status["epochs"] = epochs
    write_status(run_folder, status)
    write_atomic(run_folder / RECIPE_FILE, to_toml(task.config.to_table(), comment="qkv train --config this-file"))


def extend_run(run_folder: Path, wanted: RecipeConfig, epochs: int) -> str:
    """Give a finished run more epochs, if its schedule does not depend on their number; returns "" otherwise.

    Every step then has the numbers of a run that had these epochs from the start.
    """
    table, status = read_toml(run_folder / RECIPE_FILE, follow_link=False), read_status(run_folder)
    before = status.get("epochs")
    if table.get("recipe") != wanted.recipe or not status.get("finished") or before is None or before >= epochs:
        return ""
    present = get_recipe(wanted.recipe).from_table(table)
    fixed = all(stage.schedule.total_steps is not None for stage in present.stages.values())
    if not fixed or _describe_difference(run_folder, present, wanted, None, None, before):
        return ""
    config = time_budget.with_epochs(_build_task(present), epochs)
    write_atomic(run_folder / RECIPE_FILE, to_toml(config.to_table(), comment="qkv train --config this-file"))
    kept = {name: value for name, value in status.items() if name not in ("result", "testing_seconds")}
    write_status(run_folder, {**kept, "epochs": epochs, "finished": False})
    return "extended"


def _prepare_batches(stage: Stage, model: Model, home: Path, on_note: Callable[[str], None]) -> Batches:
    """Return the batches of a stage. What the model produces for them is written to the directory, complete, before the
    first step, and read from there when the run is resumed."""
    if stage.prepare is None or stage.prepared is None:
        return stage.batches
    prepare, path = stage.prepare, home / PREPARED_FILE

    def read_or_prepare() -> str:
        if not path.is_file():
            on_note(f"{stage.name}: the model prepares its training data")
            home.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(prepare(model), ensure_ascii=False, indent=1) + "\n")
        expected = f"the training data of {stage.name}; remove it to make it again"
        return json.dumps(read_json(path, expected, max_bytes=MAX_PREPARED_BYTES))

    return stage.prepared(json.loads(World.current().run_on_first(read_or_prepare)))


def _best_model(result: TrainResult, config: TrainConfig) -> Model:
    """The model that a stage ends with: the mean of its last checkpoints, the best one, or the last one."""
    if config.checkpoint.average_last > 1:
        return load_checkpoint(result.folder, average_last=config.checkpoint.average_last)
    return load_checkpoint(result.best or result.checkpoint or result.folder)


def _describe_best(task: Task, result: TrainResult) -> dict[str, Any]:
    """Return the best metric, its epoch and that it was picked on the test set; {} if it was not."""
    stage = task.stages[-1]
    if stage.evaluated_on != "test" or result.best_step is None:
        return {}
    config = task.config.stages[stage.name]
    epoch = result.best_step * config.grad_accumulation / stage.batches.num_batches(0)
    best = {config.checkpoint.best_metric: result.best_value, "epoch": round(epoch, 2), "picked_on": PICKED_ON_TEST}
    return {"best": best}


def _finish(run: Run, task: Task, best: Model, on_note: Callable[[str], None], described: Mapping[str, Any]) -> Run:
    """Test the best model once; write model, metrics, samples and report."""
    from qkv.training.report import report_page

    on_note("testing the best checkpoint")
    run_folder, started = run.folder, time.perf_counter()
    run = replace(run, result={**evaluate_task(task, best), **described})
    best.extra_files = {**task.files, PURPOSE_FILE: json.dumps(task.purpose(best), ensure_ascii=False).encode()}
    best.save(run_folder / MODEL_FOLDER)
    status = {**read_status(run_folder), "finished": True, "seconds": round(run.seconds, 1), "result": run.result}
    samples = task.samples(best)
    write_atomic(run_folder / SAMPLES_FILE, json.dumps(samples, ensure_ascii=False) + "\n")
    write_atomic(run_folder / REPORT_FILE, report_page(run, task, samples))
    seconds = round(time.perf_counter() - started, 1)
    write_status(run_folder, {**status, "testing_seconds": seconds, "notes": list(task.notes)})
    return run


def evaluate_task(task: Task, model: Model) -> dict[str, dict[str, Any]]:
    """Compute the metrics of the last stage's validation and of the test."""
    stage = task.stages[-1]
    if stage.evaluated_on == "test":
        return {"test": task.test(model)}
    return {"validation": {} if stage.validate is None else stage.validate(model), "test": task.test(model)}


def choose_folder(
    config: RecipeConfig,
    resume: str,
    minutes: float | int | None,
    steps: int | None,
    epochs: int | None = None,
    home: Path = Path("runs"),
) -> Path:
    """Return the newest unfinished run of this config and length, if it may be resumed; otherwise a new directory."""
    existing = sorted(home.glob(f"{config.recipe}-*"), key=_run_number, reverse=True)
    if resume != "never":
        for run_folder in existing:
            if (run_folder / RECIPE_FILE).is_file() and not read_status(run_folder).get("finished"):
                present = get_recipe(config.recipe).from_table(read_toml(run_folder / RECIPE_FILE, follow_link=False))
                if _describe_difference(run_folder, present, config, minutes, steps, epochs) is None:
                    return run_folder
    return home / f"{config.recipe}-{max(map(_run_number, existing), default=0) + 1}"


def open_run(run_folder: str | Path) -> Run:
    """Read a run from its directory."""
    run_folder = Path(run_folder)
    if not (run_folder / RECIPE_FILE).is_file():
        raise ValueError(f"{run_folder} is not a run: it has no {RECIPE_FILE}. `qkv runs` lists the runs")
    table, status = read_toml(run_folder / RECIPE_FILE, follow_link=False), read_status(run_folder)
    return Run(
        folder=run_folder,
        config=get_recipe(str(table.get("recipe"))).from_table(table),
        finished=bool(status.get("finished")),
        stopped=None,
        seconds=float(status.get("seconds", 0.0)),
        parameters=status.get("parameters", 0),
        result=status.get("result", {}),
        notes=tuple(map(str, status.get("notes", ()))),
    )


def _read_config(
    run_folder: Path, wanted: RecipeConfig, minutes: float | int | None, steps: int | None, epochs: int | None = None
) -> RecipeConfig:
    """Read the config of a run directory; raises a ValueError if it is not the wanted one."""
    table = read_toml(run_folder / RECIPE_FILE, follow_link=False)
    if table.get("recipe") != wanted.recipe:
        raise ValueError(
            f"{run_folder} contains a run of {table.get('recipe')}, not of {wanted.recipe}; choose another directory"
        )
    present = get_recipe(wanted.recipe).from_table(table)
    if what := _describe_difference(run_folder, present, wanted, minutes, steps, epochs):
        raise ValueError(f"{run_folder} contains a run {what}. Choose another directory, or undo this change")
    return present


def _describe_difference(
    run_folder: Path,
    present: RecipeConfig,
    wanted: RecipeConfig,
    minutes: float | int | None,
    steps: int | None,
    epochs: int | None = None,
) -> str | None:
    """Describe how the run in a directory differs from the wanted one; None if it does not."""
    if steps is not None:
        wanted = time_budget.with_steps(wanted, steps)
        if time_budget.total_steps(present) != time_budget.total_steps(wanted):
            return f"of {time_budget.total_steps(present):,} steps, not of {steps:,}"
    if minutes is not None:
        given = read_status(run_folder).get("minutes")
        if given is None:
            return f"without a limit in minutes, not of {minutes:g} minutes"
        if given != minutes:
            return f"of {given:g} minutes, not of {minutes:g}"
        wanted = time_budget.with_length_of(wanted, present)
    if epochs is not None:
        given = read_status(run_folder).get("epochs")
        if given != epochs:
            return f"of {given or 'another number of'} epochs, not of {epochs}"
        lengths = {name: stage.steps for name, stage in present.stages.items()}
        stages = {name: time_budget.cut_or_rescale(stage, lengths[name]) for name, stage in wanted.stages.items()}
        wanted = replace(wanted, stages=stages)
    differences = find_differences([_comparable(present), _comparable(wanted)])
    if not differences:
        return None
    name, (before, now) = next(iter(differences.items()))
    return f"with another config: {name} was {before!r} and is now {now!r}"


def _comparable(config: RecipeConfig) -> dict[str, Any]:
    """Return a config without what the data fills in."""
    table = config.to_table()
    for name in get_recipe(config.recipe).data_fields:
        table["model"].pop(name, None)
    return table


def _run_number(run_folder: Path) -> int:
    tail = run_folder.name.rpartition("-")[2]
    return int(tail) if tail.isdigit() else 0


def find_checkout() -> Path | None:
    """Return the root of the git checkout that this qkv runs from; None where it was installed otherwise."""
    home = Path(qkv.__file__).resolve().parent
    root = home.parents[1]
    return root if home == root / "src" / "qkv" and (root / ".git").exists() else None


def git_commit() -> str:
    """Return the commit of the checkout, with -dirty if its code differs from it; "unknown" outside one."""
    root = find_checkout()
    commit = None if root is None else _run_git(root, "rev-parse", "--short=12", "HEAD")
    if root is None or not commit:
        return UNKNOWN_COMMIT
    return commit + ("-dirty" if _run_git(root, "status", "--porcelain", "--", "src", "constraints.txt") else "")


def _run_git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
