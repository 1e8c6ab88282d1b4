"""One look: a model, an input, what was recorded; the same with a change; and the windows that the page asks for."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from qkv.interp import Trace, change
from qkv.interp.effect import Effect, effect
from qkv.interp.head_types import Heads, heads
from qkv.interp.outcome import answer, question_traced
from qkv.interp.requests import betas_of, silenced_of
from qkv.interp.rollout import rollout
from qkv.interp.run import read_tokens
from qkv.interp.session import ROLLED, rolled_trace
from qkv.interp.stacks import stack_of
from qkv.interp.subject import Subject
from qkv.interp.traces.trace import pooled
from qkv.studio.answers import UnknownError
from qkv.studio.models.given import Given, given
from qkv.studio.models.shelf import Held, Shelf
from qkv.studio.models.told import Told, told

KEPT = 12  # looks that are remembered
CHANGED = 150_000_000  # heads × queries × keys up to which changes are tried: they take unfused attention
KINDS = 1024  # tokens up to which kinds of heads are found: the model reads the input five times for them


@dataclass(frozen=True)
class Changes:
    """What is changed, as the page and the command line write it."""

    silence: tuple[str, ...] = ()
    beta: tuple[str, ...] = ()
    cut: tuple[tuple[int, int | None, int, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.silence or self.beta or self.cut)

    @staticmethod
    def read(body: dict[str, Any]) -> Changes:
        """From a request."""
        cut = tuple(_edge(each) for each in _listed(body, "cut"))
        return Changes(_words(body, "silence"), _words(body, "beta"), cut)

    def on(self, trace: Trace) -> dict[str, Any]:
        """As `qkv.interp.change` takes them."""
        found: dict[str, Any] = {}
        if self.silence:
            found["silence"] = silenced_of(trace, self.silence)
        if self.beta:
            found["beta"] = betas_of(trace, self.beta)
        if self.cut:
            for layer, head, query, key in self.cut:
                trace.weights(
                    layer, head or 0, rows=range(query, query + 1), columns=range(key, key + 1)
                )  # says if not
            found["cut"] = list(self.cut)
        return found


def _listed(body: dict[str, Any], name: str) -> list[Any]:
    found = body.get(name) or []
    if not isinstance(found, list) or len(found) > 500:
        raise ValueError(f"{name} is a list of at most 500")
    return found


def _words(body: dict[str, Any], name: str) -> tuple[str, ...]:
    return tuple(str(each) for each in _listed(body, name))


def _edge(each: Any) -> tuple[int, int | None, int, int]:
    if not isinstance(each, list) or len(each) != 4 or not all(isinstance(n, int) for n in (each[0], *each[2:])):
        raise ValueError(f"an edge is [layer, head, query, key]; got {each!r}")
    return each[0], None if each[1] is None else int(each[1]), each[2], each[3]


@dataclass(eq=False)
class Look:
    """What was seen. plain: of a changed look, the same without the change."""

    id: str
    held: Held
    given: Given
    subject: Subject
    trace: Trace
    told: Told
    causal: bool
    changes: Changes = field(default_factory=Changes)
    effect: Effect | None = None
    plain: Look | None = None
    _rolled: Trace | None = None
    _heads: Heads | None = None

    def maps(self, layer: int) -> tuple[Trace, int]:
        """The trace that holds a layer's maps; layer −1 is the rollout."""
        if layer >= 0:
            return self.trace, layer
        if self._rolled is None:
            if max(each.queries for each in self.trace.layers) > ROLLED:
                raise ValueError(f"the rollout of every token is shown for up to {ROLLED:,} tokens")
            self._rolled = rolled_trace(rollout(self.trace))
        return self._rolled, 0

    @property
    def target(self) -> list[int] | None:
        """Of an encoder–decoder, the tokens it wrote or was given, without the first, which begins every target."""
        tokens = read_tokens(self.subject.inputs) if self.subject.kind == "pair" else None
        return None if tokens is None else tokens[0, 1:].tolist()

    @property
    def rolls(self) -> bool:
        """Whether there is a rollout: some blocks follow one another, on an input that is not too long."""
        try:
            layers = [self.trace.layers[place] for place in stack_of(self.trace).layers]
        except ValueError:
            return False
        sizes = {layer.queries for layer in layers} | {layer.keys for layer in layers}
        return len(sizes) == 1 and max(layer.queries for layer in self.trace.layers) <= ROLLED

    @property
    def tells_kinds(self) -> bool:
        """Whether the input is short enough for kinds of heads to be found."""
        return len(self.subject.tokens) <= KINDS

    def kinds(self) -> Heads:
        """The kinds of heads of the model as it is."""
        if self.plain is not None:
            return self.plain.kinds()
        with self.held.lock:
            if self._heads is None:
                if not self.tells_kinds:
                    raise ValueError(f"kinds of heads are found on up to {KINDS:,} tokens")
                self._heads = heads(self.subject.model, self.subject.inputs)
        return self._heads


