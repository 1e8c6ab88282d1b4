"""Trace: the attention of a recorded run, and the questions it answers (weights, maps, top keys, entropy).

Axes: b batch · h heads · t queries · s keys.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.interp.layers import TracedLayer
from qkv.interp.trace_files import read_trace, write_trace

IndexRange = range | slice | None


class Trace:
    """The attention layers of a run, in the order in which they ran, and the activations that were asked for.

    A layer is given by its name or by its index in `layers`. Weights are computed on demand, never stored.

    layers: each with `name`, `heads`, `queries`, `keys`, `storage`, …
    activations: for each recorded module, its outputs, one per call.
    """

    def __init__(
        self, layers: Sequence[TracedLayer] | None = None, activations: dict[str, tuple[Tensor, ...]] | None = None
    ) -> None:
        self._layers = None if layers is None else tuple(layers)
        self.activations: dict[str, tuple[Tensor, ...]] = {} if activations is None else activations

    def _complete(self, layers: Sequence[TracedLayer], activations: dict[str, tuple[Tensor, ...]]) -> None:
        self._layers, self.activations = tuple(layers), activations

    @property
    def layers(self) -> tuple[TracedLayer, ...]:
        if self._layers is None:
            raise ValueError("the trace is complete when the `with record(…)` block ends; use it after the block")
        return self._layers

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        if self._layers is None:
            return "Trace(still recording)"
        return f"Trace({len(self.layers)} layers, {sum(layer.heads for layer in self.layers)} heads)"

    def _repr_html_(self) -> str | None:
        """The attention viewer in a frame, for notebooks; None while there is nothing to show."""
        return importlib.import_module("qkv.interp.viewer").render_iframe(self) if self._layers else None

    def layer(self, layer: int | str) -> TracedLayer:
        """One layer, by its index or its name."""
        layers = self.layers
        if not layers:
            raise ValueError(
                "no attention was recorded: the model has none, did not run, or computes it in a kernel that PyTorch "
                "does not show"
            )
        if isinstance(layer, str):
            for each in layers:
                if each.name == layer:
                    return each
            names = ", ".join(each.name for each in layers[:4])
            raise ValueError(f"no layer is named {layer!r}; there are {names}{', …' if len(layers) > 4 else ''}")
        if not -len(layers) <= layer < len(layers):
            raise ValueError(f"there are {len(layers)} layers, 0 to {len(layers) - 1}; got {layer}")
        return layers[layer]

    @torch.no_grad()
    def weights(
        self,
        layer: int | str,
        head: int | None = None,
        batch: int = 0,
        rows: IndexRange = None,
        columns: IndexRange = None,
    ) -> Float[Tensor, "*h t s"]:
        """Exact attention weights (t, s) of one head, or (h, t, s) of all heads, at least in float32.

        rows, columns: a range or slice of the queries and of the keys; all by default.

        >>> import qkv
        >>> with qkv.interp.record() as trace:
        ...     out = qkv.attention(*torch.ones(3, 1, 2, 4, 8), causal=True)
        >>> trace.weights(0, head=1, rows=range(1, 3)).round(decimals=2).tolist()[0]
        [0.5, 0.5, 0.0, 0.0]
        """
        found = self.layer(layer)
        window = _check_range(rows, found.queries, "queries"), _check_range(columns, found.keys, "keys")
        heads = range(found.heads) if head is None else [_check_index(head, found.heads, "heads")]
        batch = _check_index(batch, found.batch, "rows in the batch")
        parts = [found.window(batch, each, *window) for each in heads]
        return torch.stack(parts) if head is None else parts[0]

    @torch.no_grad()
    def map(
        self, layer: int | str, head: int, size: int = 512, batch: int = 0, pool: Literal["max", "sum"] = "max"
    ) -> Float[Tensor, "rows columns"]:
        """One head's whole map, pooled to at most size × size; every cell covers as many queries as keys.

        pool: a cell is the largest of its weights, or their sum.
        """
        if pool not in ("max", "sum") or size < 1:
            raise ValueError(f"pool must be 'max' or 'sum' and size must be at least 1; got {pool!r} and {size}")
        found, head, batch = self._select(layer, head, batch)
        step = max(-(-max(found.queries, found.keys) // size), 1)
        pooled = None
        for rows, weights, columns in found.tiles(batch, head, range(found.queries), multiple=step):
            if pooled is None:
                pooled = weights.new_zeros(-(-found.queries // step), -(-found.keys // step))
            cells = pool_weights(weights, rows.start, columns.start, step, pool)
            top, left = rows.start // step, columns.start // step
            part = pooled[top : top + cells.shape[0], left : left + cells.shape[1]]
            part.copy_(torch.maximum(part, cells) if pool == "max" else part + cells)
        return torch.zeros(0, 0) if pooled is None else pooled

    @torch.no_grad()
    def top(self, layer: int | str, head: int, query: int, k: int = 8, batch: int = 0) -> list[tuple[int, float]]:
        """The k keys that a query attends to most, with their weights, largest first."""
        query = _check_index(query, self.layer(layer).queries, "queries")
        row = self.weights(layer, head, batch, range(query, query + 1))[0]
        values, keys = row.topk(min(k, len(row)))
        return list(zip(keys.tolist(), values.tolist(), strict=True))

    def entropy(self, layer: int | str, head: int, batch: int = 0) -> Float[Tensor, " t"]:
        """The entropy of each query's weights: −Σ w ln w, from 0 (one key) to ln s (uniform)."""
        return self._measure(layer, head, batch, lambda weights, rows, columns: torch.special.entr(weights).sum(-1))

    def distance(self, layer: int | str, head: int, batch: int = 0) -> Float[Tensor, " t"]:
        """The mean attention distance of each query in tokens: Σ w |query − key|; last query and last key align."""
        found = self.layer(layer)
        shift = found.keys - found.queries

        def mean_distance(weights: Tensor, rows: range, columns: range) -> Tensor:
            positions = torch.arange(rows.start, rows.stop, device=weights.device)[:, None] + shift
            keys = torch.arange(columns.start, columns.stop, device=weights.device)[None, :]
            return (weights * (positions - keys).abs()).sum(-1)

        return self._measure(layer, head, batch, mean_distance)

    def first_share(self, layer: int | str, head: int, batch: int = 0) -> Float[Tensor, " t"]:
        """The weight that each query puts on the first key (the attention sink)."""

        def share(weights: Tensor, rows: range, columns: range) -> Tensor:
            return weights[:, 0] if columns and columns.start == 0 else weights.new_zeros(len(rows))

        return self._measure(layer, head, batch, share)

    @torch.no_grad()
    def _measure(
        self, layer: int | str, head: int, batch: int, measure: Callable[[Tensor, range, range], Tensor]
    ) -> Float[Tensor, " t"]:
        found, head, batch = self._select(layer, head, batch)
        tiles = found.tiles(batch, head, range(found.queries))
        return torch.cat([measure(weights, rows, columns) for rows, weights, columns in tiles])

    def _select(self, layer: int | str, head: int, batch: int) -> tuple[TracedLayer, int, int]:
        found = self.layer(layer)
        return found, _check_index(head, found.heads, "heads"), _check_index(batch, found.batch, "rows in the batch")

    def activation(self, name: str, call: int = -1) -> Tensor:
        """The output of a module: of its last call by default."""
        if name not in self.activations:
            recorded = ", ".join(self.activations) or "none"
            raise ValueError(
                f"no activation {name!r} was recorded (recorded: {recorded}); ask for it with record(model, "
                f"activations=[{name!r}]). PyTorch's fused encoder does not call the modules inside it"
            )
        return self.activations[name][call]

    def save(self, target: str | Path) -> None:
        """Write the trace into a folder (safetensors and JSON), whole or not at all."""
        write_trace(target, self.layers, self.activations)

    @staticmethod
    def load(source: str | Path) -> Trace:
        """Load the trace that `save` wrote into a folder."""
        return Trace(*read_trace(source))


