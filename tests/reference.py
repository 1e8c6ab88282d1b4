"""Reference attention for tests: Python numbers and loops, no tensor arithmetic; and the masks under test.

Axes: b batch · h heads · t queries · s keys. The rules of the masks follow their docstrings, for one query i
and one key j; `place` is the position of query i among the keys, i + (s − t).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from qkv.nn import masks

BATCH, HEADS = 2, 4  # sizes for masks per row of the batch and per head
Rule = Callable[[int, int, int, int, int], bool]  # (b, h, place, i, j) -> may attend


def attend_by_loops(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | list[float] | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    hard: bool = False,
) -> tuple[Tensor, Tensor]:
    """Output and weights of q (b, h, t, d), k (b, g, s, d), v (b, g, s, e); scale may be a list, one for each head."""
    b, h, t, d = q.shape
    g, s, e = k.shape[1], k.shape[2], v.shape[3]
    flags = (torch.ones(1, dtype=torch.bool) if mask is None else mask.cpu()).expand(b, h, t, s).tolist()
    added = (torch.zeros(1) if bias is None else bias.detach().cpu()).expand(b, h, t, s).tolist()
    scales = scale if isinstance(scale, list) else [d**-0.5 if scale is None else scale] * h
    queries, keys, values = q.tolist(), k.tolist(), v.tolist()
    out, weights = [], []
    for row in range(b):
        for head in range(h):
            group = head // (h // g)
            for i in range(t):
                scores = [
                    scales[head] * sum(x * y for x, y in zip(queries[row][head][i], keys[row][group][j], strict=True))
                    + added[row][head][i][j]
                    for j in range(s)
                ]
                chosen = choose(scores, flags[row][head][i], hard)
                weights.append(chosen)
                out.append([sum(chosen[j] * values[row][group][j][f] for j in range(s)) for f in range(e)])
    shaped = torch.tensor(out, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)
    return shaped[0].reshape(b, h, t, e).to(q.device), shaped[1].reshape(b, h, t, s).to(q.device)


def choose(scores: list[float], mask: list[bool], hard: bool = False) -> list[float]:
    """The softmax of the allowed scores (or 1 on the first of the highest); zeros where nothing is allowed."""
    allowed = [j for j, score in enumerate(scores) if mask[j] and score > -math.inf]
    if not allowed:
        return [0.0] * len(scores)
    highest = max(scores[j] for j in allowed)
    if hard:
        best = next(j for j in allowed if scores[j] == highest)
        return [float(j == best) for j in range(len(scores))]
    powers = [math.exp(scores[j] - highest) if j in allowed else 0.0 for j in range(len(scores))]
    total = math.fsum(powers)
    return [power / total for power in powers]


def table(rule: Rule, t: int, s: int, b: int = BATCH, h: int = HEADS) -> Tensor:
    """A rule written out: (b, h, t, s)."""
    rows = [
        [[[rule(row, head, i + s - t, i, j) for j in range(s)] for i in range(t)] for head in range(h)]
        for row in range(b)
    ]
    return torch.tensor(rows, dtype=torch.bool).reshape(b, h, t, s)


def _exists(b: int, j: int) -> bool:
    return (j + b) % 3 != 0  # row 0 lacks its first token, both have holes


def _speckled(b: int, h: int, i: int, j: int) -> bool:
    return (5 * b + 3 * h + 2 * i + j) % 4 != 0


def _tensor(t: int, s: int, rule: Rule, b: int = 1, h: int = 1) -> Tensor:
    return table(rule, t, s, b, h)


def _flags(s: int) -> Tensor:
    return torch.tensor([[_exists(b, j) for j in range(s)] for b in range(BATCH)], dtype=torch.bool).reshape(BATCH, s)


PREFIXES = (3, 0)

# name: (the mask that the library is given for t queries and s keys, the rule it stands for)
MASKS: dict[str, tuple[Callable[[int, int], masks.Mask | Tensor | None], Rule]] = {
    "none": (lambda t, s: None, lambda b, h, place, i, j: True),
    "causal": (masks.causal, lambda b, h, place, i, j: j <= place),
    "window": (lambda t, s: masks.sliding_window(t, s, 2, 1), lambda b, h, place, i, j: place - 2 <= j <= place + 1),
    "window of one": (lambda t, s: masks.sliding_window(t, s, 0, 0), lambda b, h, place, i, j: j == place),
    "window ahead": (lambda t, s: masks.sliding_window(t, s, 0, None), lambda b, h, place, i, j: j >= place),
    "window without bounds": (lambda t, s: masks.sliding_window(t, s, None, None), lambda b, h, place, i, j: True),
    "chunked": (lambda t, s: masks.chunked(t, s, 3, 1), lambda b, h, place, i, j: 0 <= place // 3 - j // 3 <= 1),
    "chunked, all before": (lambda t, s: masks.chunked(t, s, 2), lambda b, h, place, i, j: j // 2 <= place // 2),
    "prefix": (lambda t, s: masks.prefix(t, s, 2), lambda b, h, place, i, j: j <= place or j < 2),
    "prefix by row": (
        lambda t, s: masks.prefix(t, s, torch.tensor(PREFIXES)),
        lambda b, h, place, i, j: j <= place or j < PREFIXES[b],
    ),
    "padding": (lambda t, s: masks.padding(_flags(s)), lambda b, h, place, i, j: _exists(b, j)),
    "causal & padding": (
        lambda t, s: masks.causal(t, s) & masks.padding(_flags(s)),
        lambda b, h, place, i, j: j <= place and _exists(b, j),
    ),
    "window & prefix & padding": (
        lambda t, s: masks.sliding_window(t, s, 3, 2) & masks.prefix(t, s, 3) & masks.padding(_flags(s)),
        lambda b, h, place, i, j: place - 3 <= j <= place + 2 and (j <= place or j < 3) and _exists(b, j),
    ),
    "chunked & window": (
        lambda t, s: masks.chunked(t, s, 2, 0) & masks.sliding_window(t, s, 1, 1),
        lambda b, h, place, i, j: place // 2 == j // 2 and abs(j - place) <= 1,
    ),
    "tensor & mask": (
        lambda t, s: _tensor(t, s, lambda b, h, place, i, j: _speckled(0, 0, i, j)) & masks.causal(t, s),  # pyright: ignore[reportOperatorIssue]
        lambda b, h, place, i, j: _speckled(0, 0, i, j) and j <= place,
    ),
    "mask & tensor": (
        lambda t, s: masks.causal(t, s) & _tensor(t, s, lambda b, h, place, i, j: _speckled(b, 0, i, j), BATCH),
        lambda b, h, place, i, j: _speckled(b, 0, i, j) and j <= place,
    ),
    "tensor (t, s)": (
        lambda t, s: _tensor(t, s, lambda b, h, place, i, j: _speckled(0, 0, i, j))[0, 0],
        lambda b, h, place, i, j: _speckled(0, 0, i, j),
    ),
    "tensor (b, 1, t, s)": (
        lambda t, s: _tensor(t, s, lambda b, h, place, i, j: _speckled(b, 0, i, j), BATCH),
        lambda b, h, place, i, j: _speckled(b, 0, i, j),
    ),
    "tensor (1, h, t, s)": (
        lambda t, s: _tensor(t, s, lambda b, h, place, i, j: _speckled(0, h, i, j), 1, HEADS),
        lambda b, h, place, i, j: _speckled(0, h, i, j),
    ),
    "tensor (b, 1, 1, s)": (
        lambda t, s: _flags(s)[:, None, None],
        lambda b, h, place, i, j: _exists(b, j),
    ),
    "tensor (t, 1)": (
        lambda t, s: torch.tensor([i % 3 != 1 for i in range(t)], dtype=torch.bool)[:, None],
        lambda b, h, place, i, j: i % 3 != 1,
    ),
}

SIZES = [(5, 5), (3, 7), (7, 3), (1, 6), (6, 1), (1, 1), (0, 5), (5, 0)]  # (t, s)


def mask_case(name: str, t: int, s: int, device: torch.device) -> tuple[masks.Mask | Tensor | None, Tensor]:
    """The mask argument of `attention`, and the same mask written out by its rule."""
    build, rule = MASKS[name]
    given = build(t, s)
    given = given.to(device) if isinstance(given, Tensor) else given
    return given, table(rule, t, s).to(device)


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-12) -> None:
    """Assert that two tensors have one shape and differ by at most `tolerance`."""
    torch.testing.assert_close(ours, theirs.to(ours), rtol=0, atol=tolerance)