class Looks:
    """The looks of a studio."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self._looks: OrderedDict[str, Look] = OrderedDict()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def get(self, name: Any) -> Look:
        """One of them by its id."""
        with self._lock:
            if name not in self._looks:
                raise UnknownError("this look is not held any more; look again")
            self._looks.move_to_end(name)
            return self._looks[name]

    def look(self, body: dict[str, Any]) -> Look:
        """A model on an input; beside another look, with the target that it has."""
        held = self.shelf.get(body["model"])
        beside = self.get(body["beside"]) if body.get("beside") and held.kind == "pair" else None
        with held.lock:
            what = given(held, body)
            if beside is not None and what.target is None:
                what = replace(what, target=beside.target)
            subject = what.subject(held)
            asked, output, trace = question_traced(subject.model, subject.inputs)
        causal = asked.targets is not None
        return self._keep(held, what, subject, trace, told(subject, output, causal), causal)

    def change(self, body: dict[str, Any]) -> Look:
        """The same with a change."""
        plain = self.get(body["look"])
        changes = Changes.read(body)
        if not changes:
            raise ValueError("nothing is changed: silence a head, cut an edge or turn β")
        largest = max(layer.heads * layer.queries * layer.keys for layer in plain.trace.layers)
        if largest > CHANGED:
            raise ValueError("this input is too long to try changes on; take a shorter one")
        asked = changes.on(plain.trace)
        model, inputs = plain.subject.model, plain.subject.inputs
        with plain.held.lock:
            found = None if plain.told.sort == "none" else effect(model, inputs, **asked)
            before = answer(model, inputs)
            with change(model, **asked):
                trace = plain.subject.trace()
                output = answer(model, inputs)
        after = told(plain.subject, before, plain.causal, output)
        more = {"changes": changes, "effect": found, "plain": plain}
        return self._keep(plain.held, plain.given, plain.subject, trace, after, plain.causal, **more)

    def _keep(self, *parts: Any, **more: Any) -> Look:
        with self._lock:
            look = Look(str(next(self._numbers)), *parts, **more)
            self._looks[look.id] = look
            while len(self._looks) > KEPT:
                self._looks.popitem(last=False)
            return look


@torch.no_grad()
def window(trace: Trace, layer: int, head: int, rows: range, columns: range, size: int) -> tuple[Tensor, int]:
    """A rectangle of a head's map, exact if it has at most `size` rows and columns, else pooled by its largest weights.

    Returns the weights and how many queries and keys a cell stands for. Cells begin at the rectangle's corner.
    """
    step = max(-(-max(len(rows), len(columns)) // size), 1)
    if step == 1:
        return trace.weights(layer, head, rows=rows, columns=columns), 1
    found = trace.layer(layer)
    if len(rows) == found.queries and len(columns) == found.keys:
        return trace.map(layer, head, size), step
    parts = []
    for start in range(rows.start, rows.stop, step * 32):
        some = range(start, min(start + step * 32, rows.stop))
        parts.append(pooled(trace.weights(layer, head, rows=some, columns=columns), 0, 0, step, "max"))
    return torch.cat(parts), step
