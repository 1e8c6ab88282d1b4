"""What kind of head each head is, with a measured score for each kind.

Axes: t queries · s keys.

Every score is in [0, 1] and corrected for chance. For a kind that says where a head should look, let T(i) be the keys
that query i should attend to and V(i) those that it may see. Over the queries for which T(i) is not empty and not all
of V(i),

    score = (Σ weight on T − Σ |T|/|V|) / (Σ 1 − |T|/|V|),

at least 0: what the head does beyond a head that spreads its weight evenly over what it sees, as a share of what a
perfect one would do beyond it. A uniform head scores 0, a head that attends to nothing but T scores 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from qkv.look.positional import positional
from qkv.look.probes import repeated_probe, shuffled
from qkv.look.result import Result
from qkv.look.run import Inputs, at, read_tokens
from qkv.look.tiles import Stripe, stripes
from qkv.trace import Trace
from qkv.trace.layer import Layer

KINDS: dict[str, str] = {
    "previous": "attends to the token before",
    "next": "attends to the token behind",
    "offset": "attends a fixed distance away, other than to itself and its neighbours",
    "own": "attends to its own place",
    "first": "attends to the first token, as to a place to rest",
    "same": "attends to the same token, at its own place or elsewhere",
    "duplicate": "attends to the same token elsewhere",
    "induction": "attends to what came after the same token before",
    "positional": "attends to places, whatever stands there",
    "uniform": "spreads its weight evenly",
}
OFFSETS = 16  # the largest distance that "offset" looks for
NAMED = 0.3  # the score from which on a head is called by a kind


@dataclass(frozen=True, eq=False)
class Head(Result):
    """One head: the kind it is called by ("mixed" if no score reaches 0.3), that kind's score, and all scores.

    offset: the distance that "offset" was best at, key − query.
    scores: for each kind a number in [0, 1]; None where the input cannot tell.
    """

    layer: int
    name: str
    head: int
    kind: str
    score: float
    offset: int | None
    scores: Mapping[str, float | None]


@dataclass(frozen=True, eq=False)
class Heads(Result):
    """All heads of a model with their kinds.

    names: the layers'. measured: for each kind that is not measured on the input itself, what it was measured on.
    """

    names: tuple[str, ...]
    heads: tuple[Head, ...]
    measured: Mapping[str, str]

    def of(self, kind: str, least: float = NAMED) -> tuple[Head, ...]:
        """The heads whose score for a kind is at least so high, the highest first."""
        if kind not in KINDS:
            raise ValueError(f"heads are {', '.join(KINDS)}; got {kind!r}")
        found = [head for head in self.heads if (head.scores[kind] or 0.0) >= least]
        return tuple(sorted(found, key=lambda head: -(head.scores[kind] or 0.0)))

    def at(self, layer: int, head: int) -> Head:
        """One head."""
        return next(each for each in self.heads if (each.layer, each.head) == (layer, head))

    def table(self, kind: str) -> tuple[tuple[float | None, ...], ...]:
        """The scores for a kind: a row for each layer, a number for each head."""
        if kind not in KINDS:
            raise ValueError(f"heads are {', '.join(KINDS)}; got {kind!r}")
        rows: list[list[float | None]] = [[] for _ in self.names]
        for head in self.heads:
            rows[head.layer].append(head.scores[kind])
        return tuple(tuple(row) for row in rows)


def heads(model: nn.Module, inputs: Inputs, *, seed: int = 0, others: int = 3, batch: int = 0) -> Heads:
    """The kinds of a model's heads, measured on an input and on variations of it.

    Kinds that say where to look are measured on the input. "induction" and "duplicate" need tokens that come again:
    they are measured on the input's own tokens shuffled and repeated, where the model reads that many. "positional"
    compares the input with `others` shuffled copies of it.

    >>> import qkv
    >>> _ = torch.manual_seed(0)
    >>> model = qkv.models.GPT(qkv.models.GPTConfig(vocab=65, width=32, layers=2, heads=4))
    >>> found = heads(model, torch.randint(0, 65, (1, 12)))
    >>> len(found.heads), found.at(0, 0).kind
    (8, 'uniform')
    """
    trace = at(model, inputs)
    found = score_heads(trace, _row(read_tokens(inputs), batch), batch=batch)
    measured: dict[str, str] = {}
    changes: list[dict[tuple[int, int], dict[str, float | None]]] = []
    copies = shuffled(model, inputs, others, seed)
    if copies:
        changes.append(positional(trace, [at(model, copy) for copy in copies], batch))
        measured["positional"] = f"the input and {len(copies)} shuffled copies of it"
    probe = repeated_probe(model, inputs, seed)
    if probe is not None:
        again = score_heads(at(model, probe), _row(read_tokens(probe), 0))
        if again.names == found.names:
            kinds = ("induction", "duplicate")
            changes.append({(each.layer, each.head): {k: each.scores[k] for k in kinds} for each in again.heads})
            measured.update(dict.fromkeys(kinds, "the input's tokens, shuffled and repeated"))
    updated = (
        _with(
            each, {key: value for change in changes for key, value in change.get((each.layer, each.head), {}).items()}
        )
        for each in found.heads
    )
    return Heads(found.names, tuple(updated), measured)


def score_heads(trace: Trace, tokens: Int[Tensor, " t"] | None = None, *, batch: int = 0) -> Heads:
    """The kinds of heads in one trace, of what one input can tell.

    tokens: the tokens of the text (of the target, of a pair); without them, kinds that compare tokens are None.
    """
    found = []
    for index, layer in enumerate(trace.layers):
        fitting = tokens is not None and not layer.cross and layer.queries == layer.keys == len(tokens)
        targets = Targets(layer, tokens if fitting else None)
        for head in range(layer.heads):
            found.append(_scored(index, layer, head, batch, targets))
    return Heads(tuple(layer.name for layer in trace.layers), tuple(found), {})


class Targets:
    """For each kind, where a layer's queries should look; worked out once for a stripe that many heads share."""

    def __init__(self, layer: Layer, tokens: Tensor | None) -> None:
        self.tokens, self.cross = tokens, bool(layer.cross)
        self.shift = 0 if layer.cross else layer.keys - layer.queries
        self._known: tuple[tuple[range, range], dict[str, Tensor]] | None = None

    def of(self, stripe: Stripe) -> dict[str, Bool[Tensor, "t s"]]:
        key = (stripe.rows, stripe.columns)
        if self._known is None or self._known[0] != key:
            self._known = (key, self._made(stripe))
        return self._known[1]

    def distance(self, stripe: Stripe) -> Int[Tensor, "t s"]:
        """How far behind its query each key stands."""
        device = stripe.weights.device
        places = torch.arange(stripe.rows.start, stripe.rows.stop, device=device) + self.shift
        return torch.arange(stripe.columns.start, stripe.columns.stop, device=device)[None] - places[:, None]

    def _made(self, stripe: Stripe) -> dict[str, Tensor]:
        distance = self.distance(stripe)
        keys = torch.arange(stripe.columns.start, stripe.columns.stop, device=distance.device)
        first = (keys == 0).expand_as(distance)
        made = {"first": first if self.cross else first & (distance != 0)}
        if not self.cross:
            made |= {"previous": distance == -1, "next": distance == 1, "own": distance == 0}
        if self.tokens is None:
            return made
        tokens = self.tokens.to(distance.device)
        queries, held = (tokens[run.start : run.stop] for run in (stripe.rows, stripe.columns))
        alike = queries[:, None] == held[None]
        before = torch.cat((tokens[:1] * 0 - 1, tokens))[stripe.columns.start : stripe.columns.stop]
        followed = (queries[:, None] == before[None]) & (
            distance < 0
        )  # the key's own predecessor is an earlier query's
        return made | {"same": alike, "duplicate": alike & (distance != 0), "induction": followed}


