"""What `qkv look` does: LookRequest in, LookResult out, with one run of the input and one batch of probes.

Also parses heads, scales and edges as people write them: 3.1 for a head, x2 for twice a layer's scale, 3.1:5:2 for an
edge of a head.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qkv.checkpoints import bundled
from qkv.checkpoints.loading import HUB_ID
from qkv.interp.ablation import Effect, SweepTable, ablation_sweep, compare_outputs
from qkv.interp.attribution import MAX_ROLLOUT_TOKENS, Rollout, rollout, token_index
from qkv.interp.comparison import Comparison, compare
from qkv.interp.forward import ForwardPass, find_tokens, run_forward, to_json, trace_with_output
from qkv.interp.head_types import HeadTypes, classify_heads
from qkv.interp.inputs import PreparedInput, prepare_input
from qkv.interp.intervention import intervene
from qkv.interp.layers import TracedLayer
from qkv.interp.lens import LogitLens, logit_lens
from qkv.interp.media_inputs import image_grid
from qkv.interp.traces import Trace

MAX_JSON_CELLS = 1_000_000  # a larger map is pooled in JSON
HEAD = re.compile(r"(?P<layer>.+)\.(?P<head>\d+)")
Note = Callable[[str], None]


@dataclass(frozen=True)
class LookRequest:
    """What to compute, in the words of the command line.

    input: the text or the file that the input was prepared from.
    ablate: heads. scale: scales. mask_edges: edges. See `parse_heads`, `parse_scales`, `parse_edges`.
    compare: another checkpoint, or another input.
    """

    input: str | None = None
    target: str | None = None
    layer: str | None = None
    head: int | None = None
    query: str | None = None
    ablate: tuple[str, ...] = ()
    scale: tuple[str, ...] = ()
    mask_edges: tuple[str, ...] = ()
    ablation_sweep: bool = False
    rollout: bool = False
    logit_lens: bool = False
    compare: str | None = None

    @property
    def intervenes(self) -> bool:
        return bool(self.ablate or self.scale or self.mask_edges)

    @property
    def interventions(self) -> list[str]:
        """A phrase for each intervention."""
        phrases = [f"{'heads' if ',' in heads else 'head'} {heads} ablated" for heads in self.ablate]
        phrases += [f"scale {scale}" for scale in self.scale]
        return phrases + [f"edge {edge} masked" for edge in self.mask_edges]

    @property
    def has_analyses(self) -> bool:
        """Whether something is asked for beyond the maps themselves."""
        asked = self.ablation_sweep or self.rollout or self.logit_lens or self.compare is not None
        return self.intervenes or asked

    @property
    def names_head(self) -> bool:
        return self.layer is not None or self.head is not None


@dataclass(frozen=True, eq=False)
class LookResult:
    """What was computed.

    trace: of the run with the interventions, if there are any. head_types: of the model without them.
    layer, head, query: the map to show. prediction: (token, label, probability), most likely first.
    other: what it is compared with: its name, the prepared input and its trace.
    notes: sentences on interventions that change nothing.
    """

    prepared: PreparedInput
    request: LookRequest
    trace: Trace
    head_types: HeadTypes
    layer: int
    head: int
    query: int
    prediction: tuple[tuple[int, str, float], ...] = ()
    effect: Effect | None = None
    ablation_sweep: SweepTable | None = None
    rollout: Rollout | None = None
    logit_lens: LogitLens | None = None
    comparison: Comparison | None = None
    other: tuple[str, PreparedInput, Trace] | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON data."""
        layer = self.trace.layer(self.layer)
        whole = layer.queries * layer.keys <= MAX_JSON_CELLS
        weights = self.trace.weights(self.layer, self.head) if whole else self.trace.map(self.layer, self.head, 512)
        rows, columns = self.prepared.labels(layer)
        found = {
            "checkpoint": self.prepared.checkpoint,
            "kind": self.prepared.kind,
            "tokens": self.prepared.tokens,
            "source": self.prepared.source,
            "notes": (*self.prepared.notes, *self.notes),
            "prediction": [{"token": n, "text": text, "probability": p} for n, text, p in self.prediction],
            "layers": [
                {"name": x.name, "heads": x.heads, "queries": x.queries, "keys": x.keys, "storage": x.storage}
                for x in self.trace.layers
            ],
            "head_types": self.head_types,
            "shown": {
                "layer": self.layer,
                "head": self.head,
                "pooled": not whole,
                "rows": rows,
                "columns": columns,
                "weights": weights,
            },
        }
        for name in ("effect", "ablation_sweep", "rollout", "logit_lens", "comparison"):
            if getattr(self, name) is not None:
                found[name] = getattr(self, name)
        return to_json(found)


