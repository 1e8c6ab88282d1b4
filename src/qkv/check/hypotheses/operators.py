"""The operators of the known bugs: each changes one step of a formula. The simple and common ones come first.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.check.hypotheses.formula import (
    Design,
    Formula,
    Observation,
    Sizes,
    average,
    causal_mask,
    full_mask,
    head_scale,
    repeat_heads,
    tile_heads,
    weigh,
)

FILLS = (1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 9.0, 10.0, 20.0, 30.0, 50.0, 100.0)
TILES = tuple((rows, columns) for rows in (8, 16, 32, 64, 128) for columns in (4, 8, 16, 32, 64) if columns < rows)
BLOCKS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 100, 128, 256)


@dataclass(frozen=True)
class Hypothesis:
    """A bug family, what is wrong in words, and the formula that has this bug."""

    family: str
    words: str
    formula: Formula


def hypotheses(
    design: Design, seen: Observation, *, blocks: bool = True, sizes: Sequence[int] = BLOCKS
) -> Iterator[Hypothesis]:
    """Every known bug of a design that has its own formula; blocks: also those of blocks of these sizes."""
    right = design.formula
    if design.causal:
        yield from _mask_bugs(right, design, seen, sizes)
    yield from _scale_bugs(right, seen)
    yield from _softmax_bugs(right)
    yield from _input_bugs(right, seen)
    yield from _head_bugs(right, seen)
    yield from _score_bugs(right)
    if seen.tokens is not None:
        yield from _padding_bugs(right, seen)
    yield from _batch_bugs(right, seen)
    yield from _precision_bugs(right)
    if blocks:
        yield from _block_bugs(right, design, seen, sizes)
    yield from _edge_bugs(right, design)


# -- masks -------------------------------------------------------------------------------------------------------------


def _shifted(sizes: Sizes, by: int) -> Tensor:
    return torch.ones(sizes.queries, sizes.keys, dtype=torch.bool).tril(sizes.offset + by)


def _mask_bugs(right: Formula, design: Design, seen: Observation, sizes: Sequence[int]) -> Iterator[Hypothesis]:
    """Wrong causal masks."""
    yield Hypothesis("no mask", "there is no causal mask on this path", right.but(mask=full_mask))
    if design.window is not None:
        for wrong in (design.window + 1, design.window - 1, 2 * design.window, None):
            past = "the whole past" if wrong is None else f"a window of {wrong}"
            words = f"queries see {past}, required: {design.window}"
            if wrong is None or wrong > 0:
                yield Hypothesis("window", words, right.but(mask=partial(causal_mask, window=wrong)))
    one = "mask off by one"
    yield Hypothesis(one, "a query does not see itself", right.but(mask=lambda s: _shifted(s, -1)))
    others = lambda s: _shifted(s, -1) | (torch.arange(s.keys) == 0)  # noqa: E731
    yield Hypothesis(one, "a query does not see itself", right.but(mask=others))
    last = lambda s: right.mask(s) & ~_last_own(s)  # noqa: E731
    yield Hypothesis(one, "the last query does not see its own key", right.but(mask=last))
    yield Hypothesis(one, "a query sees one key ahead", right.but(mask=lambda s: _shifted(s, 1)))
    yield Hypothesis(
        "mask transposed", "the mask is transposed", right.but(mask=lambda s: _shifted(s, -1).logical_not())
    )
    top_left = "with more keys than queries the mask is aligned at the start (top-left)"
    if seen.sizes.offset:
        yield Hypothesis("alignment", top_left, right.but(mask=lambda s: full_mask(s).tril()))
    yield Hypothesis(
        "mask after softmax",
        "the mask is applied after the softmax, so rows sum to less than 1",
        right.but(core=lambda scores, mask, v: scores.softmax(-1).masked_fill(~mask, 0.0) @ v),
    )
    soft = "mask not −∞"
    if design.cap is not None:
        words = f"the soft cap is applied after the mask: masked scores are −{design.cap:g}, not −∞"
        yield Hypothesis(soft, words, right.but(core=partial(_filled, value=-design.cap)))
    for number in FILLS:
        for value in (-number, number):
            yield Hypothesis(
                soft,
                f"masked scores are not −∞ but {f'{value:g}'.replace('-', '−')}",
                right.but(core=partial(_filled, value=value)),
            )
        yield Hypothesis(
            soft, f"masked scores are not −∞ but lower by {number:g}", right.but(core=partial(_lowered, by=number))
        )
    yield Hypothesis(
        soft,
        "masked scores are multiplied by 0, which is a score like any other",
        right.but(core=lambda scores, mask, v: (scores * mask).softmax(-1) @ v),
    )
    smallest = "masked scores are filled with the smallest positive number, not with −∞"
    yield Hypothesis(soft, smallest, right.but(core=partial(_filled, value=1e-9)))
    for heads in ("first", "last"):
        words = f"the mask reaches the {heads} head only"
        yield Hypothesis("leak", words, right.but(core=partial(_one_head_masked, last=heads == "last")))
    for size in sizes:
        words = f"the mask is cut into blocks of {size}: within a block, future tokens are visible"
        yield Hypothesis("leak", words, right.but(mask=partial(_block_mask, size=size)))
    for size in sizes:
        words = f"queries see a window of {size} keys, although the contract has no window"
        if design.window is None:
            yield Hypothesis("window", words, right.but(mask=partial(causal_mask, window=size)))
    for size in sizes:
        words = f"the mask is built for {size} tokens: later queries are not masked"
        yield Hypothesis("leak", words, right.but(mask=partial(_short_mask, size=size)))
        words = f"the mask is built for {size} tokens and enlarged by ones: beyond them everything is visible"
        yield Hypothesis("leak", words, right.but(mask=partial(_enlarged_mask, size=size)))
        words = f"each block of {size} keys is masked by its own positions, not by those of the sequence"
        yield Hypothesis("leak", words, right.but(mask=partial(_local_mask, size=size)))
        words = f"each block of {size} queries is masked as if it were the first: the block's offset is missing"
        yield Hypothesis("block", words, right.but(mask=partial(_restarted_mask, size=size)))
        words = f"each block of {size} queries is masked as if it were the last: future tokens are visible"
        yield Hypothesis("leak", words, right.but(mask=partial(_ended_mask, size=size)))
        words = f"the block of {size} keys after the one on the diagonal is visible"
        yield Hypothesis("leak", words, right.but(mask=partial(_next_block_mask, size=size)))
    for rows, columns in TILES:
        for which in ("first", "last"):
            words = (
                f"of the key blocks ({columns}) on the diagonal of a query block ({rows}), only the {which} is masked"
            )
            mask = partial(_tile_mask, rows=rows, columns=columns, first=which == "first")
            yield Hypothesis("leak", words, right.but(mask=mask))
    for rows, columns in (*TILES, *((size, size) for size in (8, 16, 32, 64, 128)), *((c, r) for r, c in TILES)):
        for words, mask in {
            "that begin after the first query of a query block": _late_tiles_skipped,
            "that end after the first query of a query block": _open_tiles_skipped,
        }.items():
            words = f"key blocks ({columns}) {words} ({rows}) are skipped, although its later queries see them"
            yield Hypothesis("block", words, right.but(mask=partial(mask, rows=rows, columns=columns)))


def _last_own(sizes: Sizes) -> Tensor:
    """The last query and the last key."""
    place = torch.zeros(sizes.queries, sizes.keys, dtype=torch.bool)
    place[-1, -1] = sizes.keys > 1
    return place


def _filled(scores: Tensor, mask: Tensor, v: Tensor, value: float) -> Tensor:
    return scores.masked_fill(~mask, value).softmax(-1) @ v


def _lowered(scores: Tensor, mask: Tensor, v: Tensor, by: float) -> Tensor:
    return (scores - by * (~mask).to(scores)).softmax(-1) @ v


def _one_head_masked(scores: Tensor, mask: Tensor, v: Tensor, last: bool) -> Tensor:
    head = torch.arange(scores.shape[1]) == (scores.shape[1] - 1 if last else 0)
    return average(scores, mask | ~head[:, None, None], v)


def _positions(sizes: Sizes) -> tuple[Tensor, Tensor]:
    return torch.arange(sizes.queries)[:, None] + sizes.offset, torch.arange(sizes.keys)[None]


def _block_mask(sizes: Sizes, size: int) -> Tensor:
    i, j = _positions(sizes)
    return j // size <= i // size


def _short_mask(sizes: Sizes, size: int) -> Tensor:
    i, j = _positions(sizes)
    return (j <= i) | (i >= size)


def _local_mask(sizes: Sizes, size: int) -> Tensor:
    i, j = _positions(sizes)
    return (j // size <= i // size) & (j % size <= i % size)


def _enlarged_mask(sizes: Sizes, size: int) -> Tensor:
    i, j = _positions(sizes)
    return (j <= i) | (i >= size) | (j >= size)


def _restarted_mask(sizes: Sizes, size: int) -> Tensor:
    i, j = _positions(sizes)
    return j <= (i - sizes.offset) % size + sizes.offset


def _ended_mask(sizes: Sizes, size: int) -> Tensor:
    i, j = _positions(sizes)
    row = i - sizes.offset
    count = torch.minimum(torch.tensor(size), sizes.queries - row // size * size)  # queries in this block
    return j <= row % size + sizes.keys - count


def _next_block_mask(sizes: Sizes, size: int) -> Tensor:
    i, j = _positions(sizes)
    return (j <= i) | (j // size == i // size + 1)


def _tile_mask(sizes: Sizes, rows: int, columns: int, first: bool) -> Tensor:
    """Key blocks up to the end of the query block are read; of those that reach beyond it, one is masked."""
    i, j = _positions(sizes)
    start, end = i // rows * rows, torch.minimum(i // rows * rows + rows, torch.tensor(sizes.keys))
    masked = start // columns if first else (end - 1) // columns
    return (j < end) & ((j <= i) | (j // columns != masked))


def _late_tiles_skipped(sizes: Sizes, rows: int, columns: int) -> Tensor:
    i, j = _positions(sizes)
    return (j <= i) & (j // columns * columns <= (i - sizes.offset) // rows * rows + sizes.offset)


def _open_tiles_skipped(sizes: Sizes, rows: int, columns: int) -> Tensor:
    i, j = _positions(sizes)
    return (j <= i) & (j // columns * columns + columns - 1 <= (i - sizes.offset) // rows * rows + sizes.offset)


# -- scale and scores --------------------------------------------------------------------------------------------------


def _scale_bugs(right: Formula, seen: Observation) -> Iterator[Hypothesis]:
    scales = {
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
        "1 / (√d · log 2): log₂ e is multiplied although powers of e are taken": lambda s: (
            s.head_dim**-0.5 / math.log(2)
        ),
        "d^-¼: the scale is applied to one of q and k only": lambda s: s.head_dim**-0.25,
    }
    names: dict[float, list[str]] = {}
    for words, scale in scales.items():
        if not words.startswith(("1/√(number of", "1/√(batch")) or "heads" in words:  # those vary from call to call
            names.setdefault(round(scale(seen.sizes), 12), []).append(words)
    for words, scale in scales.items():
        same = names.get(round(scale(seen.sizes), 12), [])  # at these sizes two may be one number
        yield Hypothesis("scale", f"the scale is {', or '.join(dict.fromkeys((words, *same)))}", right.but(scale=scale))
    measured = measure_scale(seen, right)
    if measured is not None and abs(measured / head_scale(seen.sizes) - 1) > 1e-4:
        words = f"the scale is {measured:.4g}, 1/√d is {head_scale(seen.sizes):.4g}"
        yield Hypothesis("scale", words, right.but(scale=lambda s: measured))


def measure_scale(seen: Observation, right: Formula) -> float | None:
    """The scale, solved from queries that see exactly two keys."""
    kept: dict[str, Tensor] = {}

    def remember(scores: Tensor, mask: Tensor, v: Tensor) -> Tensor:
        kept.update(scores=scores, mask=mask.expand_as(scores), v=v)
        return average(scores, mask, v)

    right.but(core=remember, scale=lambda s: 1.0)(seen)
    rows = (kept["mask"].sum(-1) == 2).nonzero()
    found = []
    heads = seen.out.unflatten(-1, (kept["scores"].shape[1], -1)).transpose(1, 2)
    for b, h, i in rows[:16].tolist():
        one, other = kept["mask"][b, h, i].nonzero()[:, 0].tolist()
        towards = kept["v"][b, h, other] - kept["v"][b, h, one]
        weight = float((heads[b, h, i] - kept["v"][b, h, one]) @ towards / (towards @ towards))
        gap = float(kept["scores"][b, h, i, other] - kept["scores"][b, h, i, one])
        if not 1e-6 < weight < 1 - 1e-6 or abs(gap) < 1e-3:
            continue
        found.append(math.log(weight / (1 - weight)) / gap)
    if len(found) < 3:
        return None
    middle = sorted(found)[len(found) // 2]
    return middle if middle and max(abs(scale / middle - 1) for scale in found) < 1e-5 else None


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


def _score_bugs(right: Formula) -> Iterator[Hypothesis]:
    name = "scores changed"

    def changed(words: str, change) -> Hypothesis:
        return Hypothesis(name, words, right.but(scores=lambda q, k, scale: change(q @ k.mT * scale)))

    yield changed("weights are all equal: the scores are not used", lambda x: 0 * x)
    unit = right.but(scores=lambda q, k, scale: scale * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT)
    yield Hypothesis(name, "queries and keys are normalized to length 1 first", unit)
    for bound in (1.0, 2.0, 5.0, 10.0):
        yield changed(f"scores are clipped at ±{bound:g}", partial(torch.clamp, min=-bound, max=bound))
    for cap in (1.0, 5.0, 10.0, 20.0, 30.0, 50.0):
        yield changed(f"scores are capped by {cap:g}·tanh(·/{cap:g})", lambda x, cap=cap: cap * (x / cap).tanh())
    yield changed("scores have the wrong sign", lambda x: -x)
    yield changed("the absolute value of the scores is taken", torch.abs)
    yield changed("a ReLU is applied to the scores before the softmax", torch.relu)


# -- softmax -----------------------------------------------------------------------------------------------------------


def _softmax_bugs(right: Formula) -> Iterator[Hypothesis]:
    """A softmax over another axis, or something else in its place."""
    axis, replaced = "softmax axis", "softmax replaced"
    infinity = float("-inf")

    def zero(weights: Tensor, mask: Tensor) -> Tensor:
        return weights.masked_fill(~mask, 0.0)

    def hidden(scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(~mask, infinity)

    def best(scores: Tensor, mask: Tensor, v: Tensor) -> Tensor:
        return F.one_hot(hidden(scores, mask).argmax(-1), scores.shape[-1]).to(v) @ v

    cores = [
        (axis, "the softmax is over the queries", lambda x, m, v: hidden(x, m).softmax(-2).nan_to_num() @ v),
        (axis, "the softmax is over the queries", lambda x, m, v: zero(x.softmax(-2), m) @ v),
        (
            axis,
            "the softmax is over queries and keys together",
            lambda x, m, v: hidden(x, m).flatten(-2).softmax(-1).view_as(x) @ v,
        ),
        (axis, "the softmax is over the heads", lambda x, m, v: zero(x.softmax(1), m) @ v),
        (axis, "the softmax is over the heads", lambda x, m, v: hidden(x, m).softmax(1).nan_to_num() @ v),
        (axis, "the softmax is over the batch", lambda x, m, v: zero(x.softmax(0), m) @ v),
        (replaced, "each weight is a sigmoid", lambda x, m, v: zero(x.sigmoid(), m) @ v),
        (
            replaced,
            "weights are exponentials that are never divided by their sum",
            lambda x, m, v: zero(x.exp(), m) @ v,
        ),
        (
            replaced,
            "weights are exponentials that are never divided by their sum",
            lambda x, m, v: zero((x - hidden(x, m).amax(-1, keepdim=True)).exp(), m) @ v,
        ),
        (
            replaced,
            "weights are exponentials that are never divided by their sum",
            lambda x, m, v: zero((x - x.amax(-1, keepdim=True)).exp(), m) @ v,
        ),
        (replaced, "each weight is a ReLU", lambda x, m, v: zero(x.relu(), m) @ v),
        (replaced, "each weight is a squared ReLU", lambda x, m, v: zero(x.relu() ** 2, m) @ v),
        (replaced, "the softmax is missing: the scores multiply the values", lambda x, m, v: zero(x, m) @ v),
        (replaced, "only the best key counts (hard attention)", best),
        (
            replaced,
            "the softmax is applied twice",
            lambda x, m, v: hidden(weigh(x, m), m).softmax(-1).nan_to_num() @ v,
        ),
        (
            replaced,
            "1 is added to the sum of the exponentials (softmax plus one)",
            lambda x, m, v: (hidden(x, m).exp() / (1 + hidden(x, m).exp().sum(-1, keepdim=True))) @ v,
        ),
        (
            replaced,
            "weights are divided by their number, not by their sum",
            lambda x, m, v: zero(x.exp(), m) / m.sum(-1, keepdim=True) @ v,
        ),
    ]
    for family, words, core in cores:
        yield Hypothesis(family, words, right.but(core=core))


# -- inputs and heads --------------------------------------------------------------------------------------------------


def _input_bugs(right: Formula, seen: Observation) -> Iterator[Hypothesis]:
    name = "inputs swapped"
    yield Hypothesis(name, "keys are used in place of values", right.but(inputs=lambda q, k, v: (q, k, k)))
    yield Hypothesis(name, "values are used in place of keys", right.but(inputs=lambda q, k, v: (q, v, v)))
    yield Hypothesis(name, "keys and values are swapped", right.but(inputs=lambda q, k, v: (q, v, k)))
    if seen.q.shape == seen.k.shape:
        yield Hypothesis(name, "queries and keys are swapped", right.but(inputs=lambda q, k, v: (k, q, v)))
        yield Hypothesis(name, "queries are used in place of keys", right.but(inputs=lambda q, k, v: (q, q, v)))
        yield Hypothesis(name, "keys are used in place of queries", right.but(inputs=lambda q, k, v: (k, k, v)))
        yield Hypothesis(name, "queries are used in place of values", right.but(inputs=lambda q, k, v: (q, k, q)))


def _head_bugs(right: Formula, seen: Observation) -> Iterator[Hypothesis]:
    mixed, layout = "heads mixed", "head layout"
    heads, groups = seen.sizes.heads, seen.sizes.kv_heads

    def view_only(x: Tensor, h: int) -> Tensor:
        return x.reshape(x.shape[0], h, x.shape[1], -1)

    def merge_only(x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[2], -1)

    if groups < heads:
        other = repeat_heads if right.share is tile_heads else tile_heads
        words = "tiled (0 1 0 1)" if other is tile_heads else "repeated (0 0 1 1)"
        yield Hypothesis(layout, f"key heads are {words} over the query heads", right.but(share=other))
        for role, name in (("k", "keys"), ("v", "values")):
            words = f"{name} are shared over the heads in another order than the {'values' if role == 'k' else 'keys'}"
            share = partial(_share_one, share=right.share, other=other, role=role)
            yield Hypothesis(layout, words, right.but(share=lambda x, h, r, share=share: share(x, h, r)))
        first = "every query head uses the first key head"
        yield Hypothesis(layout, first, right.but(share=lambda x, h, r: x[:, :1].expand(-1, h, -1, -1)))
    if heads > 1:
        name = "split into heads by a view without the transpose: tokens and heads mix"
        yield Hypothesis(mixed, f"queries, keys and values are {name}", right.but(split=view_only))
        yield Hypothesis(mixed, "heads are merged without the transpose back", right.but(merge=merge_only))
        averaged = "weights are averaged over the heads before they meet the values"
        mean = lambda x, m, v: weigh(x, m).mean(1, keepdim=True) @ v  # noqa: E731
        yield Hypothesis(mixed, averaged, right.but(core=mean))
        for words, reduce in (("summed", torch.sum), ("averaged", torch.mean)):
            core = lambda x, m, v, reduce=reduce: reduce(average(x, m, v), 1, keepdim=True).expand(  # noqa: E731
                -1, x.shape[1], -1, -1
            )
            yield Hypothesis(mixed, f"heads are {words}, not concatenated", right.but(core=core))
        for step in (1, -1):
            words = "every head uses the keys and values of its neighbor"
            yield Hypothesis(mixed, words, right.but(inputs=lambda q, k, v, s=step: (q, k.roll(s, 1), v.roll(s, 1))))
            words = "every head uses the values of its neighbor"
            yield Hypothesis(mixed, words, right.but(inputs=lambda q, k, v, s=step: (q, k, v.roll(s, 1))))
        strided = lambda x, h: x.unflatten(-1, (-1, h)).permute(0, 3, 1, 2)  # noqa: E731
        yield Hypothesis(
            mixed, "a head takes every h-th feature instead of a run of features", right.but(split=strided)
        )
        last = lambda x: x.permute(0, 2, 3, 1).flatten(2)  # noqa: E731
        yield Hypothesis(mixed, "heads are merged with the axes of heads and features swapped", right.but(merge=last))
        words = "the last head repeats the first"
        yield Hypothesis(
            mixed, words, right.but(merge=lambda x: torch.cat((x[:, :-1], x[:, :1]), 1).transpose(1, 2).flatten(2))
        )


def _share_one(x: Tensor, heads: int, got: str, share, other, role: str) -> Tensor:
    return (other if got == role else share)(x, heads, got)


# -- padding and the batch ---------------------------------------------------------------------------------------------


def _padding_bugs(right: Formula, seen: Observation) -> Iterator[Hypothesis]:
    masks = {
        "the padding mask never reaches the scores": lambda x: torch.ones_like(x)[:, None, None],
        "the padding mask is inverted: real tokens are hidden": lambda x: ~x[:, None, None],
        "the padding mask hides queries instead of keys: it is on the wrong axis": lambda x: x[:, None, :, None],
        "the padding of one row is used for another": lambda x: x.flip(0)[:, None, None],
        "a key is hidden only if it is padding in every row": lambda x: x.any(0, keepdim=True)[:, None, None],
        "a key is hidden in all rows if it is padding in one": lambda x: x.all(0, keepdim=True)[:, None, None],
        "the padding mask of the first row is used for all rows": lambda x: x[:1, None, None],
        "the padding mask is off by one: it hides the last real token": lambda x: (x & x.roll(-1, 1))[:, None, None],
        "the padding mask is off by one: the first padded token is visible": lambda x: (x | x.roll(1, 1))[
            :, None, None
        ],
        "padding is taken to be on the right: real tokens are counted from the start": lambda x: (
            torch.arange(x.shape[1]) < x.sum(1, keepdim=True)
        )[:, None, None],
    }
    heads = seen.sizes.heads
    words = "the padding mask is repeated over heads and rows in another order than the scores: rows get each other's"
    for order in (False, True):
        yield Hypothesis("padding", words, right.but(padding=partial(_tiled_padding, heads=heads, by_row=order)))
    for words, mask in masks.items():
        yield Hypothesis("padding", words, right.but(padding=mask))
    for number in FILLS:
        soft = f"padded scores are not −∞ but lower by {number:g}"
        yield Hypothesis("padding", soft, right.but(padded_core=partial(_soft_padding, by=number)))
        filled = f"padded scores are filled with {f'{-number:g}'.replace('-', '−')}, not with −∞"
        yield Hypothesis("padding", filled, right.but(padded_core=partial(_filled_padding, value=-number)))
    queries = "the padding mask hides queries instead of keys: it is on the wrong axis"
    yield Hypothesis("padding", queries, right.but(padded_core=_padded_queries))
    zero = "padded scores are filled with 0, not with −∞"
    yield Hypothesis("padding", zero, right.but(padded_core=partial(_filled_padding, value=0.0)))
    late = "padding is masked after the softmax, so the weights of real tokens sum to less than 1"
    yield Hypothesis("mask after softmax", late, right.but(padded_core=_late_padding))
    values = "padded values are set to zero, but their scores stay in the softmax"
    yield Hypothesis("padding", values, right.but(padded_core=_zero_values))


def _tiled_padding(tokens: Tensor, heads: int, by_row: bool) -> Tensor:
    """(b, h, 1, s): the mask repeated for each head in the wrong order of rows and heads."""
    if by_row:
        return tokens.repeat_interleave(heads, 0).view(heads, len(tokens), 1, -1).transpose(0, 1)
    return tokens.repeat(heads, 1).view(len(tokens), heads, 1, -1)


def _late_padding(scores: Tensor, mask: Tensor, v: Tensor, tokens: Tensor) -> Tensor:
    return weigh(scores, mask) * tokens[:, None, None] @ v


def _padded_queries(scores: Tensor, mask: Tensor, v: Tensor, tokens: Tensor) -> Tensor:
    """Padded queries have equal scores for all keys, which a large negative number leaves of them."""
    return average(scores.masked_fill(~tokens[:, None, :, None], 0.0), mask, v)


def _zero_values(scores: Tensor, mask: Tensor, v: Tensor, tokens: Tensor) -> Tensor:
    return average(scores, mask, v * tokens[:, None, :, None])


def _soft_padding(scores: Tensor, mask: Tensor, v: Tensor, tokens: Tensor, by: float) -> Tensor:
    return average(scores - by * (~tokens)[:, None, None].to(scores), mask, v)


def _filled_padding(scores: Tensor, mask: Tensor, v: Tensor, tokens: Tensor, value: float) -> Tensor:
    return average(scores.masked_fill(~tokens[:, None, None], value), mask, v)


def _batch_bugs(right: Formula, seen: Observation) -> Iterator[Hypothesis]:
    if seen.sizes.batch < 2:
        return
    name = "batch mixed"

    def first(x: Tensor) -> Tensor:
        return x[:1].expand_as(x)

    yield Hypothesis(
        name,
        "all rows use the keys and values of the first row",
        right.but(inputs=lambda q, k, v: (q, first(k), first(v))),
    )
    yield Hypothesis(name, "all rows use the keys of the first row", right.but(inputs=lambda q, k, v: (q, first(k), v)))
    yield Hypothesis(
        name, "all rows use the values of the first row", right.but(inputs=lambda q, k, v: (q, k, first(v)))
    )
    weights = lambda x, m, v: first(weigh(x, m)) @ v  # noqa: E731
    yield Hypothesis(name, "all rows use the weights of the first row", right.but(core=weights))
    mean = lambda x, m, v: weigh(x, m).mean(0, keepdim=True) @ v  # noqa: E731
    yield Hypothesis(name, "weights are averaged over the batch", right.but(core=mean))
    other = lambda x: x.flatten(0, 1).unflatten(0, (x.shape[1], x.shape[0])).transpose(0, 1)  # noqa: E731
    words = "rows of the batch and heads are packed in one order and unpacked in the other"
    yield Hypothesis(name, words, right.but(merge=lambda x: right.merge(other(x))))
    back = lambda x: x.transpose(0, 1).flatten(0, 1).unflatten(0, x.shape[:2])  # noqa: E731
    yield Hypothesis(name, words, right.but(merge=lambda x: right.merge(back(x))))
    for order in (other, back):
        for what, parts in {"keys and values": "kv", "keys": "k", "values": "v", "queries": "q"}.items():
            words = f"rows and heads of {what} are in another order than those of the others: rows of the batch mix"
            inputs = partial(_reordered, order=order, parts=parts)
            yield Hypothesis(name, words, right.but(inputs=inputs))
    for step in (1, -1):
        words = "a row uses the keys and values of another row"
        yield Hypothesis(name, words, right.but(inputs=lambda q, k, v, s=step: (q, k.roll(s, 0), v.roll(s, 0))))


def _reordered(q: Tensor, k: Tensor, v: Tensor, order, parts: str) -> tuple[Tensor, ...]:
    """Some of q, k and v with rows of the batch and heads in another order."""
    return tuple(order(x) if name in parts else x for name, x in (("q", q), ("k", k), ("v", v)))


# -- precision ---------------------------------------------------------------------------------------------------------


def _precision_bugs(right: Formula) -> Iterator[Hypothesis]:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        name = str(dtype).removeprefix("torch.")

        def low(x: Tensor, dtype: torch.dtype = dtype) -> Tensor:
            return x.to(dtype)

        def softmax(x: Tensor, m: Tensor, v: Tensor, low=low) -> Tensor:
            return low(x.masked_fill(~m, float("-inf"))).softmax(-1).to(v) @ v

        def weights(x: Tensor, m: Tensor, v: Tensor, low=low) -> Tensor:
            return low(weigh(x, m)).to(v) @ v

        def scores(q: Tensor, k: Tensor, scale: float, low=low) -> Tensor:
            return low(q @ k.mT * scale).to(q)

        def product(q: Tensor, k: Tensor, scale: float, low=low) -> Tensor:
            return (low(q) @ low(k).mT).to(q) * scale

        def rounded(q: Tensor, k: Tensor, scale: float, low=low) -> Tensor:
            return low(q).to(q) @ low(k).to(k).mT * scale

        yield Hypothesis("low precision", f"the softmax is computed in {name}", right.but(core=softmax))
        yield Hypothesis("low precision", f"weights are rounded to {name}", right.but(core=weights))
        yield Hypothesis("low precision", f"scores are rounded to {name}", right.but(scores=scores))
        yield Hypothesis("low precision", f"q·k is computed in {name}", right.but(scores=product))
        yield Hypothesis("low precision", f"queries and keys are rounded to {name}", right.but(scores=rounded))


# -- blocks and edges --------------------------------------------------------------------------------------------------


def _block_bugs(right: Formula, design: Design, seen: Observation, sizes: Sequence[int]) -> Iterator[Hypothesis]:
    """Bugs of blockwise (flash-style) attention and of tables with a fixed size."""
    name = "block"
    for size in sizes:
        zeros = f"the zeros that fill the last block of {size} keys take part in the softmax"
        yield Hypothesis(name, zeros, right.but(core=partial(_zero_filled, size=size)))
        if size >= seen.sizes.keys and not (design.causal and seen.sizes.offset):
            continue
        for which, words in {
            "none": "earlier blocks are not rescaled when the running maximum grows",
            "sum": "the running output is not rescaled when the running maximum grows",
            "out": "the running sum is not rescaled when the running maximum grows",
            "inverse": "the running output and sum are rescaled by the inverse factor",
            "last": "the running sum is overwritten by that of the last block, not accumulated",
        }.items():
            core = partial(_online, size=size, rescale=which)
            yield Hypothesis(name, f"online softmax in blocks of {size}: {words}", right.but(core=core))
        by_maxima = f"blocks of {size} keys are combined by their maxima, not by their log-sum-exp"
        yield Hypothesis(name, by_maxima, right.but(core=partial(_combined_by_maxima, size=size)))
        mean = f"the softmax is taken in each block of {size} keys and the outputs are averaged"
        yield Hypothesis(name, mean, right.but(core=partial(_separate, size=size, average_blocks=True)))
        seen_only = f"the softmax is taken in each block of {size} keys and the outputs of visible blocks are averaged"
        yield Hypothesis(name, seen_only, right.but(core=partial(_separate_visible, size=size)))
        total = f"the softmax is taken in each block of {size} keys and the outputs are added"
        yield Hypothesis(name, total, right.but(core=partial(_separate, size=size, average_blocks=False)))
        last = f"the last, partial block of keys is dropped (blocks of {size})"
        yield Hypothesis(name, last, right.but(mask=partial(_dropped, right=right, size=size)))
        paged = f"keys and values are read across blocks of {size}, not block by block: two axes are swapped"
        swap = partial(_interleaved, size=size)
        yield Hypothesis("cache order", paged, right.but(inputs=lambda q, k, v, swap=swap: (q, swap(k), swap(v))))
        inside = f"queries see their own block of {size} keys only"
        yield Hypothesis(name, inside, right.but(mask=partial(_own_block, right=right, size=size)))
        early = f"keys after the first {size} are ignored"
        yield Hypothesis("truncated", early, right.but(mask=partial(_first_keys, right=right, size=size)))
        late = f"only the last {size} keys are used"
        yield Hypothesis("truncated", late, right.but(mask=partial(_last_keys, right=right, size=size)))
        if design.causal and seen.sizes.offset:
            ended = f"blocks of {size} keys are read up to the query's own number: the offset keys − queries is missing"
            yield Hypothesis("alignment", ended, right.but(mask=partial(_ended_early, right=right, size=size)))
        if design.causal:
            near = f"the block of {size} keys on the diagonal is skipped"
            yield Hypothesis(name, near, right.but(mask=partial(_skipped_diagonal, size=size)))


def _online(scores: Tensor, mask: Tensor, v: Tensor, size: int, rescale: str) -> Tensor:
    """Online softmax with a missing rescaling."""
    scores = scores.masked_fill(~mask, float("-inf"))
    largest = torch.full((*scores.shape[:-1], 1), float("-inf")).to(scores)
    total, out = torch.zeros_like(largest), 0.0
    for part, values in zip(scores.split(size, -1), v.split(size, -2), strict=True):
        new = torch.maximum(largest, part.amax(-1, keepdim=True))
        factor = (largest - new).exp().nan_to_num(1.0)
        powers = (part - new).exp().nan_to_num(0.0)
        if rescale == "inverse":
            factor = torch.where(factor > 0, 1 / factor.clamp(min=1e-300), factor)
        kept = 0.0 if rescale == "last" else factor if rescale in ("sum", "inverse") else 1.0
        total = total * kept + powers.sum(-1, keepdim=True)
        out = out * (factor if rescale in ("out", "inverse", "last") else 1.0) + powers @ values
        largest = new
    return out / total


def _separate(scores: Tensor, mask: Tensor, v: Tensor, size: int, average_blocks: bool) -> Tensor:
    mask = mask.expand_as(scores)
    parts = zip(scores.split(size, -1), mask.split(size, -1), v.split(size, -2), strict=True)
    out = sum(average(*part) for part in parts)
    assert isinstance(out, Tensor)
    return out / math.ceil(scores.shape[-1] / size) if average_blocks else out


def _separate_visible(scores: Tensor, mask: Tensor, v: Tensor, size: int) -> Tensor:
    """The mean of the outputs of the blocks of which a query sees something."""
    mask = mask.expand_as(scores)
    total = torch.zeros_like(scores[..., :1])
    for part in mask.split(size, -1):
        total = total + part.any(-1, keepdim=True)
    return _separate(scores, mask, v, size, average_blocks=False) / total.clamp(min=1)


def _combined_by_maxima(scores: Tensor, mask: Tensor, v: Tensor, size: int) -> Tensor:
    hidden = scores.masked_fill(~mask, float("-inf"))
    parts = zip(scores.split(size, -1), mask.expand_as(scores).split(size, -1), v.split(size, -2), strict=True)
    outputs = torch.stack([average(*part) for part in parts])
    maxima = torch.stack([part.amax(-1, keepdim=True) for part in hidden.split(size, -1)])
    return (maxima.softmax(0) * outputs).sum(0)


def _zero_filled(scores: Tensor, mask: Tensor, v: Tensor, size: int) -> Tensor:
    extra = -scores.shape[-1] % size
    return average(
        F.pad(scores, (0, extra)), F.pad(mask.expand_as(scores), (0, extra), value=True), F.pad(v, (0, 0, 0, extra))
    )


def _interleaved(x: Tensor, size: int) -> Tensor:
    """(b, h, s, d) in blocks along s, with the axes of blocks and of places in a block swapped."""
    blocks = F.pad(x, (0, 0, 0, -x.shape[2] % size)).unflatten(2, (-1, size))
    return blocks.transpose(2, 3).flatten(2, 3)[:, :, : x.shape[2]]


def _dropped(sizes: Sizes, right: Formula, size: int) -> Tensor:
    return right.mask(sizes) & (torch.arange(sizes.keys) < sizes.keys // size * size)


def _own_block(sizes: Sizes, right: Formula, size: int) -> Tensor:
    i, j = _positions(sizes)
    return right.mask(sizes) & (i // size == j // size)


def _ended_early(sizes: Sizes, right: Formula, size: int) -> Tensor:
    row = torch.arange(sizes.queries)[:, None]
    end = torch.minimum(row // size * size + size, torch.tensor(sizes.queries))
    return right.mask(sizes) & (torch.arange(sizes.keys) < end)


def _first_keys(sizes: Sizes, right: Formula, size: int) -> Tensor:
    return right.mask(sizes) & (torch.arange(sizes.keys) < size)


def _last_keys(sizes: Sizes, right: Formula, size: int) -> Tensor:
    return right.mask(sizes) & (torch.arange(sizes.keys) >= sizes.keys - size)


def _skipped_diagonal(sizes: Sizes, size: int) -> Tensor:
    i, j = _positions(sizes)
    return j // size < i // size


def _edge_bugs(right: Formula, design: Design) -> Iterator[Hypothesis]:
    """The first or last key or query is treated differently."""
    name = "truncated"

    def all_but(sizes: Sizes, key: int) -> Tensor:
        return right.mask(sizes) & (torch.arange(sizes.keys) != key % sizes.keys)

    yield Hypothesis(name, "the last key is never seen", right.but(mask=lambda s: all_but(s, -1)))
    yield Hypothesis(name, "the first key is never seen", right.but(mask=lambda s: all_but(s, 0)))
    if design.causal:

        def unmasked(sizes: Sizes, query: int) -> Tensor:
            return right.mask(sizes) | (torch.arange(sizes.queries) == query % sizes.queries)[:, None]

        words = "the first query sees every key"
        yield Hypothesis("leak", words, right.but(mask=lambda s: unmasked(s, 0)))
    yield Hypothesis(name, "outputs are shifted by one position", right.but(merge=lambda x: _merge(x.roll(1, 2))))
    yield Hypothesis(name, "outputs are shifted by one position", right.but(merge=lambda x: _merge(x.roll(-1, 2))))
    yield Hypothesis(name, "values are shifted by one position", right.but(inputs=lambda q, k, v: (q, k, v.roll(1, 2))))
    yield Hypothesis(
        name, "values are shifted by one position", right.but(inputs=lambda q, k, v: (q, k, v.roll(-1, 2)))
    )


def _merge(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)
