"""The recipe of an attention's scores: what is kept instead of its weights.

Axes: b batch · h heads · g heads of keys · t queries · s keys · d head width.

The weights are softmax(softcap(scale · q·k) + bias) over the keys that the mask allows. They are computed when asked
for, a run of queries at a time and in float32 at least, so a recipe costs n·d where the weights would cost n².
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.nn.masks import Band, Mask

Tile = tuple[Tensor, range]  # weights (t, s) of a run of queries, and the keys that they are for


@dataclass(frozen=True, eq=False)
class Projected:
    """Queries or keys that a fused operator never shows, as what they are made of: (norm(x)) Wᵀ + b, cut into heads."""

    source: Float[Tensor, "b t c"]
    weight: Float[Tensor, "c c"]
    bias: Float[Tensor, " c"] | None
    heads: int
    norm: Callable[[Tensor], Tensor] | None = None

    @property
    def tensor(self) -> Float[Tensor, "b h t d"]:
        exact = torch.promote_types(self.source.dtype, torch.float32)
        x = self.source.to(exact)
        x = x if self.norm is None else self.norm(x)
        bias = None if self.bias is None else self.bias.to(exact)
        x = torch.nn.functional.linear(x, self.weight.to(exact), bias)
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


@dataclass(frozen=True, eq=False)
class ByDistance:
    """A bias that depends on key − query alone: `table` (b, h, t + s − 1) begins at the distance −(t − 1)."""

    table: Float[Tensor, "#b #h n"]
    t: int

    def tile(self, rows: range, columns: range) -> Float[Tensor, "#b #h t s"]:
        device = self.table.device
        queries = torch.arange(rows.start, rows.stop, device=device)[:, None]
        keys = torch.arange(columns.start, columns.stop, device=device)[None, :]
        return self.table[..., keys - queries + self.t - 1]


@dataclass(frozen=True, eq=False)
class Recipe:
    """What one attention's weights are made of.

    scale: multiplies q·k; a number, or a tensor that broadcasts to (b, h, t, s).
    mask: which keys a query may attend to; `floor` is the score that the others get: −∞, or what the model writes.
    bias: added after the scale and the softcap; a tensor that broadcasts to (b, h, t, s), or a function of distance.
    softcap: scores are squeezed to softcap · tanh(scores / softcap).
    sink: a score, broadcast to (b, h, t, 1), of a key without a value that takes its share of the weight.
    """

    queries: Float[Tensor, "b h t d"]
    keys: Float[Tensor, "b g s d"]
    scale: float | Tensor = 1.0
    mask: Mask | None = None
    floor: float = float("-inf")
    bias: Tensor | ByDistance | None = None
    softcap: float | None = None
    sink: Float[Tensor, "#b #h #t 1"] | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batch, heads, queries, keys."""
        b, h, t, _ = self.queries.shape
        return b, h, t, self.keys.shape[-2]

    def reach(self, rows: range) -> range:
        """The keys outside of which these queries' weights are 0."""
        everything = range(self.keys.shape[-2])
        return everything if self.mask is None or self.floor > float("-inf") else self.mask.reach(rows)

    def tile(self, batch: int, head: int, rows: range) -> Tile:
        """The weights of one head for a run of queries.

        >>> one = Recipe(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 3, 4))
        >>> one.tile(0, 0, range(1, 2))[0].round(decimals=2).tolist()
        [[0.33000001311302185, 0.33000001311302185, 0.33000001311302185]]
        """
        columns = self.reach(rows)
        if not columns:
            return self.queries.new_zeros(len(rows), 0, dtype=self._exact), columns
        scores = self.scores(batch, head, rows, columns)
        nothing = self._mask(scores, batch, head, rows, columns)
        if self.sink is not None:
            sink = cut(self.sink, batch, head, rows, range(1)).to(scores)
            scores = torch.cat((scores, sink.expand(len(rows), 1)), dim=-1)
        weights = torch.softmax(scores, -1)
        weights = weights if self.sink is None else weights[:, :-1]
        if nothing is not None:  # the softmax of −∞ alone is NaN
            weights.masked_fill_(nothing, 0.0)
        return weights, columns

    def scores(self, batch: int, head: int, rows: range, columns: range) -> Float[Tensor, "t s"]:
        """Scores before the mask."""
        group = head // (self.queries.shape[1] // self.keys.shape[1])
        q = self.queries[batch, head, rows.start : rows.stop].to(self._exact)
        k = self.keys[batch, group, columns.start : columns.stop].to(self._exact)
        if isinstance(self.scale, Tensor):
            scores = (q @ k.mT).mul_(cut(self.scale, batch, head, rows, columns).to(self._exact))
        else:
            scores = (q * self.scale) @ k.mT
        if self.softcap is not None:
            scores = torch.tanh(scores.div_(self.softcap)).mul_(self.softcap)
        if isinstance(self.bias, ByDistance):
            scores += part(self.bias.tile(rows, columns), batch, head)
        elif self.bias is not None:
            scores += cut(self.bias, batch, head, rows, columns)
        return scores

    def _mask(self, scores: Tensor, batch: int, head: int, rows: range, columns: range) -> Tensor | None:
        """Write the floor where the mask forbids; say which queries have nothing left, if there can be any."""
        if self.mask is None or (self.floor == float("-inf") and self.mask.open(rows)):
            return None
        clear = _clear(self.mask, rows, columns)  # of a wide causal tile, only the corner at the diagonal needs a look
        if clear:
            for side in (range(columns.start, clear.start), range(clear.stop, columns.stop)):
                if side:
                    there = scores[:, side.start - columns.start : side.stop - columns.start]
                    there.masked_fill_(~part(self.mask.tile(rows, side, scores.device), batch, head), self.floor)
            return None
        forbidden = ~part(self.mask.tile(rows, columns, scores.device), batch, head)
        scores.masked_fill_(forbidden, self.floor)
        return forbidden.all(-1, keepdim=True) if self.floor == float("-inf") else None

    @property
    def _exact(self) -> torch.dtype:
        return torch.promote_types(self.queries.dtype, torch.float32)


