"""Attention rollout: where what stands at the end of a stack came from, all its layers together.

Axes: q chosen queries · t tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.interp.result import Result
from qkv.interp.stacks import stack_of
from qkv.interp.tiles import stripes
from qkv.interp.traces.layer import CELLS, Layer
from qkv.interp.traces.trace import Trace


@dataclass(frozen=True, eq=False)
class Rollout(Result):
    """For each chosen query, the share of each token of the input.

    layers: names of the layers rolled out, first to last. queries: the chosen tokens. weights: (q, t); rows sum to 1
    (less where a layer attends to nothing, or to a sink).
    """

    layers: tuple[str, ...]
    queries: tuple[int, ...]
    weights: Float[Tensor, "q t"]


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
    """R = (r I + (1 − r) A_L) … (r I + (1 − r) A_1), where A is a layer's weights, its heads taken together.

    residual: r, the share of what goes around each layer; ½ as published.
    heads: their mean, as published, or their maximum (rows then divided by their sum).
    queries: the rows wanted, all if not given; a few rows of a long input need neither n² memory nor a full product.
    layers, stack: which layers; else the last stack of blocks that attends to itself (the decoder's, of a pair).

    Tile by tile: memory grows with the chosen rows, not with n².
    """
    if not 0 <= residual <= 1:
        raise ValueError(f"residual is a share from 0 to 1; got {residual}")
    if heads not in ("mean", "max"):
        raise ValueError(f"heads are taken together by 'mean' or 'max'; got {heads!r}")
    places = stack_of(trace, stack).layers if layers is None else layers
    chosen = [trace.layer(place) for place in places]
    sizes = {(layer.queries, layer.keys) for layer in chosen}
    if len(sizes) != 1 or any(t != s for t, s in sizes):
        raise ValueError(
            f"a rollout is over layers of one sequence on itself; got layers of queries × keys {sorted(sizes)}"
        )
    n = chosen[0].queries
    rows = list(range(n)) if queries is None else [_place(query, n) for query in queries]
    first = next(stripes(chosen[0], 0, batch)).weights
    share = torch.zeros(len(rows), n, dtype=first.dtype, device=first.device)
    share[torch.arange(len(rows)), torch.tensor(rows, dtype=torch.int64)] = 1.0
    for layer in reversed(chosen):
        share = residual * share + (1 - residual) * _through(share, layer, heads, batch)
    return Rollout(tuple(layer.name for layer in chosen), tuple(rows), share)


def _through(share: Tensor, layer: Layer, heads: str, batch: int) -> Tensor:
    """share · A, some rows of A at a time."""
    out = torch.zeros_like(share)
    cells = max(CELLS // layer.heads, 1)  # all heads of a run of rows are held together
    runs = zip(*(stripes(layer, head, batch, cells) for head in range(layer.heads)), strict=True)
    for run in runs:
        rows, columns = run[0].rows, run[0].columns
        together = torch.zeros_like(run[0].weights)
        for stripe in run:
            together = together + stripe.weights if heads == "mean" else torch.maximum(together, stripe.weights)
        total = torch.tensor(layer.heads) if heads == "mean" else together.sum(-1, keepdim=True).clamp(min=1e-30)
        out[:, columns.start : columns.stop] += share[:, rows.start : rows.stop] @ (together / total)
    return out


def _place(query: int, n: int) -> int:
    if not -n <= query < n:
        raise ValueError(f"there are {n} tokens, 0 to {n - 1}; got {query}")
    return query % n
