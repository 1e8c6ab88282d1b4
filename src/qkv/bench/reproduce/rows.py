"""The rows of the results table as data: what is trained, for how long, which metrics count, and public figures."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Metric:
    """A metric of the test that a row reports.

    name: the key in the run's result. title: the column heading. scale: 100 for shares, which are shown in percent.
    """

    name: str
    title: str
    scale: float | int = 1
    decimals: int = 1

    def format(self, value: float | int) -> str:
        """
        >>> Metric("accuracy", "accuracy [%]", scale=100).format(0.98333)
        '98.3'
        """
        return f"{self.scale * value:,.{self.decimals}f}"


@dataclass(frozen=True)
class RowPart:
    """One training of a row.

    changes: settings by dotted name. minutes: of training; None takes the recipe's own steps.
    data: the data, relative to the data folder: the first of these that exists; () needs none.
    public: the published figure. home: another row in whose folder the run is kept, if two rows share one training.
    teacher: an earlier part of the row whose pseudo-labels are learned.
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
class ResultRow:
    """A row: some trainings that are compared.

    what: what is measured. curve: the validation metric that is drawn. target, stretch_target: what would be good, what
    would be very good. measure: "test" takes the run's own test; "answers" asks the trained model questions.
    """

    name: str
    what: str
    parts: tuple[RowPart, ...]
    metrics: tuple[Metric, ...]
    curve: str
    target: str = ""
    stretch_target: str = ""
    measure: str = "test"

    def get_part(self, label: str) -> RowPart:
        labels = [part.label for part in self.parts]
        if label not in labels:
            raise ValueError(f"{self.name} has no part {label!r}; {_suggest(label, labels)}")
        return self.parts[labels.index(label)]


CIFAR = ("cifar10.npz", "cifar-10-batches-bin")
ACCURACY = Metric("accuracy", "test accuracy [%]", scale=100)
EXACT_MATCH = Metric("exact", "exact match on dev [%]")
MOST_COMMON = Metric("exact_of_commonest", "most common answer for all [%]")
BLEU = Metric("bleu", "BLEU on test2016")
SEEN = Metric("word_error_rate_seen", "word error rate, seen speakers [%]", scale=100)
UNSEEN = Metric("word_error_rate_unseen", "word error rate, unseen speaker [%]", scale=100)
ANSWERS = (
    Metric("precision_at_50", "precision at 50 % coverage [%]"),
    Metric("precision_at_90", "precision at 90 % coverage [%]"),
    Metric("answered", "dev questions answered by the model itself [%]"),
    Metric("refused", "questions about people not in the corpus refused [%]"),
)


def _birthplaces(label: str, public: str, *, pretrain: bool = True, changes: Any = (), **more: Any) -> RowPart:
    changes = dict(changes) | ({} if pretrain else {"data.pretrain": False})
    return RowPart(label, "birthplaces", changes=changes, data=("birthplaces",), public=public, **more)


def _attention_variant(
    model: str, public: str, *, label: str = "", layers: int = 2, pretrain: bool = True, teacher: str = ""
) -> RowPart:
    """An attention variant of CS224N A5, at a size that reads all documents several times in 15 minutes."""
    size = {"model.dim": 128, "model.layers": layers, "model.heads": 4}
    texts = {"data.max_length": 80, "data.corruption.max_length": 70}
    options = {"model": model, "minutes": 15, "pretrain": pretrain, "teacher": teacher}
    return _birthplaces(label or model, public, changes=texts | size, **options)


def _cifar(minutes: float | int, *targets: str) -> ResultRow:
    parts = (
        RowPart("nyu-hw4", "vit-cifar10", preset="nyu-hw4", minutes=minutes, data=CIFAR),
        RowPart("ours", "vit-cifar10", minutes=minutes, data=CIFAR),
    )
    what = f"CIFAR-10: the recipe of NYU DL HW4 (ViT) and ours, {minutes:.0f} minutes each"
    return ResultRow(f"cifar10-{minutes:.0f}", what, parts, (ACCURACY,), "accuracy", *targets)


