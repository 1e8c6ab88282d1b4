"""Knowledge: a GPT reads documents with gaps, then learns to answer questions about what it read.

Pretraining and finetuning are two stages of one run. Only the answer of a question is scored; an answer counts when it
is exact.

With questions of its own the model also learns, while it reads, to answer from a document at hand; then it asks itself
about everybody nobody asked about, answers from the documents, and learns these answers by heart beside the true ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer
from torch import nn

from qkv.data.batches import Batches
from qkv.data.mixture import Mixture
from qkv.data.order import held_out
from qkv.data.questions import Question, question_examples, read_questions
from qkv.data.reading import read_lines
from qkv.data.sequences import Layout, SequenceBatches
from qkv.data.spans import MARK, PAD_CHARACTER, Corruption, SpanExamples
from qkv.data.tokens import all_ids, as_file, bpe_tokenizer, character_tokenizer
from qkv.loop import Optimiser, Saving, Schedule, Settings
from qkv.loop.objectives import language_model
from qkv.models import PRESETS, GPTConfig, RNNConfig
from qkv.recipes.answering import Answer, answered, threshold_for
from qkv.recipes.building import drawn
from qkv.recipes.library import Library
from qkv.recipes.measure import measured
from qkv.recipes.system import Recipe, Stage, System, Task

SHOWN = 16


@dataclass(frozen=True)
class FactData:
    """Documents and questions.

    path: a folder with wiki.txt (a document a line), birth_places_train.tsv and birth_dev.tsv (question ⇥ answer);
        "made-up" are biographies that qkv makes up, of `people` people.
    tokens: "characters", or "bpe" of `vocab` tokens. length: tokens of a text. batch: texts in a batch.
    layout: how texts fill a batch; the course pads, "by-length" and "packed" waste less.
    validation: the share of the training questions that is kept apart to choose by; the dev questions are the test.
    pretrain: whether the documents are read at all (the course's control: False).
    own_questions: whether the model practises with the document at hand and then learns its own answers too.
    swap: the chance that a practised document tells another place, so that the answer has to be read in it.
    practice: how often each training question is practised while all documents are read once.
    least: how sure the model has to be of its own answer to learn it.
    """

    path: str = "made-up"
    people: int = 1000
    tokens: Literal["characters", "bpe"] = "bpe"
    vocab: int = 2048
    length: int = 128
    batch: int = 32
    finetune_batch: int = 32
    layout: Layout = "by-length"
    validation: float = 0.1
    pretrain: bool = True
    own_questions: bool = True
    swap: float = 0.8
    practice: int = 4
    least: float = 0.0
    corruption: Corruption = field(default_factory=Corruption)


@dataclass(frozen=True)
class Facts:
    """What there is to read, and what is asked about it."""

    documents: list[str]
    train: list[Question]
    dev: list[Question]


def build(recipe: Recipe) -> Task:
    """Read documents and questions, make the tokenizer, build the model."""
    data: FactData = recipe.data
    facts = opened(data, recipe.seed)
    tokenizer = _tokenizer(facts, data)
    mark = tokenizer.encode(MARK, add_special_tokens=False).ids[0]
    train, validation = parted(facts.train, data.validation, recipe.seed)
    config = replace(recipe.model, vocab=max(tokenizer.get_vocab_size(), recipe.model.vocab))
    objective = language_model()
    judged = SequenceBatches(
        question_examples(validation, tokenizer, data.length), length=data.length, rows=100, shuffled=False
    )

    def validate(model: nn.Module) -> dict[str, float]:
        answers = answered(model, tokenizer, mark, validation)
        return {**measured(model, judged, objective), "exact": share_right(answers, validation)}

    return Task(
        recipe=replace(recipe, model=config),
        model=drawn(config, recipe.seed),
        stages=stages(facts, train, validation, tokenizer, mark, data, recipe.seed, validate),
        test=lambda model: _test(model, tokenizer, mark, facts),
        samples=lambda model: [
            {"question": q.question, "answer": a.text, "sure": round(a.sure, 3), "right": q.answer}
            for q, a in zip(validation[:SHOWN], answered(model, tokenizer, mark, validation[:SHOWN]), strict=True)
        ],
        purpose=lambda model: {
            "task": "answer",
            "mark": mark,
            "threshold": threshold_for(answered(model, tokenizer, mark, validation), validation),
            "documents": facts.documents,
        },
        files={"tokenizer.json": as_file(tokenizer)},
    )


def stages(
    facts: Facts,
    train: list[Question],
    validation: list[Question],
    tokenizer: Tokenizer,
    mark: int,
    data: FactData,
    seed: int,
    validate: Callable[[nn.Module], dict[str, float]],
) -> tuple[Stage, ...]:
    """Reading, if documents are read, and answering by heart."""
    objective = language_model()
    texts = SpanExamples(all_ids(tokenizer, facts.documents), mark, data.corruption, seed=seed)
    batches: dict[str, Any] = {"length": data.length, "seed": seed}
    reading = SequenceBatches(texts, rows=data.batch, layout=data.layout, **batches)

    def asking(questions: list[Question]) -> Batches:
        examples = question_examples(questions, tokenizer, data.length)
        return SequenceBatches(examples, rows=data.finetune_batch, layout="by-length", **batches)

    finetune = Stage("finetune", asking(train), objective, validate, share=0.15)
    if not data.pretrain:
        return (finetune,)
    if not data.own_questions:
        return Stage("pretrain", reading, objective, share=0.85), finetune
    asked = {question.question for question in validation}
    train = [question for question in train if question.question not in asked]  # some are put twice
    library = Library(facts.documents, train, tokenizer, mark, data.length)
    book = library.open_book(train, swap=data.swap, times=data.practice, seed=seed)
    practice = SequenceBatches(book, rows=data.finetune_batch, layout="by-length", **batches)

    def look_up(model: nn.Module) -> dict[str, float]:
        answers = library.looked_up(model, [library.form.name(question.question) for question in validation])
        return {"exact_with_document": share_right(answers, validation)}

    def own(said: dict[str, Any]) -> Batches:
        return asking([*train, *(Question(q["question"], q["answer"], "its own") for q in said["questions"])])

    known = {question.question for question in train}
    return (
        Stage("pretrain", Mixture([reading, practice], seed), objective, look_up, share=0.7),
        replace(
            finetune,
            share=0.3,
            prepare=lambda model: {"questions": library.own_questions(model, known, data.least)},
            prepared=own,
        ),
    )


def parted(questions: list[Question], share: float, seed: int) -> tuple[list[Question], list[Question]]:
    """Questions to learn from, and those kept apart to choose by."""
    kept, apart = ([questions[i] for i in rows.tolist()] for rows in held_out(len(questions), share, seed))
    return kept, apart


def opened(data: FactData, seed: int) -> Facts:
    """The documents and questions that the settings name."""
    if data.path == "made-up":
        from qkv.data.biographies import biographies

        told = biographies(data.people, seed=seed)
        return Facts(list(told.documents), [*told.train, *told.validation], list(told.test))
    folder = Path(data.path)
    if not folder.is_dir():
        raise ValueError(
            f"{folder} is not a folder; expected one with wiki.txt, birth_places_train.tsv and birth_dev.tsv"
        )
    return Facts(
        documents=[line for line in read_lines(folder / "wiki.txt") if line.strip()],
        train=read_questions(folder / "birth_places_train.tsv"),
        dev=read_questions(folder / "birth_dev.tsv"),
    )


def share_right(answers: list[Answer], questions: list[Question]) -> float:
    """The share of answers that are exact, in percent."""
    right = sum(answer.text == question.answer for answer, question in zip(answers, questions, strict=True))
    return 100 * right / max(len(questions), 1)


def _test(model: nn.Module, tokenizer: Tokenizer, mark: int, facts: Facts) -> dict[str, Any]:
    """Exact match on the dev questions, and that of one answer for all: the commonest of training (London)."""
    common, _ = Counter(question.answer for question in facts.train).most_common(1)[0]
    always = [Answer(str(common), 1.0)] * len(facts.dev)
    return {
        "exact": share_right(answered(model, tokenizer, mark, facts.dev), facts.dev),
        "exact_of_commonest": share_right(always, facts.dev),
        "commonest": common,
    }


def _tokenizer(facts: Facts, data: FactData) -> Tokenizer:
    asked = [text for q in (*facts.train, *facts.dev) for text in (q.question, q.answer or "")]
    special = (PAD_CHARACTER, MARK)
    if data.tokens == "characters":
        return character_tokenizer([*facts.documents, *asked], special)
    return bpe_tokenizer(facts.documents, data.vocab, special, spaced=True)


def _settings(steps: int, lr: float, best: str) -> Settings:
    return Settings(
        steps=steps,
        optimiser=Optimiser(name="muon", lr=lr, betas=(0.9, 0.95), weight_decay=0.1),
        schedule=Schedule(warmup=steps // 20, floor=0.1),
        saving=Saving(evaluate_every=max(steps // 5, 1), checkpoint_every=max(steps // 10, 1), best=best),
    )


_COURSE: dict[str, Any] = {
    "data.tokens": "characters",
    "data.own_questions": False,
    "data.layout": "padded",
    "data.batch": 128,
    "data.finetune_batch": 256,
    "pretrain.steps": 14_950,  # 650 epochs of 2,937 documents
    "pretrain.optimiser": {"name": "adamw", "lr": 6e-3},
    "pretrain.schedule": {"warmup": 200},
    "pretrain.saving": {"evaluate_every": 0, "checkpoint_every": 400},
    "finetune.steps": 80,  # 10 epochs of 2,000 questions
    "finetune.optimiser": {"name": "adamw", "lr": 6e-4},
    "finetune.schedule": {"warmup": 4},
    "finetune.saving": {"evaluate_every": 16, "checkpoint_every": 16},
}

BIRTHPLACES = System(
    name="birthplaces",
    summary="A GPT that reads biographies with gaps, then answers where people were born; variants as in the course.",
    data=FactData(),
    models={
        "rope": PRESETS["course-gpt-rope"],
        "vanilla": PRESETS["course-gpt"],
        "synthesizer": PRESETS["course-gpt-synthesizer"],
        "perceiver": PRESETS["course-perceiver"],
        "small": GPTConfig(vocab=2, width=128, layers=2, heads=4, position="rope", tied=True),
        "rnn": RNNConfig(vocab=2, width=256, hidden=512, layers=2, dropout=0.1),
    },
    stages={"pretrain": _settings(4_000, 4e-3, ""), "finetune": _settings(3_000, 3e-3, "exact")},
    presets={"course": _COURSE},
    build=build,
)
