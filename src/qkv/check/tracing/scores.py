"""From q·k to the weights: the scale, the mask and the softmax of one recorded attention, and bugs in them.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.influence import name_pattern
from qkv.check.report import Diagnosis
from qkv.check.tracing.recorder import AttentionRecord, masked_below

STRAIGHT = 1e-5  # scores are a straight line of q·k if they are off by no more


def measure_slope(attention: AttentionRecord) -> tuple[float, float] | None:
    """The slope of the scores against q·k, and how far from a straight line they are; None if it cannot be measured.

    Rows of the batch are compared with each other, so that masks and biases, which are the same for all, cancel. Scores
    with a softcap, and with biases that depend on the query or on the key (relative positions), have a slope, too.
    """
    scores = attention.scores if attention.scores is not None else _log_weights(attention.weights)
    if scores is None or scores.shape[0] < 2 or scores.shape != attention.product.shape:
        return None
    centered = attention.scores is None
    found = fit_slope(scores, attention.product, centered=centered)
    if found is None or found[1] <= STRAIGHT:
        return found
    # several query heads in one product: its rows and those of the weights may be in another order
    products = _row_orders(attention.product) if centered else ()
    others = [fit_slope(scores, product, centered=True) for product in products]
    others += [fit_softcap(scores, attention.product, found[0], centered=centered)]
    others += [] if centered else [_fit_beside_biases(attention, scores)]
    return next((other for other in others if other is not None and other[1] <= STRAIGHT), found)


def fit_softcap(scores: Tensor, product: Tensor, slope: float, *, centered: bool) -> tuple[float, float] | None:
    """The slope at 0 of scores that are cap · tanh(slope · q·k / cap), and how far they are from that.

    Gauss–Newton steps from a straight line. centered: scores are known up to a number for each query.
    """
    use = (scores > masked_below(product)).to(product)
    y = scores.masked_fill(use == 0, 0.0)
    largest = float((use * product).abs().max())
    cap = 2 * abs(slope) * largest
    if float(use.sum()) < 8 or cap == 0:
        return None

    def center(x: Tensor) -> Tensor:
        return use * (_center(x, use) if centered else x)

    rest = y
    for _ in range(60):
        z = slope * product / cap
        bend = 1 - z.tanh() ** 2
        rest = center(y - cap * z.tanh())
        columns = torch.stack([center(product * bend).flatten(), center(z.tanh() - z * bend).flatten()], dim=1)
        step = torch.linalg.lstsq(columns, rest.flatten()[:, None]).solution[:, 0]
        new = float(step[0]) + slope, max(float(step[1]) + cap, 0.5 * cap)
        if not all(map(math.isfinite, new)) or new[0] == 0:
            return None
        slope, cap = new[0], min(new[1], 2 * cap)
    return slope, float(rest.abs().max() / center(y).abs().max().clamp(min=1e-300))


def _fit_beside_biases(attention: AttentionRecord, scores: Tensor) -> tuple[float, float] | None:
    """The slope of scores that are slope · q·k + q·a + k·b + c, with other a, b and c for each pair of positions.

    Such are the relative positions of Shaw et al., Transformer-XL and DeBERTa. It takes a batch of more than 2 d rows.
    """
    q, k = attention.queries, attention.keys
    batch, d = q.shape[0], q.shape[-1]
    visible = (scores > masked_below(attention.product)).all(0)
    pairs = visible.nonzero()[:: max(int(visible.sum()) // 24, 1)]
    if k.shape[:2] != q.shape[:2] or batch < 2 * d + 6 or not len(pairs):
        return None
    h, i, j = pairs.T
    product, y = attention.product[:, h, i, j].T[..., None], scores[:, h, i, j].T[..., None]  # pairs, b, 1
    columns = torch.cat((product, q[:, h, i].transpose(0, 1), k[:, h, j].transpose(0, 1), torch.ones_like(y)), -1)
    solved = torch.linalg.lstsq(columns, y).solution
    slopes, rest = solved[:, 0, 0], (columns @ solved - y).abs().max()
    spread = float((slopes - slopes[0]).abs().max() / slopes.abs().max().clamp(min=1e-300))
    return float(slopes[0]), max(spread, float(rest / y.abs().max().clamp(min=1e-300)))


def _row_orders(product: Tensor) -> Iterator[Tensor]:
    """The rows of (b, h, t, s) read as a table of heads and queries, and transposed."""
    rows = product.shape[2]
    for size in range(2, rows // 2 + 1):
        if rows % size == 0:
            yield product.unflatten(2, (size, rows // size)).transpose(2, 3).flatten(2, 3)


def fit_slope(scores: Tensor, product: Tensor, *, centered: bool) -> tuple[float, float] | None:
    """The slope of scores (b, h, t, s) against q·k, and how far from a straight line they are."""
    visible = scores > masked_below(product)
    difference = (scores[:1] - scores[1:]).nan_to_num(0.0, 0.0, 0.0)
    change = product[:1] - product[1:]
    use = (visible[:1] & visible[1:] & (difference != 0)).to(difference)
    if centered:  # log-weights are the scores up to a constant for each query
        difference, change = (_center(x, use) for x in (difference, change))
    total = float((use * change * change).sum())
    if float(use.sum()) < 4 or total == 0:
        return None
    slope = float((use * change * difference).sum()) / total
    off = float((use * (difference - slope * change)).abs().max() / (use * difference).abs().max())
    return slope, off


def measure_part_slopes(attention: AttentionRecord) -> list[float]:
    """The slope of the scores against each product that they are a sum of; [] if they are no such sum."""
    scores, parts = attention.scores, attention.parts
    if scores is None or scores.shape[0] < 2 or len(parts) < 2:
        return []
    visible = scores > masked_below(attention.product)
    use = (visible[:1] & visible[1:]).flatten()
    y = (scores[:1] - scores[1:]).flatten()[use]
    columns = torch.stack([(part[:1] - part[1:]).flatten()[use] for part in parts], 1)
    slopes = torch.linalg.lstsq(columns, y[:, None]).solution[:, 0]
    straight = float((columns @ slopes - y).abs().max()) <= STRAIGHT * float(y.abs().max())
    return slopes.tolist() if straight else []


def attended_pattern(attention: AttentionRecord) -> str:
    """The kind of attention, by which weights are not zero."""
    return name_pattern(attention.attended.any(0).any(0))


def future_weight(attention: AttentionRecord) -> float:
    """The share of all weight that falls on later keys."""
    t, s = attention.weights.shape[-2:]
    later = torch.ones(t, s, dtype=torch.bool).triu(s - t + 1)
    weights = attention.weights.abs().nan_to_num()
    return float(weights[..., later].sum() / weights.sum().clamp(min=1e-300))


def row_sum_error(weights: Tensor) -> float:
    """How far the sum of a row is from 1; a row of zeros attends to nothing, and counts as right."""
    sums = weights.sum(-1)
    return float(torch.where((weights == 0).all(-1), 0.0, (sums - 1).abs()).nan_to_num(1.0).max())


def describe_scale(scale: float, head_dim: int, heads: int) -> str:
    """The name of a scale."""
    known = {
        head_dim**-0.5: "1/√d, as it should be",
        1.0: "1: the scale is missing",
        1.0 / head_dim: "1/d: the square root is missing, or 1/√d is applied twice",
        head_dim**0.5: "√d: inverted",
        (heads * head_dim) ** -0.5: "1/√(model dim) instead of 1/√(head dim)",
    }
    dims = round(scale**-2) if scale > 1e-3 else 0
    other = f"1/√{dims} instead of 1/√{head_dim}" if dims > 1 and abs(scale * dims**0.5 - 1) <= 1e-4 else f"{scale:.4g}"
    return next((words for value, words in known.items() if abs(scale / value - 1) <= 0.01), other)


# -- masks -------------------------------------------------------------------------------------------------------------


def find_mask_bug(attention: AttentionRecord, contract: Contract) -> Diagnosis | None:
    """Why an attention sees what it should not, or does not see what it should."""
    t, s = attention.weights.shape[-2:]
    if t != s or t < 4 or contract.kind not in ("causal", "window"):
        return None
    pattern, where = attended_pattern(attention), attention.name
    if contract.kind == "window":
        if not pattern.startswith("window of") or pattern == f"window of {contract.window}":
            return None
        return Diagnosis("window", f"queries see a {pattern}, required: {contract.window}", where)
    if (bug := _find_head_mask_bug(attention)) is not None:
        return bug
    if pattern == "causal":
        return _find_late_mask(attention)
    if pattern == "strictly causal: a token does not see itself":
        return Diagnosis("mask off by one", "a query does not see itself", where)
    if pattern == "sees one token ahead":
        return Diagnosis("mask off by one", "a query sees one key ahead", where)
    if pattern == "anti-causal: sees the future, not the past":
        return Diagnosis("mask transposed", "queries see the future, not the past", where)
    if pattern.startswith(("chunks", "window,")):
        return Diagnosis("leak", f"the mask is cut into {pattern}: within one, future tokens are visible", where)
    if pattern.startswith("window of"):
        return Diagnosis("window", f"queries see a {pattern}", where)
    if pattern == "bidirectional":
        return _find_soft_mask(attention)
    return Diagnosis("leak", f"the mask is {pattern}: check how it is built and sliced", where)


def find_shifted_weights(attention: AttentionRecord) -> Diagnosis | None:
    """Weights that are a softmax of the scores of other keys, one place further: they meet the wrong values."""
    logs, product = _log_weights(attention.weights), attention.product
    if logs is None or logs.shape != product.shape or logs.shape[0] < 2 or logs.shape[-1] < 4:
        return None
    straight = fit_slope(logs, product, centered=True)
    if straight is None or straight[1] <= STRAIGHT:
        return None
    for weights, scores, which in (
        (logs[..., :-1], product[..., 1:], "before"),
        (logs[..., 1:], product[..., :-1], "after"),
    ):
        shifted = fit_slope(weights, scores, centered=True)
        if shifted is not None and shifted[1] <= STRAIGHT and shifted[0] > 0:
            words = (
                f"weights are shifted by one key: the weight of each key meets the value of the key {which} it (a "
                "column that was added for a sink is dropped at the wrong side)"
            )
            return Diagnosis("leak", words, attention.name)
    return None


def _find_head_mask_bug(attention: AttentionRecord) -> Diagnosis | None:
    """Some heads are causal, others are not."""
    patterns = [name_pattern(attention.attended[:, head].any(0)) for head in range(attention.heads)]
    wrong = [head for head, pattern in enumerate(patterns) if pattern != "causal"]
    if not wrong or len(wrong) == len(patterns):
        return None
    words = f"the mask does not reach all heads: heads {wrong} are {patterns[wrong[0]]}"
    return Diagnosis("leak", words, attention.name)


def _find_late_mask(attention: AttentionRecord) -> Diagnosis | None:
    """Weights on later keys are zero although the softmax gave them some."""
    if attention.soft is None:
        return None
    later = torch.ones(attention.soft.shape[-2:], dtype=torch.bool).triu(1)
    if float(attention.soft[..., later].abs().sum()) > 1e-6 and row_sum_error(attention.weights) > 1e-6:
        words = "the mask is applied after the softmax, so rows sum to less than 1"
        return Diagnosis("mask after softmax", words, attention.name)
    return None


def _find_soft_mask(attention: AttentionRecord) -> Diagnosis:
    """Every key is visible: either nothing was done to the scores of later keys, or not enough."""
    no_mask = Diagnosis("no mask", "there is no causal mask on this path", attention.name)
    if attention.scores is None:
        return no_mask
    later = torch.ones(attention.product.shape[-2:], dtype=torch.bool).triu(1)
    scores, earlier = attention.scores[..., later], attention.scores[..., ~later]
    level = float(scores.mean())
    tolerance = 1e-6 * max(abs(level), 1.0)
    if float((scores - level).abs().max()) <= tolerance:
        if float((earlier - level).abs().max()) <= tolerance:
            return no_mask
        if level == 0:
            words = "masked scores are multiplied by 0, which is a score like any other"
        else:
            words = f"masked scores are not −∞ but filled with {level:.4g}"
        return Diagnosis("mask not −∞", words, attention.name)
    found = measure_slope(attention)
    if found is None:
        return no_mask
    rest = attention.scores - found[0] * attention.product
    drop = float(rest[..., ~later].mean() - rest[..., later].mean())
    spread = float((rest[..., later] - rest[..., later].mean()).abs().max())
    if abs(drop) > 1e-6 and spread <= 1e-6 * max(abs(drop), 1.0):
        return Diagnosis("mask not −∞", f"masked scores are not −∞ but lower by {drop:.4g}", attention.name)
    return no_mask


# -- softmax -----------------------------------------------------------------------------------------------------------


def find_softmax_bug(attention: AttentionRecord) -> Diagnosis | None:
    """A softmax over the wrong axis, replaced by something else, in half precision, or averaged over the heads."""
    where = attention.name
    if attention.axis is not None and attention.axis != "keys":
        axis = "the heads" if attention.axis == "heads or batch" else "the queries"
        weights = attention.weights
        if float((weights.sum((-2, -1)) - 1).abs().max()) <= 1e-6 and weights.shape[-2] > 1:
            axis = "queries and keys together"
        return Diagnosis("softmax axis", f"the softmax is over {axis}", where)
    if attention.averaged or _heads_are_equal(attention):
        return Diagnosis("heads mixed", "weights are averaged over the heads before they meet the values", where)
    if attention.precision in (torch.bfloat16, torch.float16):
        dtype = str(attention.precision).removeprefix("torch.")
        return Diagnosis("low precision", f"the softmax is computed in {dtype}", where)
    return _find_replacement(attention) if attention.axis is None else None


def _find_replacement(attention: AttentionRecord) -> Diagnosis | None:
    """No softmax operator ran: what the weights are instead, unless they are a softmax written out."""
    w, where = attention.weights, attention.name
    if row_sum_error(w) <= 1e-5:
        if float((w.amax(-1) - 1).abs().max()) <= 1e-9 and w.shape[-1] > 1:
            return Diagnosis("softmax replaced", "only the best key counts (hard attention)", where)
        if float((w - w[:1]).abs().max()) <= 1e-12 and float(attention.product.std()) > 0:
            return Diagnosis("scores changed", "weights do not depend on the scores", where)
        return None
    for axis, words in ((-2, "the queries"), (1, "the heads")):
        if float((w.sum(axis) - 1).abs().max()) <= 1e-5 and w.shape[axis] > 1:
            return Diagnosis("softmax axis", f"the softmax is over {words}", where)
    if bool(((w >= 0) & (w <= 1)).all()) and _is_linear(attention, (w / (1 - w)).log()):
        return Diagnosis("softmax replaced", "each weight is a sigmoid", where)
    if _is_linear(attention, w):
        return Diagnosis("softmax replaced", "the softmax is missing: the scores multiply the values", where)
    if bool((w >= 0).all()):
        return Diagnosis("softmax replaced", "weights are positive but do not sum to 1", where)
    return Diagnosis("softmax replaced", "weights are not a distribution", where)


def _is_linear(attention: AttentionRecord, x: Tensor) -> bool:
    """Whether x is a straight line of q·k."""
    use = x.isfinite() & (attention.weights != 0)
    if int(use.sum()) < 4:
        return False
    a, b = attention.product[use], x[use]
    slope = float(((a - a.mean()) * (b - b.mean())).sum() / ((a - a.mean()) ** 2).sum())
    rest = b - slope * a
    return float((rest - rest.mean()).abs().max()) <= 1e-6 * float(b.abs().max())


def _heads_are_equal(attention: AttentionRecord) -> bool:
    """Whether all heads have the same weights although their q·k differ."""
    w, product, soft = attention.weights, attention.product, attention.soft
    if w.shape[1] < 2 or float((product - product[:, :1]).abs().max()) <= 1e-9:
        return False
    if soft is not None and float((soft - soft[:, :1]).abs().max()) <= 1e-12:
        return False
    t, s = w.shape[-2:]
    return t > 1 and s > 1 and float((w - w[:, :1]).abs().max()) <= 1e-12 and float(w.abs().max()) > 0


def _log_weights(weights: Tensor) -> Tensor | None:
    if bool((weights < 0).any()) or not bool(weights.isfinite().all()):
        return None
    return weights.log()


def _center(x: Tensor, use: Tensor) -> Tensor:
    return x - (use * x).sum(-1, keepdim=True) / use.sum(-1, keepdim=True).clamp(min=1)
