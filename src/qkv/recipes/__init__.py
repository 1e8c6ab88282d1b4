"""The systems that qkv trains: data, model, objective and numbers in a small file each; and the runs they make."""

from qkv.recipes.run import Run, open_run, train
from qkv.recipes.system import Recipe, Stage, System, Task
from qkv.recipes.systems import SYSTEMS, system

__all__ = ["SYSTEMS", "Recipe", "Run", "Stage", "System", "Task", "open_run", "system", "train"]
