"""Heads: which features of which projection a head is made of, and how heads were split and merged.

Heads are recognized by the norms |q|, which rotations keep and a scale multiplies; so the same code reads separate and
fused projections, grouped-query attention, prescaled queries and rotary positions.

Axes: b batch · h heads · t tokens · d head dim · n features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from qkv.check.report import Diagnosis
from qkv.check.tracing.recorder import AttentionRecord, Recording

Split = Literal["heads", "view", "strided"]
LOOK_BACK = 8  # how many projections before an attention may have made its operands


@dataclass(frozen=True, eq=False)
class HeadMatch:
    """What an operand of attention is made of.

    Args:
        projection: the index of the projection in the recording.
        split: "heads" is view(b, t, h, d).transpose(1, 2); "view" is view(b, h, t, d), which mixes tokens and heads;
            "strided" takes every h-th feature.
        slots: which run of features each head is.
        factor: what the features were multiplied by.
        plain: the heads before any rotation and factor.
        groups: the number of different slots.
    """

    projection: int
    split: Split
    slots: tuple[int, ...]
    factor: float
    plain: Tensor
    groups: int


def match_heads(operand: Tensor, recording: Recording, before: int) -> HeadMatch | None:
    """The projection and the features that (b, h, t, d) was made of; None if none fits."""
    near = [(i, p) for i, p in enumerate(recording.projections) if p.order < before][-LOOK_BACK:]
    b, _, t, d = operand.shape
    if d == 0:
        return None
    for tolerance in (1e-6, 2e-2):
        for index, projection in reversed(near):
            for output in _as_sequences(projection.output, b, t):
                if output.shape[-1] % d:
                    continue
                for split, slots in _possible_splits(output, operand):
                    found = _match_slots(operand, slots, tolerance)
                    if found is not None:
                        chosen, factor = found
                        return HeadMatch(index, split, chosen, factor, slots[:, list(chosen)], len(set(chosen)))
    return None


def _as_sequences(x: Tensor, b: int, t: int) -> list[Tensor]:
    """A projection's tensor as (b, t, n), read batch first and sequence first."""
    n = x.shape[-1]
    if x.numel() != b * t * n:
        return []
    return [x.reshape(b, t, n), x.reshape(t, b, n).transpose(0, 1)]


