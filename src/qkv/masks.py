"""The masks: who may attend to whom (a door to `qkv.nn.masks`)."""

from qkv.nn.masks import Mask, causal, chunked, padding, prefix, sliding_window

__all__ = ["Mask", "causal", "chunked", "prefix", "padding", "sliding_window"]
