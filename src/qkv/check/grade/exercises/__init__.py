"""The exercises that can be graded."""

from qkv.check.grade.exercises.exercise import Exercise
from qkv.check.grade.exercises.function import FUNCTION
from qkv.check.grade.exercises.layer import LAYER
from qkv.check.grade.exercises.patches import PATCHES
from qkv.check.grade.exercises.rotary import ROTARY
from qkv.check.grade.exercises.spans import SPANS
from qkv.check.grade.exercises.synthesizer import SYNTHESIZER

EXERCISES: dict[str, Exercise] = {
    "layer": LAYER,
    "function": FUNCTION,
    "synthesizer": SYNTHESIZER,
    "patches": PATCHES,
    "spans": SPANS,
    "rotary": ROTARY,
}

__all__ = ["EXERCISES", "Exercise"]