def _scored(index: int, layer: Layer, head: int, batch: int, targets: Targets) -> Head:
    sums: dict[str, list[float]] = {}
    for stripe in stripes(layer, head, batch):
        seen = stripe.visible.sum(-1)
        for kind, wanted in targets.of(stripe).items():
            _add(sums.setdefault(kind, [0.0, 0.0]), stripe, wanted, seen)
        if not targets.cross:
            _add_offsets(sums, stripe, targets.distance(stripe), seen)
        _add_evenness(sums.setdefault("uniform", [0.0, 0.0]), stripe, seen)
    every = {kind: max(above / room, 0.0) if room > 1e-9 else None for kind, (above, room) in sums.items()}
    offsets = {int(kind): score for kind, score in every.items() if kind.lstrip("-").isdigit() and score is not None}
    offset = max(offsets, key=lambda each: offsets[each], default=None)
    scores: dict[str, float | None] = {kind: every.get(kind) for kind in KINDS}
    scores["offset"] = None if offset is None else offsets[offset]
    return _named(index, layer.name, head, offset, scores)


def _add(sums: list[float], stripe: Stripe, wanted: Tensor, seen: Tensor) -> None:
    """Add these rows' weight beyond chance, and the room there was for it."""
    wanted = wanted & stripe.visible
    count = wanted.sum(-1)
    tells = (count > 0) & (count < seen)
    chance = count / seen.clamp(min=1)
    weight = (stripe.weights * wanted).sum(-1)
    sums[0] += float((weight - chance)[tells].sum())
    sums[1] += float((1 - chance)[tells].sum())


