"""What a model remembers between calls, so that each token's keys and values are computed once.

Axes: b batch · g key heads · t new tokens · s all tokens held · d width of keys · e width of values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.nn.position_layers import Positions

NewKeys = Float[Tensor, "b g t d"]
NewValues = Float[Tensor, "b g t e"]
Keys = Float[Tensor, "b g s d"]
Values = Float[Tensor, "b g s e"]


class Held:
    """What is remembered between calls; a call that fails leaves it as it was."""

    def parts(self) -> list[Held]:
        """All objects whose fields a call may set."""
        return [self]


@contextmanager
def undone_on_failure(held: Held | None) -> Iterator[None]:
    """Put a cache back as it was if what is done here fails."""
    before = [] if held is None else [(part, vars(part).copy()) for part in held.parts()]
    try:
        yield
    except BaseException:
        for part, fields in before:
            vars(part).update(fields)
        raise


class LayerKVCache(Held):
    """The keys and values of one attention layer. Its buffers grow by doubling, so a step copies one token.

    >>> held = LayerCache()
    >>> keys, values = held.append(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    >>> keys, values = held.append(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4))
    >>> keys.shape, held.length
    (torch.Size([1, 2, 4, 4]), 4)
    """

    def __init__(self, *, fixed: bool = False) -> None:
        self.fixed = fixed  # a memory that is read once: cross-attention's keys never grow
        self.length = 0
        self.weights: Tensor | None = None  # the last query's weights, for scores that look back at them
        self._buffers: list[Tensor | None] = [None, None]

    @property
    def filled(self) -> bool:
        """Whether a fixed memory has been read already."""
        return self.fixed and self.length > 0

    def append(self, keys: NewKeys | None, values: NewValues) -> tuple[Keys | None, Values]:
        """Add new keys and values; give all that are held. (Synthesizers have no keys.)"""
        self._buffers = [
            buffer if new is None else _extended(buffer, new, self.length)
            for buffer, new in zip(self._buffers, (keys, values), strict=True)
        ]
        self.length += values.shape[-2]
        return self.held()

    def held(self) -> tuple[Keys | None, Values]:
        """All keys and values."""
        keys, values = (None if buffer is None else buffer[..., : self.length, :] for buffer in self._buffers)
        if values is None:
            raise ValueError("this cache is empty; it fills when the layer is called with it")
        return keys, values

    def drop(self, count: int) -> None:
        """Forget the oldest `count` tokens."""
        count = min(count, self.length)
        if count > 0:
            keep = slice(count, self.length)
            self._buffers = [None if buffer is None else buffer[..., keep, :].clone() for buffer in self._buffers]
            self.weights = None if self.weights is None else self.weights[..., count:]
            self.length -= count

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows of the batch, in this order; a row may be named twice."""
        held = (slice(None), slice(None), slice(0, self.length))
        self._buffers = [None if buffer is None else buffer[held].index_select(0, rows) for buffer in self._buffers]
        self.weights = None if self.weights is None else self.weights.index_select(0, rows)

    def copy(self) -> LayerKVCache:
        """An independent cache that holds the same."""
        twin = LayerKVCache(fixed=self.fixed)
        twin.length, twin.weights = self.length, self.weights
        twin._buffers = [None if buffer is None else buffer[..., : self.length, :].clone() for buffer in self._buffers]
        return twin


