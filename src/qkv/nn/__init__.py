"""Building blocks of transformers: attention, masks, positions, scores, KV cache, blocks, losses, sampling."""

from qkv.nn.block import Block, BlockConfig
from qkv.nn.embeddings import LearnedPositions, LearnedPositions2D, PatchEmbedding, SinusoidalPositions, TokenEmbedding
from qkv.nn.feed_forward import FeedForward
from qkv.nn.kv_cache import KVCache, LayerKVCache
from qkv.nn.multi_head_attention import MultiHeadAttention
from qkv.nn.norms import make_norm
from qkv.nn.positions import Positions, Shaw, T5Bias
from qkv.nn.scores import Additive, DenseSynthesizer, Dot, LocationAware, RandomSynthesizer, Score

__all__ = [
    "Additive",
    "Block",
    "BlockConfig",
    "DenseSynthesizer",
    "Dot",
    "FeedForward",
    "KVCache",
    "LayerKVCache",
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
