"""Head types: the list of types and classify_heads() (previous-token, induction, attention sink, …).

Axes: t queries · s keys.

Every score is in [0, 1] and corrected for chance. For a type that says where a head attends, let T(i) be the keys that
query i should attend to and V(i) the keys that it may see. Over the queries with T(i) neither empty nor all of V(i),

    score = (Σ weight on T − chance) / (Σ 1 − chance),   chance = Σ |T| / |V|,

at least 0: what the head does beyond uniform attention, as a share of what a perfect head would do. A uniform head
scores 0, a head that attends only to T scores 1. The tokens that "duplicate-token" and "induction" should attend to may
be nearby, where many heads attend anyway: for these two, chance is at least what the head puts on other keys at the
same distances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor, nn

from qkv.interp.comparison import jensen_shannon
from qkv.interp.forward import AnalysisResult, ForwardPass, Inputs, find_tokens
from qkv.interp.forward import trace as trace_model
from qkv.interp.head_scores import score_layer
from qkv.interp.probes import ProbeTrace, trace_probes
from qkv.interp.traces import Trace

HEAD_TYPES: dict[str, str] = {
    "previous-token": "attends to the token before",
    "next-token": "attends to the token after",
    "offset": "attends a fixed distance away, beyond its neighbors",
    "current-token": "attends to its own position",
    "attention-sink": "attends to the first token",
    "same-token": "attends to the same token, at its own position or elsewhere",
    "duplicate-token": "attends to the same token elsewhere",
    "induction": "attends to what came after the same token before",
    "positional": "attends to positions, whatever is there",
    "uniform": "spreads its weight evenly",
}
# The score from which on a head has a type. Induction heads of small models put a tenth of their weight there; a head
# is called uniform or positional only if no other type fits.
THRESHOLDS = dict.fromkeys(HEAD_TYPES, 0.3) | {
    "duplicate-token": 0.1,
    "induction": 0.1,
    "positional": 0.5,
    "uniform": 0.5,
}
LESS_INFORMATIVE = ("offset", "attention-sink")  # a fixed distance, or nothing in particular
WITHOUT_TARGET = ("positional", "uniform")  # types that do not say where a head attends
Types = tuple[tuple[str, float], ...]  # types of one head, each with its score


@dataclass(frozen=True, eq=False)
class ClassifiedHead(AnalysisResult):
    """One head: its type ("mixed" if no score is high enough), that type's score, and all scores.

    offset: the best distance for "offset", key − query.
    scores: for each head type a number in [0, 1]; None if the input cannot tell.
    """

    layer: int
    name: str
    head: int
    type: str
    score: float
    offset: int | None
    scores: Mapping[str, float | None]

    @property
    def types(self) -> Types:
        """The types whose scores reach their thresholds, the head's own type first, then the highest score."""
        found = [
            (name, score) for name, score in self.scores.items() if score is not None and score >= THRESHOLDS[name]
        ]
        return tuple(sorted(found, key=lambda each: (each[0] != self.type, -each[1])))


@dataclass(frozen=True, eq=False)
class HeadTypes(AnalysisResult):
    """All heads of a model with their types.

    names: of the layers. measured_on: for each type that is not measured on the input itself, what it is measured on.
    """

    names: tuple[str, ...]
    heads: tuple[ClassifiedHead, ...]
    measured_on: Mapping[str, str]

    def of_type(self, head_type: str, least: float | None = None) -> tuple[ClassifiedHead, ...]:
        """The heads whose score for a type is at least `least` (by default its threshold), highest first."""
        least = THRESHOLDS[_check_type(head_type)] if least is None else least
        found = [head for head in self.heads if (head.scores[head_type] or 0.0) >= least]
        return tuple(sorted(found, key=lambda head: -(head.scores[head_type] or 0.0)))

    def at(self, layer: int, head: int) -> ClassifiedHead:
        """One head."""
        return next(each for each in self.heads if (each.layer, each.head) == (layer, head))

    def table(self, head_type: str) -> tuple[tuple[float | None, ...], ...]:
        """The scores for a type: a row for each layer, a number for each head."""
        _check_type(head_type)
        rows: list[list[float | None]] = [[] for _ in self.names]
        for head in self.heads:
            rows[head.layer].append(head.scores[head_type])
        return tuple(tuple(row) for row in rows)

    def clearest(self) -> ClassifiedHead:
        """The head with the highest score of a type that it has, preferring types that say what a head attends to.

        If no head has a more telling type than uniform, the map with the most structure is the least uniform one.
        """
        place = clearest_place([head.types for head in self.heads])
        if place is not None and self.heads[place].type != "uniform":
            return self.heads[place]
        return min(self.heads, key=lambda each: each.scores["uniform"] or 0.0)


def clearest_place(heads: Sequence[Types]) -> int | None:
    """The place of the head with the most informative type; None if no head has a type.

    Types that say what a head attends to come first, then fixed distances and attention sinks, then the others.

    >>> clearest_place([(("attention-sink", 1.0),), (("induction", 0.6), ("previous-token", 0.4)), (("uniform", 0.9),)])
    1
    """
    for excluded in ((*LESS_INFORMATIVE, *WITHOUT_TARGET), WITHOUT_TARGET, ()):
        best = [max((score for name, score in types if name not in excluded), default=-1.0) for types in heads]
        if max(best, default=-1.0) >= 0:
            return best.index(max(best))
    return None


def _check_type(head_type: str) -> str:
    if head_type not in HEAD_TYPES:
        raise ValueError(f"head types are {', '.join(HEAD_TYPES)}; got {head_type!r}")
    return head_type