class KVCache(Held):
    """The memory of a whole model: a `LayerCache` for each layer, and where the tokens held stand.

    window: how many of the last tokens a query can see; older ones are forgotten, a windowful at a time, so that
        never more than twice the window is held (and no more than the holes in the text ask for). None keeps all.
    """

    def __init__(self, window: int | None = None) -> None:
        if window is not None and window < 1:
            raise ValueError(f"a cache's window holds at least 1 token; got {window}")
        self.window = window
        self.token_mask: Bool[Tensor, "b s"] | None = None
        self.dropped = 0  # tokens forgotten so far
        self.length = 0  # tokens held
        self._dropped_present: Int[Tensor, "b 1"] | int = 0
        self._layers: dict[object, LayerKVCache] = {}

    def layer(self, name: object, *, fixed: bool = False) -> LayerKVCache:
        """The cache of one layer, made when first asked for."""
        if name not in self._layers:
            self._layers = {**self._layers, name: LayerKVCache(fixed=fixed)}
        return self._layers[name]

    def parts(self) -> list[Held]:
        return [self, *self._layers.values()]

    def advance(self, t: int, token_mask: Bool[Tensor, "b t"] | None, device: torch.device) -> Positions:
        """Take note of t new tokens; say where they and all tokens held stand."""
        if self.token_mask is not None or token_mask is not None:
            rows = (token_mask if token_mask is not None else self.token_mask).shape[0]  # pyright: ignore[reportOptionalMemberAccess]
            old = _flags(self.token_mask, rows, self.length, device)
            new = _flags(token_mask, rows, t, device)
            if old.shape[0] != new.shape[0]:
                raise ValueError(f"the cache holds {old.shape[0]} rows; got {new.shape[0]}")
            self.token_mask = torch.cat((old, new), dim=-1)
        self.length += t
        if self.token_mask is None:
            keys = torch.arange(self.dropped, self.dropped + self.length, device=device)
        else:
            keys = (self.token_mask.long().cumsum(-1) - 1 + self._dropped_present).clamp(min=0)
        asking = None if self.token_mask is None else self.token_mask[:, self.length - t :]
        return Positions(keys[..., self.length - t :], keys, asking)

    def trim(self) -> None:
        """Forget what no later query can see."""
        if self.window is None:
            return
        # The next query sees window − 1 of these tokens; one more is kept for scores that look back at the last
        # query's weights.
        count = self.length - self.window
        if self.token_mask is not None:  # a row with holes needs more columns to hold as many tokens
            later = self.token_mask.flip(-1).cumsum(-1).flip(-1)
            spare = (later > self.window).all(0)  # the window is full without this column's token
            count = int(spare.cumprod(-1).sum())
        if count >= self.window:  # forget a windowful at a time: then a token costs no copy of the whole window
            self.drop(count)

    def drop(self, count: int) -> None:
        """Forget the oldest `count` tokens."""
        count = min(count, self.length)
        if count <= 0:
            return
        if self.token_mask is None:
            self._dropped_present += count
        else:
            self._dropped_present = self._dropped_present + self.token_mask[:, :count].sum(-1, keepdim=True)
            self.token_mask = self.token_mask[:, count:]
        self.dropped += count
        self.length -= count
        for layer in self._layers.values():
            if not layer.fixed:
                layer.drop(count)

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows of the batch, in this order: what a beam search does when beams fork and die."""
        if self.token_mask is not None:
            self.token_mask = self.token_mask.index_select(0, rows)
        if isinstance(self._dropped_present, Tensor):
            self._dropped_present = self._dropped_present.index_select(0, rows)
        for layer in self._layers.values():
            layer.select(rows)

    def copy(self) -> KVCache:
        """An independent cache that holds the same."""
        twin = KVCache(self.window)
        twin.token_mask, twin.dropped, twin.length = self.token_mask, self.dropped, self.length
        twin._dropped_present = self._dropped_present
        twin._layers = {name: layer.copy() for name, layer in self._layers.items()}
        return twin


def _extended(buffer: Tensor | None, new: Tensor, length: int) -> Tensor:
    """A buffer that holds `new` after its first `length` tokens, with room for more where that is safe."""
    if buffer is None:
        return new
    if buffer.shape[0] != new.shape[0]:
        raise ValueError(f"the cache holds {buffer.shape[0]} rows; got {new.shape[0]}")
    needed = length + new.shape[-2]
    frozen = buffer.is_inference() and not torch.is_inference_mode_enabled()
    if torch.is_grad_enabled() or buffer.requires_grad or frozen:  # writing into a buffer would spoil a gradient
        return torch.cat((buffer[..., :length, :], new), dim=-2)
    if needed > buffer.shape[-2] or length == 0:
        roomy = new.new_empty(*new.shape[:-2], max(2 * needed, 16), new.shape[-1])
        roomy[..., :length, :] = buffer[..., :length, :]
        buffer = roomy
    buffer[..., length:needed, :] = new
    return buffer


def _flags(token_mask: Tensor | None, rows: int, t: int, device: torch.device) -> Tensor:
    return torch.ones(rows, t, dtype=torch.bool, device=device) if token_mask is None else token_mask
