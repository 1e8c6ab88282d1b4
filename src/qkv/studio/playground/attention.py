"""Attention of a playground request in float64, by `qkv.attention`; and a sentence about the selected query's weights.

Axes: h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qkv import masks
from qkv.byhand.numbers import is_readable, to_text
from qkv.nn.attention import attention
from qkv.positions import sinusoidal
from qkv.studio.playground.request import PlaygroundRequest, Texts, cell_value, parse_cell

COPIES = 0.9  # weight from which attention is called copying
EVEN = 0.02  # largest difference of weights that are called even


@dataclass(frozen=True)
class AttentionSteps:
    """Every step in float64; mask is uint8, 1 where a query may attend."""

    queries: np.ndarray  # (t, h·d)
    keys: np.ndarray
    values: np.ndarray
    scores: np.ndarray  # (h, t, s)
    scaled: np.ndarray
    weights: np.ndarray
    heads_output: np.ndarray  # (t, h·e), before W_O
    output: np.ndarray
    mask: np.ndarray  # (t, s)
    scale: float

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name."""
        names = ("queries", "keys", "values", "scores", "scaled", "weights", "heads_output", "output", "mask")
        return {name: getattr(self, name) for name in names}


def _use_one_thread() -> None:
    """Let torch use one thread in this thread only; another thread restores the setting that new threads read."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    restore = threading.Thread(target=torch.set_num_threads, args=(before,))
    restore.start()
    restore.join()


# The tensors are tiny: on a busy machine, synchronizing torch's threads takes longer than the work.
EXECUTOR = ThreadPoolExecutor(1, "playground", _use_one_thread)


def compute_attention(request: PlaygroundRequest) -> AttentionSteps:
    """All steps of the request's attention."""
    q, k, v = _project(request)
    mask = make_mask(request)
    scale = (q.shape[-1] // request.heads) ** -0.5
    if request.scale and not request.hard:
        scale = cell_value(request.scale)
    split = [m.unflatten(-1, (request.heads, -1)).transpose(0, 1) for m in (q, k, v)]
    out, weights = attention(*split, scale=scale, mask=mask, hard=request.hard, return_weights=True)
    scores = split[0] @ split[1].mT
    joined = out.transpose(0, 1).flatten(1)
    wo = request.matrix("wo")
    output = joined if wo is None else joined @ _tensor(wo)
    steps = (q, k, v, scores, scores * scale, weights, joined, output)
    return AttentionSteps(*(step.numpy() for step in steps), mask=mask.numpy().astype(np.uint8), scale=scale)


def make_mask(request: PlaygroundRequest) -> Tensor:
    """The boolean mask (t, s), True where a query may attend."""
    t, s = request.queries, request.keys
    if request.mask == "causal":
        return masks.causal(t, s).to_dense()
    if request.mask == "window":
        return masks.sliding_window(t, s, *request.window).to_dense()
    if request.mask == "custom":
        return torch.tensor([[digit == "1" for digit in row] for row in request.mask_rows])
    return torch.ones(t, s, dtype=torch.bool)


def describe_weights(request: PlaygroundRequest, steps: AttentionSteps) -> str:
    """One sentence about the weights of the selected query and head (the last one, beyond the last)."""
    query = min(request.query, request.queries - 1)
    head = min(request.head, request.heads - 1)
    weights, visible = steps.weights[head][query], np.flatnonzero(steps.mask[query])
    who = request.query_name(query)
    in_head = f" in head {head + 1}" if request.heads > 1 else ""
    if not len(visible):
        return f"{who} may attend to nothing{in_head}: its weights and its output are 0."
    if len(visible) == 1:
        return f"{who} may attend only to {request.key_name(int(visible[0]))}{in_head}: it copies that value."
    order = visible[np.argsort(-weights[visible], kind="stable")]
    best, second = (request.key_name(int(key)) for key in order[:2])
    if request.hard:
        return f"Hard attention: {who} takes the value of {best} alone{in_head}, the limit of large β."
    share, next_share = (float(weights[key]) for key in order[:2])
    start = f"{_scale_text(request, steps)}: "
    if share - float(weights[order[-1]]) <= EVEN:
        among = "every weight" if len(visible) == request.keys else "every allowed weight"
        return f"{start}{among} of {who} is about 1/{len(visible)}{in_head}: attention averages."
    if share >= COPIES:
        return f"{start}{who} gives {percent(share)} of its weight to {best}{in_head}: attention copies."
    if share + next_share >= COPIES and share - next_share <= EVEN:
        return f"{start}{who} shares its weight evenly between {best} and {second}{in_head}: the output is halfway."
    return (
        f"{start}{who} gives {percent(share)} to {best} and {percent(next_share)} to {second}{in_head}: "
        "a larger β makes attention sharper, a smaller one more even."
    )


def percent(share: float) -> str:
    """A share in percent; 100 % only if nothing is left.

    >>> percent(0.984), percent(0.99999), percent(1.0)
    ('98 %', '99.9 %', '100 %')
    """
    if share < 0.995:
        return f"{100 * share:.0f} %"
    return "100 %" if share == 1.0 else f"{min(100 * share, 99.9):.1f} %"


def _scale_text(request: PlaygroundRequest, steps: AttentionSteps) -> str:
    """β as it was typed, shortened if it is long; or 1/√d, which is 1 where d is 1."""
    if request.scale == "":
        head_dim = request.width // request.heads
        return "β = 1" if head_dim == 1 else f"β = 1/√{head_dim}"
    if len(request.scale) <= 12:
        return f"β = {request.scale}"
    number = parse_cell(request.scale)
    text = to_text(number)
    return f"β = {text}" if is_readable(number) and len(text) <= 12 else f"β = {steps.scale:.4g}"


def _project(request: PlaygroundRequest) -> tuple[Tensor, Tensor, Tensor]:
    """Q, K and V of all heads together."""
    if request.form == "qkv":
        q, k, v = (_tensor(request.matrix(name)) for name in ("q", "k", "v"))
        return q, k, v
    x = _tensor(request.matrix("x"))
    if request.sinusoidal:
        x = x + sinusoidal(x.shape[0], x.shape[1], dtype=torch.float64)
    q, k, v = (x @ _tensor(request.matrix(name)) for name in ("wq", "wk", "wv"))
    return q, k, v


def _tensor(matrix: Texts | None) -> Tensor:
    assert matrix is not None
    return torch.tensor([[cell_value(cell) for cell in row] for row in matrix], dtype=torch.float64)