def classify_heads(
    model: nn.Module,
    inputs: Inputs,
    *,
    seed: int = 0,
    shuffles: int = 3,
    batch: int = 0,
    baseline: ForwardPass | None = None,
) -> HeadTypes:
    """Classify a model's heads on an input and on variations of it, which run as one batch where the model allows it.

    Types that say where to attend are measured on the input; "induction" and "duplicate-token", which need repeated
    tokens, on the input repeated, if the model can read that much; "offset" on a shuffled copy, since in repetitive
    text distance and content go together; "positional" on the input and `shuffles` shuffled copies.

    baseline: the run of the input, if it was made already (`run_forward`).

    >>> import torch, qkv
    >>> _ = torch.manual_seed(0)
    >>> model = qkv.models.GPT(qkv.models.GPTConfig(vocab_size=65, dim=32, layers=2, heads=4))
    >>> found = classify_heads(model, torch.randint(0, 65, (1, 12)))
    >>> len(found.heads), found.at(0, 0).type
    (8, 'uniform')
    """
    trace = trace_model(model, inputs) if baseline is None else baseline.trace
    found = score_heads(trace, find_tokens(inputs), batch=batch)
    copies, twice = trace_probes(model, inputs, trace, shuffles, seed, batch)
    measured_on: dict[str, str] = {}
    updates: dict[tuple[int, int], dict[str, float | None]] = {}
    offsets: dict[tuple[int, int], int | None] = {}
    if copies:
        updates = score_positional(trace, copies, batch)
        for head in score_heads(copies[0].trace, batch=copies[0].batch, queries=copies[0].length).heads:
            updates[head.layer, head.head]["offset"] = head.scores["offset"]
            offsets[head.layer, head.head] = head.offset
        measured_on |= {"positional": f"the input and {len(copies)} shuffled copies", "offset": "a shuffled copy"}
    if twice is not None and [layer.name for layer in twice.trace.layers] == list(found.names):
        repeated = score_heads(twice.trace, twice.tokens, batch=twice.batch, queries=twice.length)
        for head in repeated.heads:
            scores = {name: head.scores[name] for name in ("induction", "duplicate-token")}
            updates.setdefault((head.layer, head.head), {}).update(scores)
        measured_on |= dict.fromkeys(("induction", "duplicate-token"), "the input repeated")
    heads = []
    for head in found.heads:
        key = (head.layer, head.head)
        scores = {**head.scores, **updates.get(key, {})}
        heads.append(_classify(*key, head.name, offsets.get(key, head.offset), scores))
    return HeadTypes(found.names, tuple(heads), measured_on)


def score_heads(
    trace: Trace, tokens: Int[Tensor, "b t"] | None = None, *, batch: int = 0, queries: int | None = None
) -> HeadTypes:
    """Classify the heads of one trace, as far as one input can tell.

    tokens: the tokens of the text (of an encoder–decoder, the target); without them, types that compare tokens have no
        score. queries: use only this many first queries.
    """
    heads = []
    row = None if tokens is None else tokens[batch]
    for index, layer in enumerate(trace.layers):
        fits = row is not None and not layer.cross and layer.queries == layer.keys == len(row)
        for head, (known, offset) in enumerate(score_layer(layer, row if fits else None, batch, queries)):
            scores: dict[str, float | None] = {name: known.get(name) for name in HEAD_TYPES}
            heads.append(_classify(index, head, layer.name, offset, scores))
    return HeadTypes(tuple(layer.name for layer in trace.layers), tuple(heads), {})


def _classify(
    layer: int, head: int, name: str, offset: int | None, scores: Mapping[str, float | None]
) -> ClassifiedHead:
    """Choose the type whose score is highest relative to its threshold; first among types that say where to attend."""
    above = {each: score for each, score in scores.items() if score is not None and score >= THRESHOLDS[each]}
    targeted = {each: score for each, score in above.items() if each not in WITHOUT_TARGET}
    best = max(targeted or above, key=lambda each: above[each] / THRESHOLDS[each], default="mixed")
    return ClassifiedHead(layer, name, head, best, above.get(best, 0.0), offset, scores)


def score_positional(
    trace: Trace, copies: Sequence[ProbeTrace], batch: int = 0
) -> dict[tuple[int, int], dict[str, float | None]]:
    """For each head, how much better its map on another input predicts its map than uniform attention does.

        score = 1 − Σ JS(row, the same row on another input) / Σ JS(row, uniform over the visible keys),

    at least 0, over all queries that see two keys or more. A head that attends to positions alone scores 1; one whose
    map changes with the content scores 0, and so does a uniform one, which has no pattern to predict.
    """
    scores: dict[tuple[int, int], dict[str, float | None]] = {}
    copies = [copy for copy in copies if len(copy.trace) == len(trace)]
    for index, layer in enumerate(trace.layers):
        others = [(copy.batch, other) for copy in copies if (other := copy.layer(index, layer)) is not None]
        for head in range(layer.heads):
            apart = room = 0.0
            for stripe in layer.stripes(head, batch) if others else ():
                seen = stripe.visible.sum(-1, keepdim=True)
                uniform = stripe.visible / seen.clamp(min=1) * stripe.weights.sum(-1, keepdim=True)
                can_tell = seen.squeeze(1) > 1
                room += float(jensen_shannon(stripe.weights, uniform)[can_tell].sum()) * len(others)
                for row, other in others:
                    weights = other.window(row, head, stripe.rows, stripe.columns)
                    apart += float(jensen_shannon(stripe.weights, weights)[can_tell].sum())
            has_pattern = room > 1e-3 * len(others) * layer.queries  # at least a thousandth of a bit per row
            score = max(1 - apart / room, 0.0) if has_pattern else 0.0
            scores[index, head] = {"positional": score if others else None}
    return scores
