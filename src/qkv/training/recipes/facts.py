"""Knowledge: a GPT reads documents with gaps, then learns to answer questions about what it read.

Pretraining and finetuning are two stages of one run. Only the answer of a question is scored; an answer counts when it
is exact.

With questions of its own the model also learns, while it reads, to answer from a document at hand; then it asks itself
about everybody nobody asked about, answers from the documents, and learns these answers by heart beside the true ones.
A model that cannot read so may learn what another run has answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import nn

from qkv.data.batches import Batches
from qkv.data.mixture import Mixture
from qkv.data.open_book import form_of
from qkv.data.questions import Question, question_examples
from qkv.data.sequences import SequenceBatches
from qkv.data.spans import MARK, SpanExamples
from qkv.data.tokens import all_ids, as_file
from qkv.models import PRESETS, GPTConfig, RNNConfig
from qkv.models.folder import read_json
from qkv.training import Optimiser, Saving, Schedule, Settings
from qkv.training.objectives import language_model
from qkv.training.recipes.answering import Answer, answered, threshold_for, weighed
from qkv.training.recipes.building import drawn
from qkv.training.recipes.definition import Recipe, Stage, System, Task
from qkv.training.recipes.fact_data import FactData, Facts, opened, parted, tokenizer_for
from qkv.training.recipes.library import Library
from qkv.training.recipes.measure import measured
from qkv.training.recipes.prepared import PREPARED

SHOWN = 16


def build(recipe: Recipe) -> Task:
    """Read documents and questions, make the tokenizer, build the model."""
    data: FactData = recipe.data
    facts = opened(data, recipe.seed)
    tokenizer = tokenizer_for(facts, data)
    mark = tokenizer.encode(MARK, add_special_tokens=False).ids[0]
    train, validation = parted(facts.train, data.validation, recipe.seed)
    config = replace(recipe.model, vocab_size=max(tokenizer.get_vocab_size(), recipe.model.vocab_size))
    model: Any = drawn(config, recipe.seed)
    if model.limit is not None and model.limit < data.length - 1:
        raise ValueError(
            f"texts of {data.length} tokens are too long for a model of {model.limit} positions; set data.length or "
            "model.max_length"
        )
    objective = language_model()
    read: dict[str, float] = {}  # how sure the model was of its own answers when it read them, by question
    judged = SequenceBatches(
        question_examples(validation, tokenizer, data.length), length=data.length, rows=100, shuffled=False
    )

    def validate(model: nn.Module) -> dict[str, float]:
        answers = answered(model, tokenizer, mark, validation)
        return {**measured(model, judged, objective), "exact": share_right(answers, validation)}

    def asked(model: nn.Module, questions: list[Question]) -> list[Answer]:
        return weighed(answered(model, tokenizer, mark, questions), questions, read)

    return Task(
        recipe=replace(recipe, model=config),
        model=model,
        stages=stages(facts, train, validation, tokenizer, mark, data, recipe.seed, validate, read),
        test=lambda model: _test(model, tokenizer, mark, facts),
        samples=lambda model: [
            {"question": q.question, "answer": a.text, "sure": round(a.sure, 3), "right": q.answer}
            for q, a in zip(validation[:SHOWN], asked(model, validation[:SHOWN]), strict=True)
        ],
        purpose=lambda model: {
            "task": "answer",
            "mark": mark,
            "threshold": threshold_for(asked(model, validation), validation),
            "documents": facts.documents,
            **({"form": form_of(train), "read": read} if data.pretrain and data.own_questions else {}),
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
    read: dict[str, float],
) -> tuple[Stage, ...]:
    """Reading, if documents are read, and answering by heart.

    read: gets how sure the model was of its own answers, by question, once it has given them.
    """
    objective = language_model()
    texts = SpanExamples(all_ids(tokenizer, facts.documents), mark, data.corruption, seed=seed)
    batches: dict[str, Any] = {"length": data.length, "seed": seed}
    reading = SequenceBatches(texts, rows=data.batch, layout=data.layout, **batches)

    def asking(questions: list[Question]) -> Batches:
        examples = question_examples(questions, tokenizer, data.length)
        return SequenceBatches(examples, rows=data.finetune_batch, layout="by-length", **batches)

    finetune = Stage("finetune", asking(train), objective, validate)
    if not data.pretrain:
        return (finetune,)
    if not data.own_questions:
        return Stage("pretrain", reading, objective), finetune
    asked = {question.question for question in validation}
    train = [question for question in train if question.question not in asked]  # some are put twice
    library = Library(facts.documents, train, tokenizer, mark, data.length)
    known = {question.question for question in train}

    def own(said: dict[str, Any]) -> Batches:
        read.update(dict.fromkeys(library.unasked(known), 0.0))  # of some it found no answer
        read.update({q["question"]: q["sure"] for q in said["questions"]})
        return asking([*train, *(Question(q["question"], q["answer"], "its own") for q in said["questions"])])

    if data.teacher:
        taught = [answer for answer in answers_of(data.teacher) if answer["question"] not in known]
        return (
            Stage("pretrain", reading, objective),
            replace(finetune, prepare=lambda _: {"questions": taught}, prepared=own),
        )
    book = library.open_book(train, swap=data.swap, times=data.practice, seed=seed)
    practice = SequenceBatches(book, rows=data.finetune_batch, layout="by-length", **batches)

    def look_up(model: nn.Module) -> dict[str, float]:
        answers = library.looked_up(model, [library.form.name(question.question) for question in validation])
        return {"exact_with_document": share_right(answers, validation)}

    return (
        Stage("pretrain", Mixture([reading, practice], seed), objective, look_up),
        replace(
            finetune,
            prepare=lambda model: {"questions": library.own_questions(model, known, data.least)},
            prepared=own,
        ),
    )


def answers_of(run: str) -> list[dict[str, Any]]:
    """What another run answered when it had read the documents: question, answer, and how sure it was."""
    path = Path(run) / "finetune" / PREPARED
    said = read_json(path, "data.teacher is the folder of a run of this recipe that learned answers of its own")
    answers, kinds = said.get("questions"), {"question": str, "answer": str, "sure": int | float}
    if not isinstance(answers, list) or not all(
        isinstance(each, dict) and all(isinstance(each.get(name), kind) for name, kind in kinds.items())
        for each in answers
    ):
        raise ValueError(f"{path} should hold questions, each with {', '.join(kinds)}; something else stands there")
    return answers


def shares(recipe: Recipe) -> dict[str, float]:
    """Of a run's time: questions of its own take longer to learn than those of the course."""
    if not recipe.data.pretrain:
        return {"finetune": 1.0}
    if recipe.data.teacher:
        return {"pretrain": 0.5, "finetune": 0.5}
    return {"pretrain": 0.6, "finetune": 0.4} if recipe.data.own_questions else {"pretrain": 0.85, "finetune": 0.15}


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

