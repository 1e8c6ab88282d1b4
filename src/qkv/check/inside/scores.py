"""From q·k to the weights that met the values: which scale, which mask, which softmax; read off one attention.

Axes: b batch · h heads · t queries · s keys · d head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.diagnosis import Diagnosis
from qkv.check.influence import name_pattern
from qkv.check.inside.seen import Seen, floor_of


def slope_of(seen: Seen) -> tuple[float, float] | None:
    """By what the scores grow with q·k, and how far from a straight line they are; None if that cannot be seen.

    Rows of the batch are compared with each other, so that masks and biases, the same for all rows, cancel.
    """
    scores = seen.scores if seen.scores is not None else _logarithms(seen.weights)
    if scores is None or scores.shape[0] < 2:
        return None
    there = scores > floor_of(seen.product)
    moved = (scores[:1] - scores[1:]).nan_to_num(0.0, 0.0, 0.0)
    product = seen.product[:1] - seen.product[1:]
    use = (there[:1] & there[1:] & (moved != 0)).to(moved)
    if seen.scores is None:  # logarithms of weights know the scores up to a number for each query
        moved, product = (_centred(x, use) for x in (moved, product))
    total = float((use * product * product).sum())
    if float(use.sum()) < 4 or total == 0:
        return None
    slope = float((use * product * moved).sum()) / total
    off = float((use * (moved - slope * product)).abs().max() / (use * moved).abs().max())
    return slope, off


def pattern_of(seen: Seen) -> str:
    """Who attends to whom, named, by the weights that met the values."""
    return name_pattern((seen.weights.abs() > 1e-30).any(0).any(0))


def ahead(seen: Seen) -> float:
    """How much weight falls on later keys, as a share of all."""
    t, s = seen.weights.shape[-2:]
    later = torch.ones(t, s, dtype=torch.bool).triu(s - t + 1)
    weights = seen.weights.abs().nan_to_num()
    return float(weights[..., later].sum() / weights.sum().clamp(min=1e-300))


def mask_mistake(seen: Seen, contract: Contract) -> Diagnosis | None:
    """Why an attention sees what it should not, or does not see what it should."""
    t, s = seen.weights.shape[-2:]
    if t != s or t < 4 or contract.kind not in ("causal", "window"):
        return None
    named = pattern_of(seen)
    if contract.kind == "causal" and (mixed := _heads_differ(seen)) is not None:
        return mixed
    if contract.kind == "window":
        if not named.startswith("window of") or named == f"window of {contract.window}":
            return None
        return Diagnosis("window", f"queries see a {named}, promised was {contract.window}", seen.name)
    plain = {
        "strictly causal: a token does not see itself": ("mask off by one", "a query does not see itself"),
        "sees one token ahead": ("mask off by one", "a query sees one key ahead"),
        "anti-causal: sees the future, not the past": ("mask transposed", "queries see the future, not the past"),
    }
    if named == "causal":
        return _after(seen) if seen.soft is not None else None
    if named in plain:
        return Diagnosis(*plain[named], seen.name)
    if named.startswith(("chunks", "window,", "window, ")):
        return Diagnosis("leak", f"the mask is cut into {named}: within one the future is seen", seen.name)
    if named.startswith("window of"):
        return Diagnosis("window", f"queries see a {named}", seen.name)
    if named == "bidirectional":
        return _soft(seen)
    return Diagnosis("leak", f"the mask is {named}: look at how it is built and sliced", seen.name)


def _heads_differ(seen: Seen) -> Diagnosis | None:
    """Some heads are causal, others are not."""
    named = [name_pattern((seen.weights[:, head].abs() > 1e-30).any(0)) for head in range(seen.heads)]
    wrong = [head for head, name in enumerate(named) if name != "causal"]
    if not wrong or len(wrong) == len(named):
        return None
    return Diagnosis("leak", f"the mask does not reach all heads: heads {wrong} are {named[wrong[0]]}", seen.name)


def _after(seen: Seen) -> Diagnosis | None:
    """Zero weights ahead although the softmax gave some."""
    assert seen.soft is not None
    later = torch.ones(seen.soft.shape[-2:], dtype=torch.bool).triu(1)
    if float(seen.soft[..., later].abs().sum()) > 1e-6 and rows_off(seen.weights) > 1e-6:
        return Diagnosis(
            "mask after softmax", "the mask is applied after the softmax, so rows sum to less than 1", seen.name
        )
    return None


def _soft(seen: Seen) -> Diagnosis:
    """Everything is seen: whether something was done to the scores ahead, and what."""
    nothing = Diagnosis("no mask", "there is no causal mask on this path", seen.name)
    if seen.scores is None:
        return nothing
    later = torch.ones(seen.product.shape[-2:], dtype=torch.bool).triu(1)
    scores, earlier = seen.scores[..., later], seen.scores[..., ~later]
    level = float(scores.mean())
    if float((scores - level).abs().max()) <= 1e-6 * max(abs(level), 1.0):
        if float((earlier - level).abs().max()) <= 1e-6 * max(abs(level), 1.0):
            return nothing
        words = "masked scores are multiplied by 0, which is a score like any other" if level == 0 else (
            f"masked scores are not −∞ but filled with {level:.4g}")  # fmt: skip
        return Diagnosis("mask not −∞", words, seen.name)
    found = slope_of(seen)
    if found is None:
        return nothing
    rest = seen.scores - found[0] * seen.product
    drop = float(rest[..., ~later].mean() - rest[..., later].mean())
    even = float((rest[..., later] - rest[..., later].mean()).abs().max())
    if abs(drop) > 1e-6 and even <= 1e-6 * max(abs(drop), 1.0):
        return Diagnosis("mask not −∞", f"masked scores are not −∞ but lower by {drop:.4g}", seen.name)
    return nothing


def softmax_mistake(seen: Seen) -> Diagnosis | None:
    """A softmax over the wrong axis, replaced by something else, in half precision, or followed by an average."""
    if seen.axis is not None and seen.axis != "keys":
        together = float((seen.weights.sum((-2, -1)) - 1).abs().max()) <= 1e-6
        what = "the heads" if seen.axis == "heads or batch" else "the queries"
        what = "queries and keys together" if together and seen.weights.shape[-2] > 1 else what
        return Diagnosis("softmax axis", f"the softmax is over {what}", seen.name)
    if seen.averaged or _alike_over_heads(seen):
        return Diagnosis("heads mixed", "weights are averaged over the heads before they meet the values", seen.name)
    if seen.precision in (torch.bfloat16, torch.float16):
        name = str(seen.precision).removeprefix("torch.")
        return Diagnosis("low precision", f"the softmax is computed in {name}", seen.name)
    if seen.axis is None:
        return _replaced(seen)
    return None


def _replaced(seen: Seen) -> Diagnosis | None:
    """No softmax was called: what the weights are instead, if not one written out."""
    w = seen.weights
    if rows_off(w) <= 1e-5:
        one = float((w.amax(-1) - 1).abs().max()) <= 1e-9
        if one and w.shape[-1] > 1:
            return Diagnosis("softmax replaced", "only the best key counts, a hard choice", seen.name)
        if float((w - w[:1]).abs().max()) <= 1e-12 and float(seen.product.std()) > 0:
            return Diagnosis("scores changed", "weights do not depend on the scores", seen.name)
        return None
    for axis, what in ((-2, "the queries"), (1, "the heads")):
        if float((w.sum(axis) - 1).abs().max()) <= 1e-5 and w.shape[axis] > 1:
            return Diagnosis("softmax axis", f"the softmax is over {what}", seen.name)
    if bool(((w >= 0) & (w <= 1)).all()) and _straight(seen, (w / (1 - w)).log()):
        return Diagnosis("softmax replaced", "each weight is a sigmoid", seen.name)
    if _straight(seen, w):
        return Diagnosis("softmax replaced", "the softmax is missing: scores themselves multiply the values", seen.name)
    if bool((w >= 0).all()):
        return Diagnosis("softmax replaced", "weights are positive but do not sum to 1", seen.name)
    return Diagnosis("softmax replaced", "weights are no distribution", seen.name)


def scale_words(scale: float, width: int, heads: int) -> str:
    """The name of a scale."""
    known = {
        width**-0.5: "1/√d, as it should be",
        1.0: "1: it is missing",
        1.0 / width: "1/d: the square root is missing, or 1/√d is applied twice",
        width**0.5: "√d: inverted",
        (heads * width) ** -0.5: "1/√(model width), not of a head's width",
    }
    return next((said for value, said in known.items() if abs(scale / value - 1) <= 0.01), f"{scale:.4g}")


def _straight(seen: Seen, x: Tensor) -> bool:
    use = x.isfinite() & (seen.weights != 0)
    if int(use.sum()) < 4:
        return False
    a, b = seen.product[use], x[use]
    slope = float(((a - a.mean()) * (b - b.mean())).sum() / ((a - a.mean()) ** 2).sum())
    rest = b - slope * a
    return float((rest - rest.mean()).abs().max()) <= 1e-6 * float(b.abs().max())


def _logarithms(weights: Tensor) -> Tensor | None:
    if bool((weights < 0).any()) or not bool(weights.isfinite().all()):
        return None
    return weights.log()


def _centred(x: Tensor, use: Tensor) -> Tensor:
    return x - (use * x).sum(-1, keepdim=True) / use.sum(-1, keepdim=True).clamp(min=1)


def rows_off(weights: Tensor) -> float:
    """How far the sum of a row is from 1 (rows of zeros attend to nothing, and count as right)."""
    sums = weights.sum(-1)
    return float(torch.where((weights == 0).all(-1), 0.0, (sums - 1).abs()).nan_to_num(1.0).max())


def _alike_over_heads(seen: Seen) -> bool:
    w, p = seen.weights, seen.product
    if w.shape[1] < 2 or float((p - p[:, :1]).abs().max()) <= 1e-9:
        return False
    t, s = w.shape[-2:]
    if seen.soft is not None and float((seen.soft - seen.soft[:, :1]).abs().max()) <= 1e-12:
        return False
    return t > 1 and s > 1 and float((w - w[:, :1]).abs().max()) <= 1e-12 and float(w.abs().max()) > 0