def pool_weights(weights: Tensor, row: int, column: int, step: int, pool: str) -> Tensor:
    """Pool a tile of a map to cells of step × step, aligned to multiples of `step` in the whole map.

    row, column: where the tile starts in the map. pool: "max" or "sum".
    """
    if step == 1 or not weights.numel():
        return weights[:, : weights.shape[1]]
    above, left = row % step, column % step
    below, right = -(above + weights.shape[0]) % step, -(left + weights.shape[1]) % step
    if above or left or below or right:
        weights = torch.nn.functional.pad(weights, (left, right, above, below))  # weights are never negative
    cells = weights.unflatten(1, (-1, step))
    cells = cells.amax(-1) if pool == "max" else cells.sum(-1)
    cells = cells.unflatten(0, (-1, step))
    return cells.amax(1) if pool == "max" else cells.sum(1)


def _check_range(chosen: IndexRange, size: int, what: str) -> range:
    if chosen is None:
        return range(size)
    found = range(*chosen.indices(size)) if isinstance(chosen, slice) else chosen
    if found.step != 1 or found.start < 0 or found.stop > size:
        raise ValueError(f"a range of {what} must lie within 0 to {size} and have step 1; got {chosen}")
    return found


def _check_index(index: int, size: int, what: str) -> int:
    if not -size <= index < size:
        raise ValueError(f"there are {size} {what}, 0 to {size - 1}; got {index}")
    return index % size
