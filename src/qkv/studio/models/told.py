"""What a model answers at each place, before and after a change, small enough to be kept.

Axes: t places · v answers · k the likeliest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from qkv.interp.audio import token_seconds
from qkv.interp.run import scores_of
from qkv.interp.subject import Subject
from qkv.models import Transcriber
from qkv.models.generate import LanguageModel
from qkv.models.transcriber import BLANK
from qkv.models.translate import Translator

TOP = 6
Sort = Literal["next", "here", "class", "sound", "none"]


class Word(NamedTuple):
    """What was heard, and the seconds from and to which it was."""

    text: str
    start: float
    end: float


@dataclass(frozen=True, eq=False)
class Told:
    """The likeliest answers at each place.

    sort: "next", the token after each place; "here", the token at it; "class", one for the whole; "sound", the label of
        each place; "none", with the reason as `why`.
    ids: (t, k) the answers. before, after: (t, k) their probabilities; after is None where nothing was changed.
    heard: of a recording, its words before and after, each with the seconds from and to which it is said.
    """

    sort: Sort
    ids: Tensor
    before: Tensor
    after: Tensor | None = None
    heard: tuple[tuple[Word, ...], ...] = ()
    why: str = ""

    @property
    def places(self) -> int:
        return self.ids.shape[0]

    def at(self, place: int, subject: Subject) -> dict[str, Any]:
        """The answers at a place, the likeliest first; for the page."""
        if self.sort == "none":
            return {"sort": "none", "why": self.why, "place": 0, "places": 0, "answers": [], "heard": []}
        if not -self.places <= place < self.places:
            raise ValueError(f"there are {self.places} places, 0 to {self.places - 1}; got {place}")
        place %= self.places
        found: dict[int, dict[str, Any]] = {}
        after = self.after[place].tolist() if self.after is not None else [None] * self.ids.shape[1]
        for number, old, new in zip(self.ids[place].tolist(), self.before[place].tolist(), after, strict=True):
            found[number] = {"id": number, "text": subject.token(number), "before": old, "after": new}
        ranked = sorted(found.values(), key=lambda each: -max(each["before"], each["after"] or 0.0))
        return {
            "sort": self.sort,
            "place": place,
            "places": self.places,
            "answers": ranked,
            "heard": [[word._asdict() for word in words] for words in self.heard],
            "why": "",
        }


def told(subject: Subject, output: Any, causal: bool, changed: Any = None) -> Told:
    """The answers in what a model returned, and in what it returned after a change."""
    try:
        old = scores_of(subject.model, output)
    except ValueError as refusal:
        return _nothing(str(refusal))
    new = None if changed is None else scores_of(subject.model, changed)
    ids, before, after = _likeliest(_rows(old), None if new is None else _rows(new))
    for found, when in ((before, ""), (after, " after the change")):
        if found is not None and (lost := int(found.isnan().any(-1).sum())):
            places = f"at {lost:,} of {len(found):,} places " if len(found) > 1 else ""
            return _nothing(f"{places}the model's answers{when} are not numbers (NaN): its weights or sums overflow")
    heard: tuple[tuple[Word, ...], ...] = ()
    if isinstance(subject.model, Transcriber):
        heard = tuple(_heard(subject, logits) for logits in (old, new) if logits is not None)
    return Told(_sort(subject, old, causal), ids, before, after, heard)


def _nothing(why: str) -> Told:
    return Told("none", torch.zeros(0, 0), torch.zeros(0, 0), why=why)


def _sort(subject: Subject, logits: Tensor, causal: bool) -> Sort:
    if subject.kind == "sound":
        return "sound"
    if logits.ndim == 2:
        return "class"
    return "next" if causal or isinstance(subject.model, LanguageModel | Translator) else "here"


def _rows(logits: Tensor) -> Tensor:
    return logits[0] if logits.ndim == 3 else logits[:1]


def _likeliest(old: Tensor, new: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The ids that are likeliest before or after, and their probabilities; some rows at a time."""
    k = min(TOP, old.shape[-1])
    parts: list[tuple[Tensor, Tensor, Tensor | None]] = []
    for start in range(0, len(old), 64):
        p = old[start : start + 64].double().softmax(-1)
        ids = p.topk(k).indices
        q = None if new is None else new[start : start + 64].double().softmax(-1)
        if q is not None:
            ids = torch.cat((ids, q.topk(k).indices), dim=-1)
        parts.append((ids, p.gather(-1, ids), None if q is None else q.gather(-1, ids)))
    ids, before = (torch.cat([part[i] for part in parts]) for i in (0, 1))  # pyright: ignore[reportArgumentType]
    after = None if new is None else torch.cat([part[2] for part in parts if part[2] is not None])
    return ids, before, after


def _heard(subject: Subject, logits: Tensor) -> tuple[Word, ...]:
    """The labels that `read_out` gives, each with the places where it is the likeliest."""
    assert isinstance(subject.model, Transcriber)
    second = token_seconds(subject.model)
    found: list[Word] = []
    before = BLANK
    for place, label in enumerate(logits[0].argmax(-1).tolist()):
        if label != BLANK and label == before:
            found[-1] = found[-1]._replace(end=(place + 1) * second)
        elif label != BLANK:
            found.append(Word(subject.token(label), place * second, (place + 1) * second))
        before = label
    return tuple(found)
