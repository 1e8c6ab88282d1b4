"""The exercises that can be graded."""

from qkv.check.grading.exercises.exercise import Exercise
from qkv.check.grading.exercises.function import FUNCTION
from qkv.check.grading.exercises.layer import LAYER
from qkv.check.grading.exercises.patches import PATCHES
from qkv.check.grading.exercises.rotary import ROTARY
from qkv.check.grading.exercises.spans import SPANS
from qkv.check.grading.exercises.synthesizer import SYNTHESIZER

EXERCISES: dict[str, Exercise] = {
    "layer": LAYER,
    "function": FUNCTION,
    "synthesizer": SYNTHESIZER,
    "patches": PATCHES,
    "spans": SPANS,
    "rotary": ROTARY,
}

__all__ = ["EXERCISES", "Exercise"]
