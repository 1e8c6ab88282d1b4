"""Questions and answers: `question ⁇ answer ⁇`, of which only the answer counts.

A file of them has two columns separated by a tab: `Where was X born?⇥place`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from qkv.data.reading import read_table
from qkv.data.sequences import Example, FixedExamples
from qkv.data.spans import MARK
from qkv.data.tokens import to_ids

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Question(NamedTuple):
    """A question, its answer (None where it is not told), and where it stands."""

    question: str
    answer: str | None
    where: str


def read_questions(path: str | Path, *, answers: bool = True) -> list[Question]:
    """The questions of a TSV file; without answers a line is a question, and a second column is a mistake."""
    rows = read_table(path, 2 if answers else 1)
    return [
        Question(row[0], row[1] if answers else None, f"{path}, line {line}") for line, row in enumerate(rows, start=1)
    ]


def question_examples(
    questions: list[Question], tokenizer: Tokenizer, length: int, *, score_mark: bool = False
) -> FixedExamples:
    """`question ⁇ answer ⁇` as texts of which the answer and the mark that ends it are scored.

    score_mark: also the first ⁇, as the course's code does; it follows every question, so there is nothing to learn.
    """
    examples = []
    mark = to_ids(tokenizer, MARK)
    for question, answer, where in questions:
        if answer is None:
            raise ValueError(f"{where}: this question has no answer to learn from")
        asked, told = to_ids(tokenizer, question, where), to_ids(tokenizer, answer, where)
        tokens = torch.cat((asked, mark, told, mark))
        if len(tokens) > length:
            raise ValueError(f"{where}: question and answer are {len(tokens)} tokens with their marks; length={length}")
        scored = torch.arange(len(tokens)) >= len(asked) + (0 if score_mark else len(mark))
        examples.append(Example(tokens, scored))
    return FixedExamples(examples)


def prompt(question: str, tokenizer: Tokenizer) -> torch.Tensor:
    """What a model reads before it answers: `question ⁇`."""
    return to_ids(tokenizer, question + MARK, f"the question {question!r}")