def _add_offsets(sums: dict[str, list[float]], stripe: Stripe, distance: Tensor, seen: Tensor) -> None:
    for offset in range(-OFFSETS, OFFSETS + 1):
        if abs(offset) < 2:
            continue
        diagonal = distance[:, :1] * -1 + offset  # the column in which that distance stands, for each row
        inside = ((diagonal >= 0) & (diagonal < distance.shape[1])).squeeze(1)
        column = diagonal.clamp(0, max(distance.shape[1] - 1, 0))
        if not distance.shape[1] or not bool(inside.any()):
            continue
        tells = inside & stripe.visible.gather(1, column).squeeze(1) & (seen > 1)
        chance = 1 / seen.clamp(min=1)
        weight = stripe.weights.gather(1, column).squeeze(1)
        total = sums.setdefault(str(offset), [0.0, 0.0])
        total[0] += float((weight - chance)[tells].sum())
        total[1] += float((1 - chance)[tells].sum())


def _add_evenness(sums: list[float], stripe: Stripe, seen: Tensor) -> None:
    """How many keys a query effectively attends to, e^entropy, from 1 (score 0) to all that it sees (score 1)."""
    tells = seen > 1
    effective = torch.special.entr(stripe.weights).sum(-1).exp()
    even = ((effective - 1) / (seen - 1).clamp(min=1)).clamp(0, 1)
    sums[0] += float(even[tells].sum())
    sums[1] += float(tells.sum())


def _named(index: int, name: str, head: int, offset: int | None, scores: dict[str, float | None]) -> Head:
    """A head called by its best kind: one that says where it looks if any does, else by place or evenness."""
    told = {kind: score for kind, score in scores.items() if score is not None and score >= NAMED}
    where = {kind: score for kind, score in told.items() if kind not in ("positional", "uniform")}
    choice = where or told
    kind = max(choice, key=lambda each: choice[each], default="mixed")
    return Head(index, name, head, kind, choice.get(kind, 0.0), offset, scores)


def _with(head: Head, changes: Mapping[str, Any]) -> Head:
    return _named(head.layer, head.name, head.head, head.offset, {**head.scores, **changes})


def _row(tokens: Tensor | None, batch: int) -> Tensor | None:
    return None if tokens is None else tokens[batch]


def kinds() -> Sequence[tuple[str, str]]:
    """Every kind, with what heads of it do."""
    return tuple(KINDS.items())
