"""One attention layer of a trace: one map, perhaps put together from several calls.

Axes: b batch · h heads · t queries · s keys.

A layer is called once for a whole text, or once for each step of a generation, or for blocks of queries. Each call is a
`Piece`: some rows of the map, for some of its columns. Elsewhere the map is 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.interp.traces.lazy_weights import Recipe, Source, Tile, Written

CELLS = 1 << 22  # weights computed at a time: 16 MB in float32


@dataclass(frozen=True, eq=False)
class Piece:
    """The rows from `row` on of a map, for its columns from `column` on."""

    row: int
    column: int
    source: Source

    @property
    def rows(self) -> range:
        return range(self.row, self.row + self.source.shape[2])

    @property
    def columns(self) -> range:
        return range(self.column, self.column + self.source.shape[3])

    def tile(self, batch: int, head: int, rows: range) -> Tile:
        """Weights of these rows of the map, which lie within the piece, and the columns they are for."""
        inside = range(rows.start - self.row, rows.stop - self.row)
        weights, columns = self.source.tile(batch, head, inside)
        return weights, range(columns.start + self.column, columns.stop + self.column)


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention layer: its name, its sizes, and what its weights are computed from.

    queries, keys: the numbers of rows and columns of its map.
    kv_heads: heads of keys, each shared by heads / kv_heads heads of queries.
    storage: "recipe" where queries and keys are kept, "dense" where the weights are.
    cross: whether it attends to another sequence; None if that could not be seen.
    values: what the weights gather, (b, g, s, d) with g heads of keys or all; None unless they were asked for.
    """

    name: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    storage: Literal["recipe", "dense"]
    cross: bool | None
    pieces: tuple[Piece, ...]
    values: Tensor | None = None

    @staticmethod
    def of(name: str, pieces: tuple[Piece, ...], cross: bool | None, values: Tensor | None = None) -> Layer:
        """A layer of the sizes that its pieces have."""
        batch, heads = pieces[0].source.shape[:2]
        dense = any(isinstance(piece.source, Written) for piece in pieces)
        groups = [piece.source.keys.shape[1] for piece in pieces if isinstance(piece.source, Recipe)]
        return Layer(
            name=name,
            batch=batch,
            heads=heads,
            kv_heads=groups[0] if groups else heads,
            queries=max(piece.rows.stop for piece in pieces),
            keys=max(piece.columns.stop for piece in pieces),
            storage="dense" if dense else "recipe",
            cross=cross,
            pieces=pieces,
            values=values,
        )

    def tiles(self, batch: int, head: int, rows: range, *, multiple: int = 1) -> Iterator[tuple[range, Tensor, range]]:
        """Runs of these rows, their weights, and the columns those are for; outside of the columns weights are 0.

        multiple: runs begin at multiples of it, so that they can be pooled.
        """
        size = max(CELLS // max(self.keys, 1), 1)
        size = max(size // multiple, 1) * multiple
        for piece in self.pieces:
            start = max(rows.start, piece.row)
            while start < min(rows.stop, piece.rows.stop):
                stop = min(start - start % multiple + size, rows.stop, piece.rows.stop)
                yield range(start, stop), *piece.tile(batch, head, range(start, stop))
                start = stop

    def window(self, batch: int, head: int, rows: range, columns: range) -> Float[Tensor, "t s"]:
        """The exact weights of a rectangle of one head's map."""
        parts = []
        for run, weights, held in self.tiles(batch, head, rows):
            start, stop = max(columns.start, held.start), min(columns.stop, held.stop)
            whole = weights.new_zeros(len(run), len(columns))
            if start < stop:
                seen = weights[:, start - held.start : stop - held.start]
                whole[:, start - columns.start : stop - columns.start] = seen
            parts.append(whole)
        return torch.cat(parts) if parts else torch.zeros(0, len(columns))
