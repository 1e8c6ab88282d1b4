"""What kind of head each head is, with a measured score for each kind.

Axes: t queries · s keys.

Every score is in [0, 1] and corrected for chance. For a kind that says where a head should look, let T(i) be the keys
that query i should attend to and V(i) those that it may see. Over the queries for which T(i) is not empty and not all
of V(i),

    score = (Σ weight on T − chance) / (Σ 1 − chance),   chance = Σ |T| / |V|,

at least 0: what the head does beyond one that spreads its weight evenly over what it sees, as a share of what a perfect
one would. A uniform head scores 0, a head that attends to nothing but T scores 1. The tokens that "duplicate" and
"induction" should attend to may happen to stand nearby, where many heads look anyway: for these two, chance is also at
least what the head puts on other keys at the same distances.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor, nn

from qkv.interp.head_scores import layer_scores
from qkv.interp.positional import positional
from qkv.interp.probes import repeated, shuffled
from qkv.interp.result import Result
from qkv.interp.run import Inputs, at, read_tokens
from qkv.interp.traces.trace import Trace

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
# The score from which on a head is called by a kind. Induction heads of small models put a tenth of their weight there;
# a head is called uniform or positional only if nothing else says what it does.
NAMED = dict.fromkeys(KINDS, 0.3) | {"duplicate": 0.1, "induction": 0.1, "positional": 0.5, "uniform": 0.5}


@dataclass(frozen=True, eq=False)
class Head(Result):
    """One head: the kind it is called by ("mixed" if no score is high enough), that kind's score, and all scores.

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

    def of(self, kind: str, least: float | None = None) -> tuple[Head, ...]:
        """The heads whose score for a kind is at least so high (as is needed to be called by it), the highest first."""
        if kind not in KINDS:
            raise ValueError(f"heads are {', '.join(KINDS)}; got {kind!r}")
        least = NAMED[kind] if least is None else least
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

    Kinds that say where to look are measured on the input; "induction" and "duplicate", which need tokens that come
    again, on the input repeated, where the model reads that many; "offset" on a shuffled copy, since in a text that
    repeats itself distance and content go together; "positional" on the input and `others` shuffled copies.

    >>> import torch, qkv
    >>> _ = torch.manual_seed(0)
    >>> model = qkv.models.GPT(qkv.models.GPTConfig(vocab_size=65, dim=32, layers=2, heads=4))
    >>> found = heads(model, torch.randint(0, 65, (1, 12)))
    >>> len(found.heads), found.at(0, 0).kind
    (8, 'uniform')
    """
    trace = at(model, inputs)
    found = score_heads(trace, read_tokens(inputs), batch=batch)
    measured: dict[str, str] = {}
    more: dict[tuple[int, int], dict[str, float | None]] = {}
    offsets: dict[tuple[int, int], int | None] = {}
    copies = [at(model, copy) for copy in shuffled(model, inputs, others, seed)]
    if copies:
        more = positional(trace, copies, batch)
        for each in score_heads(copies[0], batch=batch).heads:
            more[each.layer, each.head]["offset"] = each.scores["offset"]
            offsets[each.layer, each.head] = each.offset
        measured |= {"positional": f"the input and {len(copies)} shuffled copies", "offset": "a shuffled copy"}
    twice = _repeated(model, inputs, batch)
    if twice is not None and twice.names == found.names:
        for each in twice.heads:
            both = {kind: each.scores[kind] for kind in ("induction", "duplicate")}
            more.setdefault((each.layer, each.head), {}).update(both)
        measured |= dict.fromkeys(("induction", "duplicate"), "the input repeated")
    updated = []
    for each in found.heads:
        key = (each.layer, each.head)
        scores = {**each.scores, **more.get(key, {})}
        updated.append(_named(*key, each.name, offsets.get(key, each.offset), scores))
    return Heads(found.names, tuple(updated), measured)


def _repeated(model: nn.Module, inputs: Inputs, batch: int) -> Heads | None:
    """The kinds of heads on the input repeated; None where the model does not read that."""
    again = repeated(model, inputs)
    try:
        return None if again is None else score_heads(at(model, again), read_tokens(again), batch=batch)
    except (ValueError, RuntimeError, IndexError):  # a model of others' that says nowhere how much it reads
        return None


def score_heads(trace: Trace, tokens: Int[Tensor, "b t"] | None = None, *, batch: int = 0) -> Heads:
    """The kinds of heads in one trace, of what one input can tell.

    tokens: the tokens of the text (of the target, of a pair); without them, kinds that compare tokens are None.
    """
    found = []
    row = None if tokens is None else tokens[batch]
    for place, layer in enumerate(trace.layers):
        fitting = row is not None and not layer.cross and layer.queries == layer.keys == len(row)
        for head, (known, offset) in enumerate(layer_scores(layer, row if fitting else None, batch)):
            scores: dict[str, float | None] = {kind: known.get(kind) for kind in KINDS}
            found.append(_named(place, head, layer.name, offset, scores))
    return Heads(tuple(layer.name for layer in trace.layers), tuple(found), {})


def _named(layer: int, head: int, name: str, offset: int | None, scores: Mapping[str, float | None]) -> Head:
    """A head called by the kind whose score is furthest above what is needed; by where it looks, if any is."""
    told = {kind: score for kind, score in scores.items() if score is not None and score >= NAMED[kind]}
    where = {kind: score for kind, score in told.items() if kind not in ("positional", "uniform")}
    kind = max(where or told, key=lambda each: told[each] / NAMED[each], default="mixed")
    return Head(layer, name, head, kind, told.get(kind, 0.0), offset, scores)