def run_look(prepared: PreparedInput, request: LookRequest, note: Note = lambda text: None) -> LookResult:
    """Run a model on a prepared input and compute what is asked for.

    The model runs once on the input and once on a batch of probes for the head types; interventions, sweeps, the logit
    lens and comparisons add their own runs. note: called with progress messages.
    """
    model, inputs = prepared.model, prepared.inputs
    note("running the model")
    baseline = run_forward(model, inputs)
    trace, effect = _intervene(prepared, request, baseline)
    note("classifying heads")
    head_types = classify_heads(model, inputs, baseline=baseline)
    layer, head = _choose_head(request, trace, head_types)
    query = _find_query(prepared, trace.layer(layer), request.query)
    sweep = lens = other = None
    if request.ablation_sweep:
        sweep = ablation_sweep(
            model, inputs, baseline=baseline, progress=lambda done, total: note(f"ablating heads: {done} of {total}")
        )
    if request.logit_lens:
        note("computing the logit lens")
        lens = logit_lens(model, inputs, baseline=baseline)
    if request.compare is not None:
        note("running the comparison")
        other = _prepare_other(prepared, request, request.compare)
    return LookResult(
        prepared,
        request,
        trace,
        head_types,
        layer,
        head,
        query,
        prediction=_predict(prepared, baseline),
        effect=effect,
        ablation_sweep=sweep,
        rollout=_rollout(prepared, request, trace, query),
        logit_lens=lens,
        comparison=None if other is None else _compare(prepared, request, trace, other[2]),
        other=other,
        notes=_edges_without_effect(baseline.trace, request),
    )


def _intervene(prepared: PreparedInput, request: LookRequest, baseline: ForwardPass) -> tuple[Trace, Effect | None]:
    """The trace of the run with the interventions, and their effect; without interventions the baseline's trace."""
    if not request.intervenes:
        return baseline.trace, None
    edits = {
        "ablate_heads": parse_heads(baseline.trace, request.ablate),
        "mask_edges": parse_edges(baseline.trace, request.mask_edges),
        "scale": parse_scales(baseline.trace, request.scale) or None,
    }
    with intervene(prepared.model, **edits):
        trace, output = trace_with_output(prepared.model, prepared.inputs)
    return trace, compare_outputs(baseline, output)


def _choose_head(request: LookRequest, trace: Trace, head_types: HeadTypes) -> tuple[int, int]:
    """The layer and head to show: those asked for, otherwise the clearest that is not ablated."""
    ablated = parse_heads(trace, request.ablate)
    kept = tuple(each for each in head_types.heads if (each.layer, each.head) not in ablated) or head_types.heads
    clearest = replace(head_types, heads=kept).clearest()
    layer = clearest.layer if request.layer is None else find_layer(trace, request.layer)
    if request.head is not None:
        heads = trace.layers[layer].heads
        if not -heads <= request.head < heads:
            raise ValueError(f"layer {layer} has {heads} heads, 0 to {heads - 1}; got --head {request.head}")
        head = request.head % heads
    elif request.layer is None:
        head = clearest.head
    else:
        inside = [each for each in head_types.heads if each.layer == layer]
        heads = [each for each in inside if each in kept] or inside
        head = replace(head_types, heads=tuple(heads)).clearest().head
    return layer, head


