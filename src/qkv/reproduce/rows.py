"""The rows of the results table, as data: what is trained, for how long, which numbers count, what others have."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A number of the test that a row reports.

    name: as the run's result has it. said: as people read it. scale: 100 for shares, which are shown in percent.
    """

    name: str
    said: str
    scale: float | int = 1
    decimals: int = 1

    def shown(self, value: float | int) -> str:
        """
        >>> Figure("accuracy", "accuracy [%]", scale=100).shown(0.98333)
        '98.3'
        """
        return f"{self.scale * value:,.{self.decimals}f}"


@dataclass(frozen=True)
class Part:
    """One training of a row.

    changes: settings by dotted name. minutes: of training; None takes the recipe's own steps.
    data: what is read, inside the data folder: the first of these that is there; () needs none.
    public: the figure that others have for it.
    home: the row in whose folder the run is kept, if another's (two rows then share one training).
    """

    label: str
    recipe: str
    model: str | None = None
    preset: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    minutes: float | int | None = None
    data: tuple[str, ...] = ()
    public: str = ""
    home: str = ""


@dataclass(frozen=True)
class Row:
    """A row: some trainings that are compared.

    what: what is measured. curve: the number of validation that is drawn. reach, aim: what would be good, what would be
    very good. measure: "test" takes the run's own test; "answers" asks the trained model (see `answers`).
    """

    name: str
    what: str
    parts: tuple[Part, ...]
    figures: tuple[Figure, ...]
    curve: str
    reach: str = ""
    aim: str = ""
    measure: str = "test"

    def part(self, label: str) -> Part:
        """The part of that label."""
        labels = [part.label for part in self.parts]
        if label not in labels:
            raise ValueError(f"{self.name} has no part {label!r}{_meant(label, labels)}")
        return self.parts[labels.index(label)]


CIFAR = ("cifar10.npz", "cifar-10-batches-bin")
ACCURACY = Figure("accuracy", "test accuracy [%]", scale=100)
EXACT = Figure("exact", "exact on dev [%]")
COMMONEST = Figure("exact_of_commonest", "the commonest answer for all [%]")
BLEU = Figure("bleu", "BLEU on test2016")
SEEN = Figure("word_error_rate_seen", "word errors, known speakers [%]", scale=100)
UNSEEN = Figure("word_error_rate_unseen", "word errors, speaker left out [%]", scale=100)
ANSWERS = (
    Figure("precision_at_50", "right among the surest half [%]"),
    Figure("precision_at_90", "right among the surest nine tenths [%]"),
    Figure("answered", "dev questions answered at all [%]"),
    Figure("refused", "questions about unknown people refused [%]"),
)


def _birthplaces(
    label: str, minutes: float | int, public: str, *, model: str | None = None, pretrain: bool = True, home: str = ""
) -> Part:
    changes = {} if pretrain else {"data.pretrain": False}
    return Part(label, "birthplaces", model, None, changes, minutes, ("birthplaces",), public, home)


def _cifar(minutes: float | int, *goals: str) -> Row:
    parts = (
        Part("course", "vit-cifar10", preset="course", minutes=minutes, data=CIFAR),
        Part("ours", "vit-cifar10", minutes=minutes, data=CIFAR),
    )
    what = f"CIFAR-10: the course's recipe and ours, {minutes:.0f} minutes each"
    return Row(f"cifar10-{minutes:.0f}", what, parts, (ACCURACY,), "accuracy", *goals)


def _multi30k(name: str, minutes: float | int, *goals: str) -> Row:
    parts = tuple(
        Part(kind, "translate", kind, minutes=minutes, data=("multi30k",)) for kind in ("seq2seq", "rnn-attention")
    )
    what = f"Multi30k, English to German: a transformer and an RNN with attention, {minutes:.0f} minutes each"
    return Row(name, what, parts, (BLEU,), "bleu", *goals)


def _heard(label: str, model: str, preset: str | None = None) -> Part:
    return Part(label, "speech", model, preset, {}, 15, ("spoken-digits",))


_PRETRAINED = "40.4 (RoPE, 41 minutes on a T4)"
_UNTRAINED = "1.2–2.2"

_ALL = (
    Row(
        "digits",
        "Handwritten digits (8×8) that ship with qkv",
        (Part("vit", "vit-digits"),),
        (ACCURACY,),
        "accuracy",
        aim="97 %",
    ),
    _cifar(20),
    _cifar(60, "10 points above the course's", "80 %"),
    Row(
        "birthplaces-60",
        "Where people were born: 60 minutes, against no pretraining and against one answer for all (London)",
        (
            _birthplaces("ours", 60, _PRETRAINED),
            _birthplaces("no-pretraining", 60, _UNTRAINED, pretrain=False),
        ),
        (EXACT, COMMONEST),
        "exact",
        "15 %",
        "40 %",
    ),
    Row(
        "birthplaces-variants",
        "Where people were born: the course's variants, 60 minutes each",
        (
            _birthplaces("vanilla", 60, "22.4–25.8", model="vanilla"),
            _birthplaces("synthesizer", 60, "12.8–24.4", model="synthesizer"),
            _birthplaces("perceiver", 60, "about 16", model="perceiver"),
            _birthplaces("rope", 60, _PRETRAINED, model="rope"),
            _birthplaces("no-pretraining", 60, _UNTRAINED, model="vanilla", pretrain=False),
        ),
        (EXACT, COMMONEST),
        "exact",
        "the order, and the gap to no pretraining",
        "each above its best public figure",
    ),
    Row(
        "birthplaces",
        "Where people were born, however long it takes (here four hours)",
        (_birthplaces("ours", 240, _PRETRAINED),),
        (EXACT, COMMONEST),
        "exact",
        "26 %",
        "60 %",
    ),
    Row(
        "answers",
        "How far answers can be trusted: the surest of the dev questions, and questions about people never read of",
        (_birthplaces("ours", 60, "", home="birthplaces-60"),),
        ANSWERS,
        "exact",
        "90 %, 80 % right; 80 % of strangers refused",
        "99 %, 95 % right; 95 % of strangers refused",
        measure="answers",
    ),
    _multi30k("multi30k", 90, "33", "38"),
    _multi30k("multi30k-25", 25),
    Row(
        "spoken-digits",
        "Strings of spoken digits, with a look-ahead of 0, 1 and 2 chunks and offline; 15 minutes each",
        (
            *(_heard(f"ahead-{ahead}", "streaming", f"ahead-{ahead}") for ahead in range(3)),
            _heard("offline", "offline"),
        ),
        (SEEN, UNSEEN),
        "word_error_rate",
        "3 % known, 15 % left out",
        "1 % known, 6 % left out",
    ),
)
ROWS = {each.name: each for each in _ALL}


def row(name: str) -> Row:
    """The row of that name."""
    if name not in ROWS:
        raise ValueError(f"there is no row {name!r} in the results table{_meant(name, list(ROWS))}")
    return ROWS[name]


def _meant(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
