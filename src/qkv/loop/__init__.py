"""The one training loop: objectives, optimisers, schedules, checkpoints, distributed."""

from qkv.loop.diagnosis import NotFiniteError
from qkv.loop.evaluation import over
from qkv.loop.export import export, restored
from qkv.loop.objectives import classification, ctc, language_model, sequence_to_sequence
from qkv.loop.processes import World, alone, joined
from qkv.loop.report import Outcome, Progress, Report
from qkv.loop.score import Objective, Score
from qkv.loop.settings import Optimiser, Saving, Schedule, Settings
from qkv.loop.train import train

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
