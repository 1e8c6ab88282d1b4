"""LazyWeights: queries, keys and rules that a trace stores instead of attention weights.

Axes: b batch · h heads · g key heads · t queries · s keys · d head dim · c model dim.

The weights are softmax(softcap(scale · q·k) + bias) over the keys that the mask allows. They are computed on demand,
for a range of queries at a time and at least in float32, so storage grows with n·d instead of n².
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.nn.masks import BandMask, Mask

Tile = tuple[Tensor, range]  # weights (t, s) of a range of queries, and the keys they are for


@dataclass(frozen=True, eq=False)
class LazyWeights:
    """Everything needed to compute one attention's weights.

    scale: multiplies q·k; a number, or a tensor that broadcasts to (b, h, t, s).
    mask: which keys a query may attend to; the others get the score `mask_value`: −∞, or the number the model writes.
    bias: added after scale and softcap; a tensor that broadcasts to (b, h, t, s), or a function of distance.
    softcap: scores become softcap · tanh(scores / softcap).
    sink: a score, broadcast to (b, h, t, 1), of an extra key without a value that takes a share of the weight.
    """

    queries: Float[Tensor, "b h t d"]
    keys: Float[Tensor, "b g s d"]
    scale: float | Tensor = 1.0
    mask: Mask | None = None
    mask_value: float = float("-inf")
    bias: Tensor | RelativeBias | None = None
    softcap: float | None = None
    sink: Float[Tensor, "#b #h #t 1"] | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batch, heads, queries, keys."""
        b, h, t, _ = self.queries.shape
        return b, h, t, self.keys.shape[-2]

    def key_range(self, rows: range) -> range:
        """The keys outside of which the weights of these queries are 0."""
        if self.mask is None or self.mask_value > float("-inf"):
            return range(self.keys.shape[-2])
        return self.mask.key_range(rows)

    def tile(self, batch: int, head: int, rows: range) -> Tile:
        """The weights of one head for a range of queries.

        >>> lazy = LazyWeights(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 3, 4))
        >>> lazy.tile(0, 0, range(1, 2))[0].round(decimals=2).tolist()
        [[0.33000001311302185, 0.33000001311302185, 0.33000001311302185]]
        """
        columns = self.key_range(rows)
        if not columns:
            return self.queries.new_zeros(len(rows), 0, dtype=self._dtype), columns
        scores = self.scores(batch, head, rows, columns)
        fully_masked = self._apply_mask(scores, batch, head, rows, columns)
        if self.sink is not None:
            sink = crop(self.sink, batch, head, rows, range(1)).to(scores)
            scores = torch.cat((scores, sink.expand(len(rows), 1)), dim=-1)
        weights = torch.softmax(scores, -1)
        weights = weights if self.sink is None else weights[:, :-1]
        if fully_masked is not None:  # the softmax of −∞ alone is NaN
            weights.masked_fill_(fully_masked, 0.0)
        return weights, columns

    def scores(self, batch: int, head: int, rows: range, columns: range) -> Float[Tensor, "t s"]:
        """The scores before the mask."""
        group = head // (self.queries.shape[1] // self.keys.shape[1])
        q = self.queries[batch, head, rows.start : rows.stop].to(self._dtype)
        k = self.keys[batch, group, columns.start : columns.stop].to(self._dtype)
        if isinstance(self.scale, Tensor):
            scores = (q @ k.mT).mul_(crop(self.scale, batch, head, rows, columns).to(self._dtype))
        else:
            scores = (q * self.scale) @ k.mT
        if self.softcap is not None:
            scores = torch.tanh(scores.div_(self.softcap)).mul_(self.softcap)
        if isinstance(self.bias, RelativeBias):
            scores += select(self.bias.tile(rows, columns), batch, head)
        elif self.bias is not None:
            scores += crop(self.bias, batch, head, rows, columns)
        return scores

    def _apply_mask(self, scores: Tensor, batch: int, head: int, rows: range, columns: range) -> Tensor | None:
        """Write `mask_value` where the mask forbids; return which queries are fully masked, if any can be."""
        if self.mask is None or (self.mask_value == float("-inf") and self.mask.is_full(rows)):
            return None
        unmasked = _unmasked_columns(self.mask, rows, columns)  # a wide causal tile only needs its corner masked
        if unmasked:
            for side in (range(columns.start, unmasked.start), range(unmasked.stop, columns.stop)):
                if side:
                    part = scores[:, side.start - columns.start : side.stop - columns.start]
                    mask = select(self.mask.tile(rows, side, scores.device), batch, head)
                    part.masked_fill_(~mask, self.mask_value)
            return None
        forbidden = ~select(self.mask.tile(rows, columns, scores.device), batch, head)
        scores.masked_fill_(forbidden, self.mask_value)
        return forbidden.all(-1, keepdim=True) if self.mask_value == float("-inf") else None

    @property
    def _dtype(self) -> torch.dtype:
        return torch.promote_types(self.queries.dtype, torch.float32)


