"""Bugs of a mask that is passed: padding, or pairs of tokens that differ between rows of the batch.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from qkv.check.hypotheses.formula import Formula, Observation, average, weigh
from qkv.check.hypotheses.hypothesis import Bugs, Hypothesis
from qkv.check.hypotheses.score_bugs import POSITIVE, SIGNED


def given_bugs(right: Formula, seen: Observation) -> Iterator[Hypothesis]:
    """Wrong uses of a mask (b, t, s) that is passed: of padding, or of pairs of tokens."""
    heads, pads = seen.sizes.heads, seen.tokens is not None

    bugs = Bugs(right, seen)

    def named(words: str, family: str) -> tuple[str, str]:
        """A mask of padding has a family of its own."""
        return ("padding", words) if pads else (family, words.replace("padding mask", "mask"))

    rows, off = "mask of rows", "mask off by one"
    masks: list[tuple[str, str, Callable[[Tensor], Tensor]]] = [
        ("mask dropped", "the padding mask never reaches the scores", torch.ones_like),
        ("mask polarity", "the padding mask is inverted: it hides what may be seen", torch.logical_not),
        ("mask transposed", "the padding mask hides queries instead of keys: it is on the wrong axis", lambda x: x.mT),
        (rows, "the padding mask of one row is used for another", lambda x: x.flip(0)),
        (rows, "the padding mask of one row is used for the next", lambda x: x.roll(1, 0)),
        (rows, "the padding mask of one row is used for the one before", lambda x: x.roll(-1, 0)),
        (rows, "the padding masks of all rows are joined: a key is hidden only if it is in every row",
         lambda x: x.any(0, keepdim=True)),
        (rows, "the padding masks of all rows are joined: a key is hidden in all rows if it is in one",
         lambda x: x.all(0, keepdim=True)),
        (rows, "the padding mask of the first row is used for all rows", lambda x: x[:1]),
        (rows, "the padding mask of the last row is used for all rows", lambda x: x[-1:]),
        (off, "the padding mask is off by one: it hides the last real token", lambda x: x & x.roll(-1, -1)),
        (off, "the padding mask is off by one: the first padded token is visible", lambda x: x | x.roll(1, -1)),
        (off, "the padding mask is shifted by one key", lambda x: x.roll(1, -1)),
        (off, "the padding mask is shifted by one key", lambda x: x.roll(-1, -1)),
        (off, "the padding mask is shifted by one key", lambda x: torch.cat((x[..., 1:], x[..., -1:]), -1)),
        (off, "the padding mask is shifted by one key", lambda x: torch.cat((x[..., :1], x[..., :-1]), -1)),
    ]  # fmt: skip
    for family, words, mask in masks:
        yield bugs.but(*named(words, family), given=lambda x, mask=mask: mask(x)[:, None])
    if pads:
        for words, place in (("right: real tokens are counted from the start", 1), ("left: real tokens are last", -1)):
            counted = partial(_counted_padding, from_start=place == 1)
            yield bugs.but("padding", f"padding is taken to be on the {words}", given=counted)
        for words, most in (("shortest", False), ("longest", True)):
            words = f"every row is cut to the length of the {words} row: keys after it are hidden, no others"
            yield bugs.but("padding", words, given=partial(_one_length, longest=most))
    words = "the padding mask is repeated over heads and rows in another order than the scores: rows get each other's"
    for order in (False, True):
        yield bugs.but(*named(words, rows), given=partial(_tiled_mask, heads=heads, by_row=order))
    for which in ("first", "last"):
        head = torch.arange(heads) == (0 if which == "first" else heads - 1)
        reached = lambda x, head=head: x[:, None] | ~head[:, None, None]  # noqa: E731
        yield bugs.but(*named(f"the padding mask reaches the {which} head only", "mask dropped"), given=reached)
    what = "padded scores" if pads else "scores that the mask hides"
    soft = "padding" if pads else "mask not −∞"
    lowered = lambda x: {"given_core": partial(_soft_given, by=x)}  # noqa: E731
    yield from bugs.fitted(soft, f"{what} are not −∞ but lower by {{}}", lowered, POSITIVE)
    filled = lambda x: {"given_core": partial(_filled_given, value=x)}  # noqa: E731
    yield from bugs.fitted(soft, f"{what} are filled with {{}}, not with −∞", filled, SIGNED)
    queries = "the padding mask hides queries instead of keys: it is on the wrong axis"
    yield bugs.but(*named(queries, "mask transposed"), given_core=_hidden_queries)
    yield bugs.but(soft, f"{what} are filled with 0, not with −∞", given_core=partial(_filled_given, value=0.0))
    late = "padding is masked after the softmax, so the weights of real tokens sum to less than 1"
    late = late if pads else "the mask is applied after the softmax, so rows sum to less than 1"
    yield bugs.but("mask after softmax", late, given_core=_late_given)
    if pads:
        values = "padded values are set to zero, but their scores stay in the softmax"
        yield bugs.but("padding", values, given_core=_zero_values)


def _counted_padding(given: Tensor, from_start: bool) -> Tensor:
    """Padding on the right, or on the left, with as many real tokens as there are."""
    count, places = given.sum(-1, keepdim=True), torch.arange(given.shape[-1])
    return ((places < count) if from_start else (places >= given.shape[-1] - count))[:, None]


def _one_length(given: Tensor, longest: bool) -> Tensor:
    """As many keys from the start as the row with the most, or the fewest, real tokens has."""
    counts, places = given.sum(-1), torch.arange(given.shape[-1])
    return (places < (counts.max() if longest else counts.min())).expand_as(given)[:, None]


def _tiled_mask(given: Tensor, heads: int, by_row: bool) -> Tensor:
    """(b, h, t, s): the mask repeated for each head in the wrong order of rows and heads."""
    if by_row:
        return given.repeat_interleave(heads, 0).unflatten(0, (heads, -1)).transpose(0, 1)
    return given.repeat(heads, 1, 1).unflatten(0, (-1, heads))


def _late_given(scores: Tensor, mask: Tensor, v: Tensor, given: Tensor) -> Tensor:
    return weigh(scores, mask) * given[:, None] @ v


def _hidden_queries(scores: Tensor, mask: Tensor, v: Tensor, given: Tensor) -> Tensor:
    """Hidden queries have equal scores for all keys, which a large negative number leaves of them."""
    return average(scores.masked_fill(~given.mT[:, None], 0.0), mask, v)


def _zero_values(scores: Tensor, mask: Tensor, v: Tensor, given: Tensor) -> Tensor:
    return average(scores, mask, v * given.any(1)[:, None, :, None])


def _soft_given(scores: Tensor, mask: Tensor, v: Tensor, given: Tensor, by: float) -> Tensor:
    return average(scores - by * (~given)[:, None].to(scores), mask, v)


def _filled_given(scores: Tensor, mask: Tensor, v: Tensor, given: Tensor, value: float) -> Tensor:
    return average(scores.masked_fill(~given[:, None], value), mask, v)
