"""What a run's model does at its newest checkpoint, in a process of its own: the run that trains is not held up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from qkv.studio.stamps import Stamp, stamp
from qkv.training import restored
from qkv.training.checkpointing import Store
from qkv.training.recipes import open_run
from qkv.training.recipes.definition import Task
from qkv.training.recipes.registry import system
from qkv.training.runs import RECIPE, stage_folder

_built: dict[tuple[str, Stamp], Task] = {}  # the data of the run that was asked for last


def work(request: dict[str, Any], say: Callable[..., None]) -> None:
    """Says the stage and the step of the newest checkpoint that can be read, and rows of what its model does."""
    torch.set_num_threads(1)  # the others belong to the run
    place = Path(request["place"])
    known = str(place), stamp(place / RECIPE)
    if known not in _built:
        _built.clear()
        recipe = open_run(place).recipe
        _built[known] = system(recipe.system).build(recipe)
    task = _built[known]
    for stage in reversed(task.stages):
        store = Store(stage_folder(place, task, stage))
        for step in reversed(store.steps()):
            try:
                model = restored(store.place(step))
            except (ValueError, OSError):  # it has made room for a newer one, or is not whole
                continue
            say(stage=stage.name, step=step, samples=task.samples(model.eval()))
            return
    raise ValueError("this run has no checkpoint yet")
