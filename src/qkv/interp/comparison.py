"""compare(): two traces head by head (two checkpoints on one input, or one model on two inputs of one length).

Axes: h heads of the first · g heads of the second · t queries · s keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.interp.forward import AnalysisResult
from qkv.interp.layers import TracedLayer
from qkv.interp.traces import Trace


@dataclass(frozen=True, eq=False)
class HeadPair(AnalysisResult):
    """A head of the first trace, the head of the second that it is paired with, and their distance."""

    layer: int
    first: int
    second: int
    distance: float


@dataclass(frozen=True, eq=False)
class Comparison(AnalysisResult):
    """How far apart heads are: the mean Jensen–Shannon distance of their rows, from 0 (equal) to 1 (no key shared).

    names: (first's, second's) name of each layer compared.
    table: a row for each layer, the distance of head i to head i.
    matches: within each layer, heads paired one to one with the least total distance.
    mean: of the table. matched: of the matches. rows: how many queries were compared, evenly spaced.
    """

    names: tuple[tuple[str, str], ...]
    table: tuple[tuple[float | None, ...], ...]
    matches: tuple[HeadPair, ...]
    mean: float
    matched: float
    rows: int


@torch.no_grad()
def compare(first: Trace, second: Trace, *, rows: int = 128, batch: int = 0) -> Comparison:
    """Compare two traces layer by layer, in the order in which the layers ran.

    rows: compare at most this many queries, evenly spaced, so that long inputs cost no more than short ones.
    """
    if len(first) != len(second):
        raise ValueError(
            f"traces are compared layer by layer; the first has {len(first)} attention layers, the second {len(second)}"
        )
    table, matches, used = [], [], 0
    for index, (one, other) in enumerate(zip(first.layers, second.layers, strict=True)):
        if (one.queries, one.keys) != (other.queries, other.keys):
            raise ValueError(
                f"heads are compared query by query; {one.name} has {one.queries} × {one.keys} queries and keys in the "
                f"first trace and {other.queries} × {other.keys} in the second: use inputs with the same number of "
                "tokens"
            )
        distances = head_distances(one, other, rows=rows, batch=batch)
        used = max(used, min(rows, one.queries))
        shared, most = sorted((one.heads, other.heads))
        table.append(tuple(float(distances[i, i]) if i < shared else None for i in range(most)))
        matches += [HeadPair(index, i, j, float(distances[i, j])) for i, j in assign(distances.tolist())]
    known = [cell for row in table for cell in row if cell is not None]
    names = tuple((one.name, other.name) for one, other in zip(first.layers, second.layers, strict=True))
    matched = sum(match.distance for match in matches) / max(len(matches), 1)
    return Comparison(names, tuple(table), tuple(matches), sum(known) / max(len(known), 1), matched, used)


def head_distances(first: TracedLayer, second: TracedLayer, *, rows: int = 128, batch: int = 0) -> Float[Tensor, "h g"]:
    """The mean Jensen–Shannon distance (the root of the divergence in bits) between each pair of heads."""
    count = min(rows, first.queries)
    chosen = torch.linspace(0, first.queries - 1, count).round().int().unique().tolist()
    total = torch.zeros(first.heads, second.heads, dtype=torch.float64)
    for start in range(0, len(chosen), 32):
        some = chosen[start : start + 32]
        ours = [_weights_of_rows(first, batch, head, some) for head in range(first.heads)]
        theirs = torch.stack([_weights_of_rows(second, batch, head, some) for head in range(second.heads)])
        for head, mine in enumerate(ours):
            total[head] += jensen_shannon(mine.expand_as(theirs), theirs).sqrt().sum(-1).cpu()
    return total / len(chosen)


def _weights_of_rows(layer: TracedLayer, batch: int, head: int, rows: list[int]) -> Tensor:
    keys = range(layer.keys)
    if rows == list(range(rows[0], rows[-1] + 1)):
        return layer.window(batch, head, range(rows[0], rows[-1] + 1), keys)
    return torch.cat([layer.window(batch, head, range(row, row + 1), keys) for row in rows])


def jensen_shannon(p: Float[Tensor, "*t s"], q: Float[Tensor, "*t s"]) -> Float[Tensor, "*t"]:
    """The Jensen–Shannon divergence of rows in bits: 0 if they are equal, 1 if they share no key.

    Rows that sum to less than 1 (a sink takes the rest) get the rest as one more key.

    >>> jensen_shannon(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])).item()
    1.0
    """
    p, q = (torch.cat((x, (1 - x.sum(-1, keepdim=True)).clamp(min=0)), -1) for x in (p.double(), q.double()))
    entropy = torch.special.entr
    difference = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
    return (difference.sum(-1) / torch.log(torch.tensor(2.0, dtype=torch.float64))).clamp(0, 1)


def assign(costs: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Pair rows with columns one to one at the least total cost (the Hungarian algorithm, with potentials).

    Returns as many (row, column) pairs as the shorter side has.

    >>> assign([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]])
    [(0, 1), (1, 0), (2, 2)]
    """
    if not costs or not costs[0]:
        return []
    if len(costs) > len(costs[0]):
        flipped = assign([list(column) for column in zip(*costs, strict=True)])
        return sorted((row, column) for column, row in flipped)
    n, m = len(costs), len(costs[0])
    row_potential, column_potential = [0.0] * (n + 1), [0.0] * (m + 1)  # index 0 stands for none
    owner, previous = [0] * (m + 1), [0] * (m + 1)
    for row in range(1, n + 1):
        owner[0], current = row, 0
        least, visited = [float("inf")] * (m + 1), [False] * (m + 1)
        while owner[current]:
            visited[current] = True
            active, step, following = owner[current], float("inf"), 0
            for column in range(1, m + 1):
                if visited[column]:
                    continue
                cost = costs[active - 1][column - 1] - row_potential[active] - column_potential[column]
                if cost < least[column]:
                    least[column], previous[column] = cost, current
                if least[column] < step:
                    step, following = least[column], column
            for column in range(m + 1):
                if visited[column]:
                    row_potential[owner[column]] += step
                    column_potential[column] -= step
                else:
                    least[column] -= step
            current = following
        while current:
            owner[current] = owner[previous[current]]
            current = previous[current]
    return sorted((owner[column] - 1, column - 1) for column in range(1, m + 1) if owner[column])
