"""Measuring where a head looks: its weight on the keys that each kind of head would attend to, beyond chance.

Axes: t queries · s keys · n distances.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from qkv.interp.tiles import Stripe, stripes
from qkv.interp.traces.layer import CELLS, Layer

OFFSETS = 16  # the largest distance that is looked for
CONTENT = ("duplicate", "induction")  # kinds that are corrected for what a head gives those distances anyway


@dataclass(frozen=True, eq=False)
class Wanted:
    """For one stripe and one kind, what a head is measured against; the same for all heads that see the same keys.

    keys: where queries should look, of those that can tell. queries: which can. chance: what an even spread would put
    there, and room: what it would leave to a perfect head.
    """

    keys: Bool[Tensor, "t s"]
    queries: Bool[Tensor, " t"]
    chance: float
    room: float


class Stage:
    """What a stripe offers each kind of head; worked out once for all heads of a layer that see the same keys."""

    def __init__(self, stripe: Stripe, shift: int, cross: bool, tokens: Tensor | None, keys: int) -> None:
        self.visible, self.rows, self.columns = stripe.visible, stripe.rows, stripe.columns
        device = stripe.weights.device
        places = torch.arange(stripe.rows.start, stripe.rows.stop, device=device) + shift
        self.distance = torch.arange(stripe.columns.start, stripe.columns.stop, device=device)[None] - places[:, None]
        self.seen = stripe.visible.sum(-1)
        self.size, self.base = 2 * keys + 1, keys  # distances from −keys to keys
        wanted = _wanted(self.distance, stripe, cross, tokens)
        self.wanted = {kind: self._made(keys) for kind, keys in wanted.items()}
        self.places = None if cross else (self.distance + self.base).flatten()
        if self.places is not None:
            tells = (self.visible & (self.seen > 1)[:, None]).double()
            self.pairs = self.by_distance(tells)
            self.even = self.by_distance(tells / self.seen.clamp(min=1)[:, None])
            self.held = {kind: self.by_distance(self.wanted[kind].keys) for kind in CONTENT if kind in self.wanted}

    def fits(self, stripe: Stripe) -> bool:
        same = (self.rows, self.columns) == (stripe.rows, stripe.columns)
        return same and torch.equal(self.visible, stripe.visible)

    def by_distance(self, x: Tensor) -> Tensor:
        """The sum of what stands at each distance between query and key."""
        assert self.places is not None
        return torch.bincount(self.places, x.flatten().double(), self.size)

    def _made(self, keys: Tensor) -> Wanted:
        keys = keys & self.visible
        count = keys.sum(-1)
        queries = (count > 0) & (count < self.seen)
        share = (count / self.seen.clamp(min=1))[queries].double()
        return Wanted(keys & queries[:, None], queries, float(share.sum()), float((1 - share).sum()))


def _wanted(distance: Int[Tensor, "t s"], stripe: Stripe, cross: bool, tokens: Tensor | None) -> dict[str, Tensor]:
    """For each kind, the keys that a query should attend to."""
    keys = torch.arange(stripe.columns.start, stripe.columns.stop, device=distance.device)
    first = (keys == 0).expand_as(distance)
    if cross:
        return {"first": first}
    wanted = {"previous": distance == -1, "next": distance == 1, "own": distance == 0, "first": first & (distance != 0)}
    if tokens is None:
        return wanted
    tokens = tokens.to(distance.device)
    queries, held = (tokens[run.start : run.stop] for run in (stripe.rows, stripe.columns))
    alike = queries[:, None] == held[None]
    before = torch.cat((torch.full_like(tokens[:1], -1), tokens))[stripe.columns.start : stripe.columns.stop]
    followed = (queries[:, None] == before[None]) & (distance < 0)
    return wanted | {"same": alike, "duplicate": alike & (distance != 0), "induction": followed}


class Measured:
    """One head's sums over its stripes, and the scores that they make."""

    def __init__(self) -> None:
        self.weight: dict[str, float] = {}
        self.chance: dict[str, float] = {}
        self.room: dict[str, float] = {}
        self.even, self.rows = 0.0, 0
        self.distances: dict[str, Tensor] = {}  # sums by distance
        self.base = 0

    def add(self, stripe: Stripe, stage: Stage) -> None:
        for kind, wanted in stage.wanted.items():
            weight = float(stripe.weights.masked_fill(~wanted.keys, 0.0).double().sum())
            for sums, value in ((self.weight, weight), (self.chance, wanted.chance), (self.room, wanted.room)):
                sums[kind] = sums.get(kind, 0.0) + value
        tells = stage.seen > 1
        effective = torch.special.entr(stripe.weights).sum(-1).exp()  # how many keys a query attends to, in effect
        self.even += float(((effective - 1) / (stage.seen - 1).clamp(min=1)).clamp(0, 1)[tells].sum())
        self.rows += int(tells.sum())
        if stage.places is None:
            return
        self.base = stage.base
        found = {"weight": stage.by_distance(stripe.weights * tells[:, None]), "pairs": stage.pairs, "even": stage.even}
        for kind, count in stage.held.items():
            held = stage.by_distance(stripe.weights.masked_fill(~stage.wanted[kind].keys, 0.0))
            found |= {f"weight {kind}": held, f"pairs {kind}": count}
        for name, sums in found.items():
            self.distances[name] = self.distances.get(name, 0) + sums

    def scores(self) -> tuple[dict[str, float], int | None]:
        """The scores of the kinds that the input can tell, and the distance that "offset" is best at."""
        scores = {}
        for kind, room in self.room.items():
            if room > 1e-9:
                chance = max(self.chance[kind], self._habit(kind) if kind in CONTENT else 0.0)
                total = self.chance[kind] + room
                scores[kind] = _share(self.weight[kind] - chance, total - chance)
        if self.rows:
            scores["uniform"] = self.even / self.rows
        offset, best = self._offset()
        return scores | ({} if offset is None else {"offset": best}), offset

    def _habit(self, kind: str) -> float:
        """The weight that the head would put on a kind's keys by their distance alone: as much as on others there.

        Only distances at which there are several times as many other keys can tell.
        """
        if "weight" not in self.distances:
            return 0.0
        weight, pairs = self.distances["weight"], self.distances["pairs"]
        held, count = self.distances[f"weight {kind}"], self.distances[f"pairs {kind}"]
        others = pairs - count
        usual = torch.where(others >= 4 * count, (weight - held) / others.clamp(min=1), 0.0)
        return float((count * usual).sum())

    def _offset(self) -> tuple[int | None, float]:
        scores = {}
        for offset in [each for each in range(-OFFSETS, OFFSETS + 1) if abs(each) > 1]:
            place = self.base + offset
            if "weight" in self.distances and 0 <= place < len(self.distances["weight"]):
                weight, pairs, even = (float(self.distances[name][place]) for name in ("weight", "pairs", "even"))
                if pairs - even > 1e-9:
                    scores[offset] = _share(weight - even, pairs - even)
        best = max(scores, key=lambda each: scores[each], default=None)
        return (None, 0.0) if best is None else (best, scores[best])


def _share(above: float, room: float) -> float:
    return min(max(above / room, 0.0), 1.0) if room > 1e-9 else 0.0


def layer_scores(
    layer: Layer, tokens: Int[Tensor, " t"] | None, batch: int = 0
) -> list[tuple[dict[str, float], int | None]]:
    """For each head of a layer its scores and its best offset; tokens only if they are those of queries and keys."""
    measured = [Measured() for _ in range(layer.heads)]
    shift = 0 if layer.cross else layer.keys - layer.queries
    cells = max(CELLS // layer.heads, 1)  # all heads of a run of rows are held together
    runs = zip(*(stripes(layer, head, batch, cells) for head in range(layer.heads)), strict=True)
    for run in runs:
        stage: Stage | None = None
        for head, stripe in zip(measured, run, strict=True):
            if stage is None or not stage.fits(stripe):
                stage = Stage(stripe, shift, bool(layer.cross), tokens, max(layer.keys, layer.queries))
            head.add(stripe, stage)
    return [head.scores() for head in measured]
