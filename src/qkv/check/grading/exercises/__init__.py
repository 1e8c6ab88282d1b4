"""The exercises that can be graded, by the name that a rubric gives them."""

from qkv.check.grading.exercises.attention import ATTENTION_FUNCTION, ATTENTION_LAYER
from qkv.check.grading.exercises.char_corruption import CHAR_CORRUPTION
from qkv.check.grading.exercises.common import Exercise
from qkv.check.grading.exercises.dense_synthesizer import DENSE_SYNTHESIZER
from qkv.check.grading.exercises.encoder_block import ENCODER_BLOCK
from qkv.check.grading.exercises.evaluation import EVALUATION
from qkv.check.grading.exercises.finetuning import FINETUNING
from qkv.check.grading.exercises.name_dataset import NAME_DATASET
from qkv.check.grading.exercises.patch_embedding import PATCH_EMBEDDING
from qkv.check.grading.exercises.perceiver import PERCEIVER
from qkv.check.grading.exercises.rope import ROPE
from qkv.check.grading.exercises.rotary_cache import ROTARY_CACHE
from qkv.check.grading.exercises.span_corruption import SPAN_CORRUPTION
from qkv.check.grading.exercises.training_step import TRAINING_STEP
from qkv.check.grading.exercises.vit_model import VIT_MODEL

EXERCISES: dict[str, Exercise] = {
    "layer": ATTENTION_LAYER,
    "function": ATTENTION_FUNCTION,
    "synthesizer": DENSE_SYNTHESIZER,
    "patch-embedding": PATCH_EMBEDDING,
    "span-corruption": SPAN_CORRUPTION,
    "rope": ROPE,
    "rotary-cache": ROTARY_CACHE,
    "encoder-block": ENCODER_BLOCK,
    "vit": VIT_MODEL,
    "training-step": TRAINING_STEP,
    "perceiver": PERCEIVER,
    "finetuning": FINETUNING,
    "evaluation": EVALUATION,
    "char-corruption": CHAR_CORRUPTION,
    "name-dataset": NAME_DATASET,
}

__all__ = ["EXERCISES", "Exercise"]
