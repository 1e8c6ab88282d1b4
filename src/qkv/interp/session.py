"""One look at a subject: what was asked, what was found, and how it is shown in each form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.text import Text

from qkv.interp import subject as subjects
from qkv.interp.ablation import Sweep, sweep
from qkv.interp.attention_over_image import place_of
from qkv.interp.compare import Comparison, compare
from qkv.interp.effect import Effect, effect
from qkv.interp.head_types import Heads, heads
from qkv.interp.images import grid_of
from qkv.interp.intervention.intervene import change
from qkv.interp.logit_lens import Lens, lens
from qkv.interp.outcome import question
from qkv.interp.requests import betas_of, cuts_of, is_checkpoint, layer_of, silenced_of
from qkv.interp.result import plain
from qkv.interp.rollout import Rollout, rollout
from qkv.interp.run import scores_of
from qkv.interp.subject import Subject
from qkv.interp.traces.layer import Layer, Piece
from qkv.interp.traces.lazy_weights import Written
from qkv.interp.traces.trace import Trace
from qkv.interp.viewer import terminal

CELLS = 1_000_000  # weights of one map that JSON holds; a larger one is pooled
ROLLED = 2048  # tokens up to which a rollout of every query is kept
Note = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """What is asked of a subject; as the command line says it.

    given: the text, or the file of the picture, that the subject was opened with.
    """

    given: str | None = None
    target: str | None = None
    layer: str | None = None
    head: int | None = None
    query: str | None = None
    silence: tuple[str, ...] = ()
    beta: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    sweep: bool = False
    rollout: bool = False
    lens: bool = False
    against: str | None = None

    @property
    def changed(self) -> bool:
        return bool(self.silence or self.beta or self.cut)

    @property
    def said(self) -> list[str]:
        """What is changed, in words."""
        heads = [f"head {head} silenced" for head in self.silence]
        return heads + [f"β {beta}" for beta in self.beta] + [f"edge {edge} cut" for edge in self.cut]

    @property
    def questions(self) -> bool:
        """Whether something is asked beyond the maps themselves."""
        return self.changed or self.sweep or self.rollout or self.lens or self.against is not None


@dataclass(frozen=True, eq=False)
class Seen:
    """What was found."""

    subject: Subject
    asked: Asked
    trace: Trace
    heads: Heads
    layer: int
    head: int
    query: int
    prediction: tuple[tuple[int, str, float], ...] = ()
    effect: Effect | None = None
    sweep: Sweep | None = None
    rollout: Rollout | None = None
    lens: Lens | None = None
    comparison: Comparison | None = None
    other: tuple[str, Subject, Trace] | None = field(default=None, repr=False)

    def lines(self, *, width: int, colour: bool) -> Iterator[Text]:
        """For the terminal."""
        from qkv.interp.report import lines

        return lines(self, width=width, colour=colour)

    def scene(self) -> Any:
        """For the page."""
        from qkv.interp.report import scene

        return scene(self)

    def png(self) -> bytes:
        """As a picture."""
        from qkv.interp.report import png

        return png(self)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON holds it."""
        layer = self.trace.layer(self.layer)
        whole = layer.queries * layer.keys <= CELLS
        weights = self.trace.weights(self.layer, self.head) if whole else self.trace.map(self.layer, self.head, 512)
        rows, columns = self.subject.labels(layer)
        found = {
            "checkpoint": self.subject.checkpoint,
            "kind": self.subject.kind,
            "tokens": self.subject.tokens,
            "source": self.subject.source,
            "notes": self.subject.notes,
            "prediction": [{"token": n, "text": text, "probability": p} for n, text, p in self.prediction],
            "layers": [
                {"name": x.name, "heads": x.heads, "queries": x.queries, "keys": x.keys, "storage": x.storage}
                for x in self.trace.layers
            ],
            "heads": self.heads,
            "shown": {
                "layer": self.layer,
                "head": self.head,
                "pooled": not whole,
                "rows": rows,
                "columns": columns,
                "weights": weights,
            },
        }
        more = {name: getattr(self, name) for name in ("effect", "sweep", "rollout", "lens", "comparison")}
        return plain(found | {name: value for name, value in more.items() if value is not None})


