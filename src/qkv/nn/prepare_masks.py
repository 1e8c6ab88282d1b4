"""Mask and positions of one model call: causal, sliding window, packed documents, chunks, padding, KV cache.

Axes: b batch · t new tokens · s all tokens, including cached ones.
"""

import torch
from torch import Tensor

from qkv.nn import masks
from qkv.nn.attention import BLOCK
from qkv.nn.kv_cache import KVCache
from qkv.nn.masks import BandMask, DenseMask, Mask
from qkv.nn.positions import Positions


def prepare_causal(
    x: Tensor,
    token_mask: Tensor | None,
    cache: KVCache | None,
    window: int | None = None,
    documents: Tensor | None = None,
) -> tuple[Positions, Mask | None]:
    """Positions and mask of a causal model.

    Args:
        x: (b, t, …), the new tokens.
        token_mask: (b, t), True for real tokens.
        cache: the model's KV cache; it is advanced by t tokens.
        window: sliding window: how many real tokens a query sees, including itself.
        documents: (b, t), the document of each token where a row packs several; each document is independent. Negative
            numbers are padding.
    """
    t = x.shape[1]
    if documents is not None:
        if token_mask is not None or cache is not None:
            raise ValueError("packed documents take no token_mask= and no cache=; mark padding by document −1")
        return prepare_packed(x, documents, window)
    token_mask = check_token_mask(token_mask, x)
    if cache is None:
        cache = KVCache(window)
    positions = cache.advance(t, token_mask, x.device)
    token_mask, s = cache.token_mask, cache.length
    left = None if window is None else window - 1
    if token_mask is None:
        return positions, materialize_small(masks.sliding_window(t, s, left, 0), t, x.device)
    mask = masks.causal(t, s) & masks.padding(token_mask)
    if left is not None:
        mask = mask & masks.position_band(positions.queries, positions.keys, left)
    return positions, materialize_small(mask, t, x.device)


def prepare_packed(x: Tensor, documents: Tensor, window: int | None) -> tuple[Positions, Mask | None]:
    """Positions and mask of a causal model whose rows pack several documents; positions restart with each."""
    if documents.is_floating_point() or documents.dtype == torch.bool or documents.shape != x.shape[:2]:
        raise ValueError(
            f"documents must be integers of shape (batch, tokens) = {tuple(x.shape[:2])}, got {documents.dtype} of "
            f"{tuple(documents.shape)}"
        )
    t = x.shape[1]
    indices = torch.arange(t, device=x.device)
    first = torch.ones_like(documents, dtype=torch.bool)  # where a run of one number begins
    first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    starts = torch.where(first, indices, 0).cummax(-1).values if t else indices.expand_as(documents)
    left = None if window is None else window - 1
    # Runs are identified by where they begin, so that a document number may be used twice.
    mask = masks.sliding_window(t, t, left, 0) & masks.position_band(starts, starts, 0, 0)
    positions = (indices - starts).masked_fill(documents < 0, 0)  # padding has position 0, however long it is
    return Positions(positions), materialize_small(mask, t, x.device)


def prepare_chunked(
    x: Tensor, token_mask: Tensor | None, cache: KVCache | None, size: int | None, left_chunks: int | None
) -> tuple[Positions, Mask | None]:
    """Positions and mask of an encoder: every token sees every other, or its own chunk and `left_chunks` before it."""
    cache = KVCache() if cache is None else cache
    positions = cache.advance(x.shape[1], check_token_mask(token_mask, x), x.device)
    return positions, make_chunked_mask(positions, cache.token_mask, size, left_chunks)


def make_chunked_mask(
    positions: Positions, token_mask: Tensor | None, size: int | None, left_chunks: int | None, right_chunks: int = 0
) -> Mask | None:
    """The mask of attention in chunks (None: full attention), restricted to the real keys of token_mask (b, s)."""
    queries, keys = positions.queries, positions.keys
    t, s = queries.shape[-1], keys.shape[-1]
    if token_mask is None and (t == 0 or s == 0 or bool(queries[-1] == keys[-1])):  # the last query is the last key
        if size is None:
            return None
        return materialize_small(masks.chunked(t, s, size, left_chunks, right_chunks), t, keys.device)
    mask = None if token_mask is None else masks.padding(token_mask)
    if size is not None:
        band = masks.position_band(queries, keys, left_chunks, right_chunks, size=size)
        mask = band if mask is None else mask & band
    return None if mask is None else materialize_small(mask, t, keys.device)


def materialize_small(mask: Mask, t: int, device: torch.device) -> Mask | None:
    """Make a small mask dense once for all layers; a large one stays lazy, one that allows everything becomes None."""
    if t == 1 and mask.is_full(range(1)) and mask.key_range(range(1)) == range(mask.shape[1]):
        return None
    kernel_needs_none = isinstance(mask, BandMask) and (t == 1 or (t == mask.shape[1] and mask.is_causal))
    if kernel_needs_none or t > BLOCK:
        return mask
    return DenseMask(mask.tile(range(t), range(mask.shape[1]), device))


def check_token_mask(token_mask: Tensor | None, x: Tensor) -> Tensor | None:
    """Check a token mask against x (b, t, …); return None where every token is real."""
    if token_mask is None:
        return None
    if token_mask.dtype != torch.bool or token_mask.shape != x.shape[:2]:
        raise ValueError(
            f"token_mask must be boolean, True for real tokens, of shape (batch, tokens) = {tuple(x.shape[:2])}, got "
            f"{token_mask.dtype} of {tuple(token_mask.shape)}{_suggest_loss(token_mask)}"
        )
    return None if bool(token_mask.all()) else token_mask


def _suggest_loss(token_mask: Tensor) -> str:
    """What to write for targets that were passed as a mask, as in nanoGPT's model(tokens, targets)."""
    if token_mask.dtype != torch.int64:
        return ""
    return ". A model returns logits; for a loss: F.cross_entropy(model(tokens).transpose(1, 2), targets)"
