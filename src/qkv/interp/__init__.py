"""Interpretability: record attention inside any PyTorch model, intervene on it, and analyze it."""

from qkv.interp import attribution
from qkv.interp.ablation import Effect, SweepTable, ablation_sweep, measure_effect, scale_sweep
from qkv.interp.attribution import (
    ImageAttention,
    Rollout,
    ValueNorms,
    attention_over_image,
    rollout,
    rollout_over_image,
    value_norms,
)
from qkv.interp.comparison import Comparison, HeadPair, compare
from qkv.interp.forward import ForwardPass, run_forward, trace
from qkv.interp.head_types import HEAD_TYPES, ClassifiedHead, HeadTypes, classify_heads, score_heads
from qkv.interp.inputs import PreparedInput, prepare_input
from qkv.interp.intervention import intervene
from qkv.interp.layers import TracedLayer
from qkv.interp.lens import LogitLens, logit_lens
from qkv.interp.patching import PatchingTable, activation_patching
from qkv.interp.recording.recorder import record
from qkv.interp.traces import Trace

__all__ = [
    "HEAD_TYPES",
    "ClassifiedHead",
    "Comparison",
    "Effect",
    "ForwardPass",
    "HeadPair",
    "HeadTypes",
    "ImageAttention",
    "LogitLens",
    "PatchingTable",
    "PreparedInput",
    "Rollout",
    "SweepTable",
    "Trace",
    "TracedLayer",
    "ValueNorms",
    "ablation_sweep",
    "activation_patching",
    "attention_over_image",
    "attribution",
    "classify_heads",
    "compare",
    "intervene",
    "logit_lens",
    "measure_effect",
    "prepare_input",
    "record",
    "rollout",
    "rollout_over_image",
    "run_forward",
    "scale_sweep",
    "score_heads",
    "trace",
    "value_norms",
]
