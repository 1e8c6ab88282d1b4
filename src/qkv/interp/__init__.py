"""Interpretability: record attention inside any PyTorch model, intervene on it, and analyze it.

Each name is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_HOMES = {
    "ClassifiedHead": "qkv.interp.head_types",
    "Comparison": "qkv.interp.comparison",
    "Effect": "qkv.interp.ablation",
    "ForwardPass": "qkv.interp.forward",
    "HEAD_TYPES": "qkv.interp.head_types",
    "HeadPair": "qkv.interp.comparison",
    "HeadTypes": "qkv.interp.head_types",
    "ImageAttention": "qkv.interp.attribution",
    "LogitLens": "qkv.interp.lens",
    "PatchingTable": "qkv.interp.patching",
    "PreparedInput": "qkv.interp.inputs",
    "Rollout": "qkv.interp.attribution",
    "SweepTable": "qkv.interp.ablation",
    "Trace": "qkv.interp.traces",
    "TracedLayer": "qkv.interp.layers",
    "ValueNorms": "qkv.interp.attribution",
    "ablation_sweep": "qkv.interp.ablation",
    "activation_patching": "qkv.interp.patching",
    "attention_over_image": "qkv.interp.attribution",
    "classify_heads": "qkv.interp.head_types",
    "compare": "qkv.interp.comparison",
    "intervene": "qkv.interp.intervention",
    "logit_lens": "qkv.interp.lens",
    "measure_effect": "qkv.interp.ablation",
    "prepare_input": "qkv.interp.inputs",
    "record": "qkv.interp.recording.recorder",
    "rollout": "qkv.interp.attribution",
    "rollout_over_image": "qkv.interp.attribution",
    "run_forward": "qkv.interp.forward",
    "scale_sweep": "qkv.interp.ablation",
    "score_heads": "qkv.interp.head_types",
    "trace": "qkv.interp.forward",
    "value_norms": "qkv.interp.attribution",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name == "attribution":
        value = importlib.import_module("qkv.interp.attribution")
    else:
        raise AttributeError(f"module 'qkv.interp' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"importlib", "TYPE_CHECKING"})