def _possible_splits(output: Tensor, operand: Tensor) -> Iterator[tuple[Split, Tensor]]:
    """All runs of d features that could be a head, for each way of splitting: (b, runs, t, d)."""
    b, t, n = output.shape
    h, d = operand.shape[1], operand.shape[-1]
    yield "heads", output.reshape(b, t, n // d, d).transpose(1, 2)
    if h > 1 and n % (h * d) == 0:
        chunks = output.split(h * d, dim=-1)
        yield "view", torch.cat([chunk.reshape(b, h, t, d) for chunk in chunks], dim=1)
    if n // d > 1:
        yield "strided", output.reshape(b, t, d, n // d).permute(0, 3, 1, 2)


def _match_slots(operand: Tensor, slots: Tensor, tolerance: float) -> tuple[tuple[int, ...], float] | None:
    """For each head, the slot whose norms it has up to one common factor."""
    own, others = operand.norm(dim=-1), slots.norm(dim=-1).clamp(min=1e-30)  # (b, h, t), (b, m, t)
    ratios = own[:, :, None] / others[:, None]  # (b, h, m, t)
    middle = ratios.mean((0, 3), keepdim=True)
    off = ((ratios - middle).abs() / middle.clamp(min=1e-30)).amax((0, 3))  # (h, m)
    best, where = off.min(-1)
    if float(best.max()) > tolerance:
        return None
    factors = middle[0, :, :, 0].gather(1, where[:, None])[:, 0]
    factor = float(factors.mean())
    if float((factors - factor).abs().max()) > max(tolerance, 1e-5) * factor:
        return None
    return tuple(where.tolist()), factor


@dataclass(frozen=True)
class RowMatch:
    """What the rows of an operand are made of, whatever their order: chunks, windows, groups of heads in one product.

    Args:
        factor: what the features were multiplied by.
        slots: (b, h, t): which run of features each row is.
    """

    factor: float
    slots: Tensor


def match_rows(operand: Tensor, recording: Recording, before: int) -> RowMatch | None:
    """Find the rows of (b, h, t, d) among the runs of d features of a projection, by their norms."""
    d, own = operand.shape[-1], operand.norm(dim=-1).flatten()
    if len(own) < 2 or float(own.std()) <= 1e-3 * float(own.mean()):  # a norm made them equal: any row fits
        return None
    near = [p for p in recording.projections if p.order < before][-LOOK_BACK:]
    for projection in reversed(near):
        n = projection.output.shape[-1]
        if n % d or not len(own) or float(own.min()) <= 0:
            continue
        norms = projection.output.reshape(-1, n // d, d).norm(dim=-1)
        known, order = norms.flatten().sort()
        few = own[:: max(len(own) // 12, 1)]
        factors = own[0] / known.clamp(min=1e-30)
        off = (_nearest(known, few[None, :] / factors[:, None])[1] / (few[None, :] / factors[:, None])).amax(-1)
        if float(off.min()) > 1e-7:
            continue
        factor = float(factors[int(off.argmin())])
        places, distance = _nearest(known, own / factor)
        if float((distance * factor / own).max()) <= 1e-6:
            return RowMatch(factor, (order[places] % (n // d)).view(operand.shape[:-1]))
    return None


def match_features(operand: Tensor, recording: Recording, before: int) -> Tensor | None:
    """The factor of each feature (d) of (b, h, t, d), whatever projections it comes from; None if one fits none.

    It is read at the first position, which rotary positions leave as it is: low-rank projections and a part of the
    features that is rotated apart, as in multi-head latent attention, are seen there.
    """
    b, _, t, d = operand.shape
    near = [p for p in recording.projections if p.order < before][-LOOK_BACK:]
    outputs = [x[:, 0] for p in near for x in _as_sequences(p.output, b, t)[:1]]
    if b < 4 or not outputs or d == 0:
        return None
    known, own = torch.cat(outputs, -1).T, operand[:, :, 0].permute(1, 2, 0)  # (n, b), (h, d, b)
    sizes, norms = known.norm(dim=-1).clamp(min=1e-300), own.norm(dim=-1)
    same = (own @ known.T) / sizes / norms.clamp(min=1e-300)[..., None]  # cosines (h, d, n)
    best, place = same.max(-1)
    if float(best.min()) < 1 - 1e-9:
        return None
    factors = norms / sizes[place]
    if float((factors - factors[:1]).abs().max()) > 1e-6 * float(factors.abs().max()):
        return None
    return factors[0]


def _nearest(known: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The place of the nearest sorted value to each x, and its distance."""
    right = torch.searchsorted(known, x.contiguous()).clamp(1, len(known) - 1)
    left_off, right_off = (x - known[right - 1]).abs(), (x - known[right]).abs()
    return torch.where(left_off < right_off, right - 1, right), torch.minimum(left_off, right_off)


def rows_layout(queries: RowMatch | None, keys: RowMatch | None) -> str | None:
    """How query heads share key heads where each product has one key head and several query heads."""
    if queries is None or keys is None:
        return None
    users: dict[int, set[int]] = {}
    for head in range(keys.slots.shape[1]):
        own = set(keys.slots[:, head].flatten().tolist())
        if len(own) != 1:
            return None
        users.setdefault(own.pop(), set()).update(queries.slots[:, head].flatten().tolist())
    shared = [sorted(users[key]) for key in sorted(users)]
    size, count = len(shared[0]), len(shared)
    first = min(min(slots) for slots in shared)
    if size < 2 or any(len(slots) != size for slots in shared):
        return None
    if shared == [list(range(first + key * size, first + (key + 1) * size)) for key in range(count)]:
        return "repeated"
    tiled = [list(range(first + key, first + size * count, count)) for key in range(count)]
    return "tiled" if shared == tiled else "irregular"


def find_merge_bug(attention: AttentionRecord, recording: Recording) -> Diagnosis | None:
    """How the outputs of the heads were merged for the projection that follows, if wrongly."""
    b, h, t, e = attention.output.shape
    following = next((p for p in recording.projections if p.order > attention.order), None)
    if following is None or h == 1:
        return None
    out = attention.output
    inputs = [given for given in _as_sequences(following.given, b, t) if given.shape[-1] in (h * e, e)]
    if any(is_close(given, out.transpose(1, 2).reshape(b, t, h * e)) for given in inputs):
        return None
    for given in inputs:
        if is_close(given, out.reshape(b, t, h * e)):
            return Diagnosis("heads mixed", "heads are merged without the transpose back", attention.name)
        for words, reduced in (("summed", out.sum(1)), ("averaged", out.mean(1))):
            if is_close(given, reduced) or is_close(given, reduced.repeat(1, 1, h)):
                return Diagnosis("heads mixed", f"head outputs are {words}, not concatenated", attention.name)
    return None


def find_split_bug(
    attention: AttentionRecord, matches: dict[str, HeadMatch | None], recording: Recording
) -> Diagnosis | None:
    """A view without the transpose, heads split differently, or operands made of the same features.

    Operands that share features are a bug only if other features are left over: shared-QK attention has none.
    """
    viewed = [name for name, match in matches.items() if match is not None and match.split == "view"]
    if viewed:
        words = f"{' and '.join(viewed)} are split into heads by a view without the transpose: tokens and heads mix"
        return Diagnosis("heads mixed", words, attention.name)
    queries, keys, values = (matches.get(name) for name in ("queries", "keys", "values"))
    if queries and keys and values:
        pairs = {
            "keys and values": (keys, values),
            "queries and keys": (queries, keys),
            "queries and values": (queries, values),
        }
        for words, (one, other) in pairs.items():
            same = one.projection == other.projection and set(one.slots) == set(other.slots)
            if same and _features_left_over((queries, keys, values), attention.head_dim, recording):
                return Diagnosis("inputs swapped", f"{words} are the same features of one projection", attention.name)
    if keys and values and keys.groups == values.groups < len(keys.slots) and _layout(keys) != _layout(values):
        words = f"keys are {_layout(keys)} over the heads, values are {_layout(values)}"
        return Diagnosis("head layout", words, attention.name)
    return None


def _features_left_over(matches: tuple[HeadMatch, ...], head_dim: int, recording: Recording) -> bool:
    """Whether projections of the same input make features that are in none of the operands."""
    used = {match.projection for match in matches}
    given = recording.projections[matches[0].projection].given
    slots: dict[int, set[int]] = {}
    for match in matches:
        slots.setdefault(match.projection, set()).update(match.slots)
    for index, projection in enumerate(recording.projections):
        if index in used:
            if len(slots[index]) * head_dim < projection.output.shape[-1]:
                return True
        elif index < max(used) + 2 and projection.given.shape == given.shape and torch.equal(projection.given, given):
            return True
    return False


def grouped_layout(match: HeadMatch | None) -> str | None:
    """How query heads share key heads (GQA): repeated (0 0 1 1) or tiled (0 1 0 1); None if they share none."""
    return None if match is None or match.groups == len(match.slots) else _layout(match)


def _layout(match: HeadMatch) -> str:
    ranks = [sorted(set(match.slots)).index(slot) for slot in match.slots]
    size = len(ranks) // match.groups
    if ranks == [i // size for i in range(len(ranks))]:
        return "repeated"
    return "tiled" if ranks == [i % match.groups for i in range(len(ranks))] else "irregular"


def is_close(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal up to rounding."""
    return a.shape == b.shape and float((a - b).abs().max()) <= 1e-6 * (float(b.abs().max()) or 1.0)
