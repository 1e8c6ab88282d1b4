"""Analyses of what runs inside a model, as data: kinds of heads, rollout, effects, comparison."""

from qkv.look import subject
from qkv.look.compare import Comparison, Match, compare
from qkv.look.effect import Effect, effect
from qkv.look.heads import KINDS, Head, Heads, heads, score_heads
from qkv.look.lens import Lens, lens
from qkv.look.over_picture import PictureMap, over_picture, rollout_over_picture
from qkv.look.patching import Patching, patching
from qkv.look.rollout import Rollout, rollout
from qkv.look.run import at
from qkv.look.subject import Subject
from qkv.look.sweep import Sweep, sweep, sweep_beta
from qkv.look.weighted import ValueNorms, value_norms

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
    "ValueNorms",
    "at",
    "compare",
    "effect",
    "heads",
    "lens",
    "over_picture",
    "patching",
    "rollout",
    "rollout_over_picture",
    "score_heads",
    "subject",
    "sweep",
    "sweep_beta",
    "value_norms",
]