@dataclass(frozen=True, eq=False)
class Derived:
    """The recipe of a fused encoder operator: its queries and keys are made when the weights are first asked for."""

    query: Projected
    key: Projected
    mask: Mask | None = None

    @cached_property
    def recipe(self) -> Recipe:
        queries, keys = self.query.tensor, self.key.tensor
        return Recipe(queries, keys, scale=queries.shape[-1] ** -0.5, mask=self.mask)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batch, heads, queries, keys."""
        b, t, _ = self.query.source.shape
        return b, self.query.heads, t, self.key.source.shape[1]

    def tile(self, batch: int, head: int, rows: range) -> Tile:
        return self.recipe.tile(batch, head, rows)


@dataclass(frozen=True, eq=False)
class Written:
    """Weights that have no recipe, kept as they are (additive scores, synthesizers)."""

    weights: Float[Tensor, "b h t s"]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        b, h, t, s = self.weights.shape
        return b, h, t, s

    def tile(self, batch: int, head: int, rows: range) -> Tile:
        exact = torch.promote_types(self.weights.dtype, torch.float32)
        return self.weights[batch, head, rows.start : rows.stop].to(exact), range(self.weights.shape[-1])


Source = Recipe | Derived | Written  # what weights are computed from


def _clear(mask: Mask, rows: range, columns: range) -> range:
    """The columns that every one of these rows may attend to, where that is easily said; else none."""
    if not isinstance(mask, Band):
        return range(0)
    first, last = (row + mask.s - mask.t for row in (rows.start, rows.stop - 1))
    start = columns.start if mask.left is None else max(columns.start, last - mask.left)
    stop = columns.stop if mask.right is None else min(columns.stop, first + mask.right + 1)
    return range(start, max(start, stop))


def part(x: Tensor, batch: int, head: int) -> Tensor:
    """One row of the batch and one head of a tensor whose missing or single axes stand for all."""
    while x.ndim > 2:
        index = batch if x.ndim == 4 else head
        x = x[index if x.shape[0] > 1 else 0]
    return x


def cut(x: Tensor, batch: int, head: int, rows: range, columns: range) -> Tensor:
    """The same for a rectangle of it; axes of size 1 stand for all."""
    x = part(x.reshape(*[1] * (4 - x.ndim), *x.shape), batch, head)
    x = x if x.shape[0] == 1 else x[rows.start : rows.stop]
    return x if x.shape[1] == 1 else x[:, columns.start : columns.stop]
