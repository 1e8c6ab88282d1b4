"""From projections to heads and back: which features of which projection a head is, and how heads were put together.

Axes: b batch · h heads · t tokens · d head width · n features.

Heads are recognised by their lengths |q|, which rotations keep and a scale multiplies; so the same code reads separate
and fused projections, grouped heads, prescaled queries and rotary positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from qkv.check.diagnosis import Diagnosis
from qkv.check.inside.seen import Recording, Seen

Cut = Literal["heads", "view", "every"]
REACH = 8  # how many projections before an attention may have made its operands


@dataclass(frozen=True, eq=False)
class Match:
    """What an operand is made of: `slots` says which run of features each head is, `factor` what it was multiplied by.

    cut: "heads" is view(b, t, h, d).transpose(1, 2); "view" is view(b, h, t, d), which mixes tokens and heads;
    "every" takes every h-th feature. plain: the heads before any rotation and factor.
    """

    projection: int
    cut: Cut
    slots: tuple[int, ...]
    factor: float
    plain: Tensor
    groups: int


def match_of(operand: Tensor, recording: Recording, before: int) -> Match | None:
    """The projection and the features that (b, h, t, d) was made of; None if none fits."""
    near = [(i, p) for i, p in enumerate(recording.projections) if p.order < before][-REACH:]
    b, _, t, d = operand.shape
    for loose in (1e-6, 2e-2):
        for index, projection in reversed(near):
            for output in as_sequences(projection.output, b, t):
                if output.shape[-1] % d:
                    continue
                for cut, slots in _cuts(output, operand):
                    found = _fit(operand, slots, loose)
                    if found is not None:
                        used = len(set(found[0]))
                        return Match(index, cut, found[0], found[1], slots[:, list(found[0])], used)
    return None


def as_sequences(x: Tensor, b: int, t: int) -> list[Tensor]:
    """A projection's tensor as (b, t, n): rows may stand batch first or sequence first."""
    n = x.shape[-1]
    if x.numel() != b * t * n:
        return []
    return [x.reshape(b, t, n), x.reshape(t, b, n).transpose(0, 1)]


def _cuts(output: Tensor, operand: Tensor) -> Iterator[tuple[Cut, Tensor]]:
    """All runs of d features that could be a head, by the way of cutting: (b, runs, t, d)."""
    b, t, n = output.shape
    h, d = operand.shape[1], operand.shape[-1]
    yield "heads", output.reshape(b, t, n // d, d).transpose(1, 2)
    if h > 1 and n % (h * d) == 0:
        chunks = output.split(h * d, dim=-1)
        yield "view", torch.cat([chunk.reshape(b, h, t, d) for chunk in chunks], dim=1)
    if n // d > 1:
        yield "every", output.reshape(b, t, d, n // d).permute(0, 3, 1, 2)


def _fit(operand: Tensor, slots: Tensor, loose: float) -> tuple[tuple[int, ...], float] | None:
    """For each head, the slot whose lengths it has up to one common factor."""
    own, others = operand.norm(dim=-1), slots.norm(dim=-1).clamp(min=1e-30)  # (b, h, t), (b, m, t)
    ratios = own[:, :, None] / others[:, None]  # (b, h, m, t)
    middle = ratios.mean((0, 3), keepdim=True)
    off = ((ratios - middle).abs() / middle.clamp(min=1e-30)).amax((0, 3))  # (h, m)
    best, where = off.min(-1)
    if float(best.max()) > loose:
        return None
    factors = middle[0, :, :, 0].gather(1, where[:, None])[:, 0]
    factor = float(factors.mean())
    if float((factors - factor).abs().max()) > max(loose, 1e-5) * factor:
        return None
    return tuple(where.tolist()), factor


def merge_mistake(seen: Seen, recording: Recording) -> Diagnosis | None:
    """How the heads' outputs were put together for the projection that follows."""
    b, h, t, e = seen.output.shape
    following = next((p for p in recording.projections if p.order > seen.order), None)
    if following is None or h == 1:
        return None
    out = seen.output
    sums = {"summed": out.sum(1), "averaged": out.mean(1)}
    readings = [given for given in as_sequences(following.given, b, t) if given.shape[-1] in (h * e, e)]
    if any(_same(given, out.transpose(1, 2).reshape(b, t, h * e)) for given in readings):
        return None
    for given in readings:
        if _same(given, out.reshape(b, t, h * e)):
            return Diagnosis("heads mixed", "heads are merged without the transpose back", seen.name)
        for words, reduced in sums.items():
            if _same(given, reduced) or _same(given, reduced.repeat(1, 1, h)):
                return Diagnosis("heads mixed", f"the heads' outputs are {words}, not put side by side", seen.name)
    return None


def split_mistake(seen: Seen, matches: dict[str, Match | None]) -> Diagnosis | None:
    """A view without the transpose, heads cut differently, or operands made of the same features."""
    cuts = {name: match.cut for name, match in matches.items() if match is not None}
    viewed = [name for name, cut in cuts.items() if cut == "view"]
    if viewed:
        words = f"{' and '.join(viewed)} are cut into heads by a view without the transpose, so tokens and heads mix"
        return Diagnosis("heads mixed", words, seen.name)
    queries, keys, values = (matches.get(name) for name in ("queries", "keys", "values"))
    if queries and keys and values:
        pairs = {
            "keys and values": (keys, values),
            "queries and keys": (queries, keys),
            "queries and values": (queries, values),
        }
        for words, (one, other) in pairs.items():
            if one.projection == other.projection and set(one.slots) == set(other.slots):
                return Diagnosis("inputs swapped", f"{words} are the same features of one projection", seen.name)
    shared = keys and values and keys.groups == values.groups < len(keys.slots)
    if shared and keys and values and _layout(keys) != _layout(values):
        words = f"keys are {_layout(keys)} over the heads, values are {_layout(values)}"
        return Diagnosis("head layout", words, seen.name)
    return None


def layout_of(match: Match | None) -> str | None:
    """How heads of queries share heads of keys: repeated (0 0 1 1) or tiled (0 1 0 1); None if they share none."""
    return None if match is None or match.groups == len(match.slots) else _layout(match)


def _layout(match: Match) -> str:
    ranks = [sorted(set(match.slots)).index(slot) for slot in match.slots]
    size = len(ranks) // match.groups
    if ranks == [i // size for i in range(len(ranks))]:
        return "repeated"
    return "tiled" if ranks == [i % match.groups for i in range(len(ranks))] else "irregular"


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and float((a - b).abs().max()) <= 1e-6 * (float(b.abs().max()) or 1.0)