KEEP_MEMORY = {"train.disable_malloc_trim": True}  # batches differ in length: steps are a fifth faster


def _speech(label: str, model: str, preset: str | None = None) -> RowPart:
    return RowPart(label, "speech", model, preset, data=("spoken-digits",))


_PRETRAINED = "40.4 (RoPE, 41 minutes on a T4)"
_NOT_PRETRAINED = "1.2–2.2"

_ROWS = (
    ResultRow(
        "digits",
        "Handwritten digits (8×8) bundled with qkv",
        (RowPart("vit", "vit-digits"),),
        (ACCURACY,),
        "accuracy",
        stretch_target="97 %",
    ),
    _cifar(20),
    _cifar(60, "10 points above NYU DL HW4", "80 %"),
    ResultRow(
        "birthplaces-60",
        "Where people were born, in less than 60 minutes; compared with no pretraining and with one answer for all "
        "(London)",
        (
            _birthplaces("ours", _PRETRAINED),
            _birthplaces("no-pretraining", _NOT_PRETRAINED, pretrain=False),
        ),
        (EXACT_MATCH, MOST_COMMON),
        "exact",
        "15 %",
        "40 %",
    ),
    ResultRow(
        "birthplaces-variants",
        "Where people were born: the attention variants of CS224N A5 (GPT), 15 minutes each",
        (
            _attention_variant("vanilla", "22.4–25.8"),
            _attention_variant("synthesizer", "12.8–24.4"),
            _attention_variant("rope", _PRETRAINED),
            # its first and last layer map texts to latents and back; it does not learn reading comprehension
            _attention_variant("perceiver", "about 16", layers=4, teacher="rope"),
            _attention_variant("vanilla", _NOT_PRETRAINED, label="no-pretraining", pretrain=False),
        ),
        (EXACT_MATCH, MOST_COMMON),
        "exact",
        "the order, and the gap to no pretraining",
        "each above its best public figure",
    ),
    ResultRow(
        "birthplaces",
        "Where people were born, without a time limit",
        (_birthplaces("ours", _PRETRAINED, preset="long"),),
        (EXACT_MATCH, MOST_COMMON),
        "exact",
        "26 %",
        "60 %",
    ),
    ResultRow(
        "answers",
        "Selective question answering: precision of the most confident answers, and refusal of questions about people "
        "who are not in the corpus",
        (_birthplaces("ours", "", preset="long", home="birthplaces"),),
        ANSWERS,
        "exact",
        "90 %, 80 % precision; 80 % refused",
        "99 %, 95 % precision; 95 % refused",
        measure="answers",
    ),
    ResultRow(
        "multi30k",
        "Multi30k, English to German, 60 minutes each: a transformer and an RNN with attention",
        tuple(
            RowPart(kind, "translate", kind, changes=KEEP_MEMORY, minutes=60, data=("multi30k",))
            for kind in ("seq2seq", "rnn-attention")
        ),
        (BLEU,),
        "bleu",
        "33",
        "38",
    ),
    ResultRow(
        "spoken-digits",
        "Strings of spoken digits, with a look-ahead of 0, 1 and 2 chunks and offline",
        (
            *(_speech(f"lookahead-{ahead}", "streaming", f"lookahead-{ahead}") for ahead in range(3)),
            _speech("offline", "offline"),
        ),
        (SEEN, UNSEEN),
        "word_error_rate",
        "3 % seen, 15 % unseen speaker",
        "1 % seen, 6 % unseen speaker",
    ),
)
ROWS = {row.name: row for row in _ROWS}


def get_row(name: str) -> ResultRow:
    if name not in ROWS:
        raise ValueError(f"the results table has no row {name!r}; {_suggest(name, list(ROWS))}")
    return ROWS[name]


def _suggest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
