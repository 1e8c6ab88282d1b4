"""Finding the rule behind a tensor that is added to scores: which of it is a mask, is the mask causal, does the rest
depend on distance alone. What has a rule is kept as the rule; what has none, as the tensor.

Axes: b batch · h heads · t queries · s keys; axes of size 1 stand for all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from qkv.interp.traces.lazy_weights import ByDistance
from qkv.nn.masks import Band, Both, Dense, Mask, PaddingMask


@dataclass(frozen=True, eq=False)
class Added:
    """What is added to scores, understood: who may attend, what score the others get, and the bias."""

    mask: Mask | None = None
    floor: float = float("-inf")
    bias: Tensor | ByDistance | None = None


def four_axes(x: Tensor) -> Tensor:
    return x.reshape(*[1] * (4 - x.ndim), *x.shape)


def understood(added: Tensor, t: int, s: int) -> Added:
    """The structure of a matrix that is added to the scores.

    >>> causal = torch.full((3, 3), float("-inf")).triu(1)
    >>> understood(causal, 3, 3).mask
    Band(t=3, s=3, left=None, right=0)
    """
    added = four_axes(added)
    lowest = torch.finfo(added.dtype).min / 2  # from here down a score drowns whatever it is added to
    forbidden = added <= lowest
    if not bool(forbidden.any()):
        return Added(bias=_bias(added, t, s)) if bool((added != 0).any()) else Added()
    floor = float(added.amin()) if bool((added.isneginf() == forbidden).all()) else torch.finfo(added.dtype).min
    rest = added.masked_fill(forbidden, 0.0)
    bias = _bias(rest, t, s) if bool((rest != 0).any()) else None
    return Added(mask_of(~forbidden, t, s), floor, bias)


def mask_of(allowed: Bool[Tensor, "..."], t: int, s: int) -> Mask | None:
    """The mask that a boolean tensor writes out; None if it allows everything.

    >>> mask_of(torch.tensor([[True, False], [False, True]]), 2, 2)
    Band(t=2, s=2, left=0, right=0)
    """
    allowed = four_axes(allowed)
    if bool(allowed.all()):
        return None
    for axis in (0, 1):  # the same for the whole batch, or for all heads
        first = allowed.narrow(axis, 0, 1)
        if allowed.shape[axis] > 1 and (not allowed.stride(axis) or bool((allowed == first).all())):
            allowed = first
    if allowed.shape[-1] != s or allowed.shape[1] > 1:
        return Dense(allowed)
    if allowed.shape[-2] == 1:
        return PaddingMask(allowed[:, 0, 0].clone())
    if allowed.shape[0] == 1:
        return band_of(allowed[0, 0]) or Dense(allowed)
    seen = allowed.any(-2)[:, 0]  # keys that somebody sees
    for rule in (None, Band(t, s, None, 0)):
        parts = (PaddingMask(seen),) if rule is None else (rule, PaddingMask(seen))
        if bool((allowed == Both(parts).tile(range(t), range(s), allowed.device)).all()):
            return parts[0] if len(parts) == 1 else Both(parts)
    return Dense(allowed)


def band_of(allowed: Bool[Tensor, "t s"]) -> Band | None:
    """The band that a boolean matrix is, if it is one."""
    t, s = allowed.shape
    if not bool(allowed.any(-1).all()):
        return None
    places = torch.arange(t, device=allowed.device) + s - t
    first = allowed.int().argmax(-1)
    last = s - 1 - allowed.flip(-1).int().argmax(-1)
    left, right = places - first, last - places
    left, right = left[first > 0], right[last < s - 1]
    band = Band(t, s, int(left[0]) if len(left) else None, int(right[0]) if len(right) else None)
    return band if torch.equal(band.tile(range(t), range(s), allowed.device), allowed) else None


def without_copies(keys: Tensor) -> Tensor:
    """Keys without the copies that were made of them for heads that share them."""
    heads = keys.shape[1]
    if heads < 2 or not torch.equal(keys[:, 0], keys[:, 1]):
        return keys
    for size in range(heads, 1, -1):
        if heads % size == 0:
            groups = keys.unflatten(1, (heads // size, size))
            if torch.equal(groups, groups[:, :, :1].expand_as(groups)):
                return groups[:, :, 0].clone()
    return keys


def _bias(bias: Tensor, t: int, s: int) -> Tensor | ByDistance:
    """A bias as a function of distance where it is one: what ALiBi's and T5's are."""
    if bias.shape[-2:] != (t, s) or t < 2 or s < 2 or not torch.equal(bias[..., 1:, 1:], bias[..., :-1, :-1]):
        return bias.clone()  # the model's own tensor may be written over
    return ByDistance(torch.cat((bias[..., 1:, 0].flip(-1), bias[..., 0, :]), dim=-1), t)
