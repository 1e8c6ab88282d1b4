"""Recognize masks (causal, sliding window, padding) and relative position biases in tensors added to scores.

Axes: b batch · h heads · t queries · s keys; axes of size 1 broadcast.

A tensor with a recognized rule is stored as the rule, any other tensor as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from qkv.interp.lazy_weights import RelativeBias
from qkv.nn.masks import AndMask, BandMask, DenseMask, Mask, PaddingMask


@dataclass(frozen=True, eq=False)
class AddedBias:
    """A tensor added to scores, taken apart: the mask, the score of masked keys, and the remaining bias."""

    mask: Mask | None = None
    mask_value: float = float("-inf")
    bias: Tensor | RelativeBias | None = None


# (the added tensor, the tensor it is a view of, t, s); remembers the result for the next layer
AnalyzeBias = Callable[[Tensor, Tensor, int, int], AddedBias]


def four_axes(x: Tensor) -> Tensor:
    """A tensor with leading axes of size 1 up to four axes."""
    return x.reshape(*[1] * (4 - x.ndim), *x.shape)


def analyze_bias(added: Tensor, t: int, s: int) -> AddedBias:
    """Split a tensor that is added to the scores into a mask and a bias.

    >>> causal = torch.full((3, 3), float("-inf")).triu(1)
    >>> analyze_bias(causal, 3, 3).mask
    BandMask(t=3, s=3, left=None, right=0)
    """
    added = four_axes(added)
    forbidden = added <= torch.finfo(added.dtype).min / 2  # so low that it hides any score it is added to
    if not bool(forbidden.any()):
        return AddedBias(bias=_find_bias(added, t, s)) if bool((added != 0).any()) else AddedBias()
    infinite = bool((added.isneginf() == forbidden).all())
    mask_value = float(added.amin()) if infinite else torch.finfo(added.dtype).min
    rest = added.masked_fill(forbidden, 0.0)
    bias = _find_bias(rest, t, s) if bool((rest != 0).any()) else None
    return AddedBias(find_mask(~forbidden, t, s), mask_value, bias)


def find_mask(mask: Bool[Tensor, "..."], t: int, s: int) -> Mask | None:
    """The lazy mask that a boolean tensor (True = attend) equals; None if it allows everything.

    >>> find_mask(torch.tensor([[True, False], [False, True]]), 2, 2)
    BandMask(t=2, s=2, left=0, right=0)
    """
    mask = four_axes(mask)
    if bool(mask.all()):
        return None
    for axis in (0, 1):  # drop the batch or head axis where all entries are equal
        first = mask.narrow(axis, 0, 1)
        if mask.shape[axis] > 1 and (not mask.stride(axis) or bool((mask == first).all())):
            mask = first
    if mask.shape[-1] != s or mask.shape[1] > 1:
        return DenseMask(mask)
    if mask.shape[-2] == 1:
        return PaddingMask(mask[:, 0, 0].clone())
    if mask.shape[0] == 1:
        return find_band(mask[0, 0]) or DenseMask(mask)
    padding = PaddingMask(mask.any(-2)[:, 0])  # keys that some query sees
    for candidate in (padding, AndMask((BandMask(t, s, None, 0), padding))):
        if bool((mask == candidate.tile(range(t), range(s), mask.device)).all()):
            return candidate
    return DenseMask(mask)


def find_band(mask: Bool[Tensor, "t s"]) -> BandMask | None:
    """The band (causal or sliding window) that a boolean matrix equals, if any."""
    t, s = mask.shape
    if not bool(mask.any(-1).all()):
        return None
    positions = torch.arange(t, device=mask.device) + s - t
    first = mask.int().argmax(-1)
    last = s - 1 - mask.flip(-1).int().argmax(-1)
    left, right = (positions - first)[first > 0], (last - positions)[last < s - 1]
    band = BandMask(t, s, int(left[0]) if len(left) else None, int(right[0]) if len(right) else None)
    return band if torch.equal(band.tile(range(t), range(s), mask.device), mask) else None


def join_masks(masks: Sequence[Mask | None]) -> Mask | None:
    """The mask that allows what all of them allow; None allows everything."""
    found = [mask for mask in masks if mask is not None]
    if len(found) < 2:
        return found[0] if found else None
    return AndMask.of(*found)


def deduplicate_heads(keys: Tensor) -> Tensor:
    """Keys (b, h, s, d) without the copies made for heads that share them (grouped-query attention)."""
    heads = keys.shape[1]
    if heads < 2 or not torch.equal(keys[:, 0], keys[:, 1]):
        return keys
    for size in range(heads, 1, -1):
        if heads % size == 0:
            groups = keys.unflatten(1, (heads // size, size))
            if torch.equal(groups, groups[:, :, :1].expand_as(groups)):
                return groups[:, :, 0].clone()
    return keys


def _find_bias(bias: Tensor, t: int, s: int) -> Tensor | RelativeBias:
    """A bias as a function of distance if it is one (ALiBi, T5)."""
    if bias.shape[-2:] != (t, s) or t < 2 or s < 2 or not torch.equal(bias[..., 1:, 1:], bias[..., :-1, :-1]):
        return bias.clone()  # a copy: the model may overwrite its own tensor
    return RelativeBias(torch.cat((bias[..., 1:, 0].flip(-1), bias[..., 0, :]), dim=-1), t)
