"""A checkpoint as a person names it: a run stands for its trained model."""

from pathlib import Path


def trained(checkpoint: str) -> str:
    """The trained model's folder if a run is named, otherwise what was named; a run without a model is refused.

    >>> trained("openai-community/gpt2")
    'openai-community/gpt2'
    """
    run = Path(checkpoint)
    a_path = len(run.parts) > 1 and ":" not in checkpoint  # not a model that ships, nor a hub's name of one word
    if a_path and not run.exists() and any(run.parent.glob("*/recipe.toml")):  # among runs: a slip
        raise ValueError(f"there is no run {run}; `qkv runs {run.parent}` lists those there are")
    if not (run / "recipe.toml").is_file():
        return checkpoint
    if (run / "model").is_dir():
        return str(run / "model")
    raise ValueError(f"{run} is a run that is not finished, so it has no model yet; go on with it: {again(run)}")


def again(run: str | Path) -> str:
    """The command that goes on with a run, whatever options began it."""
    return f"qkv train --config {Path(run) / 'recipe.toml'} --folder {run}"
