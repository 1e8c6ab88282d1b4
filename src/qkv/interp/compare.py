"""Two traces compared head by head: two checkpoints on one input, or one model on two inputs of one length.

Axes: h heads of the first · g heads of the second · t queries · s keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.interp.assignment import assign
from qkv.interp.positional import jensen_shannon
from qkv.interp.result import Result
from qkv.interp.traces.layer import Layer
from qkv.interp.traces.trace import Trace


@dataclass(frozen=True, eq=False)
class Match(Result):
    """A head of the first and the head of the second that is most like it, each taken once, and how far apart."""

    layer: int
    first: int
    second: int
    distance: float


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """How far apart heads are: the mean Jensen–Shannon distance of their rows, from 0 (equal) to 1 (no key shared).

    names: (first's, second's) name of each layer compared.
    table: a row for each layer, the distance of head i to head i.
    matches: within each layer, heads paired so that the distances together are least.
    mean: of the table. matched: of the matches. rows: how many queries were compared, evenly spaced.
    """

    names: tuple[tuple[str, str], ...]
    table: tuple[tuple[float | None, ...], ...]
    matches: tuple[Match, ...]
    mean: float
    matched: float
    rows: int


@torch.no_grad()
def compare(first: Trace, second: Trace, *, rows: int = 128, batch: int = 0) -> Comparison:
    """Compare layer by layer, in the order in which they ran.

    rows: how many queries are compared at most, evenly spaced, so that long inputs cost no more than short ones.
    """
    if len(first) != len(second):
        raise ValueError(
            f"models are compared layer by layer; the first has {len(first)} attention layers, the second {len(second)}"
        )
    table, matches, used = [], [], 0
    for place, (one, other) in enumerate(zip(first.layers, second.layers, strict=True)):
        if (one.queries, one.keys) != (other.queries, other.keys):
            raise ValueError(
                f"heads are compared query by query; {one.name} has {one.queries} × {one.keys} queries and keys in the "
                f"first and {other.queries} × {other.keys} in the second: give two inputs of the same number of tokens"
            )
        apart = distances(one, other, rows=rows, batch=batch)
        used = max(used, min(rows, one.queries))
        both = min(one.heads, other.heads)
        most = max(one.heads, other.heads)
        table.append(tuple(float(apart[i, i]) if i < both else None for i in range(most)))
        matches += [Match(place, i, j, float(apart[i, j])) for i, j in assign(apart.tolist())]
    told = [each for row in table for each in row if each is not None]
    names = tuple((one.name, other.name) for one, other in zip(first.layers, second.layers, strict=True))
    matched = sum(match.distance for match in matches) / max(len(matches), 1)
    return Comparison(names, tuple(table), tuple(matches), sum(told) / max(len(told), 1), matched, used)


def distances(first: Layer, second: Layer, *, rows: int = 128, batch: int = 0) -> Float[Tensor, "h g"]:
    """The mean Jensen–Shannon distance (the root of the divergence, in bits) of each head of one to each of another."""
    count = min(rows, first.queries)
    chosen = torch.linspace(0, first.queries - 1, count).round().int().unique().tolist()
    total = torch.zeros(first.heads, second.heads, dtype=torch.float64)
    for start in range(0, len(chosen), 32):
        some = chosen[start : start + 32]
        ours = [_rows(first, batch, head, some) for head in range(first.heads)]
        theirs = torch.stack([_rows(second, batch, head, some) for head in range(second.heads)])
        for head, mine in enumerate(ours):
            total[head] += jensen_shannon(mine.expand_as(theirs), theirs).sqrt().sum(-1).cpu()
    return total / len(chosen)


def _rows(layer: Layer, batch: int, head: int, rows: list[int]) -> Tensor:
    whole = range(layer.keys)
    if rows == list(range(rows[0], rows[-1] + 1)):
        return layer.window(batch, head, range(rows[0], rows[-1] + 1), whole)
    return torch.cat([layer.window(batch, head, range(row, row + 1), whole) for row in rows])
