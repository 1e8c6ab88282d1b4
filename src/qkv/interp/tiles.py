"""A head's map, some rows at a time, with which keys each query may see.

Axes: t queries · s keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qkv.interp.traces.layer import CELLS, Layer, Piece
from qkv.interp.traces.lazy_weights import Derived, Recipe, Written, part
from qkv.nn.masks import Mask


@dataclass(frozen=True, eq=False)
class Stripe:
    """Some rows of one head's map, for the columns outside of which they are 0."""

    rows: range
    columns: range
    weights: Float[Tensor, "t s"]
    visible: Bool[Tensor, "t s"]


def stripes(layer: Layer, head: int, batch: int = 0, cells: int = CELLS) -> Iterator[Stripe]:
    """One head's map from its first row to its last."""
    for piece in layer.pieces:
        size = max(cells // max(layer.keys, 1), 1)
        for start in range(piece.rows.start, piece.rows.stop, size):
            rows = range(start, min(start + size, piece.rows.stop))
            weights, columns = piece.tile(batch, head, rows)
            yield Stripe(rows, columns, weights, _visible(piece, batch, head, rows, columns, weights))


def _visible(piece: Piece, batch: int, head: int, rows: range, columns: range, weights: Tensor) -> Tensor:
    """Which keys the queries may see: by the mask where it is known, else by where there is weight."""
    source = piece.source
    if isinstance(source, Written):
        return weights > 0
    mask: Mask | None = source.mask if isinstance(source, Recipe | Derived) else None
    if mask is None:
        return torch.ones_like(weights, dtype=torch.bool)
    within = (
        range(rows.start - piece.row, rows.stop - piece.row),
        range(columns.start - piece.column, columns.stop - piece.column),
    )
    return part(mask.tile(*within, weights.device), batch, head).expand(weights.shape)


def is_causal(layer: Layer, batch: int = 0) -> bool:
    """Whether no query sees a key behind it; the last query stands at the last key."""
    shift = layer.keys - layer.queries
    for stripe in stripes(layer, 0, batch):
        places = torch.arange(stripe.rows.start, stripe.rows.stop)[:, None] + shift
        keys = torch.arange(stripe.columns.start, stripe.columns.stop)[None, :]
        if bool((stripe.visible.cpu() & (keys > places)).any()):
            return False
    return True
