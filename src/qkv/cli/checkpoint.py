"""A checkpoint as a person names it: a run stands for its trained model."""

from pathlib import Path


def trained(checkpoint: str) -> str:
    """The trained model's folder if a run is named, otherwise what was named; a run without a model is refused.

    >>> trained("openai-community/gpt2")
    'openai-community/gpt2'
    """
    run = Path(checkpoint)
    if not run.exists() and any(run.parent.glob("*/recipe.toml")):  # among runs: a slip, and no name of the hub's
        raise ValueError(f"there is no run {run}; `qkv runs {run.parent}` lists those there are")
    if not (run / "recipe.toml").is_file():
        return checkpoint
    if (run / "model").is_dir():
        return str(run / "model")
    raise ValueError(f"{run} is a run that is not finished, so it has no model yet; go on with it: {again(run)}")


def again(run: str | Path) -> str:
    """The command that goes on with a run, whatever options began it."""
    return f"qkv train --config {Path(run) / 'recipe.toml'} --folder {run}"