_LONG: dict[str, Any] = {
    "model.dim": 192,
    "model.layers": 3,
    "model.heads": 6,
    "pretrain.steps": 3_000,
    "pretrain.schedule": {"warmup": 100},
    "finetune.steps": 2_500,
    "finetune.schedule": {"warmup": 100},
}

BIRTHPLACES = System(
    name="birthplaces",
    summary="A GPT that reads biographies with gaps, then answers where people were born; variants as in the course.",
    data=FactData(),
    models={
        "small": GPTConfig(vocab_size=2, dim=128, layers=2, heads=4, position="rope", tie_embeddings=True),
        "rope": PRESETS["course-gpt-rope"],
        "vanilla": PRESETS["course-gpt"],
        "synthesizer": PRESETS["course-gpt-synthesizer"],
        "perceiver": PRESETS["course-perceiver"],
        "rnn": RNNConfig(vocab_size=2, dim=256, hidden_size=512, layers=2, dropout=0.1),
    },
    stages={"pretrain": _settings(2_000, 4e-3, ""), "finetune": _settings(2_000, 3e-3, "exact")},
    presets={"course": _COURSE, "long": _LONG},
    habits={"rnn": {f"{stage}.optimiser": {"name": "adamw", "lr": 1e-3} for stage in ("pretrain", "finetune")}},
    build=build,
    fills=("vocab",),
    shares=shares,
)
