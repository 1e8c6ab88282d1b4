"""Attention over a picture: which patches a token attends to, as a grid.

Axes: r rows of patches · c columns of patches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.interp.images import Grid, grid_of
from qkv.interp.result import Result
from qkv.interp.rollout import rollout
from qkv.interp.traces.trace import Trace

Place = int | str | tuple[int, int]  # a token's number, "class", or a patch's row and column


@dataclass(frozen=True, eq=False)
class PictureMap(Result):
    """The weight that one token puts on each patch.

    layer: the layer's name, or "rollout". head: None where heads were taken together. query: the token's number.
    grid: (r, c), a weight for each patch. special: the weights on the tokens before the patches (the class token).
    """

    layer: str
    head: int | None
    query: int
    grid: Float[Tensor, "r c"]
    special: tuple[float, ...]


def over_picture(
    model: nn.Module, trace: Trace, layer: int | str, head: int | None = None, *, query: Place = "class", batch: int = 0
) -> PictureMap:
    """One head's attention from the class token, or from a patch, over the picture; the mean of all heads without one.

    query: "class", (row, column) of a patch, or a token's number.
    """
    found, grid = trace.layer(layer), picture_grid(model, trace)
    place = place_of(grid, query)
    heads = range(found.heads) if head is None else [head]
    rows = [trace.weights(layer, each, batch, rows=range(place, place + 1))[0] for each in heads]
    return _map(grid, found.name, head, place, torch.stack(rows).mean(0))


def rollout_over_picture(
    model: nn.Module, trace: Trace, *, query: Place = "class", batch: int = 0, residual: float = 0.5
) -> PictureMap:
    """The rollout of all layers from one token over the picture."""
    grid = picture_grid(model, trace)
    place = place_of(grid, query)
    rolled = rollout(trace, queries=[place], batch=batch, residual=residual)
    return _map(grid, "rollout", None, place, rolled.weights[0])


def picture_grid(model: nn.Module, trace: Trace) -> Grid:
    """How the model cuts pictures, if its attention runs over those patches; else a ValueError."""
    grid = grid_of(model)
    wanted = grid.special + grid.rows * grid.columns
    for layer in trace.layers:
        if (layer.queries, layer.keys) != (wanted, wanted):
            raise ValueError(
                f"attention is drawn over a picture where each layer runs over all of its {grid.rows} × {grid.columns} "
                f"patches (and {grid.special} more tokens); {layer.name} has {layer.queries} queries and {layer.keys} "
                "keys: its maps can be looked at as they are"
            )
    return grid


def place_of(grid: Grid, query: Place) -> int:
    """The number of the token that is meant."""
    total = grid.special + grid.rows * grid.columns
    if query == "class":
        if not grid.special:
            raise ValueError(
                "this model has no class token (it reads the mean of all patches); name a patch: (row, column)"
            )
        return 0
    if isinstance(query, tuple) and len(query) == 2:
        row, column = query
        if not (0 <= row < grid.rows and 0 <= column < grid.columns):
            raise ValueError(f"patches are (row, column) within {grid.rows} × {grid.columns}; got {query}")
        return grid.special + row * grid.columns + column
    if isinstance(query, int) and 0 <= query < total:
        return query
    raise ValueError(f'a token of a picture is "class", (row, column) of a patch, or 0 to {total - 1}; got {query!r}')


def _map(grid: Grid, layer: str, head: int | None, query: int, row: Tensor) -> PictureMap:
    special = tuple(row[: grid.special].tolist())
    return PictureMap(layer, head, query, row[grid.special :].unflatten(0, (grid.rows, grid.columns)), special)
