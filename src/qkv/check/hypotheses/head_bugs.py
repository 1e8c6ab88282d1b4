"""Bugs of what goes in and how it is arranged: swapped inputs, heads that mix, rows of the batch that mix.

Axes: b batch · h heads · t tokens · d head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from qkv.check.hypotheses.formula import Formula, Observation, Role, average, repeat_heads, tile_heads, weigh
from qkv.check.hypotheses.hypothesis import Bugs, Hypothesis

Inputs = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def input_bugs(right: Formula, seen: Observation) -> Iterator[Hypothesis]:
    """Queries, keys and values that are used in place of each other, or moved along the tokens."""
    bugs, name = Bugs(right, seen), "inputs swapped"
    swaps: dict[str, Inputs] = {
        "keys are used in place of values": lambda q, k, v: (q, k, k),
        "values are used in place of keys": lambda q, k, v: (q, v, v),
        "keys and values are swapped": lambda q, k, v: (q, v, k),
    }
    if seen.q.shape == seen.k.shape:
        swaps |= {
            "queries and keys are swapped": lambda q, k, v: (k, q, v),
            "queries are used in place of keys": lambda q, k, v: (q, q, v),
            "keys are used in place of queries": lambda q, k, v: (k, k, v),
            "queries are used in place of values": lambda q, k, v: (q, k, q),
            "values are used in place of queries": lambda q, k, v: (v, k, v),
            "queries and values are swapped": lambda q, k, v: (v, k, q),
        }
    for words, swap in swaps.items():
        yield bugs.but(name, words, inputs=_after(right, swap))
    for step in (1, -1):
        merged = lambda x, step=step: right.merge(x.roll(step, 2))  # noqa: E731
        yield bugs.but("truncated", "outputs are shifted by one position", merge=merged)
        for what, moved in (("values", lambda q, k, v, s=step: (q, k, v.roll(s, 2))),
                            ("keys", lambda q, k, v, s=step: (q, k.roll(s, 2), v))):  # fmt: skip
            yield bugs.but("truncated", f"{what} are shifted by one position", inputs=_after(right, moved))


def _after(right: Formula, change: Inputs) -> Inputs:
    """A change of the inputs after what the design does to them."""
    return lambda q, k, v: change(*right.inputs(q, k, v))


def head_bugs(right: Formula, seen: Observation) -> Iterator[Hypothesis]:
    """Heads that are shared, split or merged wrongly."""
    heads, groups = seen.sizes.heads, seen.sizes.kv_heads
    if groups < heads:
        yield from _sharing_bugs(right, seen)
    if heads > 1:
        yield from _splitting_bugs(right, seen)
        yield from _mixing_bugs(right, seen)


def _sharing_bugs(right: Formula, seen: Observation) -> Iterator[Hypothesis]:
    bugs, layout = Bugs(right, seen), "head layout"
    other = repeat_heads if right.share is tile_heads else tile_heads
    words = "tiled (0 1 0 1)" if other is tile_heads else "repeated (0 0 1 1)"
    yield bugs.but(layout, f"key heads are {words} over the query heads", share=other)
    for role, name in (("k", "keys"), ("v", "values")):
        words = f"{name} are shared over the heads in another order than the {'values' if role == 'k' else 'keys'}"
        share = lambda x, h, r, role=role: (other if r == role else right.share)(x, h, r)  # noqa: E731
        yield bugs.but(layout, words, share=share)
    first = "every query head uses the first key head"
    yield bugs.but(layout, first, share=lambda x, h, r: x[:, :1].expand(-1, h, -1, -1))
    flipped = "key heads are in reverse order over the query heads"
    yield bugs.but(layout, flipped, share=lambda x, h, r: right.share(x, h, r).flip(1))


def _splitting_bugs(right: Formula, seen: Observation) -> Iterator[Hypothesis]:
    """Wrong splits of some of q, k and v, and wrong merges."""
    bugs, mixed = Bugs(right, seen), "heads mixed"

    def view_only(x: Tensor, h: int) -> Tensor:
        return x.reshape(x.shape[0], h, x.shape[1], -1)

    def strided(x: Tensor, h: int) -> Tensor:
        return x.unflatten(-1, (-1, h)).permute(0, 3, 1, 2)

    names = {"q": "queries", "k": "keys", "v": "values"}
    for roles in ("qkv", "q", "k", "v", "qk", "kv", "qv"):
        what = ", ".join(names[role] for role in roles)
        what = " and ".join(what.rsplit(", ", 1))
        for split, words in (
            (view_only, "are split into heads by a view without the transpose: tokens and heads mix"),
            (strided, "have heads of every h-th feature instead of runs of features"),
        ):
            chosen = partial(_split_some, split=split, usual=right.split, roles=roles)
            yield bugs.but(mixed, f"{what} {words}", split=chosen)
    for words, merge in {
        "heads are merged without the transpose back": lambda x: x.reshape(x.shape[0], x.shape[2], -1),
        "heads are merged with the axes of heads and features swapped": lambda x: x.permute(0, 2, 3, 1).flatten(2),
        "the last head repeats the first": lambda x: right.merge(torch.cat((x[:, :-1], x[:, :1]), 1)),
        "heads are merged in reverse order": lambda x: right.merge(x.flip(1)),
    }.items():
        yield bugs.but(mixed, words, merge=merge)


def _split_some(x: Tensor, heads: int, role: Role, split: Callable, usual: Callable, roles: str) -> Tensor:
    return split(x, heads) if role in roles else usual(x, heads, role)


def _mixing_bugs(right: Formula, seen: Observation) -> Iterator[Hypothesis]:
    bugs, mixed = Bugs(right, seen), "heads mixed"
    averaged = "weights are averaged over the heads before they meet the values"
    yield bugs.but(mixed, averaged, core=lambda x, m, v: weigh(x, m).mean(1, keepdim=True) @ v)
    summed = "scores are summed over the heads"
    yield bugs.but(mixed, summed, core=lambda x, m, v: average(x.sum(1, keepdim=True).expand_as(x), m, v))
    meaned = "scores are averaged over the heads"
    yield bugs.but(mixed, meaned, core=lambda x, m, v: average(x.mean(1, keepdim=True).expand_as(x), m, v))
    first = "all heads use the weights of the first"
    yield bugs.but(mixed, first, core=lambda x, m, v: weigh(x, m)[:, :1] @ v)
    for words, reduce in (("summed", torch.sum), ("averaged", torch.mean)):
        core = lambda x, m, v, reduce=reduce: reduce(average(x, m, v), 1, keepdim=True).expand_as(  # noqa: E731
            average(x, m, v)
        )
        yield bugs.but(mixed, f"heads are {words}, not concatenated", core=core)
    for step in (1, -1):
        words = "every head uses the keys and values of its neighbor"
        yield bugs.but(mixed, words, inputs=_after(right, lambda q, k, v, s=step: (q, k.roll(s, 1), v.roll(s, 1))))
        words = "every head uses the values of its neighbor"
        yield bugs.but(mixed, words, inputs=_after(right, lambda q, k, v, s=step: (q, k, v.roll(s, 1))))


def batch_bugs(right: Formula, seen: Observation) -> Iterator[Hypothesis]:
    """Rows of the batch that get something of other rows."""
    if seen.sizes.batch < 2:
        return
    bugs, name = Bugs(right, seen), "batch mixed"
    names = {"qkv": "queries, keys and values", "kv": "keys and values", "k": "keys", "v": "values", "q": "queries"}

    def first(x: Tensor) -> Tensor:
        return x[:1].expand_as(x)

    def mean(x: Tensor) -> Tensor:
        return x.mean(0, keepdim=True).expand_as(x)

    for parts in ("kv", "k", "v", "q"):
        what = names[parts]
        yield bugs.but(name, f"all rows use the {what} of the first row", inputs=_of_some(right, parts, first))
        yield bugs.but(name, f"{what} are averaged over the batch", inputs=_of_some(right, parts, mean))
        centered = _of_some(right, parts, lambda x: x - mean(x))
        yield bugs.but(name, f"the mean over the batch is subtracted from {what}", inputs=centered)
    yield bugs.but(name, "all rows use the weights of the first row", core=lambda x, m, v: first(weigh(x, m)) @ v)
    yield bugs.but(name, "weights are averaged over the batch", core=lambda x, m, v: mean(weigh(x, m)) @ v)

    def other(x: Tensor) -> Tensor:
        return x.flatten(0, 1).unflatten(0, (x.shape[1], x.shape[0])).transpose(0, 1)

    def back(x: Tensor) -> Tensor:
        return x.transpose(0, 1).flatten(0, 1).unflatten(0, x.shape[:2])

    words = "rows of the batch and heads are packed in one order and unpacked in the other"
    for order in (other, back):
        yield bugs.but(name, words, merge=lambda x, order=order: right.merge(order(x)))
        for parts in ("kv", "k", "v", "q"):
            mixed = f"rows and heads of {names[parts]} are in another order than the others: rows of the batch mix"
            yield bugs.but(name, mixed, inputs=_of_some(right, parts, order))
    for step in (1, -1):
        rolled = _of_some(right, "kv", lambda x, s=step: x.roll(s, 0))
        yield bugs.but(name, "a row uses the keys and values of another row", inputs=rolled)


def _of_some(right: Formula, parts: str, change: Callable[[Tensor], Tensor]) -> Inputs:
    """Inputs of which some of q, k and v are changed."""

    def inputs(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = right.inputs(q, k, v)
        q, k, v = (change(x) if role in parts else x for role, x in (("q", q), ("k", k), ("v", v)))
        return q, k, v

    return inputs