@dataclass(frozen=True, eq=False)
class ProjectedHeads:
    """Queries or keys that a fused operator never shows: norm(source) Wᵀ + b, split into heads."""

    source: Float[Tensor, "b t c"]
    weight: Float[Tensor, "c c"]
    bias: Float[Tensor, " c"] | None
    heads: int
    norm: Callable[[Tensor], Tensor] | None = None

    @property
    def tensor(self) -> Float[Tensor, "b h t d"]:
        dtype = torch.promote_types(self.source.dtype, torch.float32)
        x = self.source.to(dtype)
        x = x if self.norm is None else self.norm(x)
        bias = None if self.bias is None else self.bias.to(dtype)
        x = torch.nn.functional.linear(x, self.weight.to(dtype), bias)
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


@dataclass(frozen=True, eq=False)
class FusedWeights:
    """The weights of a fused encoder operator; its queries and keys are projected when weights are first computed."""

    query: ProjectedHeads
    key: ProjectedHeads
    mask: Mask | None = None

    @cached_property
    def lazy(self) -> LazyWeights:
        queries, keys = self.query.tensor, self.key.tensor
        return LazyWeights(queries, keys, scale=queries.shape[-1] ** -0.5, mask=self.mask)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batch, heads, queries, keys."""
        b, t, _ = self.query.source.shape
        return b, self.query.heads, t, self.key.source.shape[1]

    def tile(self, batch: int, head: int, rows: range) -> Tile:
        """The weights of one head for a range of queries."""
        return self.lazy.tile(batch, head, rows)


@dataclass(frozen=True, eq=False)
class DenseWeights:
    """Weights stored as they are, because no rule gives them (additive scores, synthesizers)."""

    weights: Float[Tensor, "b h t s"]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batch, heads, queries, keys."""
        b, h, t, s = self.weights.shape
        return b, h, t, s

    def tile(self, batch: int, head: int, rows: range) -> Tile:
        """The weights of one head for a range of queries."""
        dtype = torch.promote_types(self.weights.dtype, torch.float32)
        return self.weights[batch, head, rows.start : rows.stop].to(dtype), range(self.weights.shape[-1])


WeightSource = LazyWeights | FusedWeights | DenseWeights


@dataclass(frozen=True, eq=False)
class RelativeBias:
    """A bias that depends on key − query alone: `table` (b, h, t + s − 1) starts at the distance −(t − 1)."""

    table: Float[Tensor, "#b #h n"]
    t: int

    def tile(self, rows: range, columns: range) -> Float[Tensor, "#b #h t s"]:
        """The bias of these queries and keys."""
        device = self.table.device
        queries = torch.arange(rows.start, rows.stop, device=device)[:, None]
        keys = torch.arange(columns.start, columns.stop, device=device)[None, :]
        return self.table[..., keys - queries + self.t - 1]


def _unmasked_columns(mask: Mask, rows: range, columns: range) -> range:
    """The columns that every one of these rows may attend to, if the mask is a band; otherwise none."""
    if not isinstance(mask, BandMask):
        return range(0)
    first, last = (row + mask.s - mask.t for row in (rows.start, rows.stop - 1))
    start = columns.start if mask.left is None else max(columns.start, last - mask.left)
    stop = columns.stop if mask.right is None else min(columns.stop, first + mask.right + 1)
    return range(start, max(start, stop))


def select(x: Tensor, batch: int, head: int) -> Tensor:
    """One batch row and one head of a tensor that broadcasts to (b, h, t, s)."""
    while x.ndim > 2:
        index = batch if x.ndim == 4 else head
        x = x[index if x.shape[0] > 1 else 0]
    return x


def crop(x: Tensor, batch: int, head: int, rows: range, columns: range) -> Tensor:
    """Like `select`, cut to a rectangle of rows and columns; axes of size 1 stay."""
    x = select(x.reshape(*[1] * (4 - x.ndim), *x.shape), batch, head)
    x = x if x.shape[0] == 1 else x[rows.start : rows.stop]
    return x if x.shape[1] == 1 else x[:, columns.start : columns.stop]
