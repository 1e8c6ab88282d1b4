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
    teacher: the part, earlier in the row, whose answers are learned.
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
    teacher: str = ""


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
    Figure("answered", "dev questions answered by the model itself [%]"),
    Figure("refused", "questions about unknown people refused [%]"),
)


def _birthplaces(label: str, public: str, *, pretrain: bool = True, changes: Any = (), **more: Any) -> Part:
    changes = dict(changes) | ({} if pretrain else {"data.pretrain": False})
    return Part(label, "birthplaces", changes=changes, data=("birthplaces",), public=public, **more)


def _variant(
    model: str, public: str, *, label: str = "", layers: int = 2, pretrain: bool = True, teacher: str = ""
) -> Part:
    """A kind of attention of the course, at a size that reads all documents several times in a quarter of an hour."""
    size = {"model.dim": 128, "model.layers": layers, "model.heads": 4}
    texts = {"data.length": 80, "data.corruption.longest": 70}
    options = {"model": model, "minutes": 15, "pretrain": pretrain, "teacher": teacher}
    return _birthplaces(label or model, public, changes=texts | size, **options)


def _cifar(minutes: float | int, *goals: str) -> Row:
    parts = (
        Part("course", "vit-cifar10", preset="course", minutes=minutes, data=CIFAR),
        Part("ours", "vit-cifar10", minutes=minutes, data=CIFAR),
    )
    what = f"CIFAR-10: the course's recipe and ours, {minutes:.0f} minutes each"
    return Row(f"cifar10-{minutes:.0f}", what, parts, (ACCURACY,), "accuracy", *goals)


def _heard(label: str, model: str, preset: str | None = None) -> Part:
    return Part(label, "speech", model, preset, data=("spoken-digits",))


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
        "Where people were born, in less than 60 minutes; against no pretraining and one answer for all (London)",
        (
            _birthplaces("ours", _PRETRAINED),
            _birthplaces("no-pretraining", _UNTRAINED, pretrain=False),
        ),
        (EXACT, COMMONEST),
        "exact",
        "15 %",
        "40 %",
    ),
    Row(
        "birthplaces-variants",
        "Where people were born: the course's variants of attention, 15 minutes each",
        (
            _variant("vanilla", "22.4–25.8"),
            _variant("synthesizer", "12.8–24.4"),
            _variant("rope", _PRETRAINED),
            # its first and its last layer turn texts to latents and back; it does not learn to read out of a document
            _variant("perceiver", "about 16", layers=4, teacher="rope"),
            _variant("vanilla", _UNTRAINED, label="no-pretraining", pretrain=False),
        ),
        (EXACT, COMMONEST),
        "exact",
        "the order, and the gap to no pretraining",
        "each above its best public figure",
    ),
    Row(
        "birthplaces",
        "Where people were born, however long it takes",
        (_birthplaces("ours", _PRETRAINED, preset="long"),),
        (EXACT, COMMONEST),
        "exact",
        "26 %",
        "60 %",
    ),
    Row(
        "answers",
        "How far answers can be trusted: the surest of the dev questions, and questions about people never read of",
        (_birthplaces("ours", "", preset="long", home="birthplaces"),),
        ANSWERS,
        "exact",
        "90 %, 80 % right; 80 % of strangers refused",
        "99 %, 95 % right; 95 % of strangers refused",
        measure="answers",
    ),
    Row(
        "multi30k",
        "Multi30k, English to German, 60 minutes each: a transformer and an RNN with attention",
        tuple(Part(kind, "translate", kind, minutes=60, data=("multi30k",)) for kind in ("seq2seq", "rnn-attention")),
        (BLEU,),
        "bleu",
        "33",
        "38",
    ),
    Row(
        "spoken-digits",
        "Strings of spoken digits, with a look-ahead of 0, 1 and 2 chunks and offline",
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
