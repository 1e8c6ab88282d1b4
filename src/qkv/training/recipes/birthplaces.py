"""Recipe birthplaces: knowledge in a GPT. Pretrain on documents with span corruption, then fine-tune on questions.

Only the answer of a question is scored; an answer counts when it matches exactly. Questions are answered without
documents.

With self-training the model also practices reading comprehension in pretraining: questions with the document in the
context. Then it answers questions about everybody else from the documents, and is fine-tuned on these pseudo-labels
and the true answers. A model that does not learn reading comprehension can use the pseudo-labels of another run
(`teacher`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer
from torch import nn

from qkv._files import read_json
from qkv.data.batches import Batches, MixedBatches, split_indices
from qkv.data.files import read_lines
from qkv.data.text.biographies import make_biographies
from qkv.data.text.question_answering import (
    PLACE_PATTERNS,
    QuestionAnswer,
    document_subject,
    find_birthplace,
    find_names,
    infer_template,
    question_examples,
    read_questions,
)
from qkv.data.text.sequence_batches import Layout, SequenceBatches
from qkv.data.text.span_corruption import MASK_CHAR, PAD_CHAR, SpanCorruption, SpanCorruptionExamples
from qkv.data.text.tokenizers import bpe_tokenizer, character_tokenizer, encode_all, serialize_tokenizer
from qkv.models import PRESETS, GPTConfig, RNNConfig
from qkv.training.config import CheckpointConfig, TrainConfig
from qkv.training.evaluation import evaluate_all
from qkv.training.objectives import language_model
from qkv.training.optimizers import OptimizerConfig
from qkv.training.recipes.definition import RecipeConfig, RecipeDefinition, Stage, Task, build_model, sample_evenly
from qkv.training.recipes.question_answering import (
    Answer,
    DocumentIndex,
    answer_questions,
    calibrate_threshold,
    scale_confidence,
)
from qkv.training.schedules import ScheduleConfig

NUM_SAMPLES = 16
EVAL_BATCH_SIZE = 100


@dataclass(frozen=True)
class FactData:
    """Documents and questions.

    path: a folder with wiki.txt (a document per line), birth_places_train.tsv and birth_dev.tsv (question ⇥ answer);
        "synthetic" are generated biographies of `people` people.
    tokenizer: "characters", or "bpe" with `vocab_size` tokens. max_length: tokens of a text.
    batch_size: texts per batch.
    layout: how texts fill a batch; CS224N A5 pads, "by-length" and "packed" waste less.
    shuffle: whether the order of texts changes each epoch; without, all texts come in the order of the file.
    score_mask: whether the ⁇ that ends a question is scored, as in CS224N A5.
    validation_fraction: share of the training questions for validation; the dev questions are the test. With 0 all
        training questions are trained on, and the last checkpoint is used.
    pretrain: whether to pretrain on the documents at all (False is the control of CS224N A5).
    self_training: whether the model practices reading comprehension and then learns its own answers too.
    swap_prob: probability that the document of a reading example states another place, so that the answer must be read.
    reading_repeats: how often each reading example comes while all documents are read once.
    min_confidence: least confidence of a pseudo-label.
    teacher: directory of another run on the same documents whose pseudo-labels are used; this model then does not
        practice reading comprehension.
    """

    path: str = "synthetic"
    people: int = 1000
    tokenizer: Literal["characters", "bpe"] = "bpe"
    vocab_size: int = 2048
    max_length: int = 128
    batch_size: int = 32
    finetune_batch_size: int = 32
    layout: Layout = "by-length"
    shuffle: bool = True
    score_mask: bool = False
    validation_fraction: float = 0.1
    pretrain: bool = True
    self_training: bool = True
    swap_prob: float = 0.8
    reading_repeats: int = 4
    min_confidence: float = 0.0
    teacher: str = ""
    corruption: SpanCorruption = field(default_factory=SpanCorruption)

    def __post_init__(self) -> None:
        if self.teacher and not (self.pretrain and self.self_training):
            raise ValueError(
                "data.teacher names the run whose pseudo-labels replace the model's own; it needs data.pretrain=true "
                "and data.self_training=true"
            )
        if self.validation_fraction == 0 and self.pretrain and self.self_training:
            raise ValueError("data.validation_fraction=0 leaves no questions to validate; set data.self_training=false")


@dataclass(frozen=True)
class Facts:
    """Documents, and the training and dev questions about them."""

    documents: list[str]
    train: list[QuestionAnswer]
    dev: list[QuestionAnswer]


def load_facts(data: FactData, seed: int) -> Facts:
    """Load the documents and questions of a data config."""
    if data.path == "synthetic":
        biographies = make_biographies(data.people, seed=seed)
        train = [*biographies.train, *biographies.validation]
        return Facts(list(biographies.documents), train, list(biographies.test))
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


def split_questions(
    questions: list[QuestionAnswer], fraction: float, seed: int
) -> tuple[list[QuestionAnswer], list[QuestionAnswer]]:
    """Split questions into those for training and those for validation; a fraction of 0 holds out none."""
    if fraction == 0:
        return questions, []
    train, validation = split_indices(len(questions), fraction, seed)
    return [questions[i] for i in train.tolist()], [questions[i] for i in validation.tolist()]


def make_tokenizer(facts: Facts, data: FactData) -> Tokenizer:
    """Train the tokenizer of documents and questions; ⁇ is one of its tokens."""
    special = (PAD_CHAR, MASK_CHAR)
    if data.tokenizer == "bpe":
        return bpe_tokenizer(facts.documents, data.vocab_size, special, add_prefix_space=True)
    train = [text for question in facts.train for text in (question.question, question.answer or "")]
    return character_tokenizer([*facts.documents, *train, *(question.question for question in facts.dev)], special)


class BirthplacesTask:
    """Everything that the stages, the test and the samples of one config share."""

    def __init__(self, config: RecipeConfig, limit: int | None = None) -> None:
        self.data: FactData = config.data
        self.seed = config.seed
        self.facts = load_facts(self.data, self.seed)
        self.tokenizer = make_tokenizer(self.facts, self.data)
        self.mask_id = self.tokenizer.encode(MASK_CHAR, add_special_tokens=False).ids[0]
        self.train, self.validation = split_questions(self.facts.train, self.data.validation_fraction, self.seed)
        self.validation, self.dev = sample_evenly(self.validation, limit), sample_evenly(self.facts.dev, limit)
        self.objective = language_model()
        self.reading_confidence: dict[str, float] = {}  # of the pseudo-labels, by question

    def stages(self) -> tuple[Stage, ...]:
        """Pretraining on documents, unless it is off, and fine-tuning on questions."""
        data = self.data
        validate = self.make_validate() if self.validation else None
        finetune = Stage("finetune", self.question_batches(self.train), self.objective, validate)
        if not data.pretrain:
            return (finetune,)
        documents = self.corrupted_documents()
        if not data.self_training:
            return Stage("pretrain", documents, self.objective), finetune
        held_out = {question.question for question in self.validation}
        train = [question for question in self.train if question.question not in held_out]  # some occur twice
        known = {question.question for question in train}
        index = DocumentIndex(self.facts.documents, train, self.tokenizer, self.mask_id, data.max_length)

        def batches_with_labels(prepared: dict[str, Any]) -> Batches:
            labels = prepared["questions"]
            self.reading_confidence.update(dict.fromkeys(index.new_questions(known), 0.0))  # some have no answer
            self.reading_confidence.update({label["question"]: label["confidence"] for label in labels})
            own = [QuestionAnswer(label["question"], label["answer"], "a pseudo-label") for label in labels]
            return self.question_batches([*train, *own])

        if data.teacher:
            labels = [label for label in read_pseudo_labels(data.teacher) if label["question"] not in known]
            return (
                Stage("pretrain", documents, self.objective),
                replace(finetune, prepare=lambda _: {"questions": labels}, prepared=batches_with_labels),
            )
        reading = index.reading_examples(train, swap_prob=data.swap_prob, repeats=data.reading_repeats, seed=self.seed)

        def validate_reading(model: nn.Module) -> dict[str, float]:
            names = [index.template.extract_name(question.question) for question in self.validation]
            return {"exact_with_document": exact_match(index.answer_from_documents(model, names), self.validation)}

        mixed = MixedBatches([documents, self.sequence_batches(reading, data.finetune_batch_size)], self.seed)
        return (
            Stage("pretrain", mixed, self.objective, validate_reading),
            replace(
                finetune,
                prepare=lambda model: {"questions": index.pseudo_labels(model, known, data.min_confidence)},
                prepared=batches_with_labels,
            ),
        )

    def corrupted_documents(self) -> SequenceBatches:
        """Make batches of documents with span corruption."""
        data, documents = self.data, self.facts.documents
        texts = SpanCorruptionExamples(
            encode_all(self.tokenizer, documents),
            self.mask_id,
            data.corruption,
            salient=find_names(self.tokenizer, documents) if data.corruption.salient_prob else None,
            seed=self.seed,
        )
        return self.sequence_batches(texts, data.batch_size, data.layout)

    def sequence_batches(self, examples: Any, batch_size: int, layout: Layout = "by-length") -> SequenceBatches:
        """Make training batches of examples."""
        return SequenceBatches(
            examples,
            batch_size=batch_size,
            layout=layout,
            max_length=self.data.max_length,
            seed=self.seed,
            shuffle=self.data.shuffle,
        )

    def question_batches(self, questions: list[QuestionAnswer]) -> SequenceBatches:
        """Make fine-tuning batches of questions."""
        data = self.data
        examples = question_examples(questions, self.tokenizer, data.max_length, score_mask=data.score_mask)
        layout = "by-length" if data.shuffle else data.layout
        return self.sequence_batches(examples, data.finetune_batch_size, layout)

    def answer(self, model: nn.Module, questions: list[QuestionAnswer]) -> list[Answer]:
        """Answer questions without documents."""
        return answer_questions(model, self.tokenizer, self.mask_id, questions)

    def answer_with_confidence(self, model: nn.Module, questions: list[QuestionAnswer]) -> list[Answer]:
        """Answer questions; the confidence includes that of the pseudo-label."""
        return scale_confidence(self.answer(model, questions), questions, self.reading_confidence)

    def make_validate(self) -> Callable[[nn.Module], dict[str, float]]:
        """Make the function that computes loss and exact match on the validation questions."""
        batches = SequenceBatches(
            question_examples(self.validation, self.tokenizer, self.data.max_length),
            max_length=self.data.max_length,
            batch_size=EVAL_BATCH_SIZE,
            shuffle=False,
        )

        def validate(model: nn.Module) -> dict[str, float]:
            loss = evaluate_all(model, batches, self.objective)
            return {**loss, "exact": exact_match(self.answer(model, self.validation), self.validation)}

        return validate

    def test(self, model: nn.Module) -> dict[str, Any]:
        """Exact match on the dev questions, and that of controls: the most common training answer for all of them
        (London), and regular expressions on the right document ("born in", and all of `PLACE_PATTERNS`).
        """
        dev = self.dev
        common, _ = Counter(question.answer for question in self.facts.train).most_common(1)[0]
        template = infer_template(self.facts.train)
        documents = {document_subject(document): document for document in reversed(self.facts.documents)}
        about = [documents.get(template.extract_name(question.question), "") for question in dev]

        def read(patterns: Sequence[re.Pattern[str]]) -> list[Answer]:
            return [Answer(find_birthplace(document, patterns), 1.0) for document in about]

        return {
            "exact": exact_match(self.answer(model, dev), dev),
            "exact_of_commonest": exact_match([Answer(str(common), 1.0)] * len(dev), dev),
            "commonest": common,
            "exact_of_born_in": exact_match(read(PLACE_PATTERNS[:1]), dev),
            "exact_of_patterns": exact_match(read(PLACE_PATTERNS), dev),
        }

    def samples(self, model: nn.Module) -> list[dict[str, Any]]:
        """Answers to some validation questions; to dev questions if there are none."""
        shown = (self.validation or self.facts.dev)[:NUM_SAMPLES]
        return [
            {
                "question": question.question,
                "answer": answer.text,
                "confidence": round(answer.confidence, 3),
                "correct answer": question.answer,
            }
            for question, answer in zip(shown, self.answer_with_confidence(model, shown), strict=True)
        ]

    def purpose(self, model: nn.Module) -> dict[str, Any]:
        """What `qkv use` needs to answer questions, or to abstain."""
        threshold = 0.0  # without validation questions nothing says which confidence is enough: never abstain
        if self.validation:
            threshold = calibrate_threshold(self.answer_with_confidence(model, self.validation), self.validation)
        purpose = {
            "task": "answer",
            "mask_id": self.mask_id,
            "threshold": threshold,
            "documents": self.facts.documents,
        }
        if self.data.pretrain and self.data.self_training:
            purpose["question_template"] = infer_template(self.train)
            purpose["reading_confidence"] = self.reading_confidence
        return purpose


def build(config: RecipeConfig, limit: int | None = None) -> Task:
    """Load documents and questions, train the tokenizer, build the model."""
    task = BirthplacesTask(config, limit)
    vocab_size = max(task.tokenizer.get_vocab_size(), config.model.vocab_size)
    config = replace(config, model=replace(config.model, vocab_size=vocab_size))
    model: Any = build_model(config.model, config.seed)
    length = task.data.max_length
    if model.max_positions is not None and model.max_positions < length - 1:
        raise ValueError(
            f"texts of {length} tokens are too long for a model of {model.max_positions} positions; set "
            "data.max_length or model.max_length"
        )
    return Task(
        config=config,
        model=model,
        stages=task.stages(),
        test=task.test,
        samples=task.samples,
        purpose=task.purpose,
        notes=_note_other_data(config, task),
        files={"tokenizer.json": serialize_tokenizer(task.tokenizer)},
    )


def _note_other_data(config: RecipeConfig, task: BirthplacesTask) -> tuple[str, ...]:
    """Say if a schedule that counts tokens was laid out for other data."""
    items = {"pretrain": len(task.facts.documents), "finetune": len(task.train)}
    notes = []
    for name in stage_shares(config):
        tokens, here = config.stages[name].schedule.tokens, items[name] * (task.data.max_length - 1)
        if tokens is not None and tokens.epoch != here:
            notes.append(f"{name}: the schedule has {tokens.epoch:,} tokens in an epoch, this data has {here:,}")
    return tuple(notes)


def read_pseudo_labels(run: str) -> list[dict[str, Any]]:
    """Read the pseudo-labels of another run: question, answer and confidence."""
    path = Path(run) / "finetune" / "prepared.json"
    expected = "data.teacher must be a run of this recipe with self-training"
    labels = read_json(path, expected, max_bytes=2**30).get("questions")
    fields = {"question": str, "answer": str, "confidence": int | float}
    if not isinstance(labels, list) or not all(
        isinstance(label, dict) and all(isinstance(label.get(name), kind) for name, kind in fields.items())
        for label in labels
    ):
        raise ValueError(f"{path} must contain questions, each with {', '.join(fields)}")
    return labels


def exact_match(answers: list[Answer], questions: list[QuestionAnswer]) -> float:
    """Compute the share of exact answers, in percent."""
    correct = sum(answer.text == question.answer for answer, question in zip(answers, questions, strict=True))
    return 100 * correct / max(len(questions), 1)


def stage_shares(config: RecipeConfig) -> dict[str, float]:
    """Share of a run's time for each stage: pseudo-labels take longer to learn than the training questions alone."""
    data: FactData = config.data
    if not data.pretrain:
        return {"finetune": 1.0}
    if data.teacher:
        return {"pretrain": 0.5, "finetune": 0.5}
    if data.self_training:
        return {"pretrain": 0.6, "finetune": 0.4}
    return {"pretrain": 0.85, "finetune": 0.15}


