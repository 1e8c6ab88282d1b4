"""Scores behind the head types: how much weight goes where each type would attend, corrected for chance.

Axes: t queries · s keys · n distances.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from qkv.interp.layers import Stripe, TracedLayer

MAX_OFFSET = 16  # the largest distance that is tried for "offset"
MIN_OFFSET_PAIRS = 3  # pairs of query and key at a distance: fewer say nothing about a pattern
CONTENT_TYPES = ("duplicate-token", "induction")  # also corrected for what the head gives other keys at that distance


@dataclass(frozen=True, eq=False)
class ExpectedKeys:
    """For one stripe and one head type: where a head of that type attends.

    keys: the expected keys of the queries that can tell. queries: which queries can tell.
    chance: the weight that uniform attention puts there. room: the weight it leaves to a perfect head.
    """

    keys: Bool[Tensor, "t s"]
    queries: Bool[Tensor, " t"]
    chance: float
    room: float


class StripeExpectation:
    """The expected keys of a stripe for each head type; shared by all heads of a layer that see the same keys."""

    def __init__(self, stripe: Stripe, shift: int, cross: bool, tokens: Tensor | None, keys: int) -> None:
        self.visible, self.rows, self.columns = stripe.visible, stripe.rows, stripe.columns
        device = stripe.weights.device
        positions = torch.arange(stripe.rows.start, stripe.rows.stop, device=device) + shift
        distance = torch.arange(stripe.columns.start, stripe.columns.stop, device=device)[None] - positions[:, None]
        self.seen = stripe.visible.sum(-1)
        self.size, self.zero = 2 * keys + 1, keys  # distances from −keys to keys
        expected = _expected_keys(distance, stripe, cross, tokens)
        self.expected = {name: self._with_chance(keys) for name, keys in expected.items()}
        self.distances = None if cross else (distance + self.zero).flatten()
        if self.distances is not None:
            can_tell = (self.visible & (self.seen > 1)[:, None]).double()
            self.pairs = self.sum_by_distance(can_tell)
            # for "offset", without the first key: a head that attends to it would seem to attend a distance away
            self.later = torch.arange(stripe.columns.start, stripe.columns.stop, device=device) > 0
            self.later_pairs = self.sum_by_distance(can_tell * self.later)
            self.later_uniform = self.sum_by_distance(can_tell * self.later / self.seen.clamp(min=1)[:, None])
            self.content_pairs = {
                name: self.sum_by_distance(self.expected[name].keys) for name in CONTENT_TYPES if name in self.expected
            }

    def fits(self, stripe: Stripe) -> bool:
        """Whether the expectation also holds for this stripe."""
        same = (self.rows, self.columns) == (stripe.rows, stripe.columns)
        return same and torch.equal(self.visible, stripe.visible)

    def sum_by_distance(self, x: Tensor) -> Tensor:
        """The sum of the entries at each distance between query and key."""
        assert self.distances is not None
        return torch.bincount(self.distances, x.flatten().double(), self.size)

    def _with_chance(self, keys: Tensor) -> ExpectedKeys:
        keys = keys & self.visible
        count = keys.sum(-1)
        queries = (count > 0) & (count < self.seen)
        share = (count / self.seen.clamp(min=1))[queries].double()
        return ExpectedKeys(keys & queries[:, None], queries, float(share.sum()), float((1 - share).sum()))


def _expected_keys(
    distance: Int[Tensor, "t s"], stripe: Stripe, cross: bool, tokens: Tensor | None
) -> dict[str, Tensor]:
    """For each head type, the keys that a query should attend to."""
    keys = torch.arange(stripe.columns.start, stripe.columns.stop, device=distance.device)
    first = (keys == 0).expand_as(distance)
    if cross:
        return {"attention-sink": first}
    expected = {
        "previous-token": distance == -1,
        "next-token": distance == 1,
        "current-token": distance == 0,
        "attention-sink": first & (distance != 0),
    }
    if tokens is None:
        return expected
    tokens = tokens.to(distance.device)
    queries, held = (tokens[run.start : run.stop] for run in (stripe.rows, stripe.columns))
    same = queries[:, None] == held[None]
    before = torch.cat((torch.full_like(tokens[:1], -1), tokens))[stripe.columns.start : stripe.columns.stop]
    followed = (queries[:, None] == before[None]) & (distance < 0)
    return expected | {"same-token": same, "duplicate-token": same & (distance != 0), "induction": followed}


class HeadScorer:
    """Sums one head's weights over its stripes and turns them into scores."""

    def __init__(self) -> None:
        self.weight: dict[str, float] = {}
        self.chance: dict[str, float] = {}
        self.room: dict[str, float] = {}
        self.evenness, self.rows = 0.0, 0
        self.distances: dict[str, Tensor] = {}  # sums by distance
        self.zero = 0

    def add(self, stripe: Stripe, expectation: StripeExpectation) -> None:
        for name, expected in expectation.expected.items():
            weight = float(stripe.weights.masked_fill(~expected.keys, 0.0).double().sum())
            for sums, value in ((self.weight, weight), (self.chance, expected.chance), (self.room, expected.room)):
                sums[name] = sums.get(name, 0.0) + value
        can_tell = expectation.seen > 1
        effective_keys = torch.special.entr(stripe.weights).sum(-1).exp()
        evenness = ((effective_keys - 1) / (expectation.seen - 1).clamp(min=1)).clamp(0, 1)
        self.evenness += float(evenness[can_tell].sum())
        self.rows += int(can_tell.sum())
        if expectation.distances is None:
            return
        self.zero = expectation.zero
        found = {
            "weight": expectation.sum_by_distance(stripe.weights * can_tell[:, None]),
            "pairs": expectation.pairs,
            "later weight": expectation.sum_by_distance(stripe.weights * can_tell[:, None] * expectation.later),
            "later pairs": expectation.later_pairs,
            "later uniform": expectation.later_uniform,
        }
        for name, count in expectation.content_pairs.items():
            content = stripe.weights.masked_fill(~expectation.expected[name].keys, 0.0)
            found |= {f"weight {name}": expectation.sum_by_distance(content), f"pairs {name}": count}
        for name, sums in found.items():
            self.distances[name] = self.distances.get(name, 0) + sums

    def scores(self) -> tuple[dict[str, float], int | None]:
        """The scores of the head types that the input can tell, and the best distance for "offset"."""
        scores = {}
        for name, room in self.room.items():
            if room > 1e-9:
                chance = self.chance[name]
                if name in CONTENT_TYPES:
                    chance = max(chance, self._weight_by_distance_alone(name))
                scores[name] = _share(self.weight[name] - chance, self.chance[name] + room - chance)
        if self.rows:
            scores["uniform"] = self.evenness / self.rows
        offset, best = self._best_offset()
        if offset is not None:
            scores["offset"] = best
        return scores, offset

    def _weight_by_distance_alone(self, name: str) -> float:
        """The weight that the head would put on a type's keys if it gave them as much as other keys at that distance.

        Only distances with several times as many other keys are used.
        """
        if "weight" not in self.distances:
            return 0.0
        weight, pairs = self.distances["weight"], self.distances["pairs"]
        content, count = self.distances[f"weight {name}"], self.distances[f"pairs {name}"]
        others = pairs - count
        usual = torch.where(others >= 4 * count, (weight - content) / others.clamp(min=1), 0.0)
        return float((count * usual).sum())

    def _best_offset(self) -> tuple[int | None, float]:
        scores = {}
        for offset in [each for each in range(-MAX_OFFSET, MAX_OFFSET + 1) if abs(each) > 1]:
            index = self.zero + offset
            if "weight" in self.distances and 0 <= index < len(self.distances["weight"]):
                sums = (float(self.distances[f"later {name}"][index]) for name in ("weight", "pairs", "uniform"))
                weight, pairs, even = sums
                if pairs >= MIN_OFFSET_PAIRS and pairs - even > 1e-9:
                    scores[offset] = _share(weight - even, pairs - even)
        best = max(scores, key=lambda each: scores[each], default=None)
        return (None, 0.0) if best is None else (best, scores[best])


def _share(above: float, room: float) -> float:
    return min(max(above / room, 0.0), 1.0) if room > 1e-9 else 0.0


def score_layer(
    layer: TracedLayer, tokens: Int[Tensor, " t"] | None, batch: int = 0, queries: int | None = None
) -> list[tuple[dict[str, float], int | None]]:
    """For each head of a layer its scores and its best offset.

    tokens: the tokens of queries and keys, if they are the same. queries: use only this many first queries.
    """
    scorers = [HeadScorer() for _ in range(layer.heads)]
    shift = 0 if layer.cross else layer.keys - layer.queries
    for stripes in layer.stripes_of_all_heads(batch, queries=queries):
        expectation: StripeExpectation | None = None
        for scorer, stripe in zip(scorers, stripes, strict=True):
            if expectation is None or not expectation.fits(stripe):
                size = max(layer.keys, layer.queries)
                expectation = StripeExpectation(stripe, shift, bool(layer.cross), tokens, size)
            scorer.add(stripe, expectation)
    return [scorer.scores() for scorer in scorers]
