"""Parameters around ops: one idea a file."""

from qkv.layers.attention import MultiHeadAttention
from qkv.layers.cache import Cache, LayerCache
from qkv.layers.positions import Positions, Shaw, T5Bias
from qkv.layers.scores import Additive, DenseSynthesizer, Dot, LocationAware, RandomSynthesizer, Score

__all__ = [
    "Additive",
    "Cache",
    "DenseSynthesizer",
    "Dot",
    "LayerCache",
    "LocationAware",
    "MultiHeadAttention",
    "Positions",
    "RandomSynthesizer",
    "Score",
    "Shaw",
    "T5Bias",
]
