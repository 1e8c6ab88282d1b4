"""Functions of queries, keys and values: with the unit vectors as values the output is the weights themselves.

Axes: b batch · h heads · t queries · s keys · d head width.
"""

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.finding import Finding
from qkv.check.functions import HEADS, WIDTH
from qkv.check.subject import Subject


def check_weights(subject: Subject, contract: Contract) -> list[Finding]:
    """Rows sum to one, over the right axis; the scale of the scores; heads that do not mix."""
    if subject.attend is None:
        return []
    generator = torch.Generator().manual_seed(14)
    q, k = (torch.randn(2, HEADS, WIDTH, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))
    v = torch.eye(WIDTH, dtype=torch.float64).expand(2, HEADS, -1, -1)
    weights = subject.attend(q, k, v)
    return [_sums(weights, contract), _scale(weights, q, k, contract), _heads(subject, q, k)]


def _sums(weights: Tensor, contract: Contract) -> Finding:
    """The weights of a query sum to one."""
    rows, columns = (float((weights.sum(axis) - 1).abs().max()) for axis in (-1, -2))
    heads = float((weights.sum(1) - 1).abs().max())
    evidence = f"rows sum to 1 within {rows:.2g}, columns within {columns:.2g}"
    if rows <= 1e-9:
        return Finding("rows sum to one", "pass", rows, evidence)
    if columns <= 1e-9:
        hint, family = (
            "the softmax is over the queries: it should be over the keys, the last axis of q·kᵀ",
            "softmax axis",
        )
    elif heads <= 1e-9:
        hint, family = (
            "the softmax is over the heads: it should be over the keys, the last axis of q·kᵀ",
            "softmax axis",
        )
    elif bool(((weights >= 0) & (weights <= 1)).all()):
        hint, family = "rows do not sum to 1: a sigmoid, or weights dropped or masked after it", "softmax replaced"
    else:
        hint = "weights are not a distribution: the softmax is missing, or something is added after it"
        family = "softmax replaced"
    verdict = "fail" if contract.softmax == "keys" else "described"
    return Finding("rows sum to one", verdict, rows, evidence, hint, family)


def _scale(weights: Tensor, q: Tensor, k: Tensor, contract: Contract) -> Finding:
    """The slope of log-weights against q·k, which is the scale whatever the softmax subtracts."""
    seen = weights > 1e-12
    if not bool(seen.all(-1).any()):
        return Finding("scale", "n/a", None, "some weights are exactly 0, so their logarithms say nothing")
    logs = weights.clamp(min=1e-300).log()
    full = seen.all(-1)
    scores = (q @ k.mT)[full]
    x, y = (part - part.mean(-1, keepdim=True) for part in (scores, logs[full]))
    slope = float((x * y).sum() / (x * x).sum())
    straight = float((y - slope * x).abs().max() / y.abs().max().clamp(min=1e-12))
    names = {
        WIDTH**-0.5: "1/√d",
        1.0: "1: the scale is missing",
        1.0 / WIDTH: "1/d: the square root is missing, or the scale is applied twice",
        WIDTH**0.5: "√d: the scale is inverted",
        (HEADS * WIDTH) ** -0.5: "1/√(model width): it should be the head's width",
    }
    near = next((said for value, said in names.items() if abs(slope - value) < 0.01 * value), f"{slope:.4g}")
    evidence = f"log-weights grow with q·k by {slope:.4f}, which is {near} (d = {WIDTH})"
    if straight > 1e-6:
        return Finding(
            "scale", "described", straight, f"log-weights are not a straight line of q·k (off by {straight:.2g})"
        )
    if contract.scale is None:
        return Finding("scale", "described", None, evidence)
    promised = WIDTH**-0.5 if contract.scale == "head" else float(contract.scale)
    score = abs(slope / promised - 1)
    if score <= 0.01:
        return Finding("scale", "pass", score, evidence)
    hint = f"multiply q·k by {promised:.4g}, once, before the softmax"
    return Finding("scale", "fail", score, evidence, hint, "scale")


def _heads(subject: Subject, q: Tensor, k: Tensor) -> Finding:
    """Changing one head's queries, keys and values changes that head's output only."""
    assert subject.attend is not None
    v = torch.randn(q.shape, generator=torch.Generator().manual_seed(15), dtype=q.dtype)
    before = subject.attend(q, k, v)
    changed = [part.clone() for part in (q, k, v)]
    for part in changed:
        part[:, 1] = part[:, 1].flip(-1) + 0.5
    moved = (subject.attend(*changed) - before).abs().amax((0, 2, 3))
    own = float(moved[1])
    strange = float(torch.cat((moved[:1], moved[2:])).max())
    evidence = f"changing head 1 moved head 1's output by {own:.2g}, the others' by {strange:.2g}"
    if own <= 0:
        return Finding("head independence", "inconclusive", None, evidence)
    if strange / own <= subject.tolerance:
        return Finding("head independence", "pass", strange / own, evidence)
    hint = "heads mix: a view or reshape without the transpose, a sum over heads, or weights averaged over them"
    return Finding("head independence", "fail", strange / own, evidence, hint, "heads mixed")
