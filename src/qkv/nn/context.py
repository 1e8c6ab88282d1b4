"""What a call of a model is about: where its tokens stand, and who may attend to whom.

Axes: b batch · t new tokens · s all tokens, those in the cache included.
"""

import torch
from torch import Tensor

from qkv.nn import masks
from qkv.nn.attention import BLOCK
from qkv.nn.kv_cache import KVCache
from qkv.nn.masks import Band, Dense, Mask
from qkv.nn.position_layers import Positions


def causal_context(
    x: Tensor,
    token_mask: Tensor | None,
    cache: KVCache | None,
    window: int | None = None,
    documents: Tensor | None = None,
) -> tuple[Positions, Mask | None]:
    """For a causal model: x is (b, t, …), `present` (b, t) says which of its tokens exist.

    window: how many tokens a query sees, itself included; counted over the tokens that are present.
    documents (b, t): which of several texts in its row a token belongs to; each text is by itself. Negative numbers
        are padding.
    """
    t = x.shape[1]
    if documents is not None:
        if token_mask is not None or cache is not None:
            raise ValueError("packed documents take no present= and no cache=: give padding a number of its own, −1")
        return packed_context(x, documents, window)
    token_mask = checked_present(token_mask, x)
    if cache is None:
        cache = KVCache(window)
    positions = cache.advance(t, token_mask, x.device)
    token_mask, s = cache.token_mask, cache.length
    left = None if window is None else window - 1
    if token_mask is None:
        return positions, settled(masks.sliding_window(t, s, left, 0), t, x.device)
    mask = masks.causal(t, s) & masks.padding(token_mask)
    if left is not None:
        mask = mask & masks.band_over_positions(positions.queries, positions.keys, left)
    return positions, settled(mask, t, x.device)


def packed_context(x: Tensor, documents: Tensor, window: int | None) -> tuple[Positions, Mask | None]:
    """For a causal model whose rows hold several texts: positions restart with each, and none sees another."""
    if documents.is_floating_point() or documents.dtype == torch.bool or documents.shape != x.shape[:2]:
        raise ValueError(
            f"documents are whole numbers of shape (batch, tokens) = {tuple(x.shape[:2])}; got {documents.dtype} of "
            f"{tuple(documents.shape)}"
        )
    t = x.shape[1]
    places = torch.arange(t, device=x.device)
    first = torch.ones_like(documents, dtype=torch.bool)  # where a run of one number begins
    first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    starts = torch.where(first, places, 0).cummax(-1).values if t else places.expand_as(documents)
    left = None if window is None else window - 1
    # the same run: runs are told apart by where they begin, so that a number may be used again
    mask = masks.sliding_window(t, t, left, 0) & masks.band_over_positions(starts, starts, 0, 0)
    counted = (places - starts).masked_fill(documents < 0, 0)  # padding stands nowhere, however much there is
    return Positions(counted), settled(mask, t, x.device)


def chunked_context(
    x: Tensor, token_mask: Tensor | None, cache: KVCache | None, size: int | None, left_chunks: int | None
) -> tuple[Positions, Mask | None]:
    """For an encoder: every token sees every other, or its own chunk and `left_chunks` before it."""
    t = x.shape[1]
    cache = KVCache() if cache is None else cache
    positions = cache.advance(t, checked_present(token_mask, x), x.device)
    return positions, chunked_mask(positions, cache.token_mask, size, left_chunks)


def chunked_mask(
    positions: Positions, token_mask: Tensor | None, size: int | None, left_chunks: int | None, right_chunks: int = 0
) -> Mask | None:
    """Who may attend to whom in time cut into chunks; present (b, s) says which keys exist, None is all."""
    queries, keys = positions.queries, positions.keys
    t, s = queries.shape[-1], keys.shape[-1]
    last = token_mask is None and (
        t == 0 or s == 0 or bool(queries[-1] == keys[-1])
    )  # the last queries are the last keys
    if last:
        if size is None:
            return None
        return settled(masks.chunked(t, s, size, left_chunks, right_chunks), t, keys.device)
    band = None if size is None else masks.band_over_positions(queries, keys, left_chunks, right_chunks, size=size)
    mask = (
        band if token_mask is None else masks.padding(token_mask) if band is None else masks.padding(token_mask) & band
    )
    return None if mask is None else settled(mask, t, keys.device)


def settled(mask: Mask, t: int, device: torch.device) -> Mask | None:
    """The mask written out once for all layers where it is small; lazy where it is large or needs no writing."""
    if t == 1 and mask.open(range(1)) and mask.reach(range(1)) == range(mask.shape[1]):
        return None
    plain = isinstance(mask, Band) and (t == 1 or (t == mask.shape[1] and mask.is_causal))
    return mask if plain or t > BLOCK else Dense(mask.tile(range(t), range(mask.shape[1]), device))


def checked_present(token_mask: Tensor | None, x: Tensor) -> Tensor | None:
    """`present` if it says anything: None where every token exists."""
    if token_mask is None:
        return None
    if token_mask.dtype != torch.bool or token_mask.shape != x.shape[:2]:
        raise ValueError(
            f"present is boolean, True where a token exists, of shape (batch, tokens) = {tuple(x.shape[:2])}; got "
            f"{token_mask.dtype} of {tuple(token_mask.shape)}"
        )
    return None if bool(token_mask.all()) else token_mask
