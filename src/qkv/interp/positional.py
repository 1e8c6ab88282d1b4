"""Whether a head attends to places whatever stands there: the same length, other contents.

Axes: t queries · s keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.interp.tiles import stripes
from qkv.interp.traces.trace import Trace


def jensen_shannon(p: Float[Tensor, "*t s"], q: Float[Tensor, "*t s"]) -> Float[Tensor, "*t"]:
    """The Jensen–Shannon divergence of rows in bits: 0 where they are equal, 1 where they share no key.

    Rows that sum to less than 1 (a sink takes the rest) have the rest as one key more.

    >>> jensen_shannon(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])).item()
    1.0
    """
    p, q = (torch.cat((x, (1 - x.sum(-1, keepdim=True)).clamp(min=0)), -1) for x in (p.double(), q.double()))
    entropy = torch.special.entr
    both = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
    return (both.sum(-1) / torch.log(torch.tensor(2.0, dtype=torch.float64))).clamp(0, 1)


def positional(trace: Trace, others: Sequence[Trace], batch: int = 0) -> dict[tuple[int, int], dict[str, float | None]]:
    """For each head, how much better its map on another input foretells its map than a uniform guess does.

        score = 1 − Σ JS(row, the same row on another input) / Σ JS(row, even over what it sees),

    at least 0, over all queries that see two keys or more. A head that looks at places alone scores 1; one whose map
    changes with the content scores 0, and so does a uniform one, of which there is nothing to foretell.
    """
    scores: dict[tuple[int, int], dict[str, float | None]] = {}
    for index, layer in enumerate(trace.layers):
        alike = [other.layers[index] for other in others if len(other) == len(trace)]
        alike = [each for each in alike if (each.queries, each.keys) == (layer.queries, layer.keys)]
        for head in range(layer.heads):
            apart = room = 0.0
            for stripe in stripes(layer, head, batch) if alike else ():
                seen = stripe.visible.sum(-1, keepdim=True)
                even = stripe.visible / seen.clamp(min=1) * stripe.weights.sum(-1, keepdim=True)
                tells = seen.squeeze(1) > 1
                room += float(jensen_shannon(stripe.weights, even)[tells].sum()) * len(alike)
                for other in alike:
                    there = other.window(batch, head, stripe.rows, stripe.columns)
                    apart += float(jensen_shannon(stripe.weights, there)[tells].sum())
            count = len(alike) * layer.queries
            enough = room > 1e-3 * count  # below a thousandth of a bit a row there is no pattern to speak of
            score = max(1 - apart / room, 0.0) if enough else 0.0
            scores[index, head] = {"positional": score if alike else None}
    return scores
