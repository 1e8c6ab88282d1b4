"""The masks: who may attend to whom (a door to `qkv.ops.masks`)."""

from qkv.ops.masks import Mask, causal, chunks, prefix, present, window

__all__ = ["Mask", "causal", "chunks", "prefix", "present", "window"]
