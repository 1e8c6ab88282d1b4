"""Parameters around ops: one idea a file."""

from qkv.layers.attention import MultiHeadAttention
from qkv.layers.block import Block, BlockConfig
from qkv.layers.cache import Cache, LayerCache
from qkv.layers.embeddings import (
    LearnedPositions,
    LearnedPositions2D,
    PatchEmbedding,
    SinusoidalPositions,
    TokenEmbedding,
)
from qkv.layers.feed_forward import FeedForward
from qkv.layers.norms import make_norm
from qkv.layers.positions import Positions, Shaw, T5Bias
from qkv.layers.scores import Additive, DenseSynthesizer, Dot, LocationAware, RandomSynthesizer, Score

__all__ = [
    "Additive",
    "Block",
    "BlockConfig",
    "Cache",
    "DenseSynthesizer",
    "Dot",
    "FeedForward",
    "LayerCache",
    "LearnedPositions",
    "LearnedPositions2D",
    "LocationAware",
    "MultiHeadAttention",
    "PatchEmbedding",
    "Positions",
    "RandomSynthesizer",
    "Score",
    "Shaw",
    "SinusoidalPositions",
    "T5Bias",
    "TokenEmbedding",
    "make_norm",
]
