"""A trace: the attention of a run, kept as recipes, and what can be asked of it.

Axes: b batch · h heads · t queries · s keys.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.interp.traces.layer import Layer

Run = range | slice | None


class Trace:
    """What `record` saw: the attention layers in the order in which they ran, and the activations asked for.

    A layer is named by its name or its place in `layers`. Weights are computed when asked for, never kept.

    layers: each with `name`, `heads`, `queries`, `keys`, `storage`.
    activations: for each module asked for, its outputs, one for each call.
    """

    def __init__(
        self, layers: Sequence[Layer] | None = None, activations: dict[str, tuple[Tensor, ...]] | None = None
    ) -> None:
        self._layers = None if layers is None else tuple(layers)
        self.activations: dict[str, tuple[Tensor, ...]] = {} if activations is None else activations

    def _complete(self, layers: Sequence[Layer], activations: dict[str, tuple[Tensor, ...]]) -> None:
        self._layers, self.activations = tuple(layers), activations

    @property
    def layers(self) -> tuple[Layer, ...]:
        if self._layers is None:
            raise ValueError("the trace is complete when the `with record(…)` block ends; ask it afterwards")
        return self._layers

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        if self._layers is None:
            return "Trace(still recording)"
        return f"Trace({len(self.layers)} layers, {sum(layer.heads for layer in self.layers)} heads)"

    def _repr_html_(self) -> str | None:
        """The page of this trace, in a frame, for notebooks; None while there is nothing to show.

        The page is drawn by a room above this floor, so it is found by its name when a notebook asks.
        """
        return importlib.import_module("qkv.interp.viewer").frame(self) if self._layers else None

    def layer(self, layer: int | str) -> Layer:
        """One layer, by its place or by its name."""
        layers = self.layers
        if not layers:
            raise ValueError(
                "no attention was recorded: the model has none, or did not run, or computes it in a kernel that "
                "PyTorch does not show"
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
        self, layer: int | str, head: int | None = None, batch: int = 0, rows: Run = None, columns: Run = None
    ) -> Float[Tensor, "*h t s"]:
        """The exact weights (t, s) of one head, or (h, t, s) of all, for these rows and columns; in float32 at least.

        >>> import qkv
        >>> with qkv.interp.record() as trace:
        ...     out = qkv.attention(*torch.ones(3, 1, 2, 4, 8), causal=True)
        >>> trace.weights(0, head=1, rows=range(1, 3)).round(decimals=2).tolist()[0]
        [0.5, 0.5, 0.0, 0.0]
        """
        found = self.layer(layer)
        within = _run(rows, found.queries, "queries"), _run(columns, found.keys, "keys")
        heads = range(found.heads) if head is None else [_index(head, found.heads, "heads")]
        batch = _index(batch, found.batch, "rows in the batch")
        parts = [found.window(batch, each, *within) for each in heads]
        return torch.stack(parts) if head is None else parts[0]

    @torch.no_grad()
    def map(
        self, layer: int | str, head: int, size: int = 512, batch: int = 0, pool: Literal["max", "sum"] = "max"
    ) -> Float[Tensor, "rows columns"]:
        """One head's map, pooled to at most size × size; each cell stands for as many queries as keys, all cells alike.

        pool: a cell's largest weight, or the sum of its weights.
        """
        if pool not in ("max", "sum") or size < 1:
            raise ValueError(f"a map pools by 'max' or 'sum' to a size of at least 1; got {pool!r} and {size}")
        found = self.layer(layer)
        head, batch = _index(head, found.heads, "heads"), _index(batch, found.batch, "rows in the batch")
        step = max(-(-max(found.queries, found.keys) // size), 1)
        picture = None
        for rows, weights, columns in found.tiles(batch, head, range(found.queries), multiple=step):
            if picture is None:
                picture = weights.new_zeros(-(-found.queries // step), -(-found.keys // step))
            cells = pooled(weights, rows.start, columns.start, step, pool)
            top, left = rows.start // step, columns.start // step
            there = picture[top : top + cells.shape[0], left : left + cells.shape[1]]
            there.copy_(torch.maximum(there, cells) if pool == "max" else there + cells)
        return torch.zeros(0, 0) if picture is None else picture

    @torch.no_grad()
    def top(self, layer: int | str, head: int, query: int, k: int = 8, batch: int = 0) -> list[tuple[int, float]]:
        """The k keys that a query attends to most, with their weights, the largest first."""
        found = self.layer(layer)
        query = _index(query, found.queries, "queries")
        row = self.weights(layer, head, batch, range(query, query + 1))[0]
        values, keys = row.topk(min(k, len(row)))
        return list(zip(keys.tolist(), values.tolist(), strict=True))

    def entropy(self, layer: int | str, head: int, batch: int = 0) -> Float[Tensor, " t"]:
        """How spread each query's weights are: −Σ w ln w, from 0 (one key) to ln s (all alike)."""
        return self._measure(layer, head, batch, lambda w, rows, columns: torch.special.entr(w).sum(-1))

    def distance(self, layer: int | str, head: int, batch: int = 0) -> Float[Tensor, " t"]:
        """How far each query looks on average, in tokens: Σ w |place − key|; the last query stands at the last key."""
        found = self.layer(layer)
        shift = found.keys - found.queries

        def mean(weights: Tensor, rows: range, columns: range) -> Tensor:
            places = torch.arange(rows.start, rows.stop, device=weights.device)[:, None] + shift
            keys = torch.arange(columns.start, columns.stop, device=weights.device)[None, :]
            return (weights * (places - keys).abs()).sum(-1)

        return self._measure(layer, head, batch, mean)

    def first_share(self, layer: int | str, head: int, batch: int = 0) -> Float[Tensor, " t"]:
        """The weight that each query puts on the first key."""

        def share(weights: Tensor, rows: range, columns: range) -> Tensor:
            return weights[:, 0] if columns and columns.start == 0 else weights.new_zeros(len(rows))

        return self._measure(layer, head, batch, share)

    @torch.no_grad()
    def _measure(self, layer: int | str, head: int, batch: int, measure) -> Float[Tensor, " t"]:
        found = self.layer(layer)
        head, batch = _index(head, found.heads, "heads"), _index(batch, found.batch, "rows in the batch")
        tiles = found.tiles(batch, head, range(found.queries))
        return torch.cat([measure(weights, rows, columns) for rows, weights, columns in tiles])

    def activation(self, name: str, call: int = -1) -> Tensor:
        """What a module returned: of its last call, unless another is named."""
        if name not in self.activations:
            have = ", ".join(self.activations) or "none"
            raise ValueError(
                f"no activation {name!r} was recorded (recorded: {have}); ask for it with record(model, "
                f"activations=[{name!r}]). Inside PyTorch's fused encoder, modules are not called"
            )
        return self.activations[name][call]

    def save(self, target: str | Path) -> None:
        """Write the trace into a folder (safetensors and JSON), whole or not at all."""
        from qkv.interp.traces.store import save

        save(self, target)

    @staticmethod
    def load(source: str | Path) -> Trace:
        """The trace that a folder holds."""
        from qkv.interp.traces.store import load

        return load(source)


