"""Attention a second time, in plain Python: the judge of the attention under test.

No tensor arithmetic and no code shared with the library: three loops, exact sums.
"""

import math

import torch
from torch import Tensor


def by_loops(
    q: Tensor, k: Tensor, v: Tensor, *, beta: float | None = None, allowed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output and weights of q (t, d), k (s, d), v (s, e); allowed (t, s) is True where a query may attend.

    >>> out, weights = by_loops(torch.zeros(1, 2), torch.zeros(2, 2), torch.tensor([[1.0], [3.0]]))
    >>> out.item(), weights.tolist()
    (2.0, [[0.5, 0.5]])
    """
    queries, keys, values = q.tolist(), k.tolist(), v.tolist()
    sharpness = q.shape[-1] ** -0.5 if beta is None else beta
    out, weights = [], []
    for i, query in enumerate(queries):
        scores = []
        for j, key in enumerate(keys):
            score = sharpness * math.fsum(a * b for a, b in zip(query, key, strict=True))
            scores.append(score if allowed is None or bool(allowed[i, j]) else -math.inf)
        row = softmax(scores)
        weights.append(row)
        out.append([math.fsum(w * value[e] for w, value in zip(row, values, strict=True)) for e in range(v.shape[-1])])
    shape = (len(queries), v.shape[-1])
    return torch.tensor(out, dtype=torch.float64).reshape(shape), torch.tensor(weights, dtype=torch.float64)


def softmax(scores: list[float]) -> list[float]:
    """exp(score) / Σ exp(score), shifted by the highest; zeros where all are −∞."""
    highest = max(scores)
    if highest == -math.inf:
        return [0.0] * len(scores)
    powers = [math.exp(score - highest) for score in scores]
    total = math.fsum(powers)
    return [power / total for power in powers]
