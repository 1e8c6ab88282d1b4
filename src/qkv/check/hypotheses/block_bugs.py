"""Bugs of attention in blocks (flash-style, split keys, pages): blocks of a size, or a number of equal parts.

What a block does not see is a mask, which is solved; here are the wrong ways to combine blocks.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.check.hypotheses.formula import Formula, Observation, Sizes, average, uniform_average
from qkv.check.hypotheses.hypothesis import BLOCKS, Bugs, Hypothesis
from qkv.check.hypotheses.visibility import FILL_SEEN

PARTS = (2, 3, 4, 8)
Cut = Callable[[int], int]  # from the number of keys to the size of a block
ONLINE = {
    "none": "earlier blocks are not rescaled when the running maximum grows",
    "sum": "the running output is not rescaled when the running maximum grows",
    "out": "the running sum is not rescaled when the running maximum grows",
    "inverse": "the running output and sum are rescaled by the inverse factor",
    "last": "the running sum is overwritten by that of the last block, not accumulated",
}


def block_bugs(right: Formula, seen: Observation, sizes: Sequence[int] = BLOCKS) -> Iterator[Hypothesis]:
    bugs, name = Bugs(right, seen), "block"
    if seen.fill is not None:
        yield bugs.but(name, FILL_SEEN, fills=True)
    for size in sizes:
        zeros = f"the zeros that fill the last block of {size} keys take part in the softmax"
        yield bugs.but(name, zeros, core=partial(_zero_filled, size=size))
        full = f"the last block of {size} keys is hidden where it is full: its number of keys is a remainder"
        for core in (average, uniform_average):
            yield bugs.but(name, full, mask=partial(_full_hidden, right=right, size=size), core=core)
        paged = f"keys and values are read across blocks of {size}, not block by block: two axes are swapped"
        swap = partial(_interleaved, size=size)
        yield bugs.but("cache order", paged, inputs=lambda q, k, v, swap=swap: (q, swap(k), swap(v)))
        if size < seen.sizes.keys:
            yield from _combined(bugs, f"blocks of {size} keys", f"each block of {size} keys", lambda s, n=size: n)
    for parts in PARTS:
        if parts <= seen.sizes.keys:
            words = f"{parts} parts of the keys"
            yield from _combined(bugs, words, f"each of {words}", lambda s, n=parts: math.ceil(s / n))


def _combined(bugs: Bugs, blocks: str, each: str, cut: Cut) -> Iterator[Hypothesis]:
    """Blocks that are combined wrongly."""
    name = "block"
    for which, words in ONLINE.items():
        yield bugs.but(name, f"online softmax in {blocks}: {words}", core=partial(_online, cut=cut, rescale=which))
    for words, weights in {
        "by their maxima, not by their log-sum-exp": lambda x: x.amax(-1, keepdim=True),
        "with a sum of exponentials without the maximum in it": lambda x: (
            (x - x.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True).nan_to_num().log()
        ),
    }.items():
        yield bugs.but(name, f"{blocks} are combined {words}", core=partial(_weighted, cut=cut, weigh_block=weights))
    for words, how in (
        ("averaged", "mean"), ("added", "sum"), ("averaged over the blocks that a query sees", "seen")
    ):  # fmt: skip
        taken = f"the softmax is taken in {each} and the outputs are {words}"
        yield bugs.but(name, taken, core=partial(_separate, cut=cut, how=how))


def _blocks(scores: Tensor, mask: Tensor, v: Tensor, cut: Cut) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Scores, masks and values of each block; hidden scores are −∞."""
    size, mask = cut(scores.shape[-1]), mask.expand_as(scores)
    scores = scores.masked_fill(~mask, float("-inf"))
    return list(zip(scores.split(size, -1), mask.split(size, -1), v.split(size, -2), strict=True))


def _online(scores: Tensor, mask: Tensor, v: Tensor, cut: Cut, rescale: str) -> Tensor:
    """Online softmax with a missing rescaling."""
    largest = torch.full((*scores.shape[:-1], 1), float("-inf")).to(scores)
    total, out = torch.zeros_like(largest), 0.0
    for part, _, values in _blocks(scores, mask, v, cut):
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


def _weighted(scores: Tensor, mask: Tensor, v: Tensor, cut: Cut, weigh_block: Callable[[Tensor], Tensor]) -> Tensor:
    blocks = _blocks(scores, mask, v, cut)
    outputs = torch.stack([average(*block) for block in blocks])
    return (torch.stack([weigh_block(part) for part, _, _ in blocks]).softmax(0) * outputs).sum(0)


def _separate(scores: Tensor, mask: Tensor, v: Tensor, cut: Cut, how: str) -> Tensor:
    blocks = _blocks(scores, mask, v, cut)
    out = torch.stack([average(*block) for block in blocks]).sum(0)
    if how == "mean":
        return out / len(blocks)
    if how == "sum":
        return out
    count = torch.stack([block.any(-1, keepdim=True) for _, block, _ in blocks]).sum(0)
    return out / count.clamp(min=1)


def _zero_filled(scores: Tensor, mask: Tensor, v: Tensor, size: int) -> Tensor:
    extra = -scores.shape[-1] % size
    return average(
        F.pad(scores, (0, extra)), F.pad(mask.expand_as(scores), (0, extra), value=True), F.pad(v, (0, 0, 0, extra))
    )


def _interleaved(x: Tensor, size: int) -> Tensor:
    """(b, h, s, d) in blocks along s, with the axes of blocks and of places in a block swapped."""
    blocks = F.pad(x, (0, 0, 0, -x.shape[2] % size)).unflatten(2, (-1, size))
    return blocks.transpose(2, 3).flatten(2, 3)[:, :, : x.shape[2]]


def _full_hidden(sizes: Sizes, right: Formula, size: int) -> Tensor:
    """The last block is hidden if it is full."""
    hidden = sizes.keys - size if sizes.keys % size == 0 else sizes.keys
    return right.mask(sizes) & (torch.arange(sizes.keys) < hidden)
