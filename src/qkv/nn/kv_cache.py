"""KV cache: keys and values of earlier tokens, so that each is computed once during generation and streaming.

Axes: b batch · g key heads · t new tokens · s all cached tokens · d key dim · e value dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.nn.positions import Positions

NewKeys = Float[Tensor, "b g t d"]
NewValues = Float[Tensor, "b g t e"]
Keys = Float[Tensor, "b g s d"]
Values = Float[Tensor, "b g s e"]


class CacheBase:
    """State that is kept between calls. A call that fails leaves it unchanged (`restore_on_error`)."""

    def parts(self) -> list[CacheBase]:
        """All objects whose attributes a call may set."""
        return [self]


@contextmanager
def restore_on_error(cache: CacheBase | None) -> Iterator[None]:
    """Restore the cache if the code inside raises."""
    before = [] if cache is None else [(part, vars(part).copy()) for part in cache.parts()]
    try:
        yield
    except BaseException:
        for part, attributes in before:
            vars(part).update(attributes)
        raise


class LayerKVCache(CacheBase):
    """Keys and values of one attention layer. Buffers grow by doubling, so that a step copies one token.

    Args:
        fixed: for cross-attention, whose keys are computed once and never grow.

    >>> cache = LayerKVCache()
    >>> keys, values = cache.append(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    >>> keys, values = cache.append(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4))
    >>> keys.shape, cache.length
    (torch.Size([1, 2, 4, 4]), 4)
    """

    def __init__(self, *, fixed: bool = False) -> None:
        self.fixed = fixed
        self.length = 0
        self.weights: Tensor | None = None  # the last query's weights, for location-aware scores
        self._buffers: list[Tensor | None] = [None, None]

    @property
    def filled(self) -> bool:
        """Whether this is a fixed cache that already holds its keys and values."""
        return self.fixed and self.length > 0

    def append(self, keys: NewKeys | None, values: NewValues) -> tuple[Keys | None, Values]:
        """Add new keys and values and return all of them. Synthesizers have no keys."""
        self._buffers = [
            buffer if new is None else _extend(buffer, new, self.length)
            for buffer, new in zip(self._buffers, (keys, values), strict=True)
        ]
        self.length += values.shape[-2]
        return self.get()

    def get(self) -> tuple[Keys | None, Values]:
        """All keys and values."""
        keys, values = (None if buffer is None else buffer[..., : self.length, :] for buffer in self._buffers)
        if values is None:
            raise ValueError("the cache is empty; call the layer with it first")
        return keys, values

    def drop(self, count: int) -> None:
        """Drop the oldest `count` tokens."""
        count = min(count, self.length)
        if count > 0:
            keep = slice(count, self.length)
            self._buffers = [None if buffer is None else buffer[..., keep, :].clone() for buffer in self._buffers]
            self.weights = None if self.weights is None else self.weights[..., count:]
            self.length -= count

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows of the batch, in this order; a row may occur twice (beam search)."""
        cached = (slice(None), slice(None), slice(0, self.length))
        self._buffers = [None if buffer is None else buffer[cached].index_select(0, rows) for buffer in self._buffers]
        self.weights = None if self.weights is None else self.weights.index_select(0, rows)

    def copy(self) -> LayerKVCache:
        """An independent copy."""
        twin = LayerKVCache(fixed=self.fixed)
        twin.length, twin.weights = self.length, self.weights
        twin._buffers = [None if buffer is None else buffer[..., : self.length, :].clone() for buffer in self._buffers]
        return twin


