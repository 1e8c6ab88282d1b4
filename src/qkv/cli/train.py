"""`qkv train`: train a recipe, or resume a run."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.table import Table

from qkv.cli.console import err, out, print_json

Overrides = Annotated[list[str] | None, Parameter(name="--set", consume_multiple=False, negative="")]


def train(
    recipe: str | None = None,
    /,
    *,
    data: str | None = None,
    model: str | None = None,
    preset: str | None = None,
    set_: Overrides = None,
    config: Path | None = None,
    seed: int | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    folder: Path | None = None,
    resume: Literal["auto", "never", "always"] = "auto",
    device: str | None = None,
    tensorboard: bool = False,
    show: bool = False,
    quiet: bool = False,
    json: bool = False,
) -> int:
    """Train a model from a recipe: vit-digits, vit-cifar10, vit-cifar100, gpt-text, birthplaces, translate, speech.

    A recipe is a named set of data, model and settings. The run directory contains the recipe, metrics, checkpoints,
    the trained model and a report. You can kill a run at any time; the same command resumes it from the last checkpoint
    with bit-identical results (tested on CPUs, on the same machine). With torchrun, training is distributed over all
    processes.

    Examples:

        qkv train vit-digits
        qkv train gpt-text --data my.txt --minutes 10
        qkv train birthplaces --data birthplaces/ --model vanilla --preset cs224n-a5
        qkv train vit-digits --model cnn --steps 500 --set train.optimizer.lr=0.001
        qkv train gpt-text --show

    Parameters
    ----------
    recipe
        The recipe to train. Omit it to list the recipes.
    data
        Your own data: a file or folder. `qkv train` lists what each recipe accepts.
    model
        One of the recipe's models, which `qkv train` lists: the default, a variant, or a baseline such as cnn or rnn.
    preset
        A named set of settings, such as nyu-hw4 or cs224n-a5 (the settings of that homework). `qkv train RECIPE --help`
        lists the presets of a recipe.
    set_
        NAME=VALUE for any setting that --show prints, such as model.dim=128; may be repeated.
    config
        A TOML file with settings, such as another run's recipe.toml. --set overrides it.
    seed
        Random seed for the initial weights and the data order. Default: 0.
    minutes
        Training time in minutes. qkv measures the speed first and sets the number of steps accordingly.
    steps
        Total number of steps. Warm-up and evaluation intervals are scaled accordingly.
    epochs
        Number of epochs, for a recipe with one stage. The schedule of --preset nyu-hw4 keeps its length of 100 epochs,
        so that you can continue such a run with more epochs.
    folder
        Run directory. Default: runs/RECIPE-N.
    resume
        auto: resume an unfinished run with the same settings, if there is one. never: start a new run. always: resume,
        or fail if there is nothing to resume.
    device
        cpu, cuda, cuda:1 or mps. Default: a GPU if available (not tested yet), otherwise cpu.
    tensorboard
        Also write TensorBoard logs to the run directory (view them with: tensorboard --logdir runs).
    show
        Print all settings as TOML (usable with --config) without training.
    quiet
        Do not show progress.
    json
        Print the result as JSON; progress becomes JSON lines on stderr.
    """
    from qkv._config import parse_override, read_toml
    from qkv.training.recipes import get_recipe

    table = {} if config is None else read_toml(config)
    name = recipe or table.get("recipe")
    if name is not None and not isinstance(name, str):
        raise ValueError(f"{config}: recipe must be the name of a recipe, got {name!r}; `qkv train` lists them")
    if name is None and config is not None:
        raise ValueError(f"{config} names no recipe; add it: qkv train RECIPE --config {config}")
    if name is None:
        return _list_recipes(json)
    overrides = [table, dict(parse_override(text) for text in set_ or [])]
    if data is not None:
        overrides.append({"data.path": data})
    resolved = get_recipe(name).resolve(*overrides, preset=preset, model=model, seed=seed)
    if show:
        return _show(resolved, minutes, steps, epochs, json)

    from qkv.cli.progress import make_callback
    from qkv.training import init_distributed, run_recipe

    with init_distributed() as world, _says_how_to_resume(quiet=quiet or json):
        run = run_recipe(
            resolved,
            folder=folder,
            minutes=minutes,
            steps=steps,
            epochs=epochs,
            resume=resume,
            device=device,
            tensorboard=tensorboard,
            callback=lambda stage, _: make_callback(
                stage.name, quiet=quiet, json_lines=json, evaluated_on=stage.evaluated_on
            ),
            on_note=_print_note if world.is_first and not quiet and not json else None,
        )
        if not world.is_first:
            return 0
    if json:
        print_json(run.to_dict())
    elif run.stopped:
        out().print(f"stopped ({run.stopped}); run the same command to resume: {run.folder}", markup=False)
    else:
        print_result(run)
    return exit_code(run.stopped)


@contextmanager
def _says_how_to_resume(*, quiet: bool) -> Iterator[None]:
    """While training, Ctrl-C ends the run after its step; elsewhere, as in the test at the end, it interrupts."""
    try:
        yield
    except KeyboardInterrupt:
        if not quiet:
            _print_note("stopped; run the same command to resume")
        raise


def exit_code(stopped: str | None) -> int:
    """Return the exit code of a command that a signal stopped, as shells define it; SIGTERM's for another process.

    >>> exit_code(None), exit_code("SIGINT"), exit_code("SIGTERM")
    (0, 130, 143)
    """
    if stopped is None:
        return 0
    return 128 + getattr(signal, stopped, signal.SIGTERM)


def print_result(run: Any) -> None:
    """Print the metrics of a finished run, and where its files are."""
    from qkv.training.report import describe_best, format_metric

    rows = Table("", "", box=None, padding=(0, 2), show_header=False)
    if best := run.result.get("best"):
        rows.add_row(*describe_best(best))
    for part, metrics in run.result.items():
        if part == "best":
            continue
        for name, value in metrics.items():
            if isinstance(value, int | float):
                rows.add_row(f"{name.replace('_', ' ')} ({part})", format_metric(name, value))
    rows.add_row("parameters", f"{run.parameters:,}")
    rows.add_row("training", f"{run.seconds:,.0f} s")
    out().print(f"[bold]{run.config.recipe}[/bold], {run.config.model_kind}, seed {run.config.seed}")
    out().print(rows)
    out().print(f"report  {run.folder / 'report.html'}\nmodel   {run.folder / 'model'}", markup=False, highlight=False)


def _print_note(text: str) -> None:
    err().print(text, style="dim", markup=False, highlight=False)


def _show(config: Any, minutes: float | None, steps: int | None, epochs: int | None, json: bool) -> int:
    from qkv._config import to_toml
    from qkv.training.time_budget import with_steps

    if minutes is not None:
        raise ValueError("the steps that fit into --minutes are measured when a run starts; --show takes --steps")
    if epochs is not None:
        raise ValueError("the steps of --epochs depend on the data; --show takes --steps")
    if steps is not None:
        config = with_steps(config, steps)
    if json:
        print_json(config.to_table())
    else:
        out().print(to_toml(config.to_table()), markup=False, soft_wrap=True, end="")
    return 0


def print_recipe(name: str) -> None:
    """Print the models and presets of one recipe, and the commands that show their settings."""
    from qkv.training.recipes import get_recipe

    recipe = get_recipe(name)
    rows = Table("", "", box=None, padding=(0, 2), show_header=False)
    rows.add_row("recipe", f"{recipe.name}: {recipe.summary}")
    rows.add_row("models", ", ".join(recipe.models))
    rows.add_row("presets", ", ".join(recipe.presets) or "none")
    for preset in recipe.presets:
        rows.add_row("", f"qkv train {recipe.name} --preset {preset} --show")
    out().print(rows)


def _list_recipes(json: bool) -> int:
    from qkv.training.recipes import RECIPES, get_recipe

    recipes = [get_recipe(name) for name in RECIPES]
    if json:
        print_json({recipe.name: {"summary": recipe.summary, "models": list(recipe.models)} for recipe in recipes})
        return 0
    rows = Table("recipe", "models", "what it does", box=None, padding=(0, 2))
    for recipe in recipes:
        rows.add_row(recipe.name, ", ".join(recipe.models), recipe.summary)
    out().print(rows)
    return 0