def pooled(weights: Tensor, row: int, column: int, step: int, pool: str) -> Tensor:
    """Cells of step × step, aligned to multiples of the step in the whole map."""
    if step == 1 or not weights.numel():
        return weights[:, : weights.shape[1]]
    above, before = row % step, column % step
    below, behind = -(above + weights.shape[0]) % step, -(before + weights.shape[1]) % step
    if above or before or below or behind:
        weights = torch.nn.functional.pad(weights, (before, behind, above, below))  # weights are 0 or more
    cells = weights.unflatten(1, (-1, step))
    cells = cells.amax(-1) if pool == "max" else cells.sum(-1)
    cells = cells.unflatten(0, (-1, step))
    return cells.amax(1) if pool == "max" else cells.sum(1)


def _run(run: Run, size: int, what: str) -> range:
    """A run of rows or columns, as a range within them."""
    if run is None:
        return range(size)
    found = range(*run.indices(size)) if isinstance(run, slice) else run
    if found.step != 1 or found.start < 0 or found.stop > size:
        raise ValueError(f"a run of {what} lies within 0 to {size} and has no step; got {run}")
    return found


def _index(index: int, size: int, what: str) -> int:
    if not -size <= index < size:
        raise ValueError(f"there are {size} {what}, 0 to {size - 1}; got {index}")
    return index % size