def _find_query(prepared: PreparedInput, layer: TracedLayer, query: str | None) -> int:
    """The index of the query asked for; by default the last token, of an image the class token or a middle patch."""
    if prepared.image is not None:
        grid = image_grid(prepared.model)
        if query is None:
            return 0 if grid.special else min(grid.rows * grid.columns // 2, layer.queries - 1)
        if query == "class":
            return token_index(grid, "class")
        parts = query.split(",")
        if len(parts) == 2 and all(part.strip().isdigit() for part in parts):
            return token_index(grid, (int(parts[0]), int(parts[1])))
    if query is None:
        return layer.queries - 1
    if not query.lstrip("-").isdigit() or not -layer.queries <= int(query) < layer.queries:
        raise ValueError(
            f"--query must be a token's index, 0 to {layer.queries - 1} (of an image also class, or row,column); got "
            f"{query!r}"
        )
    return int(query) % layer.queries


def _predict(prepared: PreparedInput, baseline: ForwardPass, count: int = 5) -> tuple[tuple[int, str, float], ...]:
    """The most likely classes, or next tokens of a causal language model; empty if there is no such answer."""
    try:
        logits = baseline.logits
    except ValueError:
        return ()
    if logits.ndim == 3 and baseline.targets is None:
        return ()
    answer = logits[0, -1] if logits.ndim == 3 else logits[0]
    probabilities, tokens = answer.double().softmax(-1).topk(min(count, logits.shape[-1]))
    return tuple((n, prepared.token(n), p) for n, p in zip(tokens.tolist(), probabilities.tolist(), strict=True))


def _rollout(prepared: PreparedInput, request: LookRequest, trace: Trace, query: int) -> Rollout | None:
    """The rollout, if it is asked for or the input is an image; of one query if the input is long."""
    if not request.rollout and prepared.image is None:
        return None
    size = max(layer.queries for layer in trace.layers)
    try:
        return rollout(trace, queries=None if size <= MAX_ROLLOUT_TOKENS else [query])
    except ValueError:
        if request.rollout:
            raise
        return None


def _prepare_other(prepared: PreparedInput, request: LookRequest, other: str) -> tuple[str, PreparedInput, Trace]:
    """What to compare with: another checkpoint on this input, or this model on another input."""
    if is_checkpoint(other, prepared.kind):
        target: Any = request.target
        if target is None and prepared.kind == "pair":
            tokens = find_tokens(prepared.inputs)
            target = None if tokens is None else tokens[0, 1:].tolist()  # without the start token
        found = prepare_input(other, request.input, target=target, like=prepared)
    else:
        source: Any = Path(other) if prepared.kind in ("image", "audio") else other
        found = prepare_input(
            prepared.model, source, target=request.target, checkpoint=prepared.checkpoint, tokenizer=prepared.tokenizer
        )
    return other, found, found.trace()


def _compare(prepared: PreparedInput, request: LookRequest, trace: Trace, other: Trace) -> Comparison:
    """The comparison; if it fails for something that was read as a text, the error says so."""
    try:
        return compare(trace, other)
    except ValueError as error:
        name = request.compare or ""
        if is_checkpoint(name, prepared.kind) or prepared.kind in ("image", "audio"):
            raise
        raise ValueError(f"{error}. There is no checkpoint {name!r}, so --compare read it as a text") from None


def _edges_without_effect(trace: Trace, request: LookRequest) -> tuple[str, ...]:
    """A note for each edge to mask that the model does not use: the query's weight on the key is 0 without it."""
    notes = []
    for text, (layer, head, query, key) in zip(request.mask_edges, parse_edges(trace, request.mask_edges), strict=True):
        weights = trace.weights(layer, head, rows=range(query, query + 1), columns=range(key, key + 1))
        if not bool(weights.any()):
            notes.append(f"--mask-edge {text} changes nothing: query {query} does not attend to key {key} anyway")
    return tuple(notes)


def is_checkpoint(name: str, kind: str) -> bool:
    """Whether a name is a checkpoint, and not an input of this kind."""
    if name in bundled.names():
        return True
    path = Path(name).expanduser()
    if path.is_dir() or (path.is_file() and (path.suffix == ".bin" or kind not in ("image", "audio"))):
        return True
    return not path.exists() and "/" in name and HUB_ID.fullmatch(name) is not None


def find_layer(trace: Trace, text: str) -> int:
    """A layer's index in the trace, from its index or its name."""
    layer = trace.layer(int(text) if text.lstrip("-").isdigit() else text)
    return next(index for index, each in enumerate(trace.layers) if each is layer)


def parse_head(trace: Trace, text: str) -> tuple[int, int]:
    """(layer, head) of "3.1"."""
    found = HEAD.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"a head is layer.head, such as 3.1; got {text!r}")
    layer, head = find_layer(trace, found["layer"]), int(found["head"])
    heads = trace.layers[layer].heads
    if head >= heads:
        raise ValueError(f"layer {layer} has {heads} heads, 0 to {heads - 1}; got {head} in {text!r}")
    return layer, head


