"""One attention layer of a trace: its attention map, joined from one or several calls, computed tile by tile.

Axes: b batch · h heads · g key heads · t queries · s keys · d head dim.

A layer runs once for a whole text, once per step of a generation, or once per block of queries. Each call is a `Piece`:
some rows of the map, for some of its columns. Outside the pieces the map is 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qkv.interp.lazy_weights import DenseWeights, FusedWeights, LazyWeights, Tile, WeightSource, select

TILE_CELLS = 1 << 22  # weights computed at a time: 16 MB in float32


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows of a map from `row` on, for its columns from `column` on."""

    row: int
    column: int
    source: WeightSource

    @property
    def rows(self) -> range:
        return range(self.row, self.row + self.source.shape[2])

    @property
    def columns(self) -> range:
        return range(self.column, self.column + self.source.shape[3])

    @property
    def lazy(self) -> LazyWeights | None:
        """Queries, keys and rules; None if the weights are stored."""
        source = self.source.lazy if isinstance(self.source, FusedWeights) else self.source
        return source if isinstance(source, LazyWeights) else None

    def tile(self, batch: int, head: int, rows: range) -> Tile:
        """Weights of these rows of the map (all within the piece), and the columns they are for."""
        inside = range(rows.start - self.row, rows.stop - self.row)
        weights, columns = self.source.tile(batch, head, inside)
        return weights, range(columns.start + self.column, columns.stop + self.column)


@dataclass(frozen=True, eq=False)
class Stripe:
    """Some rows of one head's map, for the columns outside of which they are 0.

    visible: which keys each query may attend to.
    """

    rows: range
    columns: range
    weights: Float[Tensor, "t s"]
    visible: Bool[Tensor, "t s"]


@dataclass(frozen=True, eq=False)
class TracedLayer:
    """One attention layer: its name, its sizes, and what its weights are computed from.

    queries, keys: the numbers of rows and columns of its map.
    kv_heads: heads of keys, each shared by heads / kv_heads query heads (grouped-query attention).
    storage: "lazy" if queries and keys are stored, "dense" if weights are.
    cross: whether it attends to another sequence (cross-attention); None if unknown.
    values: (b, g, s, d) with g key heads or all heads; None unless `record(values=True)` asked for them.
    """

    name: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    storage: Literal["lazy", "dense"]
    cross: bool | None
    pieces: tuple[Piece, ...]
    values: Tensor | None = None

    @staticmethod
    def from_pieces(
        name: str, pieces: tuple[Piece, ...], cross: bool | None, values: Tensor | None = None
    ) -> TracedLayer:
        """A layer with the sizes of its pieces."""
        batch, heads = pieces[0].source.shape[:2]
        dense = any(isinstance(piece.source, DenseWeights) for piece in pieces)
        groups = [piece.source.keys.shape[1] for piece in pieces if isinstance(piece.source, LazyWeights)]
        return TracedLayer(
            name=name,
            batch=batch,
            heads=heads,
            kv_heads=groups[0] if groups else heads,
            queries=max(piece.rows.stop for piece in pieces),
            keys=max(piece.columns.stop for piece in pieces),
            storage="dense" if dense else "lazy",
            cross=cross,
            pieces=pieces,
            values=values,
        )

    @property
    def scale(self) -> float | None:
        """What multiplies q·k, as the model calls its attention; None if it is not one number."""
        for piece in self.pieces:
            if piece.lazy is not None and isinstance(piece.lazy.scale, int | float):
                return float(piece.lazy.scale)
        return None

    def tiles(self, batch: int, head: int, rows: range, *, multiple: int = 1) -> Iterator[tuple[range, Tensor, range]]:
        """Split these rows into ranges: (rows, weights, columns); outside those columns the weights are 0.

        multiple: ranges start at multiples of it, so that they can be pooled.
        """
        size = max(TILE_CELLS // max(self.keys, 1), 1)
        size = max(size // multiple, 1) * multiple
        for piece in self.pieces:
            start = max(rows.start, piece.row)
            while start < min(rows.stop, piece.rows.stop):
                stop = min(start - start % multiple + size, rows.stop, piece.rows.stop)
                yield range(start, stop), *piece.tile(batch, head, range(start, stop))
                start = stop

    def stripes(
        self, head: int, batch: int = 0, *, queries: int | None = None, tile_cells: int | None = None
    ) -> Iterator[Stripe]:
        """One head's map from its first row to its last, with the keys that each query may attend to.

        queries: stop after this many rows. tile_cells: weights computed at a time.
        """
        size = max((tile_cells or TILE_CELLS) // max(self.keys, 1), 1)
        for piece in self.pieces:
            end = piece.rows.stop if queries is None else min(queries, piece.rows.stop)
            for start in range(piece.rows.start, end, size):
                rows = range(start, min(start + size, end))
                weights, columns = piece.tile(batch, head, rows)
                yield Stripe(rows, columns, weights, _visible_keys(piece, batch, head, rows, columns, weights))

    def stripes_of_all_heads(self, batch: int = 0, *, queries: int | None = None) -> Iterator[tuple[Stripe, ...]]:
        """The stripes of all heads for the same rows together."""
        tile_cells = max(TILE_CELLS // self.heads, 1)
        heads = [self.stripes(head, batch, queries=queries, tile_cells=tile_cells) for head in range(self.heads)]
        return zip(*heads, strict=True)

    def window(self, batch: int, head: int, rows: range, columns: range) -> Float[Tensor, "t s"]:
        """The exact weights of a rectangle of one head's map."""
        parts = []
        for tile_rows, weights, tile_columns in self.tiles(batch, head, rows):
            start, stop = max(columns.start, tile_columns.start), min(columns.stop, tile_columns.stop)
            part = weights.new_zeros(len(tile_rows), len(columns))
            if start < stop:
                inside = weights[:, start - tile_columns.start : stop - tile_columns.start]
                part[:, start - columns.start : stop - columns.start] = inside
            parts.append(part)
        return torch.cat(parts) if parts else torch.zeros(0, len(columns))

    def is_causal(self, batch: int = 0) -> bool:
        """Whether no query sees a key after it; the last query is aligned with the last key."""
        shift = self.keys - self.queries
        for stripe in self.stripes(0, batch):
            positions = torch.arange(stripe.rows.start, stripe.rows.stop)[:, None] + shift
            keys = torch.arange(stripe.columns.start, stripe.columns.stop)[None, :]
            if bool((stripe.visible.cpu() & (keys > positions)).any()):
                return False
        return True


def _visible_keys(piece: Piece, batch: int, head: int, rows: range, columns: range, weights: Tensor) -> Tensor:
    """Which keys the queries may attend to: from the mask if it is known, otherwise where the weight is above 0."""
    if isinstance(piece.source, DenseWeights):
        return weights > 0
    if piece.source.mask is None:
        return torch.ones_like(weights, dtype=torch.bool)
    inside = (
        range(rows.start - piece.row, rows.stop - piece.row),
        range(columns.start - piece.column, columns.stop - piece.column),
    )
    return select(piece.source.mask.tile(*inside, weights.device), batch, head).expand(weights.shape)
