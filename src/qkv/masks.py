"""The masks: who may attend to whom (a door to `qkv.nn.masks`)."""

from qkv.nn.masks import Mask, causal, chunks, prefix, present, window

__all__ = ["Mask", "causal", "chunks", "prefix", "present", "window"]
