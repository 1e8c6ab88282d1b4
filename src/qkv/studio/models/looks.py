"""Looks: a model run on an input with its attention recorded, also under interventions; and windows of its maps."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from qkv.interp import Trace, intervene
from qkv.interp.ablation import Effect, measure_effect
from qkv.interp.attribution import MAX_ROLLOUT_TOKENS, rollout
from qkv.interp.forward import call_eval, find_tokens, run_forward
from qkv.interp.head_types import HeadTypes, classify_heads
from qkv.interp.inputs import PreparedInput
from qkv.interp.look import parse_heads, parse_scales
from qkv.interp.model_parts import find_stack
from qkv.interp.traces import pool_weights
from qkv.studio.models.inputs import ModelInput, parse_input
from qkv.studio.models.predictions import Predictions, collect_predictions
from qkv.studio.models.store import LoadedModel, ModelStore
from qkv.studio.responses import NotFoundError

MAX_LOOKS = 12  # looks that are remembered
MAX_INTERVENED_WEIGHTS = 150_000_000  # heads × queries × keys: interventions need unfused attention
MAX_CLASSIFIED_TOKENS = 1024  # classifying heads runs the model on several inputs
MAX_INTERVENTIONS = 500
Edge = tuple[int, int | None, int, int]  # layer, head (None: all), query, key


@dataclass(frozen=True)
class Interventions:
    """The interventions of a request, as the page and the command line write them."""

    ablate: tuple[str, ...] = ()
    scale: tuple[str, ...] = ()
    mask: tuple[Edge, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ablate or self.scale or self.mask)

    @staticmethod
    def parse(body: dict[str, Any]) -> Interventions:
        """From a request."""
        ablate, scale = (tuple(str(each) for each in _parse_list(body, name)) for name in ("ablate", "scale"))
        return Interventions(ablate, scale, tuple(_parse_edge(each) for each in _parse_list(body, "mask")))

    def arguments(self, trace: Trace) -> dict[str, Any]:
        """The arguments of `qkv.interp.intervene`."""
        arguments: dict[str, Any] = {}
        if self.ablate:
            arguments["ablate_heads"] = parse_heads(trace, self.ablate)
        if self.scale:
            arguments["scale"] = parse_scales(trace, self.scale)
        if self.mask:
            for layer, head, query, key in self.mask:  # raises if the edge does not exist
                trace.weights(layer, head or 0, rows=range(query, query + 1), columns=range(key, key + 1))
            arguments["mask_edges"] = list(self.mask)
        return arguments


def _parse_list(body: dict[str, Any], name: str) -> list[Any]:
    value = body.get(name) or []
    if not isinstance(value, list) or len(value) > MAX_INTERVENTIONS:
        raise ValueError(f"{name} must be a list of at most {MAX_INTERVENTIONS}")
    return value


def _parse_edge(value: Any) -> Edge:
    if not isinstance(value, list) or len(value) != 4 or not all(isinstance(n, int) for n in (value[0], *value[2:])):
        raise ValueError(f"an edge must be [layer, head, query, key], got {value!r}")
    layer, head, query, key = value
    return layer, None if head is None else int(head), query, key


@dataclass(eq=False)
class Look:
    """One recorded run. original: for a look with interventions, the look without them."""

    id: str
    loaded: LoadedModel
    input: ModelInput
    prepared: PreparedInput
    trace: Trace
    predictions: Predictions
    causal: bool
    interventions: Interventions = field(default_factory=Interventions)
    effect: Effect | None = None
    original: Look | None = None
    _rollout: Trace | None = None
    _head_types: HeadTypes | None = None

    def maps(self, layer: int) -> tuple[Trace, int]:
        """The trace with a layer's maps and the layer's index in it; layer -1 is the rollout."""
        if layer >= 0:
            return self.trace, layer
        if self._rollout is None:
            if max(each.queries for each in self.trace.layers) > MAX_ROLLOUT_TOKENS:
                raise ValueError(f"the rollout is shown for up to {MAX_ROLLOUT_TOKENS:,} tokens")
            self._rollout = rollout(self.trace).to_trace()
        return self._rollout, 0

    @property
    def target(self) -> list[int] | None:
        """The target tokens of an encoder-decoder, without the start token."""
        tokens = find_tokens(self.prepared.inputs) if self.prepared.kind == "pair" else None
        return None if tokens is None else tokens[0, 1:].tolist()

    @property
    def has_rollout(self) -> bool:
        """Whether there is a rollout: blocks of equal size follow one another, and the input is not too long."""
        try:
            layers = [self.trace.layers[index] for index in find_stack(self.trace).layers]
        except ValueError:
            return False
        sizes = {layer.queries for layer in layers} | {layer.keys for layer in layers}
        return len(sizes) == 1 and max(layer.queries for layer in self.trace.layers) <= MAX_ROLLOUT_TOKENS

    @property
    def can_classify(self) -> bool:
        """Whether the input is short enough to classify the heads."""
        return len(self.prepared.tokens) <= MAX_CLASSIFIED_TOKENS

    def head_types(self) -> HeadTypes:
        """The head types of the model without interventions."""
        if self.original is not None:
            return self.original.head_types()
        with self.loaded.lock:
            if self._head_types is None:
                if not self.can_classify:
                    raise ValueError(f"heads are classified on up to {MAX_CLASSIFIED_TOKENS:,} tokens")
                self._head_types = classify_heads(self.prepared.model, self.prepared.inputs)
        return self._head_types


class LookStore:
    """The looks of a studio; the most recently used are remembered."""

    def __init__(self, models: ModelStore) -> None:
        self.models = models
        self._looks: OrderedDict[str, Look] = OrderedDict()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def get(self, name: Any) -> Look:
        """A look by its id."""
        with self._lock:
            if name not in self._looks:
                raise NotFoundError("this look is not in memory any more; look again")
            self._looks.move_to_end(name)
            return self._looks[name]

    def look(self, body: dict[str, Any]) -> Look:
        """Run a model on an input. With "beside", an encoder-decoder gets the target of that look."""
        loaded = self.models.get(body["model"])
        beside = self.get(body["beside"]) if body.get("beside") and loaded.kind == "pair" else None
        with loaded.lock:
            parsed = parse_input(loaded, body)
            if beside is not None and parsed.target is None:
                parsed = replace(parsed, target=beside.target)
            prepared = parsed.prepare(loaded)
            forward = run_forward(prepared.model, prepared.inputs)
        causal = forward.targets is not None
        predictions = collect_predictions(prepared, forward.output, causal)
        return self._add(loaded, parsed, prepared, forward.trace, predictions, causal)

    def intervene(self, body: dict[str, Any]) -> Look:
        """Run the model of a look again, with interventions."""
        original = self.get(body["look"])
        interventions = Interventions.parse(body)
        if not interventions:
            raise ValueError("there is no intervention: ablate a head, mask an edge or change the scale")
        largest = max(layer.heads * layer.queries * layer.keys for layer in original.trace.layers)
        if largest > MAX_INTERVENED_WEIGHTS:
            raise ValueError("this input is too long for interventions; use a shorter one")
        arguments = interventions.arguments(original.trace)
        prepared = original.prepared
        model, inputs = prepared.model, prepared.inputs
        with original.loaded.lock:
            effect = None if original.predictions.kind == "none" else measure_effect(model, inputs, **arguments)
            before = call_eval(model, inputs)
            with intervene(model, **arguments):
                trace = prepared.trace()
                output = call_eval(model, inputs)
        predictions = collect_predictions(prepared, before, original.causal, output)
        parts = (original.loaded, original.input, prepared, trace, predictions, original.causal)
        return self._add(*parts, interventions=interventions, effect=effect, original=original)

    def _add(self, *parts: Any, **more: Any) -> Look:
        with self._lock:
            look = Look(str(next(self._numbers)), *parts, **more)
            self._looks[look.id] = look
            while len(self._looks) > MAX_LOOKS:
                self._looks.popitem(last=False)
            return look


@torch.no_grad()
def map_window(trace: Trace, layer: int, head: int, rows: range, columns: range, size: int) -> tuple[Tensor, int]:
    """A rectangle of a head's map, exact if it has at most `size` rows and columns, otherwise max-pooled.

    Returns:
        The weights, and how many queries and keys one cell stands for. Cells begin at the rectangle's corner.
    """
    step = max(-(-max(len(rows), len(columns)) // size), 1)
    if step == 1:
        return trace.weights(layer, head, rows=rows, columns=columns), 1
    whole = trace.layer(layer)
    if len(rows) == whole.queries and len(columns) == whole.keys:
        return trace.map(layer, head, size), step
    parts = []
    for start in range(rows.start, rows.stop, step * 32):
        some = range(start, min(start + step * 32, rows.stop))
        parts.append(pool_weights(trace.weights(layer, head, rows=some, columns=columns), 0, 0, step, "max"))
    return torch.cat(parts), step