class KVCache(CacheBase):
    """The KV cache of a whole model: a `LayerKVCache` per layer, and the positions of the cached tokens.

    Args:
        window: sliding window, in tokens. Older tokens are dropped, a window at a time, so that at most twice the
            window is cached (more only as padding requires). None keeps all.
    """

    def __init__(self, window: int | None = None) -> None:
        if window is not None and window < 1:
            raise ValueError(f"window of a KV cache must be at least 1 token, got {window}")
        self.window = window
        self.token_mask: Bool[Tensor, "b s"] | None = None
        self.dropped = 0  # number of tokens dropped so far
        self.length = 0  # number of tokens cached
        self._dropped_real: Int[Tensor, "b 1"] | int = 0  # of the dropped tokens, those that were not padding
        self._layers: dict[object, LayerKVCache] = {}

    def layer(self, name: object, *, fixed: bool = False) -> LayerKVCache:
        """The cache of one layer, created on first use."""
        if name not in self._layers:
            self._layers = {**self._layers, name: LayerKVCache(fixed=fixed)}
        return self._layers[name]

    def parts(self) -> list[CacheBase]:
        return [self, *self._layers.values()]

    def advance(self, t: int, token_mask: Bool[Tensor, "b t"] | None, device: torch.device) -> Positions:
        """Register t new tokens and return the positions of the new and of all cached tokens."""
        if self.token_mask is not None or token_mask is not None:
            rows = (token_mask if token_mask is not None else self.token_mask).shape[0]  # pyright: ignore[reportOptionalMemberAccess]
            old = _fill_mask(self.token_mask, rows, self.length, device)
            new = _fill_mask(token_mask, rows, t, device)
            if old.shape[0] != new.shape[0]:
                raise ValueError(f"the cache has {old.shape[0]} rows, got {new.shape[0]}")
            self.token_mask = torch.cat((old, new), dim=-1)
        self.length += t
        if self.token_mask is None:
            keys = torch.arange(self.dropped, self.dropped + self.length, device=device)
        else:
            keys = (self.token_mask.long().cumsum(-1) - 1 + self._dropped_real).clamp(min=0)
        query_mask = None if self.token_mask is None else self.token_mask[:, self.length - t :]
        return Positions(keys[..., self.length - t :], keys, query_mask)

    def trim(self) -> None:
        """Drop the tokens that no later query can see."""
        if self.window is None:
            return
        # The next query sees window − 1 of these tokens; one more is kept for scores that use the last query's weights.
        count = self.length - self.window
        if self.token_mask is not None:  # a row with padding needs more columns for as many tokens
            later = self.token_mask.flip(-1).cumsum(-1).flip(-1)
            spare = (later > self.window).all(0)  # the window is full without this column's token
            count = int(spare.cumprod(-1).sum())
        if count >= self.window:  # drop a whole window at a time: a token then costs no copy of the window
            self.drop(count)

    def drop(self, count: int) -> None:
        """Drop the oldest `count` tokens."""
        count = min(count, self.length)
        if count <= 0:
            return
        if self.token_mask is None:
            self._dropped_real += count
        else:
            self._dropped_real = self._dropped_real + self.token_mask[:, :count].sum(-1, keepdim=True)
            self.token_mask = self.token_mask[:, count:]
        self.dropped += count
        self.length -= count
        for layer in self._layers.values():
            if not layer.fixed:
                layer.drop(count)

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows of the batch, in this order; a row may occur twice (beam search)."""
        if self.token_mask is not None:
            self.token_mask = self.token_mask.index_select(0, rows)
        if isinstance(self._dropped_real, Tensor):
            self._dropped_real = self._dropped_real.index_select(0, rows)
        for layer in self._layers.values():
            layer.reorder(rows)

    def copy(self) -> KVCache:
        """An independent copy."""
        twin = KVCache(self.window)
        twin.token_mask, twin.dropped, twin.length = self.token_mask, self.dropped, self.length
        twin._dropped_real = self._dropped_real
        twin._layers = {name: layer.copy() for name, layer in self._layers.items()}
        return twin


def _extend(buffer: Tensor | None, new: Tensor, length: int) -> Tensor:
    """A buffer with `new` after its first `length` tokens, in place where no gradient needs the old content."""
    if buffer is None:
        return new
    if buffer.shape[0] != new.shape[0]:
        raise ValueError(f"the cache has {buffer.shape[0]} rows, got {new.shape[0]}")
    needed = length + new.shape[-2]
    frozen = buffer.is_inference() and not torch.is_inference_mode_enabled()
    if torch.is_grad_enabled() or buffer.requires_grad or frozen:  # writing in place would spoil a gradient
        return torch.cat((buffer[..., :length, :], new), dim=-2)
    if needed > buffer.shape[-2] or length == 0:
        larger = new.new_empty(*new.shape[:-2], max(2 * needed, 16), new.shape[-1])
        larger[..., :length, :] = buffer[..., :length, :]
        buffer = larger
    buffer[..., length:needed, :] = new
    return buffer


def _fill_mask(token_mask: Tensor | None, rows: int, t: int, device: torch.device) -> Tensor:
    return torch.ones(rows, t, dtype=torch.bool, device=device) if token_mask is None else token_mask
