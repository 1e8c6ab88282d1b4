"""The systems that qkv trains: data, model, objective and numbers in a small file each; and the runs they make."""

from qkv.training.recipes.definition import Recipe, Stage, System, Task
from qkv.training.recipes.registry import SYSTEMS, system
from qkv.training.runs import Run, open_run, train

__all__ = ["SYSTEMS", "Recipe", "Run", "Stage", "System", "Task", "open_run", "system", "train"]
