"""Data sets and batches: images/, text/ and speech/ hold sources, tokenizers, augmentation and batching.

Every source of batches follows the `Batches` protocol of `qkv.data.batches`.
"""
