"""Attention in numpy, and its adapter: arrays in, arrays out."""

import numpy as np

ARRAYS = "numpy"


def attention(queries, keys, values, hidden=None):
    """(b, t, h, d); hidden (t, s) is True for keys that a query must not see."""
    scores = np.einsum("bthd,bshd->bhts", queries, keys) / np.sqrt(queries.shape[-1])
    if hidden is not None:
        scores = np.where(hidden, -np.inf, scores)
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0.0))
    total = weights.sum(-1, keepdims=True)  # 0 for a query that sees nothing
    return np.einsum("bhts,bshd->bthd", weights / np.where(total == 0, 1.0, total), values)


def call(target, q, k, v, mask):
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    return target(q, k, v, mask).swapaxes(1, 2)


def mask(allowed):
    return ~allowed