def parse_heads(trace: Trace, texts: Iterable[str]) -> list[tuple[int, int]]:
    """Heads such as "3.1" or "3.1,4.0"."""
    return [parse_head(trace, each) for text in texts for each in text.split(",")]


def parse_scales(trace: Trace, texts: Iterable[str]) -> dict[tuple[int, int | None], float]:
    """Scales of layers and heads: "0.5" and "x2" (twice its own) for all layers, "3=x2" for one, "3.1=0" for a head."""
    found: dict[tuple[int, int | None], float] = {}
    for text in texts:
        where, equals, value = text.rpartition("=")
        places: list[tuple[int, int | None]] = [(layer, None) for layer in range(len(trace.layers))]
        for place in [_parse_head_or_layer(trace, where)] if equals else places:
            found[place] = _parse_scale(trace, place[0], value, text)
    return found


def parse_edges(trace: Trace, texts: Iterable[str]) -> list[tuple[int, int | None, int, int]]:
    """Edges: "3.1:5:2" of one head, "3:5:2" of all heads of a layer; query 5 may not attend to key 2."""
    found: list[tuple[int, int | None, int, int]] = []
    for text in texts:
        where, *ends = text.rsplit(":", 2)
        if len(ends) != 2 or not all(end.strip().isdecimal() for end in ends):
            raise ValueError(f"an edge is head:query:key, such as 3.1:5:2, or 3:5:2 for a whole layer; got {text!r}")
        (layer, head), (query, key) = _parse_head_or_layer(trace, where.strip()), map(int, ends)
        sizes = trace.layers[layer]
        for what, index, size in (("query", query, sizes.queries), ("key", key, sizes.keys)):
            if index >= size:
                raise ValueError(f"--mask-edge {text}: there is no {what} {index}; they are 0 to {size - 1}")
        found.append((layer, head, query, key))
    return found


def _parse_head_or_layer(trace: Trace, text: str) -> tuple[int, int | None]:
    if HEAD.fullmatch(text) and not any(layer.name == text for layer in trace.layers):
        return parse_head(trace, text)
    return find_layer(trace, text), None


def _parse_scale(trace: Trace, layer: int, value: str, text: str) -> float:
    is_factor = value.strip().lower().startswith(("x", "×"))
    try:
        number = float(value.strip().lstrip("xX×"))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(
            f"--scale must be a number such as 0.5, x2 for twice a layer's own, or 3=x2 for layer 3; got {text!r}"
        )
    if not is_factor:
        return number
    own = trace.layers[layer].scale
    if own is None:
        raise ValueError(f"{trace.layers[layer].name} has no scale of its own to multiply; give a number")
    return own * number
