"""What a cache does wrong, read off the operands of each piece beside those of the whole.

Axes: b batch · h heads · t queries · s keys · d head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.check.diagnosis import Diagnosis
from qkv.check.inside.read import recorded
from qkv.check.inside.seen import Recording, Seen
from qkv.check.inside.watch import watch
from qkv.check.subject import Subject


def cache_mistake(subject: Subject, sizes: Sequence[int]) -> Diagnosis | None:
    """Why pieces of these sizes, run through the cache, differ from the whole."""
    if subject.cached is None:
        return None
    x = subject.draw(2, sum(sizes), torch.Generator().manual_seed(22))
    whole = recorded(subject, x)
    alone = recorded(subject, x[:, sizes[0] : sizes[0] + sizes[1]])
    try:
        with torch.enable_grad(), watch(subject.module, 2) as found:
            subject.cached(x.split(list(sizes), dim=1), [None] * len(sizes))
    except Exception:  # what cannot be watched is judged from outside
        return None
    for name in dict.fromkeys(seen.name for seen in whole.seen):
        mistake = _of_layer(name, whole, found[0], alone, sizes)
        if mistake is not None:
            return mistake
    return None


def _of_layer(
    name: str, whole: Recording, pieces: Recording, alone: Recording, sizes: Sequence[int]
) -> Diagnosis | None:
    all_of, steps, fresh = ([seen for seen in part.seen if seen.name == name] for part in (whole, pieces, alone))
    if len(all_of) != 1 or len(steps) != len(sizes):
        return None
    end = 0
    for number, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        end += size
        start_anew = fresh[0] if number == 1 and len(fresh) == 1 else None
        mistake = _of_piece(name, all_of[0], step, start_anew, end - size, end)
        if mistake is not None:
            return mistake
    return None


def _of_piece(name: str, whole: Seen, step: Seen, fresh: Seen | None, start: int, end: int) -> Diagnosis | None:
    have = step.keys.shape[2]
    if have < end:
        return Diagnosis("cache order", f"{have} keys are there where {end} tokens were read: some are dropped", name)
    new = range(start, end)
    if fresh is not None and not _same(step.queries, whole.queries[:, :, start:end]):
        again = any(_same(step.keys[:, :, part], fresh.keys) for part in (slice(start, end), slice(0, end - start)))
        if _same(step.queries, fresh.queries) or again:
            words = "positions begin at 0 again in each piece: the cache's length is not added"
            return Diagnosis("positions with cache", words, name)
    for words, own, other in (("keys", step.keys, whole.keys), ("values", step.values, whole.values)):
        mistake = _order(words, own[:, :, :end], other[:, :, :end], new, name)
        if mistake is not None:
            return mistake
    if not _same(step.queries, whole.queries[:, :, start:end]):
        return Diagnosis("positions with cache", "queries differ from those of the whole: their positions do", name)
    return _mask(name, whole, step, start, end)


def _order(what: str, own: Tensor, whole: Tensor, new: range, name: str) -> Diagnosis | None:
    if _same(own, whole):
        return None
    near = (own[:, :, :, None] - whole[:, :, None]).abs().amax(-1) <= 1e-6 * (float(whole.abs().max()) or 1.0)
    places = near.all(0).all(0)  # (s, s): which of the whole stands where
    if bool(places.any(0).all()) and bool(places.any(1).all()):
        order = [int(row.to(torch.int8).argmax()) for row in places]
        return Diagnosis("cache order", f"{what} stand in the order {order} in the cache", name)
    if float((own.norm(dim=-1) - whole.norm(dim=-1)).abs().max()) <= 1e-6 * float(whole.norm(dim=-1).max()):
        return Diagnosis("positions with cache", f"{what} are turned by other places than in the whole", name)
    if bool(places.any(1).any()):
        return Diagnosis("cache order", f"some {what} of the cache are missing, replaced or in another place", name)
    return Diagnosis("positions with cache", f"{what} of the pieces {list(new)} are others than in the whole", name)


def _mask(name: str, whole: Seen, step: Seen, start: int, end: int) -> Diagnosis | None:
    seen = (step.weights.abs() > 1e-30).any(0).any(0)[:, :end]
    should = (whole.weights.abs() > 1e-30).any(0).any(0)[start:end, :end]
    if torch.equal(seen, should):
        return None
    if bool(seen.all()):
        words = "the mask is skipped when there is a cache: tokens of one piece see each other's future"
    elif torch.equal(seen, torch.ones_like(seen).tril()):
        words = "the mask is aligned at the start (top-left), so cached keys are hidden"
    else:
        words = "the mask of a piece is not the end of the whole's"
    return Diagnosis("mask with cache", words, name)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and float((a - b).abs().max()) <= 1e-6 * (float(b.abs().max()) or 1.0)
