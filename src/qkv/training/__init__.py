"""Training: the training loop, optimizers, schedules, checkpoints, distributed training, and recipes.

`train(model, data, objective, TrainConfig(...), folder)` trains any model; `run_recipe("vit-digits")` trains a recipe.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.training.checkpointing import export_model, load_checkpoint
    from qkv.training.config import CheckpointConfig, TrainConfig
    from qkv.training.data_loader import DatasetBatches
    from qkv.training.distributed import World, init_distributed, single_process
    from qkv.training.evaluation import evaluator
    from qkv.training.loop import train
    from qkv.training.malloc import disable_malloc_trim
    from qkv.training.metrics import Progress, TrainCallback, TrainResult, read_metrics
    from qkv.training.nonfinite import NotFiniteError
    from qkv.training.objectives import (
        LossSum,
        Objective,
        classification,
        ctc,
        language_model,
        sequence_to_sequence,
        supervised,
    )
    from qkv.training.optimizers import OptimizerConfig
    from qkv.training.recipes import RECIPES, get_recipe
    from qkv.training.runs import Run, open_run, run_recipe
    from qkv.training.schedules import ScheduleConfig, TokenCosine

__all__ = [
    "RECIPES",
    "CheckpointConfig",
    "DatasetBatches",
    "LossSum",
    "NotFiniteError",
    "Objective",
    "OptimizerConfig",
    "Progress",
    "Run",
    "ScheduleConfig",
    "TokenCosine",
    "TrainCallback",
    "TrainConfig",
    "TrainResult",
    "World",
    "classification",
    "ctc",
    "disable_malloc_trim",
    "evaluator",
    "export_model",
    "get_recipe",
    "init_distributed",
    "language_model",
    "load_checkpoint",
    "open_run",
    "read_metrics",
    "run_recipe",
    "sequence_to_sequence",
    "single_process",
    "supervised",
    "train",
]

_MODULES = {
    "checkpointing": (
        "export_model",
        "load_checkpoint",
    ),
    "config": (
        "CheckpointConfig",
        "TrainConfig",
    ),
    "data_loader": ("DatasetBatches",),
    "distributed": (
        "World",
        "init_distributed",
        "single_process",
    ),
    "evaluation": ("evaluator",),
    "loop": ("train",),
    "malloc": ("disable_malloc_trim",),
    "metrics": (
        "Progress",
        "TrainCallback",
        "TrainResult",
        "read_metrics",
    ),
    "nonfinite": ("NotFiniteError",),
    "objectives": (
        "LossSum",
        "Objective",
        "classification",
        "ctc",
        "language_model",
        "sequence_to_sequence",
        "supervised",
    ),
    "optimizers": ("OptimizerConfig",),
    "recipes": (
        "RECIPES",
        "get_recipe",
    ),
    "runs": (
        "Run",
        "open_run",
        "run_recipe",
    ),
    "schedules": (
        "ScheduleConfig",
        "TokenCosine",
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import on first use: records of runs are read without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'qkv.training' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"qkv.training.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"importlib", "TYPE_CHECKING"})
