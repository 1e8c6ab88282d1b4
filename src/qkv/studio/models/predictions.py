"""A model's most likely predictions at each position, before and after an intervention, small enough to keep.

Axes: t positions · k most likely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from qkv.interp.forward import get_logits
from qkv.interp.inputs import PreparedInput
from qkv.interp.media_inputs import token_seconds
from qkv.models import Transcriber
from qkv.models.generation import LanguageModel, Translator
from qkv.models.transcriber import BLANK

TOP = 6
CHUNK = 64  # positions whose softmax is computed at a time
PredictionKind = Literal["next", "here", "class", "audio", "none"]


class SpokenWord(NamedTuple):
    """A word of a transcript, and its start and end in seconds."""

    text: str
    start: float
    end: float


@dataclass(frozen=True, eq=False)
class Predictions:
    """The most likely predictions at each position.

    kind: "next", the token after each position; "here", the token at it; "class", one for the whole input; "audio", a
        label per position; "none", with the reason in `why`.
    ids: (t, k). before, after: (t, k) probabilities; after is None without an intervention.
    transcripts: the words of a recording before and after.
    """

    kind: PredictionKind
    ids: Tensor
    before: Tensor
    after: Tensor | None = None
    transcripts: tuple[tuple[SpokenWord, ...], ...] = ()
    why: str = ""

    @property
    def positions(self) -> int:
        return self.ids.shape[0]

    def at(self, position: int, prepared: PreparedInput) -> dict[str, Any]:
        """The predictions at a position as the page reads them, the most likely first."""
        if self.kind == "none":
            return {"kind": "none", "why": self.why, "position": 0, "positions": 0, "top": [], "transcripts": []}
        if not -self.positions <= position < self.positions:
            raise ValueError(f"position must be from 0 to {self.positions - 1}, got {position}")
        position %= self.positions
        top: dict[int, dict[str, Any]] = {}
        after = self.after[position].tolist() if self.after is not None else [None] * self.ids.shape[1]
        for number, old, new in zip(self.ids[position].tolist(), self.before[position].tolist(), after, strict=True):
            top[number] = {"id": number, "text": prepared.token(number), "before": old, "after": new}
        return {
            "kind": self.kind,
            "position": position,
            "positions": self.positions,
            "top": sorted(top.values(), key=lambda each: -max(each["before"], each["after"] or 0.0)),
            "transcripts": [[word._asdict() for word in words] for words in self.transcripts],
            "why": "",
        }


def collect_predictions(prepared: PreparedInput, output: Any, causal: bool, changed: Any = None) -> Predictions:
    """The predictions in a model's output, and in its output under an intervention."""
    try:
        old = get_logits(prepared.model, output)
    except ValueError as problem:
        return _no_predictions(str(problem))
    new = None if changed is None else get_logits(prepared.model, changed)
    ids, before, after = _most_likely(_rows(old), None if new is None else _rows(new))
    for values, when in ((before, ""), (after, " after the intervention")):
        if values is not None and (count := int(values.isnan().any(-1).sum())):
            where = f"at {count:,} of {len(values):,} positions " if len(values) > 1 else ""
            return _no_predictions(f"{where}the model's predictions{when} are not numbers (NaN): something overflows")
    transcripts: tuple[tuple[SpokenWord, ...], ...] = ()
    if isinstance(prepared.model, Transcriber):
        transcripts = tuple(_transcribe(prepared, logits) for logits in (old, new) if logits is not None)
    return Predictions(_prediction_kind(prepared, old, causal), ids, before, after, transcripts)


def _no_predictions(why: str) -> Predictions:
    return Predictions("none", torch.zeros(0, 0), torch.zeros(0, 0), why=why)


def _prediction_kind(prepared: PreparedInput, logits: Tensor, causal: bool) -> PredictionKind:
    if prepared.kind == "audio":
        return "audio"
    if logits.ndim == 2:
        return "class"
    return "next" if causal or isinstance(prepared.model, LanguageModel | Translator) else "here"


def _rows(logits: Tensor) -> Tensor:
    return logits[0] if logits.ndim == 3 else logits[:1]


def _most_likely(old: Tensor, new: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The ids that are most likely before or after, and their probabilities."""
    k = min(TOP, old.shape[-1])
    all_ids, before, after = [], [], []
    for start in range(0, len(old), CHUNK):
        p = old[start : start + CHUNK].double().softmax(-1)
        ids = p.topk(k).indices
        if new is not None:
            q = new[start : start + CHUNK].double().softmax(-1)
            ids = torch.cat((ids, q.topk(k).indices), dim=-1)
            after.append(q.gather(-1, ids))
        all_ids.append(ids)
        before.append(p.gather(-1, ids))
    return torch.cat(all_ids), torch.cat(before), torch.cat(after) if after else None


def _transcribe(prepared: PreparedInput, logits: Tensor) -> tuple[SpokenWord, ...]:
    """Greedy CTC decoding, with the seconds of each label."""
    assert isinstance(prepared.model, Transcriber)
    seconds = token_seconds(prepared.model)
    words: list[SpokenWord] = []
    before = BLANK
    for position, label in enumerate(logits[0].argmax(-1).tolist()):
        if label != BLANK and label == before:
            words[-1] = words[-1]._replace(end=(position + 1) * seconds)
        elif label != BLANK:
            words.append(SpokenWord(prepared.token(label), position * seconds, (position + 1) * seconds))
        before = label
    return tuple(words)
