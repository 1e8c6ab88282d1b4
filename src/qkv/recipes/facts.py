"""Knowledge: a GPT reads documents with gaps, then learns to answer questions about what it read.

Pretraining and finetuning are two stages of one run. Only the answer of a question is scored; an answer counts when it
is exact.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer
from torch import nn

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
    """

    path: str = "made-up"
    people: int = 1000
    tokens: Literal["characters", "bpe"] = "characters"
    vocab: int = 2048
    length: int = 128
    batch: int = 128
    finetune_batch: int = 64
    layout: Layout = "by-length"
    validation: float = 0.1
    pretrain: bool = True
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
    kept, apart = held_out(len(facts.train), data.validation, recipe.seed)
    train, validation = ([facts.train[i] for i in rows.tolist()] for rows in (kept, apart))
    config = replace(recipe.model, vocab=max(tokenizer.get_vocab_size(), recipe.model.vocab))
    objective = language_model()
    texts = SpanExamples(all_ids(tokenizer, facts.documents), mark, data.corruption, seed=recipe.seed)
    batches: dict[str, Any] = {"length": data.length, "layout": data.layout, "seed": recipe.seed}
    reading = SequenceBatches(texts, rows=data.batch, **batches)
    asking = SequenceBatches(
        question_examples(train, tokenizer, data.length), rows=data.finetune_batch, **{**batches, "layout": "by-length"}
    )
    judged = SequenceBatches(
        question_examples(validation, tokenizer, data.length), length=data.length, rows=100, shuffled=False
    )

    def validate(model: nn.Module) -> dict[str, float]:
        answers = answered(model, tokenizer, mark, validation)
        return {**measured(model, judged, objective), "exact": share_right(answers, validation)}

    stages = [Stage("pretrain", reading, objective, share=0.85)] if data.pretrain else []
    return Task(
        recipe=replace(recipe, model=config),
        model=drawn(config, recipe.seed),
        stages=(*stages, Stage("finetune", asking, objective, validate, share=0.15)),
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
    return bpe_tokenizer(facts.documents, data.vocab, special)


def _stages(pretrain: int, finetune: int, lr: float, finetune_lr: float) -> dict[str, Settings]:
    adam = {"betas": (0.9, 0.95), "weight_decay": 0.1}
    return {
        "pretrain": Settings(
            steps=pretrain,
            optimiser=Optimiser(lr=lr, **adam),
            schedule=Schedule(warmup=pretrain // 20, floor=0.1),
            saving=Saving(checkpoint_every=max(pretrain // 10, 1)),
        ),
        "finetune": Settings(
            steps=finetune,
            optimiser=Optimiser(lr=finetune_lr, **adam),
            schedule=Schedule(warmup=finetune // 20, floor=0.1),
            saving=Saving(evaluate_every=max(finetune // 5, 1), checkpoint_every=max(finetune // 5, 1), best="exact"),
        ),
    }


_COURSE: dict[str, Any] = {
    "data.layout": "padded",
    "data.batch": 128,
    "data.finetune_batch": 256,
    "pretrain.steps": 14_950,  # 650 epochs of 2,937 documents
    "pretrain.optimiser": {"lr": 6e-3},
    "finetune.steps": 80,  # 10 epochs of 2,000 questions
    "finetune.optimiser": {"lr": 6e-4},
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
        "small": GPTConfig(vocab=2, width=128, layers=2, heads=4, position="rope"),
        "rnn": RNNConfig(vocab=2, width=256, hidden=512, layers=2, dropout=0.1),
    },
    stages=_stages(4_000, 600, 2e-3, 5e-4),
    presets={"course": _COURSE},
    build=build,
)
