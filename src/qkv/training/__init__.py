"""The one training loop: objectives, optimisers, schedules, checkpoints, distributed."""

from qkv.training.callbacks import Outcome, Progress, Report
from qkv.training.config import Optimiser, Saving, Schedule, Settings
from qkv.training.diagnosis import NotFiniteError
from qkv.training.distributed import World, alone, joined
from qkv.training.evaluation import over
from qkv.training.export import export, restored
from qkv.training.loop import train
from qkv.training.objectives import classification, ctc, language_model, sequence_to_sequence
from qkv.training.score import Objective, Score

__all__ = [
    "NotFiniteError",
    "Objective",
    "Optimiser",
    "Outcome",
    "Progress",
    "Report",
    "Saving",
    "Schedule",
    "Score",
    "Settings",
    "World",
    "alone",
    "classification",
    "ctc",
    "export",
    "joined",
    "language_model",
    "over",
    "restored",
    "sequence_to_sequence",
    "train",
]
