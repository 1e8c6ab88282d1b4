"""The rows of the results table as data: what is trained, for how long, which metrics count, and published figures."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Metric:
    """A metric of the test that a row reports.

    name: the key in the run's result. title: the column heading. scale: 100 for shares, which are shown in percent.
    items: how many images or questions were tested, for a share of right ones; None where there is no such number.
    """

    name: str
    title: str
    scale: float | int = 1
    decimals: int = 1
    items: int | None = None

    @property
    def control(self) -> bool:
        """Whether a simple method without training is measured, for comparison."""
        return self.title.startswith("control: ")

    def format(self, value: float | int) -> str:
        """
        >>> Metric("accuracy", "accuracy [%]", scale=100).format(0.98333)
        '98.3'
        """
        return f"{self.scale * value:,.{self.decimals}f}"

    def interval(self, value: float | int) -> str:
        """Half of the 95% interval of a share p of n items: 1.96 · √(p(1 − p)/n), in points; "" without items.

        It says how far another test of as many items would be from this one, for the same trained model.

        >>> [Metric("exact", "exact match [%]", items=500).interval(value) for value in (90.0, 40.0)]
        ['2.6', '4.3']
        """
        if self.items is None:
            return ""
        share = self.scale * value / 100
        return f"{100 * 1.96 * (share * (1 - share) / self.items) ** 0.5:.1f}"


@dataclass(frozen=True)
class RowPart:
    """One training of a row.

    changes: settings by dotted name. minutes or epochs: of training; without them the recipe's own steps.
    data: the data, relative to the data folder: the first of these that exists; () needs none. whole_folder: the part
        reads the data folder itself, with all of `data` in it.
    published: a figure that others have published, with its source.
    home: another row in whose folder the run is kept, if two rows share one training.
    teacher: an earlier part of the row whose pseudo-labels are learned.
    protocol: how the part is trained and what it sees, where parts or published figures differ in it.
    """

    label: str
    recipe: str
    model: str | None = None
    preset: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    minutes: float | int | None = None
    epochs: int | None = None
    data: tuple[str, ...] = ()
    whole_folder: bool = False
    published: str = ""
    home: str = ""
    teacher: str = ""
    protocol: str = ""


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

    @property
    def needs(self) -> list[str]:
        """The data of all parts, relative to the data folder."""
        names = (part.data if part.whole_folder else part.data[:1] for part in self.parts)
        return list(dict.fromkeys(name for group in names for name in group))

    def get_part(self, label: str) -> RowPart:
        labels = [part.label for part in self.parts]
        if label not in labels:
            raise ValueError(f"{self.name} has no part {label!r}; {_suggest(label, labels)}")
        return self.parts[labels.index(label)]


@dataclass(frozen=True)
class System:
    """A figure of quality over operations (FLOPs) of training: the rows of one system, the course's recipe beside ours.

    published: curves of others, by label, as points (operations, value of the rows' curve).
    """

    name: str
    title: str
    rows: tuple[str, ...]
    published: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)


CIFAR10 = ("cifar10.npz", "cifar-10-batches-bin")
CIFAR100 = ("cifar100", "cifar100.npz", "cifar-100-binary")
ACCURACY = Metric("accuracy", "test accuracy [%]", scale=100, items=10_000)
EXACT_MATCH = Metric("exact", "exact match on dev [%]", items=500)
CONTROLS = (
    Metric("exact_of_commonest", "control: the most common answer for all [%]"),
    Metric("exact_of_born_in", "control: the place after “born in” in the person's document [%]"),
    Metric("exact_of_patterns", "control: three regular expressions on it [%]"),
)
BLEU = Metric("bleu", "BLEU on test2016")
SEEN = Metric("word_error_rate_seen", "word error rate, seen speakers [%]", scale=100)
UNSEEN = Metric("word_error_rate_unseen", "word error rate, 15 unseen speakers [%]", scale=100)
UNSEEN_KINDS = tuple(
    Metric(f"word_error_rate_unseen_{kind}", f"of them: {kind.replace('_', ' ')} [%]", scale=100)
    for kind in ("female", "male", "german_accent", "other_accent")
)
ANSWERS = (
    Metric("precision_at_50", "precision at 50% coverage [%]", items=250),
    Metric("precision_at_90", "precision at 90% coverage [%]", items=450),
    Metric("answered", "dev questions answered by the model itself [%]", items=500),
    Metric("refused", "questions about people not in the corpus refused [%]", items=100),
)


def _birthplaces(label: str, public: str = "", *, pretrain: bool = True, changes: Any = (), **more: Any) -> RowPart:
    changes = dict(changes) | ({} if pretrain else {"data.pretrain": False})
    more = {"protocol": _SELF_TRAINING if pretrain else _QUESTIONS_ONLY} | more
    return RowPart(label, "birthplaces", changes=changes, data=("birthplaces",), published=public, **more)


_SMALL_GPT = {"model.dim": 128, "model.layers": 2, "model.heads": 4}


def _attention_variant(
    model: str, *, label: str = "", layers: int = 2, pretrain: bool = True, teacher: str = ""
) -> RowPart:
    """An attention variant of CS224N A5, at a size that reads all documents several times in 15 minutes."""
    texts = {"data.max_length": 80, "data.corruption.max_length": 70}
    options = {"model": model, "minutes": 15, "pretrain": pretrain, "teacher": teacher}
    options |= {"protocol": _TEACHER} if teacher else {}
    return _birthplaces(label or model, changes=texts | _SMALL_GPT | {"model.layers": layers}, **options)


_FROM_SCRATCH = {  # without pretraining there is nothing to forget: more steps with higher rates
    "finetune.steps": 400,
    "finetune.optimizer.lr": 1e-3,
    "finetune.optimizer.muon_lr": 5e-3,
    "finetune.schedule.warmup_steps": 20,
    "finetune.checkpoint.evaluate_every": 50,
    "finetune.checkpoint.checkpoint_every": 200,
}


def _course_protocol(model: str, public: str, *, label: str = "", pretrain: bool = True) -> RowPart:
    """CS224N A5's two stages with our optimizer, at a smaller size."""
    options = {"model": model, "preset": "course-protocol"} | ({"protocol": _COURSE} if pretrain else {})
    changes = _SMALL_GPT | {"model.dropout": 0.0} | ({} if pretrain else _FROM_SCRATCH)
    return _birthplaces(label or model, public, changes=changes, pretrain=pretrain, **options)


KEEP_MEMORY = {"train.disable_malloc_trim": True}  # batches differ in length: steps are a fifth faster


def _cifar10(minutes: float | int, *targets: str) -> ResultRow:
    parts = (
        RowPart("nyu-hw4", "vit-cifar10", preset="nyu-hw4", minutes=minutes, data=CIFAR10),
        RowPart("ours", "vit-cifar10", minutes=minutes, data=CIFAR10),
    )
    what = f"CIFAR-10: the recipe of NYU DL HW4 (ViT) and ours, {minutes:.0f} minutes each"
    return ResultRow(f"cifar10-{minutes:.0f}", what, parts, (ACCURACY,), "accuracy", *targets)


A5_OPERATIONS = 5e15  # of the 650 epochs of pretraining of CS224N A5
A5_BEST = {"vanilla": 25.8, "RoPE": 40.4}  # best public dev accuracy, without self-training
NYU_HW4 = "67.96 (NYU DL HW4: 100 epochs, the best epoch picked on the test set)"
NYU_HW4_EPOCH = 6.3e13  # operations of an epoch of its 50,000 images
NYU_HW4_CURVE = ((1, 0.1606), (10, 0.3991), (20, 0.5086), (50, 0.6234), (90, 0.6796))  # epoch, test accuracy


def _cifar100(label: str, preset: str | None, published: str = NYU_HW4, **length: Any) -> RowPart:
    changes = {} if preset == "nyu-hw4" else KEEP_MEMORY
    return RowPart(label, "vit-cifar100", None, preset, changes, data=CIFAR100, published=published, **length)


def _speech(label: str, model: str, preset: str | None = None) -> RowPart:
    data = ("audiomnist", "spoken-digits")
    return RowPart(label, "speech", model, preset, changes=KEEP_MEMORY, data=data, whole_folder=True)


_NOT_PRETRAINED = "1.2–2.2"
_BPE = "BPE of 2,048 tokens"
_SELF_TRAINING = f"self-training: learns its own answers from the dev people's documents; {_BPE}"
_TEACHER = f"learns the pseudo-labels of rope, which reads the dev people's documents; {_BPE}"
_COURSE = f"CS224N A5's: span corruption of all documents, the dev people's too, then training questions only; {_BPE}"
_QUESTIONS_ONLY = f"training questions only, nothing about the dev people; {_BPE}"

_ROWS = (
    ResultRow(
        "digits",
        "Handwritten digits (8×8) bundled with qkv",
        (RowPart("vit", "vit-digits"),),
        (replace(ACCURACY, items=360),),
        "accuracy",
        stretch_target="97%",
    ),
    _cifar10(20),
    _cifar10(60, "10 points above NYU DL HW4", "80%"),
    ResultRow(
        "cifar100-60",
        "CIFAR-100: the recipe of NYU DL HW4 (ViT) and ours, a plain ViT, 60 minutes each",
        (_cifar100("nyu-hw4", "nyu-hw4", minutes=60), _cifar100("ours", None, minutes=60)),
        (ACCURACY,),
        "accuracy",
        "62%",
        "66%",
    ),
    ResultRow(
        "cifar100",
        "CIFAR-100: a plain ViT without a time limit, with fewer operations than the 100 epochs of NYU DL HW4 "
        "(6.3 · 10¹⁵)",
        (_cifar100("ours", "long"),),
        (ACCURACY,),
        "accuracy",
        "above 67.96%",
        "72%",
    ),
    ResultRow(
        "cifar100-nyu-hw4",
        "CIFAR-100: the first ten of the 100 epochs of NYU DL HW4, as published; the best epoch is picked on the test "
        "set",
        (
            _cifar100(
                "nyu-hw4", "nyu-hw4", "16.06 at epoch 1, 39.91 at epoch 10 (NYU DL HW4, on the test set)", epochs=10
            ),
        ),
        (ACCURACY,),
        "accuracy",
        "at most 2 points from 39.91% at epoch 10",
        "at most 1 point",
    ),
    ResultRow(
        "birthplaces-course",
        "Where people were born, by the course's protocol (CS224N A5: no pseudo-labels) with our optimizer",
        (
            _course_protocol("vanilla", "22.4–25.8 (CS224N A5, public repositories)"),
            _course_protocol("rope", "40.4 (CS224N A5, public repositories; 41 minutes on a T4)"),
            _course_protocol("vanilla", _NOT_PRETRAINED, label="no-pretraining", pretrain=False),
        ),
        (EXACT_MATCH, *CONTROLS),
        "exact",
        "vanilla 12%, RoPE 20%",
        "vanilla 25.8%, RoPE 40.4%",
    ),
    ResultRow(
        "birthplaces-60",
        "Where people were born, by self-training, in less than 60 minutes; compared with no pretraining",
        (_birthplaces("ours"), _birthplaces("no-pretraining", _NOT_PRETRAINED, pretrain=False)),
        (EXACT_MATCH, *CONTROLS),
        "exact",
    ),
    ResultRow(
        "birthplaces-variants",
        "Where people were born, by self-training: the attention variants of CS224N A5 (GPT), 15 minutes each",
        (
            *(_attention_variant(model) for model in ("vanilla", "synthesizer", "rope")),
            # its first and last layer map texts to latents and back; it does not learn reading comprehension
            _attention_variant("perceiver", layers=4, teacher="rope"),
            _attention_variant("vanilla", label="no-pretraining", pretrain=False),
        ),
        (EXACT_MATCH, *CONTROLS),
        "exact",
    ),
    ResultRow(
        "birthplaces",
        "Where people were born, by self-training, without a time limit",
        (_birthplaces("ours", preset="long"),),
        (EXACT_MATCH, *CONTROLS),
        "exact",
    ),
    ResultRow(
        "answers",
        "Selective question answering: precision of the most confident answers, and refusal of questions about people "
        "who are not in the corpus",
        (_birthplaces("ours", preset="long", home="birthplaces"),),
        ANSWERS,
        "exact",
        "90%, 80% precision; 80% refused",
        "99%, 95% precision; 95% refused",
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
        "38.5, mean of three seeds",
        "40",
    ),
    ResultRow(
        "spoken-digits",
        "Strings of spoken digits (AudioMNIST and the Free Spoken Digit Dataset, 53 speakers: 30 in training, 8 in "
        "validation, 15 in the test), with a look-ahead of 0, 1 and 2 chunks and offline",
        (
            *(_speech(f"lookahead-{ahead}", "streaming", f"lookahead-{ahead}") for ahead in range(3)),
            _speech("offline", "offline"),
        ),
        (UNSEEN, *UNSEEN_KINDS, SEEN),
        "word_error_rate",
        "unseen speakers: look-ahead of one chunk 3%, offline 2%",
        "unseen speakers: look-ahead of one chunk 1%, offline 0.7%",
    ),
)
ROWS = {row.name: row for row in _ROWS}
SYSTEMS = (
    System(
        "cifar100",
        "CIFAR-100, accuracy",
        ("cifar100-60", "cifar100", "cifar100-nyu-hw4"),
        {
            "NYU DL HW4, published (test set)": tuple(
                (epoch * NYU_HW4_EPOCH, accuracy) for epoch, accuracy in NYU_HW4_CURVE
            )
        },
    ),
    System("cifar10", "CIFAR-10, accuracy", ("cifar10-60",)),
    System(
        "birthplaces",
        "birthplaces, exact match [%]",
        ("birthplaces-variants", "birthplaces"),
        {f"CS224N A5, {name}, published": ((A5_OPERATIONS, best),) for name, best in A5_BEST.items()},
    ),
    System("translation", "Multi30k, BLEU", ("multi30k",)),
    System("speech", "spoken digits, word error rate", ("spoken-digits",)),
)


def get_row(name: str) -> ResultRow:
    if name not in ROWS:
        raise ValueError(f"the results table has no row {name!r}; {_suggest(name, list(ROWS))}")
    return ROWS[name]


def _suggest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
