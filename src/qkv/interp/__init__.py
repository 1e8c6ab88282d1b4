"""Interpretability: record attention inside any PyTorch model, intervene on it, and analyze it."""

from qkv.interp import subject
from qkv.interp.ablation import Sweep, sweep, sweep_beta
from qkv.interp.activation_patching import Patching, patching
from qkv.interp.attention_over_image import PictureMap, over_picture, rollout_over_picture
from qkv.interp.compare import Comparison, Match, compare
from qkv.interp.effect import Effect, effect
from qkv.interp.head_types import KINDS, Head, Heads, heads, score_heads
from qkv.interp.intervention.intervene import change
from qkv.interp.logit_lens import Lens, lens
from qkv.interp.recording.record import record
from qkv.interp.rollout import Rollout, rollout
from qkv.interp.run import at
from qkv.interp.subject import Subject
from qkv.interp.traces.trace import Trace
from qkv.interp.weighted import ValueNorms, value_norms

__all__ = [
    "KINDS",
    "Comparison",
    "Effect",
    "Head",
    "Heads",
    "Lens",
    "Match",
    "Patching",
    "PictureMap",
    "Rollout",
    "Subject",
    "Sweep",
    "Trace",
    "ValueNorms",
    "at",
    "change",
    "compare",
    "effect",
    "heads",
    "lens",
    "over_picture",
    "patching",
    "record",
    "rollout",
    "rollout_over_picture",
    "score_heads",
    "subject",
    "sweep",
    "sweep_beta",
    "value_norms",
]
