"""`qkv train`: carry out a recipe, or go on with it."""

import signal
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from qkv.cli.console import err, out, print_json

Changes = Annotated[list[str] | None, Parameter(name="--set", consume_multiple=False, negative="")]


def train(
    recipe: str | None = None,
    /,
    *,
    data: str | None = None,
    model: str | None = None,
    preset: str | None = None,
    set_: Changes = None,
    config: Path | None = None,
    seed: int | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    folder: Path | None = None,
    resume: Literal["auto", "never", "always"] = "auto",
    show: bool = False,
    quiet: bool = False,
    json: bool = False,
) -> int:
    """Train a system by a recipe: vit-digits, vit-cifar10, vit-cifar100, gpt-text, birthplaces, translate, speech.

    A run has a folder: its recipe, metrics, checkpoints, the trained model and a report. Kill it at any instant: the
    same command goes on from the last checkpoint, and ends with the same bits. Under torchrun it uses every process.

    Examples:

        qkv train vit-digits
        qkv train gpt-text --data my.txt --minutes 10
        qkv train birthplaces --data birthplaces/ --model vanilla --preset course
        qkv train vit-digits --model cnn --set train.steps=500 --set train.optimiser.lr=0.001
        qkv train gpt-text --show

    Parameters
    ----------
    recipe
        What to train; without a recipe, those there are are listed.
    data
        Where the data is, if not what ships: a file or a folder, as the recipe's summary says.
    model
        Which of the recipe's models, as `qkv train` lists them: its own, a variant, or a baseline such as cnn or rnn.
    preset
        A named set of changes, such as course: the course's numbers exactly.
    set_
        NAME=VALUE for any setting that --show prints, such as model.dim=128; may be repeated.
    config
        A TOML file of changes, such as another run's recipe.toml; --set goes over it.
    seed
        Another seed gives other first weights and another order of the data; 0 if not given.
    minutes
        How long: the speed is measured once, and the steps that fit are fixed in recipe.toml.
    steps
        How many steps in all, in place of the recipe's; warm-up and evaluations keep their share.
    folder
        Where the run is kept; runs/RECIPE-N if not given.
    resume
        auto: go on with an unfinished run of the same recipe, if there is one. never: begin a new run. always: go on,
        or stop if there is none.
    show
        Print the whole recipe as TOML, as --config reads it, and train nothing.
    quiet
        Show no progress.
    json
        Print the result as JSON; progress becomes JSON lines on stderr.
    """
    from qkv.training.recipes.plain import parse_change, read_toml, to_toml
    from qkv.training.recipes.registry import system

    table = {} if config is None else read_toml(config)
    name = recipe or table.get("recipe")
    if name is None and config is not None:
        raise ValueError(f"{config} names no recipe; name it: qkv train RECIPE --config {config}")
    if name is None:
        return _listed(json)
    known = system(name)
    changes = [table, dict(parse_change(text) for text in set_ or [])]
    if data is not None:
        changes.append({"data.path": data})
    resolved = known.recipe(*changes, preset=preset, model=model, seed=seed)
    if show:
        if minutes is not None:
            raise ValueError("how many steps fit into some minutes is measured when a run begins; --show takes --steps")
        if steps is not None:
            from qkv.training.recipes.time_budget import with_steps

            resolved = with_steps(resolved, steps)
        if json:
            print_json(resolved.to_table())
        else:
            out().print(to_toml(resolved.to_table()), markup=False, soft_wrap=True, end="")
        return 0
    return _run(resolved, folder, minutes, steps, resume, quiet, json)


def _run(resolved, folder, minutes, steps, resume, quiet: bool, json: bool) -> int:
    from qkv.cli.progress import listener
    from qkv.training import joined
    from qkv.training.recipes import train as carry_out

    def note(text: str) -> None:
        if not quiet and not json:
            err().print(text, style="dim", markup=False, highlight=False)

    with joined() as world:
        run = carry_out(
            resolved,
            folder=folder,
            minutes=minutes,
            steps=steps,
            resume=resume,
            listen=lambda stage, settings: listener(stage.name, quiet=quiet, json_lines=json),
            note=note if world.first else lambda text: None,
        )
        if not world.first:
            return 0
    if json:
        print_json(run.as_dict())
    elif run.stopped:
        out().print(f"stopped ({run.stopped}); the same command goes on: {run.folder}", markup=False)
    else:
        show_result(run)
    return stopped_by(run.stopped)


def stopped_by(name: str | None) -> int:
    """The exit code of work that a signal stopped, as shells have it; another process's was to end it, too.

    >>> stopped_by(None), stopped_by("SIGINT"), stopped_by("SIGTERM")
    (0, 130, 143)
    """
    if name is None:
        return 0
    return 128 + getattr(signal, name, signal.SIGTERM)


def show_result(run) -> None:
    """A finished run's numbers, and what can be done with it."""
    from qkv.training.recipes.report import figure

    rows = Table("", "", box=None, padding=(0, 2), show_header=False)
    for part, numbers in run.result.items():
        for name, value in numbers.items():
            if isinstance(value, int | float):
                rows.add_row(f"{name.replace('_', ' ')} ({part})", figure(name, value))
    rows.add_row("parameters", f"{run.parameters:,}")
    rows.add_row("training", f"{run.seconds:,.0f} s")
    out().print(f"[bold]{run.recipe.system}[/bold], {run.recipe.kind}, seed {run.recipe.seed}")
    out().print(rows)
    out().print(f"report  {run.folder / 'report.html'}\nmodel   {run.folder / 'model'}", markup=False, highlight=False)


def _listed(json: bool) -> int:
    from qkv.training.recipes.registry import SYSTEMS, system

    known = [system(name) for name in SYSTEMS]
    if json:
        print_json({each.name: {"summary": each.summary, "models": list(each.models)} for each in known})
        return 0
    rows = Table("recipe", "models", "what it does", box=None, padding=(0, 2))
    for each in known:
        rows.add_row(each.name, ", ".join(each.models), each.summary)
    out().print(rows)
    return 0