def run(subject: Subject, asked: Asked, note: Note = lambda said: None) -> Seen:
    """Look at a subject."""
    note("running the model")
    changes = _changes(subject, asked)
    with change(subject.model, **changes) if changes else _unchanged():
        trace = subject.trace()
    note("finding kinds of heads")
    found = heads(subject.model, subject.inputs)
    telling = terminal.telling(found)
    layer = telling.layer if asked.layer is None else layer_of(trace, asked.layer)
    head = asked.head if asked.head is not None else telling.head if asked.layer is None else _best(found, layer)
    trace.weights(layer, head, rows=range(1))  # says so if there is no such head
    query = _query(subject, trace.layer(layer), asked.query)
    other = None if asked.against is None else _other(subject, asked, note)
    return Seen(
        subject,
        asked,
        trace,
        found,
        layer,
        head,
        query,
        prediction=_prediction(subject),
        effect=effect(subject.model, subject.inputs, **changes) if changes else None,
        sweep=_sweep(subject, note) if asked.sweep else None,
        rollout=_rollout(trace, asked, query) if asked.rollout or subject.picture is not None else None,
        lens=_lens(subject, note) if asked.lens else None,
        comparison=None if other is None else compare(trace, other[2]),
        other=other,
    )


def _changes(subject: Subject, asked: Asked) -> dict[str, Any]:
    if not asked.changed:
        return {}
    plainly = subject.trace()
    found = {
        "silence": silenced_of(plainly, asked.silence),
        "beta": betas_of(plainly, asked.beta),
        "cut": cuts_of(plainly, asked.cut),
    }
    return {name: changed for name, changed in found.items() if changed}


def _unchanged() -> Any:
    from contextlib import nullcontext

    return nullcontext()


def _best(found: Heads, layer: int) -> int:
    return max((each for each in found.heads if each.layer == layer), key=lambda each: each.score).head


def _query(subject: Subject, layer: Layer, asked: str | None) -> int:
    """The query that is asked: by its place, or where it lies in a picture; if none is named, the class or the last."""
    if subject.picture is not None:
        grid = grid_of(subject.model)
        if asked is None:
            return 0 if grid.special else min(grid.special + grid.rows * grid.columns // 2, layer.queries - 1)
        parts = asked.split(",")
        if asked == "class" or (len(parts) == 2 and all(part.strip().isdigit() for part in parts)):
            return place_of(grid, "class" if asked == "class" else (int(parts[0]), int(parts[1])))
    if asked is None:
        return layer.queries - 1
    if not asked.lstrip("-").isdigit() or not -layer.queries <= int(asked) < layer.queries:
        raise ValueError(
            f"--query is a token's place, 0 to {layer.queries - 1} (of a picture also class, or row,column); "
            f"got {asked!r}"
        )
    return int(asked) % layer.queries


def _other(subject: Subject, asked: Asked, note: Note) -> tuple[str, Subject, Trace]:
    """What is compared with: another checkpoint on this input, or this model on another input."""
    assert asked.against is not None
    note("running what it is compared with")
    if is_checkpoint(asked.against, subject.kind):
        other = subjects.open(asked.against, asked.given, target=asked.target or _target(subject))
        return asked.against, other, other.trace()
    given: Any = Path(asked.against) if subject.kind in ("image", "sound") else asked.against
    other = subjects.of(
        subject.model, given, target=asked.target, where=subject.checkpoint, tokenizer=subject.tokenizer
    )
    return asked.against, other, other.trace()


def _target(subject: Subject) -> list[int] | None:
    """The target's tokens without the first, which begins every target."""
    if subject.kind != "pair":
        return None
    from qkv.interp.run import read_tokens

    tokens = read_tokens(subject.inputs)
    return None if tokens is None else tokens[0, 1:].tolist()


def _prediction(subject: Subject, count: int = 5) -> tuple[tuple[int, str, float], ...]:
    """The likeliest classes, or next tokens of a text that is read causally; nothing where there is no such answer."""
    asked, output = question(subject.model, subject.inputs)
    try:
        logits = scores_of(subject.model, output)
    except ValueError:
        return ()
    if logits.ndim == 3 and asked.targets is None:
        return ()
    chances, tokens = (
        (logits[0, -1] if logits.ndim == 3 else logits[0]).double().softmax(-1).topk(min(count, logits.shape[-1]))
    )
    return tuple((n, subject.token(n), p) for n, p in zip(tokens.tolist(), chances.tolist(), strict=True))


def _sweep(subject: Subject, note: Note) -> Sweep:
    return sweep(
        subject.model, subject.inputs, progress=lambda done, total: note(f"silencing heads: {done} of {total}")
    )


def _lens(subject: Subject, note: Note) -> Lens:
    note("reading the stream after each block")
    return lens(subject.model, subject.inputs)


def _rollout(trace: Trace, asked: Asked, query: int) -> Rollout | None:
    size = max(layer.queries for layer in trace.layers)
    try:
        return rollout(trace, queries=None if size <= ROLLED else [query])
    except ValueError:
        if asked.rollout:
            raise
        return None


def rolled_trace(found: Rollout) -> Trace:
    """A rollout as a trace of one map, so that it is drawn as maps are."""
    return Trace([Layer.of("rollout", (Piece(0, 0, Written(found.weights[None, None])),), cross=None)])
