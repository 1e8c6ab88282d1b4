"""Attribution: attention rollout, norm-weighted attention (value norms), and attention over the patches of an image.

Axes: q chosen queries · t tokens · h heads · s keys · d head dim · c model dim · r rows and k columns of patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.interp.forward import AnalysisResult, Inputs, check_positions
from qkv.interp.layers import Piece, TracedLayer
from qkv.interp.lazy_weights import DenseWeights
from qkv.interp.media_inputs import PatchGrid, image_grid
from qkv.interp.model_parts import find_stack, head_values, trace_with_projections
from qkv.interp.traces import IndexRange, Trace

MAX_ROLLOUT_TOKENS = 2048  # tokens up to which the rollout of every query is computed by default
Query = int | str | tuple[int, int]  # a token's index, "class", or (row, column) of a patch


@dataclass(frozen=True, eq=False)
class Rollout(AnalysisResult):
    """For each chosen query, the share that comes from each input token.

    layers: names of the layers rolled out, first to last. queries: the chosen tokens. weights: (q, t); rows sum to 1
    (less where a layer attends to nothing, or to a sink).
    """

    layers: tuple[str, ...]
    queries: tuple[int, ...]
    weights: Float[Tensor, "q t"]

    def to_trace(self) -> Trace:
        """The rollout as a trace of one map, to draw it like an attention map."""
        pieces = (Piece(0, 0, DenseWeights(self.weights[None, None])),)
        return Trace([TracedLayer.from_pieces("rollout", pieces, cross=None)])


@torch.no_grad()
def rollout(
    trace: Trace,
    *,
    queries: Sequence[int] | None = None,
    layers: Sequence[int | str] | None = None,
    stack: str | None = None,
    heads: Literal["mean", "max"] = "mean",
    residual: float = 0.5,
    batch: int = 0,
) -> Rollout:
    """Attention rollout: R = (r I + (1 − r) A_L) … (r I + (1 − r) A_1), where A combines the heads of a layer.

    queries: the rows to compute; all by default. Memory grows with the chosen rows, not with n².
    layers, stack: which layers; by default the last stack of blocks with self-attention (of an encoder–decoder, the
        decoder's).
    heads: combine heads by their mean, as published, or their maximum (rows are then normalized).
    residual: r, the share of the residual connection; ½ as published.
    """
    if not 0 <= residual <= 1:
        raise ValueError(f"residual must be in [0, 1]; got {residual}")
    if heads not in ("mean", "max"):
        raise ValueError(f"heads must be 'mean' or 'max'; got {heads!r}")
    chosen = [trace.layer(layer) for layer in (find_stack(trace, stack).layers if layers is None else layers)]
    sizes = {(layer.queries, layer.keys) for layer in chosen}
    if len(sizes) != 1 or any(t != s for t, s in sizes):
        raise ValueError(
            f"a rollout needs self-attention layers over one sequence; got layers of queries × keys {sorted(sizes)}"
        )
    n = chosen[0].queries
    rows = list(range(n)) if queries is None else check_positions(queries, n)
    first = next(chosen[0].stripes(0, batch)).weights
    share = torch.zeros(len(rows), n, dtype=first.dtype, device=first.device)
    share[torch.arange(len(rows)), torch.tensor(rows, dtype=torch.int64)] = 1.0
    for layer in reversed(chosen):
        share = residual * share + (1 - residual) * _multiply(share, layer, heads, batch)
    return Rollout(tuple(layer.name for layer in chosen), tuple(rows), share)


def _multiply(share: Tensor, layer: TracedLayer, heads: str, batch: int) -> Tensor:
    """share · A, some rows of A at a time."""
    out = torch.zeros_like(share)
    for stripes in layer.stripes_of_all_heads(batch):
        rows, columns = stripes[0].rows, stripes[0].columns
        combined = torch.zeros_like(stripes[0].weights)
        for stripe in stripes:
            combined = combined + stripe.weights if heads == "mean" else torch.maximum(combined, stripe.weights)
        total = torch.tensor(layer.heads) if heads == "mean" else combined.sum(-1, keepdim=True).clamp(min=1e-30)
        out[:, columns.start : columns.stop] += share[:, rows.start : rows.stop] @ (combined / total)
    return out


@dataclass(frozen=True, eq=False)
class ValueNorms(AnalysisResult):
    """The norms of one layer's projected values.

    A head may attend to a token and take almost nothing from it, because its value is small. Key j contributes
    α(i, j) · v(j) W to query i, where W is the head's part of the output projection; its norm is α(i, j) · ‖v(j) W‖.

    projection: the name of the output projection; None if it is unknown: the norms are then ‖v‖.
    norms: (h, s).
    """

    layer: int
    name: str
    projection: str | None
    norms: Float[Tensor, "h s"]

    def weighted(
        self, trace: Trace, head: int, *, batch: int = 0, rows: IndexRange = None, columns: IndexRange = None
    ) -> Float[Tensor, "t s"]:
        """Norm-weighted attention α(i, j) · ‖v(j) W‖ of one head, for these rows and columns."""
        weights = trace.weights(self.layer, head, batch, rows, columns)
        norms = self.norms[head].to(weights)
        if isinstance(columns, range):
            columns = slice(columns.start, columns.stop)
        return weights * (norms if columns is None else norms[columns])


@torch.no_grad()
def value_norms(model: nn.Module, inputs: Inputs, *, batch: int = 0) -> tuple[ValueNorms, ...]:
    """For each layer the norms ‖v W‖ of what each head can take from each key.

    The output projection is searched among the modules near the layer, and accepted only if it maps the heads' outputs
    to what it returned. A layer whose values are not seen has norms of NaN.
    """
    trace, projections = trace_with_projections(model, inputs, batch=batch)
    found = []
    for index, (layer, projection) in enumerate(zip(trace.layers, projections, strict=True)):
        if layer.values is None:
            norms = torch.full((layer.heads, layer.keys), float("nan"))
        else:
            values = head_values(layer, batch).to(torch.promote_types(layer.values.dtype, torch.float32))
            norms = (values if projection is None else values @ projection.heads.to(values)).norm(dim=-1)
        found.append(ValueNorms(index, layer.name, None if projection is None else projection.name, norms))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class ImageAttention(AnalysisResult):
    """The weight that one token puts on each patch of an image.

    layer: the layer's name, or "rollout". head: None if heads were averaged. query: the token's index.
    grid: (r, k), a weight for each patch. special: the weights on the tokens before the patches (the class token).
    """

    layer: str
    head: int | None
    query: int
    grid: Float[Tensor, "r k"]
    special: tuple[float, ...]


def attention_over_image(
    model: nn.Module, trace: Trace, layer: int | str, head: int | None = None, *, query: Query = "class", batch: int = 0
) -> ImageAttention:
    """The attention of one head (by default the mean of all) from one token to the patches of the image.

    query: "class", (row, column) of a patch, or a token's index.
    """
    found, grid = trace.layer(layer), patch_grid(model, trace)
    index = token_index(grid, query)
    heads = range(found.heads) if head is None else [head]
    rows = [trace.weights(layer, each, batch, rows=range(index, index + 1))[0] for each in heads]
    return _image_attention(grid, found.name, head, index, torch.stack(rows).mean(0))


def rollout_over_image(
    model: nn.Module, trace: Trace, *, query: Query = "class", batch: int = 0, residual: float = 0.5
) -> ImageAttention:
    """The attention rollout of all layers from one token to the patches of the image."""
    grid = patch_grid(model, trace)
    index = token_index(grid, query)
    found = rollout(trace, queries=[index], batch=batch, residual=residual)
    return _image_attention(grid, "rollout", None, index, found.weights[0])


def patch_grid(model: nn.Module, trace: Trace) -> PatchGrid:
    """The model's patch grid; a ValueError if its attention does not run over exactly those patches."""
    grid = image_grid(model)
    expected = grid.special + grid.rows * grid.columns
    for layer in trace.layers:
        if (layer.queries, layer.keys) != (expected, expected):
            raise ValueError(
                f"drawing attention over an image needs layers over all of its {grid.rows} × {grid.columns} patches "
                f"(and {grid.special} more tokens); {layer.name} has {layer.queries} queries and {layer.keys} keys: "
                "look at its maps instead"
            )
    return grid


def token_index(grid: PatchGrid, query: Query) -> int:
    """The index of the token that a query names."""
    total = grid.special + grid.rows * grid.columns
    if query == "class":
        if not grid.special:
            raise ValueError(
                "this model has no class token (it averages all patches); name a patch instead: (row, column)"
            )
        return 0
    if isinstance(query, tuple) and len(query) == 2:
        row, column = query
        if not (0 <= row < grid.rows and 0 <= column < grid.columns):
            raise ValueError(f"patches are (row, column) within {grid.rows} × {grid.columns}; got {query}")
        return grid.special + row * grid.columns + column
    if isinstance(query, int) and 0 <= query < total:
        return query
    raise ValueError(f'a token of an image is "class", (row, column) of a patch, or 0 to {total - 1}; got {query!r}')


def _image_attention(grid: PatchGrid, layer: str, head: int | None, query: int, row: Tensor) -> ImageAttention:
    special = tuple(row[: grid.special].tolist())
    return ImageAttention(layer, head, query, row[grid.special :].unflatten(0, (grid.rows, grid.columns)), special)