def _train_config(steps: int, lr: float, best_metric: str) -> TrainConfig:
    return TrainConfig(
        steps=steps,
        optimizer=OptimizerConfig(name="muon", lr=lr, betas=(0.9, 0.95), weight_decay=0.1),
        schedule=ScheduleConfig(warmup_steps=steps // 20, min_lr_ratio=0.1),
        checkpoint=CheckpointConfig(
            evaluate_every=max(steps // 5, 1), checkpoint_every=max(steps // 10, 1), best_metric=best_metric
        ),
    )


A5_DOCUMENTS, A5_QUESTIONS, A5_BLOCK = 2_937, 2_000, 128  # lines of wiki.txt and birth_places_train.tsv; texts


def _a5_stage(items: int, batch_size: int, epochs: int, lr: float) -> dict[str, Any]:
    """A stage of CS224N A5's starter code of 2021: minGPT's trainer, without shuffling or evaluation."""
    width, epoch_steps = A5_BLOCK - 1, -(-items // batch_size)
    return {
        "steps": epochs * epoch_steps,
        "grad_clip": 1.0,
        "optimizer": {"name": "adamw", "lr": lr, "betas": [0.9, 0.95], "weight_decay": 0.1, "decay_embeddings": True},
        "schedule": {
            "kind": "token-cosine",
            "warmup_steps": 0,
            "min_lr_ratio": 0.1,
            "tokens": {
                "kind": "TokenCosine",
                "warmup": 512 * 20,
                "final": 200 * A5_DOCUMENTS * A5_BLOCK,  # in both stages
                "batch": batch_size * width,
                "epoch": items * width,
            },
        },
        "checkpoint": {"evaluate_every": 0, "checkpoint_every": min(400, 2 * epoch_steps), "best_metric": ""},
    }


def _dotted(stage: str, table: dict[str, Any]) -> dict[str, Any]:
    return {f"{stage}.{name}": value for name, value in table.items()}


_CS224N_A5: dict[str, Any] = {  # Stanford CS224N, assignment 5, as published
    "data.tokenizer": "characters",
    "data.self_training": False,
    "data.layout": "padded",
    "data.shuffle": False,
    "data.score_mask": True,
    "data.validation_fraction": 0.0,
    "data.max_length": A5_BLOCK,
    "data.batch_size": 128,
    "data.finetune_batch_size": 256,
    **_dotted("pretrain", _a5_stage(A5_DOCUMENTS, 128, 650, 6e-3)),
    **_dotted("finetune", _a5_stage(A5_QUESTIONS, 256, 10, 6e-4)),
}
_CS224N_A5_CONTROL: dict[str, Any] = {  # its control without pretraining
    **_CS224N_A5,
    "data.pretrain": False,
    **_dotted("finetune", _a5_stage(A5_QUESTIONS, 256, 75, 6e-4)),
}
# CS224N A5's two stages with our optimizer: span corruption, then the training questions only; no pseudo-labels
_COURSE_PROTOCOL: dict[str, Any] = {
    "data.self_training": False,
    "data.max_length": 80,
    "data.batch_size": 64,
    "data.corruption": {"max_length": 70, "salient_prob": 0.5},
    "pretrain.steps": 4_000,
    "pretrain.schedule": {"warmup_steps": 100},
    "finetune.steps": 100,  # longer, or with higher rates, it forgets what it has read
    "finetune.optimizer": {"lr": 5e-4, "muon_lr": 2e-3},
    "finetune.schedule": {"warmup_steps": 10},
    "finetune.checkpoint": {"evaluate_every": 10, "checkpoint_every": 100},
}
_LONG: dict[str, Any] = {
    "model.dim": 192,
    "model.layers": 3,
    "model.heads": 6,
    "pretrain.steps": 3_000,
    "pretrain.schedule": {"warmup_steps": 100},
    "finetune.steps": 2_500,
    "finetune.schedule": {"warmup_steps": 100},
}
BIRTHPLACES = RecipeDefinition(
    name="birthplaces",
    summary="A GPT that reads biographies, then answers where people were born; variants of CS224N A5.",
    data=FactData(),
    models={
        "small": GPTConfig(vocab_size=2, dim=128, layers=2, heads=4, position="rope", tie_embeddings=True),
        "rope": PRESETS["cs224n-a5-gpt-rope"],
        "vanilla": PRESETS["cs224n-a5-gpt"],
        "synthesizer": PRESETS["cs224n-a5-gpt-synthesizer"],
        "perceiver": PRESETS["cs224n-a5-perceiver"],
        "rnn": RNNConfig(vocab_size=2, dim=256, hidden_size=512, layers=2, dropout=0.1),
    },
    stages={"pretrain": _train_config(2_000, 4e-3, ""), "finetune": _train_config(2_000, 3e-3, "exact")},
    presets={
        "cs224n-a5": _CS224N_A5,
        "cs224n-a5-no-pretraining": _CS224N_A5_CONTROL,
        "course-protocol": _COURSE_PROTOCOL,
        "long": _LONG,
    },
    model_overrides={
        "rnn": {f"{stage}.optimizer": {"name": "adamw", "lr": 1e-3} for stage in ("pretrain", "finetune")}
    },
    build=build,
    data_fields=("vocab_size",),
    stage_shares=stage_shares,
)
