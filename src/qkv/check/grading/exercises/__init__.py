"""The exercises that can be graded, by the name that a rubric gives them."""

from qkv.check.grading.exercises.attention import ATTENTION_FUNCTION, ATTENTION_LAYER
from qkv.check.grading.exercises.common import Exercise
from qkv.check.grading.exercises.dense_synthesizer import DENSE_SYNTHESIZER
from qkv.check.grading.exercises.patch_embedding import PATCH_EMBEDDING
from qkv.check.grading.exercises.rope import ROPE
from qkv.check.grading.exercises.span_corruption import SPAN_CORRUPTION

EXERCISES: dict[str, Exercise] = {
    "layer": ATTENTION_LAYER,
    "function": ATTENTION_FUNCTION,
    "synthesizer": DENSE_SYNTHESIZER,
    "patch-embedding": PATCH_EMBEDDING,
    "span-corruption": SPAN_CORRUPTION,
    "rope": ROPE,
}

__all__ = ["EXERCISES", "Exercise"]
