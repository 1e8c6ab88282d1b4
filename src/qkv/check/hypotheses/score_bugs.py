"""Bugs of scores and weights: the scale, what is done to scores, what the softmax runs over, masks that leave something
over, and low precision.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.check.hypotheses.formula import Formula, Observation, Sizes, average, head_scale, weigh
from qkv.check.hypotheses.hypothesis import Bugs, Hypothesis

INFINITY = float("-inf")
SIGNED = (-60.0, -20.0, -10.0, -5.0, -2.0, -1.0, -0.1, 0.1, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
POSITIVE = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
SMALL = (0.003, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

SCALES: dict[str, Callable[[Sizes], float]] = {
    "missing": lambda s: 1.0,
    "1/d: the square root is missing, or 1/√d is applied twice": lambda s: 1.0 / s.head_dim,
    "√d, inverted": lambda s: s.head_dim**0.5,
    "d: multiplied instead of divided": lambda s: float(s.head_dim),
    "1/√(model dim) instead of 1/√(head dim)": lambda s: (s.heads * s.head_dim) ** -0.5,
    "1/√(number of keys)": lambda s: s.keys**-0.5,
    "1/√(number of queries)": lambda s: s.queries**-0.5,
    "1/√(number of heads)": lambda s: s.heads**-0.5,
    "1/√(batch size)": lambda s: s.batch**-0.5,
    "1/√(d/2): half of the head dim": lambda s: (s.head_dim / 2) ** -0.5,
    "1/√(2d): twice the head dim": lambda s: (2 * s.head_dim) ** -0.5,
    "log 2 / √d: powers of 2 instead of e": lambda s: math.log(2) * s.head_dim**-0.5,
    "1 / (√d · log 2): log₂ e is multiplied although powers of e are taken": lambda s: s.head_dim**-0.5 / math.log(2),
    "d^-¼: the scale is applied to one of q and k only": lambda s: s.head_dim**-0.25,
    "1/√(key heads · d): the dim of the keys of all heads": lambda s: (s.kv_heads * s.head_dim) ** -0.5,
}


def scale_bugs(right: Formula, seen: Observation) -> Iterator[Hypothesis]:
    names: dict[float, list[str]] = {}
    for words, scale in SCALES.items():
        if words.startswith("1/√(key heads") and seen.sizes.kv_heads == seen.sizes.heads:
            continue  # the model dim
        if not words.startswith(("1/√(number of", "1/√(batch")) or "heads" in words:  # those vary from call to call
            names.setdefault(round(scale(seen.sizes), 12), []).append(words)
    for words, scale in SCALES.items():
        same = names.get(round(scale(seen.sizes), 12), [])  # at these sizes two may be one number
        words = f"the scale is {', or '.join(dict.fromkeys((words, *same)))}"
        yield Hypothesis("scale", words, right.but(scale=scale))
    usual = head_scale(seen.sizes)
    for bug in Bugs(right, seen).fitted(
        "scale", f"the scale is {{}}, 1/√d is {usual:.4g}", lambda x: {"scale": lambda s: x}, SMALL
    ):
        if abs(bug.formula.scale(seen.sizes) / usual - 1) > 1e-4:
            yield bug
    late = right.but(scale=lambda s: 1.0, core=lambda x, m, v: average(x, m, v) * v.shape[-1] ** -0.5)
    yield Hypothesis("scale", "the scale 1/√d is applied to the weights, after the softmax, not to the scores", late)


def fit_scale(seen: Observation, right: Formula, *, by_query: bool = False) -> Tensor | None:
    """The scale (t, 1) under which a formula gives the output, one for all queries or for each its own; None without.

    A grid, then Gauss–Newton steps. A query that sees one key has no scale: it keeps that of the grid.
    """

    def run(scale: Tensor) -> Tensor:
        return right.but(scores=lambda q, k, _: q @ k.mT * scale)(seen)

    def total(x: Tensor) -> Tensor:
        x = x.sum((0, 2))[:, None]
        return x if by_query else x.sum().expand_as(x)

    grid = torch.logspace(-3, 1, 25, dtype=torch.float64)
    ones = torch.ones(seen.sizes.queries, 1, dtype=torch.float64)
    errors = torch.stack([total((run(scale * ones) - seen.out) ** 2) for scale in grid])
    scale = grid[errors.argmin(0)]
    for _ in range(20):
        step = 1e-5 * scale
        now, slope = run(scale), (run(scale + step) - run(scale - step)) / (2 * step)
        if seen.fits(now):
            return scale
        change = total(slope * (seen.out - now)) / total(slope * slope).clamp(min=1e-300)
        scale = (scale + change.nan_to_num()).clamp(scale / 3, scale * 3)
    return None


def score_bugs(right: Formula, seen: Observation) -> Iterator[Hypothesis]:
    """Something is done to the scores before the softmax."""
    bugs, name = Bugs(right, seen), "scores changed"

    def changed(change: Callable[[Tensor], Tensor]) -> dict[str, Callable]:
        return {"scores": lambda q, k, scale: change(q @ k.mT * scale)}

    yield bugs.but(name, "weights are all equal: the scores are not used", **changed(lambda x: 0 * x))
    unit = lambda q, k, scale: scale * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT  # noqa: E731
    yield bugs.but(name, "queries and keys are normalized to length 1 first", scores=unit)
    yield bugs.but(name, "scores have the wrong sign", **changed(lambda x: -x))
    yield bugs.but(name, "the absolute value of the scores is taken", **changed(torch.abs))
    yield bugs.but(name, "a ReLU is applied to the scores before the softmax", **changed(torch.relu))
    yield bugs.but(name, "the scores are squared before the softmax", **changed(torch.square))
    limits = (0.3, 0.6, 1.0, 1.7, 3.0, 5.0, 10.0, 20.0, 50.0)
    for words, change in {
        "scores are clipped at ±{}": lambda x, n: x.clamp(-n, n),
        "scores are clipped: no larger than {}": lambda x, n: x.clamp(max=n),
        "scores are clipped: no smaller than −{}": lambda x, n: x.clamp(min=-n),
        "scores are capped by n·tanh(·/n), n = {}": lambda x, n: n * (x / n).tanh(),
    }.items():
        yield from bugs.fitted(name, words, lambda n, c=change: changed(lambda x: c(x, n)), limits)


def softmax_bugs(right: Formula, seen: Observation) -> Iterator[Hypothesis]:
    """A softmax over another axis, or something else in its place."""
    bugs, axis, replaced = Bugs(right, seen), "softmax axis", "softmax replaced"

    def zero(weights: Tensor, mask: Tensor) -> Tensor:
        return weights.masked_fill(~mask, 0.0)

    def hidden(scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(~mask, INFINITY)

    def best(scores: Tensor, mask: Tensor, v: Tensor) -> Tensor:
        return F.one_hot(hidden(scores, mask).argmax(-1), scores.shape[-1]).to(v) @ v

    def over_both(x: Tensor, mask: Tensor, v: Tensor) -> Tensor:
        return hidden(x, mask).flatten(-2).softmax(-1).view_as(x) @ v

    undivided = "weights are exponentials that are never divided by their sum"
    cores = [
        (axis, "the softmax is over the queries", lambda x, m, v: hidden(x, m).softmax(-2).nan_to_num() @ v),
        (axis, "the softmax is over the queries", lambda x, m, v: zero(x.softmax(-2), m) @ v),
        (axis, "the softmax is over queries and keys together", over_both),
        (axis, "the softmax is over the heads", lambda x, m, v: zero(x.softmax(1), m) @ v),
        (axis, "the softmax is over the heads", lambda x, m, v: hidden(x, m).softmax(1).nan_to_num() @ v),
        (axis, "the softmax is over the batch", lambda x, m, v: zero(x.softmax(0), m) @ v),
        (replaced, "each weight is a sigmoid", lambda x, m, v: zero(x.sigmoid(), m) @ v),
        (replaced, undivided, lambda x, m, v: zero(x.exp(), m) @ v),
        (replaced, undivided, lambda x, m, v: zero((x - hidden(x, m).amax(-1, keepdim=True)).exp(), m) @ v),
        (replaced, undivided, lambda x, m, v: zero((x - x.amax(-1, keepdim=True)).exp(), m) @ v),
        (replaced, "each weight is a ReLU", lambda x, m, v: zero(x.relu(), m) @ v),
        (replaced, "each weight is a squared ReLU", lambda x, m, v: zero(x.relu() ** 2, m) @ v),
        (replaced, "the softmax is missing: the scores multiply the values", lambda x, m, v: zero(x, m) @ v),
        (replaced, "only the best key counts (hard attention)", best),
        (replaced, "the softmax is applied twice", lambda x, m, v: hidden(weigh(x, m), m).softmax(-1).nan_to_num() @ v),
        (replaced, "weights are divided by their number, not by their sum",
         lambda x, m, v: zero(x.exp(), m) / m.sum(-1, keepdim=True) @ v),
        (replaced, "the log of the softmax multiplies the values",
         lambda x, m, v: zero(hidden(x, m).log_softmax(-1), m) @ v),
    ]  # fmt: skip
    for family, words, core in cores:
        yield bugs.but(family, words, core=core)
    one = "1 is added to the sum of the exponentials (softmax plus one)"
    yield bugs.but(replaced, one, core=partial(_with_more, more=1.0, shifted=False))
    for shifted, after in ((False, ""), (True, ", after the maximum is subtracted")):
        words = f"{{}} is added to the sum of the exponentials{after}"
        core = lambda x, shifted=shifted: {"core": partial(_with_more, more=x, shifted=shifted)}  # noqa: E731
        for bug in bugs.fitted(replaced, words, core, SMALL):
            count = bug.words.partition(" ")[0]
            if not shifted and count.isdigit() and int(count) > 1:  # keys and values of zeros add that
                bug = Hypothesis("block", f"{count} empty keys (zeros) take part in the softmax", bug.formula)
            yield bug
    for count in (1, 2, 4, 8, 16, 32, 64):
        words = f"only the {count} largest scores of a query count"
        if count < seen.sizes.keys:
            yield bugs.but(replaced, words, core=partial(_largest_only, count=count))


def _with_more(scores: Tensor, mask: Tensor, v: Tensor, more: float, shifted: bool) -> Tensor:
    scores = scores.masked_fill(~mask, INFINITY)
    powers = (scores - scores.amax(-1, keepdim=True)).exp() if shifted else scores.exp()
    return powers / (powers.sum(-1, keepdim=True) + more) @ v


def _largest_only(scores: Tensor, mask: Tensor, v: Tensor, count: int) -> Tensor:
    scores = scores.masked_fill(~mask, INFINITY)
    least = scores.topk(min(count, scores.shape[-1]), -1).values[..., -1:]
    return scores.masked_fill(scores < least, INFINITY).softmax(-1) @ v


def soft_mask_bugs(right: Formula, seen: Observation) -> Iterator[Hypothesis]:
    """A causal mask that leaves something of what it hides, or that reaches some heads only."""
    bugs, soft = Bugs(right, seen), "mask not −∞"
    late = "the mask is applied after the softmax, so rows sum to less than 1"
    yield bugs.but("mask after softmax", late, core=lambda x, m, v: x.softmax(-1).masked_fill(~m, 0.0) @ v)
    multiplied = "masked scores are multiplied by 0, which is a score like any other"
    yield bugs.but(soft, multiplied, core=lambda x, m, v: (x * m).softmax(-1) @ v)
    smallest = "masked scores are filled with the smallest positive number, not with −∞"
    yield bugs.but(soft, smallest, core=partial(_filled, value=1e-9))
    filled = lambda x: {"core": partial(_filled, value=x)}  # noqa: E731
    yield from bugs.fitted(soft, "masked scores are not −∞ but {}", filled, SIGNED)
    lowered = lambda x: {"core": partial(_lowered, by=x)}  # noqa: E731
    for bug in bugs.fitted(soft, "masked scores are not −∞ but lower by {}", lowered, POSITIVE):
        if not bug.words.endswith(" by 0"):  # that is no mask at all
            yield bug
    half = "the mask hides keys with positive scores only"
    yield bugs.but(soft, half, core=lambda x, m, v: average(x, m | (x <= 0), v))
    for heads in ("first", "last"):
        words = f"the mask reaches the {heads} head only"
        yield bugs.but("leak", words, core=partial(_one_head_masked, last=heads == "last"))


def _filled(scores: Tensor, mask: Tensor, v: Tensor, value: float) -> Tensor:
    return scores.masked_fill(~mask, value).softmax(-1) @ v


def _lowered(scores: Tensor, mask: Tensor, v: Tensor, by: float) -> Tensor:
    return (scores - by * (~mask).to(scores)).softmax(-1) @ v


def _one_head_masked(scores: Tensor, mask: Tensor, v: Tensor, last: bool) -> Tensor:
    head = torch.arange(scores.shape[1]) == (scores.shape[1] - 1 if last else 0)
    return average(scores, mask | ~head[:, None, None], v)


def precision_bugs(right: Formula, seen: Observation) -> Iterator[Hypothesis]:
    bugs, name = Bugs(right, seen), "low precision"
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        short = str(dtype).removeprefix("torch.")

        def low(x: Tensor, dtype: torch.dtype = dtype) -> Tensor:
            return x.to(dtype)

        def softmax(x: Tensor, m: Tensor, v: Tensor, low=low) -> Tensor:
            return low(x.masked_fill(~m, INFINITY)).softmax(-1).to(v) @ v

        def weights(x: Tensor, m: Tensor, v: Tensor, low=low) -> Tensor:
            return low(weigh(x, m)).to(v) @ v

        def scores(q: Tensor, k: Tensor, scale: float, low=low) -> Tensor:
            return low(q @ k.mT * scale).to(q)

        def product(q: Tensor, k: Tensor, scale: float, low=low) -> Tensor:
            return (low(q) @ low(k).mT).to(q) * scale

        def rounded(q: Tensor, k: Tensor, scale: float, low=low) -> Tensor:
            return low(q).to(q) @ low(k).to(k).mT * scale

        yield bugs.but(name, f"the softmax is computed in {short}", core=softmax)
        yield bugs.but(name, f"weights are rounded to {short}", core=weights)
        yield bugs.but(name, f"scores are rounded to {short}", scores=scores)
        yield bugs.but(name, f"q·k is computed in {short}", scores=product)
        yield bugs.but(name, f"queries and keys are rounded to {short}", scores=rounded)
