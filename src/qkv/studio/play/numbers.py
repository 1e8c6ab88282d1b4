"""The numbers of a picture, by the library's own attention in float64.

Axes: h heads · t queries · s keys · d head width.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qkv import masks
from qkv.nn.attention import attention
from qkv.positions import sinusoidal
from qkv.studio.play.cells import Texts, value
from qkv.studio.play.given import Given


@dataclass(frozen=True)
class Numbers:
    """Every step in float64; allowed is uint8, 1 where a query may attend."""

    queries: np.ndarray  # (t, heads·d)
    keys: np.ndarray
    values: np.ndarray
    scores: np.ndarray  # (h, t, s)
    scaled: np.ndarray
    weights: np.ndarray
    heads_output: np.ndarray  # (t, heads·e), before W_O
    output: np.ndarray
    allowed: np.ndarray  # (t, s)
    beta: float

    def arrays(self) -> dict[str, np.ndarray]:
        """For the page."""
        names = ("queries", "keys", "values", "scores", "scaled", "weights", "heads_output", "output", "allowed")
        return {name: getattr(self, name) for name in names}


def _one_thread() -> None:
    """This thread computes by itself; the number of threads that others find is put back, by another thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    other = threading.Thread(target=torch.set_num_threads, args=(before,))
    other.start()
    other.join()


# tensors here are tiny: on a busy machine, threads that wait for one another take longer than the work
_WORKER = ThreadPoolExecutor(1, "playground", _one_thread)


def numbers(given: Given) -> Numbers:
    """Attention as `qkv.attention` gives it."""
    return _WORKER.submit(_numbers, given).result()


def _numbers(given: Given) -> Numbers:
    q, k, v = projected(given)
    allowed = may_attend(given)
    width = q.shape[-1] // given.heads
    beta = width**-0.5 if given.beta == "" or given.hard else value(given.beta)
    split = [m.unflatten(-1, (given.heads, -1)).transpose(0, 1) for m in (q, k, v)]
    out, weights = attention(*split, scale=beta, mask=allowed, hard=given.hard, return_weights=True)
    scores = split[0] @ split[1].mT
    joined = out.transpose(0, 1).flatten(1)
    wo = given.matrix("wo")
    result = joined if wo is None else joined @ tensor(wo)
    steps = (q, k, v, scores, scores * beta, weights, joined, result)
    return Numbers(*(step.numpy() for step in steps), allowed=allowed.numpy().astype(np.uint8), beta=beta)


def projected(given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """Q, K and V of all heads together."""
    if given.form == "qkv":
        q, k, v = (tensor(given.matrix(name)) for name in ("q", "k", "v"))
        return q, k, v
    x = tensor(given.matrix("x"))
    if given.sinusoidal:
        x = x + sinusoidal(x.shape[0], x.shape[1], dtype=torch.float64)
    q, k, v = (x @ tensor(given.matrix(name)) for name in ("wq", "wk", "wv"))
    return q, k, v


def may_attend(given: Given) -> Tensor:
    """The mask, written out."""
    t, s = given.queries, given.keys
    if given.mask == "causal":
        return masks.causal(t, s).dense()
    if given.mask == "window":
        return masks.sliding_window(t, s, *given.window).dense()
    if given.mask == "own":
        return torch.tensor([[sign == "1" for sign in row] for row in given.allowed])
    return torch.ones(t, s, dtype=torch.bool)


def tensor(matrix: Texts | None) -> Tensor:
    assert matrix is not None
    return torch.tensor([[value(cell) for cell in row] for row in matrix], dtype=torch.float64)
