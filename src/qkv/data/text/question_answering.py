"""Question answering: closed-book questions, and reading comprehension with the document in the prompt.

Closed book: `question ⁇ answer ⁇`, with a loss on the answer. A file of questions has two columns separated by a tab:
`Where was X born?⇥place`.

Reading comprehension: `document ⁇ question ⁇ answer ⁇`, with a loss on question and answer. The name in the question is
in the document too, so predicting it is the first use of copying, and copied answers follow soon after. The answer can
be swapped for another place, in the document and in the answer: a model that only remembers the document is then wrong
and has to read.

Axes: n tokens of one text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from qkv.data.batches import generator_for, randint_inclusive
from qkv.data.files import read_table
from qkv.data.text.sequence_batches import Example, FixedExamples
from qkv.data.text.span_corruption import MASK_CHAR, Span
from qkv.data.text.tokenizers import encode

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SWAP_STREAM = 11  # of randomness
CAPITALIZED = re.compile(r"[^\W\d_a-z][\w'’-]+(?: [^\W\d_a-z][\w'’-]+){0,2}")
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
PLACE_PATTERNS = tuple(  # tried in this order
    re.compile(rf"{before}(?!{MONTHS})({CAPITALIZED.pattern})")
    for before in (r"[Bb]orn\b.*?\b(?:in|at|near|of) (?:the )?", r"\d{4},? (?:in )?", r"\b(?:in|from|at) (?:the )?")
)
ABBREVIATIONS = ("Jr", "Sr", "St", "Dr")


class QuestionAnswer(NamedTuple):
    """A question, its answer (None if unknown), and the file and line it comes from."""

    question: str
    answer: str | None
    where: str


def read_questions(path: str | Path, *, answers: bool = True) -> list[QuestionAnswer]:
    """Read a TSV file of questions and answers; with answers=False every line is one question."""
    rows = read_table(path, 2 if answers else 1)
    return [
        QuestionAnswer(row[0], row[1] if answers else None, f"{path}, line {line}")
        for line, row in enumerate(rows, start=1)
    ]


def question_examples(
    questions: list[QuestionAnswer], tokenizer: Tokenizer, max_length: int, *, score_mask: bool = False
) -> FixedExamples:
    """`question ⁇ answer ⁇` as texts, with a loss on the answer and the ⁇ that ends it.

    score_mask: a loss on the first ⁇ too, as in CS224N A5; it follows every question, so there is nothing to learn.
    """
    examples = []
    mask = encode(tokenizer, MASK_CHAR)
    for question, answer, where in questions:
        if answer is None:
            raise ValueError(f"{where}: this question has no answer to learn from")
        question_ids, answer_ids = encode(tokenizer, question, where), encode(tokenizer, answer, where)
        tokens = torch.cat((question_ids, mask, answer_ids, mask))
        if len(tokens) > max_length:
            raise ValueError(
                f"{where}: question and answer are {len(tokens)} tokens with their marks; max_length={max_length}"
            )
        first = len(question_ids) + (0 if score_mask else len(mask))
        examples.append(Example(tokens, torch.arange(len(tokens)) >= first))
    return FixedExamples(examples)


def question_prompt(question: str, tokenizer: Tokenizer) -> torch.Tensor:
    """The closed-book prompt: `question ⁇`."""
    return encode(tokenizer, question + MASK_CHAR, f"the question {question!r}")


class QuestionTemplate(NamedTuple):
    """The text before and after the name in all questions of a set."""

    prefix: str
    suffix: str

    def fill(self, name: str) -> str:
        """The question about somebody."""
        return f"{self.prefix}{name}{self.suffix}"

    def extract_name(self, question: str) -> str:
        """The name in a question."""
        return question.removeprefix(self.prefix).removesuffix(self.suffix)


def infer_template(questions: Sequence[QuestionAnswer]) -> QuestionTemplate:
    """The template that questions share.

    >>> asked = [QuestionAnswer("Where was Ada born?", None, ""), QuestionAnswer("Where was Alan born?", None, "")]
    >>> infer_template(asked)
    QuestionTemplate(prefix='Where was ', suffix=' born?')
    """
    texts = [question.question for question in questions]
    prefix = _common_prefix(texts)
    prefix = prefix[: prefix.rfind(" ") + 1]
    reversed_suffix = _common_prefix([text[len(prefix) :][::-1] for text in texts])
    suffix = reversed_suffix[: reversed_suffix.rfind(" ") + 1][::-1]
    if not prefix or not suffix:
        raise ValueError(
            "self-training asks new questions with the words of the training questions, `Where was X born?`: all must "
            f"begin and end with the same words, but these share {prefix!r} and {suffix!r}. Or set "
            "data.self_training=false"
        )
    return QuestionTemplate(prefix, suffix)


def _common_prefix(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    different = (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(different, min(len(first), len(last)))]


def document_subject(document: str) -> str:
    """The name a document is about: the text before its first full stop that does not end an initial.

    >>> document_subject("J. C. Smith. Smith was born in Leeds .")
    'J. C. Smith'
    """
    for stop in re.finditer(r"\. ", document):
        word = document[: stop.start()].rpartition(" ")[2]
        if len(word) > 1 and "." not in word and word not in ABBREVIATIONS:
            return document[: stop.start()]
    return document.partition(". ")[0]


def find_birthplace(document: str, patterns: Sequence[re.Pattern[str]] = PLACE_PATTERNS) -> str:
    """The place that the first matching pattern finds in a document: a control for reading comprehension.

    >>> find_birthplace("Eduard Ender. Eduard Ender (3 March 1822 Rome -- 28 December 1883 London) was a painter .")
    'Rome'
    """
    text = document[len(document_subject(document)) :]
    return next((match[1] for pattern in patterns if (match := pattern.search(text))), "")


def find_capitalized(documents: Sequence[str]) -> list[str]:
    """The runs of capitalized words in documents, without duplicates, sorted: possible names of places.

    >>> find_capitalized(["Ada Lovelace lived in London ."])
    ['Ada Lovelace', 'London']
    """
    return sorted({found.group() for document in documents for found in CAPITALIZED.finditer(document)})


def find_names(tokenizer: Tokenizer, documents: Sequence[str]) -> list[list[Span]]:
    """The token spans of the capitalized words in each document that do not begin a sentence: mostly names and places.

    Span corruption that often removes these asks for facts.
    """
    encodings = tokenizer.encode_batch(list(documents), add_special_tokens=False)
    found = []
    for document, encoding in zip(documents, encodings, strict=True):
        inside = [match.span() for match in CAPITALIZED.finditer(document) if document[: match.start()].rstrip(" (\"'")]
        spans = [span for span in inside if not document[: span[0]].rstrip().endswith(".")]
        tokens = [(encoding.char_to_token(begin), encoding.char_to_token(end - 1)) for begin, end in spans]
        found.append([(first, last + 1) for first, last in tokens if first is not None and last is not None])
    return found


@dataclass(frozen=True)
class DocumentQuestion:
    """A document, a question about it and, where it is known, the answer; as tokens."""

    document: Int64[Tensor, " n"]
    question: Int64[Tensor, " q"]
    answer: Int64[Tensor, " a"] | None = None


class ReadingComprehensionExamples:
    """Questions with their document, drawn anew each epoch.

    Args:
        items: documents with question and answer.
        distractors: texts that may replace the answer in a document. swap_prob: the probability that one does.
        mask_id: the token id of ⁇.
        max_length: tokens of the longest text; a longer document is cut. max_answer_length: tokens kept free for it.
        repeats: how often an item comes in an epoch.
    """

    def __init__(
        self,
        items: Sequence[DocumentQuestion],
        distractors: Sequence[Tensor],
        mask_id: int,
        *,
        max_length: int,
        max_answer_length: int,
        swap_prob: float = 0.0,
        repeats: int = 1,
        seed: int = 0,
    ) -> None:
        self.distractors = [ids for ids in distractors if len(ids) < max_answer_length]
        if not items or not self.distractors:
            raise ValueError(f"expected items and distractors, got {len(items)} and {len(self.distractors)}")
        if not 0 <= swap_prob <= 1 or repeats < 1:
            raise ValueError(f"swap_prob must be in [0, 1] and repeats at least 1, got {swap_prob} and {repeats}")
        self.items, self.mask_id = list(items), mask_id
        self.max_length, self.max_answer_length = max_length, max_answer_length
        self.swap_prob, self.repeats, self.seed = swap_prob, repeats, seed
        self._cached: tuple[int, list[Example]] | None = None  # of the last epoch

    def __len__(self) -> int:
        return len(self.items) * self.repeats

    @property
    def longest(self) -> int:
        return self.max_length

    def lengths(self, epoch: int) -> Int64[Tensor, " items"]:
        return torch.tensor([len(example.tokens) for example in self._epoch(epoch)])

    def example(self, epoch: int, row: int) -> Example:
        return self._epoch(epoch)[row]

    def _epoch(self, epoch: int) -> list[Example]:
        if self._cached is None or self._cached[0] != epoch:
            self._cached = epoch, [self._draw(epoch, row) for row in range(len(self))]
        return self._cached[1]

    def _draw(self, epoch: int, row: int) -> Example:
        item = self.items[row % len(self.items)]
        answer, document = item.answer, item.document
        assert answer is not None
        generator = generator_for(self.seed, SWAP_STREAM, epoch, row)
        if float(torch.rand((), generator=generator)) < self.swap_prob:
            other = self.distractors[randint_inclusive(0, len(self.distractors) - 1, generator)]
            changed = replace_tokens(document, answer, other)
            if len(changed) != len(document) or not torch.equal(changed, document):
                document, answer = changed, other
        prompt = reading_prompt(
            DocumentQuestion(document, item.question), self.mask_id, self.max_length, self.max_answer_length
        )
        tokens = torch.cat((prompt, answer, prompt.new_tensor([self.mask_id])))[: self.max_length]
        return Example(tokens, torch.arange(len(tokens)) > len(prompt) - 2 - len(item.question))


def reading_prompt(
    item: DocumentQuestion, mask_id: int, max_length: int, max_answer_length: int
) -> Int64[Tensor, " n"]:
    """The prompt `document ⁇ question ⁇`, with the document cut so that an answer fits behind it."""
    mask = item.document.new_tensor([mask_id])
    kept = max(max_length - max_answer_length - len(item.question) - 2, 0)
    return torch.cat((item.document[:kept], mask, item.question, mask))


def replace_tokens(document: Int64[Tensor, " n"], old: Tensor, new: Tensor) -> Int64[Tensor, " m"]:
    """Replace every occurrence of one run of tokens by another.

    >>> replace_tokens(torch.tensor([5, 6, 7, 5, 6]), torch.tensor([5, 6]), torch.tensor([9])).tolist()
    [9, 7, 9]
    """
    if not len(old) or len(old) > len(document):
        return document
    found = (document.unfold(0, len(old), 1) == old).all(-1).nonzero()[:, 0].tolist()
    parts, start = [], 0
    for place in found:
        if place >= start:
            parts += [document[start:place], new]
            start = place + len(old)
    return torch.cat((*parts, document[start:])) if parts else document
