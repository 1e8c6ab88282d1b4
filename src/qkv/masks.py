"""Attention masks (public names of `qkv.nn.masks`)."""

from qkv.nn.masks import Mask, causal, chunked, padding, prefix, sliding_window

__all__ = ["Mask", "causal", "chunked", "padding", "prefix", "sliding_window"]
