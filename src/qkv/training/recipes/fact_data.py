"""Documents and questions: where they come from, and how they become tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer

from qkv.data.order import held_out
from qkv.data.questions import Question, read_questions
from qkv.data.reading import read_lines
from qkv.data.sequences import Layout
from qkv.data.spans import MARK, PAD_CHARACTER, Corruption
from qkv.data.tokens import bpe_tokenizer, character_tokenizer


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
    teacher: the folder of another run that read the same documents; its answers are then learned instead, and the model
        does not practise. For models that do not learn to read an answer out of a document.
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
    teacher: str = ""
    corruption: Corruption = field(default_factory=Corruption)

    def __post_init__(self) -> None:
        if self.teacher and not (self.pretrain and self.own_questions):
            raise ValueError(
                "data.teacher names whose answers are learned in place of the model's own; that needs "
                "data.pretrain=true and data.own_questions=true"
            )


@dataclass(frozen=True)
class Facts:
    """What there is to read, and what is asked about it."""

    documents: list[str]
    train: list[Question]
    dev: list[Question]


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


def tokenizer_for(facts: Facts, data: FactData) -> Tokenizer:
    """The tokenizer of documents and questions; ⁇ is one token of it."""
    asked = [text for q in facts.train for text in (q.question, q.answer or "")] + [q.question for q in facts.dev]
    special = (PAD_CHARACTER, MARK)
    if data.tokens == "characters":
        return character_tokenizer([*facts.documents, *asked], special)
    return bpe_tokenizer(facts.documents, data.vocab, special, spaced=True)
