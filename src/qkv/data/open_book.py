"""Questions with the document at hand: `document ⁇ question ⁇ answer ⁇`, of which question and answer count.

The name in a question stands in the document too: saying it is the first thing that copying is good for, and answers
that are copied come soon after.

What the document says can be changed for another place, in the text and in the answer: who only remembers whom a
document is about is then wrong, and the answer has to be read.

Axes: n tokens of one text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from qkv.data.batches import drawn, generator_for
from qkv.data.questions import Question
from qkv.data.sequences import Example

SWAPS = 11  # the stream of randomness that changes places
CAPITALISED = re.compile(r"[^\W\d_a-z][\w'’-]+(?: [^\W\d_a-z][\w'’-]+){0,2}")
SHORTENED = ("Jr", "Sr", "St", "Dr")


class Form(NamedTuple):
    """What all questions have before and after that which they ask about."""

    before: str
    after: str

    def about(self, name: str) -> str:
        """The question about somebody."""
        return f"{self.before}{name}{self.after}"

    def name(self, question: str) -> str:
        """Whom a question is about."""
        return question.removeprefix(self.before).removesuffix(self.after)


def form_of(questions: Sequence[Question]) -> Form:
    """The form that questions share.

    >>> form_of([Question("Where was Ada born?", None, ""), Question("Where was Alan born?", None, "")])
    Form(before='Where was ', after=' born?')
    """
    first, last = (pick(question.question for question in questions) for pick in (min, max))
    before = first[: _shared(first, last)]
    before = before[: before.rfind(" ") + 1]
    ends = [question.question[len(before) :][::-1] for question in questions]
    first, last = min(ends), max(ends)
    after = first[: _shared(first, last)]
    after = after[: after.rfind(" ") + 1][::-1]
    if not before or not after:
        raise ValueError(
            "questions of its own are put as the training questions are, `Where was X born?`: all must begin and end "
            f"with the same words; these share {before!r} and {after!r}. Or set data.own_questions=false"
        )
    return Form(before, after)


def title(document: str) -> str:
    """Whom a document is about: what stands before its first full stop that is not an initial's.

    >>> title("J. C. Smith. Smith was born in Leeds .")
    'J. C. Smith'
    """
    for stop in re.finditer(r"\. ", document):
        word = document[: stop.start()].rpartition(" ")[2]
        if len(word) > 1 and "." not in word and word not in SHORTENED:
            return document[: stop.start()]
    return document.partition(". ")[0]


def capitalised(documents: Sequence[str]) -> list[str]:
    """The runs of capitalised words in documents, each once, sorted: what could be the name of a place.

    >>> capitalised(["Ada Lovelace lived in London ."])
    ['Ada Lovelace', 'London']
    """
    return sorted({found.group() for document in documents for found in CAPITALISED.finditer(document)})


@dataclass(frozen=True)
class Page:
    """A document, a question about it and, where it is known, the answer; as tokens."""

    document: Int64[Tensor, " n"]
    question: Int64[Tensor, " q"]
    answer: Int64[Tensor, " a"] | None = None


class OpenBook:
    """Questions about documents that are at hand, drawn anew each epoch.

    others: what may stand in a document in place of the answer. swap: the chance that it does.
    length: the longest text; a document that is too long for it is cut. room: tokens that are kept for an answer.
    times: how often a page comes in an epoch.
    """

    def __init__(
        self,
        pages: Sequence[Page],
        others: Sequence[Tensor],
        mark: int,
        *,
        length: int,
        room: int,
        swap: float = 0.0,
        times: int = 1,
        seed: int = 0,
    ) -> None:
        self.others = [other for other in others if len(other) < room]
        if not pages or not self.others or not 0 <= swap <= 1 or times < 1:
            raise ValueError(f"an open book has pages, places to swap and a chance of it; got {len(pages)} and {swap}")
        self.pages, self.mark, self.length, self.room = list(pages), mark, length, room
        self.swap, self.times, self.seed = swap, times, seed
        self._made: tuple[int, list[Example]] | None = None  # the last epoch's, for speed alone

    def __len__(self) -> int:
        return len(self.pages) * self.times

    @property
    def longest(self) -> int:
        return self.length

    def lengths(self, epoch: int) -> Int64[Tensor, " items"]:
        return torch.tensor([len(example.tokens) for example in self._epoch(epoch)])

    def example(self, epoch: int, row: int) -> Example:
        return self._epoch(epoch)[row]

    def _epoch(self, epoch: int) -> list[Example]:
        if self._made is None or self._made[0] != epoch:
            self._made = epoch, [self._drawn(epoch, row) for row in range(len(self))]
        return self._made[1]

    def _drawn(self, epoch: int, row: int) -> Example:
        page = self.pages[row % len(self.pages)]
        answer, document = page.answer, page.document
        assert answer is not None
        generator = generator_for(self.seed, SWAPS, epoch, row)
        if float(torch.rand((), generator=generator)) < self.swap:
            other = self.others[drawn(0, len(self.others) - 1, generator)]
            changed = swapped(document, answer, other)
            if len(changed) != len(document) or not torch.equal(changed, document):
                document, answer = changed, other
        asked = prompt(Page(document, page.question), self.mark, self.length, self.room)
        tokens = torch.cat((asked, answer, asked.new_tensor([self.mark])))[: self.length]
        return Example(tokens, torch.arange(len(tokens)) > len(asked) - 2 - len(page.question))


def prompt(page: Page, mark: int, length: int, room: int) -> Int64[Tensor, " n"]:
    """What a model reads before it answers: `document ⁇ question ⁇`, cut so that an answer of `room` tokens fits."""
    marked = page.document.new_tensor([mark])
    kept = max(length - room - len(page.question) - 2, 0)
    return torch.cat((page.document[:kept], marked, page.question, marked))


def swapped(document: Int64[Tensor, " n"], old: Tensor, new: Tensor) -> Int64[Tensor, " m"]:
    """A text in which one run of tokens stands for another, wherever that was.

    >>> swapped(torch.tensor([5, 6, 7, 5, 6]), torch.tensor([5, 6]), torch.tensor([9])).tolist()
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


def _shared(one: str, other: str) -> int:
    """How many first characters two texts share."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
