"""One pass over a head's map: its pooled picture, the largest weights of every row, and what sums it up.

Axes: t queries · s keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.interp.traces.layer import Layer
from qkv.interp.traces.trace import pooled

TOP = 8


@dataclass(frozen=True, eq=False)
class Measured:
    """What a page keeps of one head.

    picture: the map, pooled by max; all of it where the step is 1.
    entropy, distance, first: means over the queries that attend to anything.
    """

    picture: Float[Tensor, "rows columns"]
    keys: Int[Tensor, "t k"]
    weights: Float[Tensor, "t k"]
    entropy: float
    distance: float
    first: float


def step_of(layer: Layer, size: int) -> int:
    """How many queries and keys a cell of a map of at most size × size stands for."""
    return max(-(-max(layer.queries, layer.keys) // size), 1)


@torch.no_grad()
def measured(layer: Layer, head: int, size: int, batch: int = 0) -> Measured:
    """The picture of at most size × size, the top of every row, and the sums of one head.

    >>> import qkv
    >>> with qkv.interp.record() as trace:
    ...     out = qkv.attention(*torch.ones(3, 1, 2, 4, 8), causal=True)
    >>> found = measured(trace.layer(0), 1, size=2)
    >>> found.picture.round(decimals=2).tolist(), found.weights[0].tolist(), round(found.first, 4)
    ([[1.0, 0.0], [0.33000001311302185, 0.33000001311302185]], [1.0, 0.0, 0.0, 0.0], 0.5208)
    """
    step, k = step_of(layer, size), min(TOP, layer.keys)
    picture = torch.zeros(-(-layer.queries // step), -(-layer.keys // step))
    keys, tops = torch.zeros(layer.queries, k, dtype=torch.long), torch.zeros(layer.queries, k)
    sums = torch.zeros(4, dtype=torch.float64)
    shift = layer.keys - layer.queries
    for rows, weights, columns in layer.tiles(batch, head, range(layer.queries), multiple=step):
        weights = weights.float().cpu()
        cells = pooled(weights, rows.start, columns.start, step, "max")
        top, left = rows.start // step, columns.start // step
        there = picture[top : top + cells.shape[0], left : left + cells.shape[1]]
        there.copy_(torch.maximum(there, cells))
        _top(weights, columns, keys[rows.start : rows.stop], tops[rows.start : rows.stop])
        places = torch.arange(rows.start, rows.stop)[:, None] + shift
        far = (torch.arange(columns.start, columns.stop)[None, :] - places).abs().float()
        sums[0] += float((weights.sum(-1) > 0).sum())
        sums[1] += float(torch.special.entr(weights).sum())
        sums[2] += float((weights * far).sum())
        sums[3] += float(weights[:, 0].sum()) if columns and columns.start == 0 else 0.0
    means = (sums[1:] / sums[0].clamp(min=1)).tolist()
    return Measured(picture, keys, tops, *means)


def _top(weights: Tensor, columns: range, keys: Tensor, tops: Tensor) -> None:
    """Write the largest weights of each row and their keys."""
    k = min(keys.shape[1], len(columns))
    values, found = weights.topk(k, dim=-1) if k else (weights[:, :0], weights[:, :0].long())
    tops[:, :k] = values
    keys[:, :k] = found + columns.start
