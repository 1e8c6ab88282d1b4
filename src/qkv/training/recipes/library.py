"""Documents that can be looked up by whom they are about: questions are practised with the document at hand, and then
the model asks and answers its own about everybody else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from qkv.data.open_book import OpenBook, Page, capitalised, form_of, prompt, title
from qkv.data.questions import Question
from qkv.data.tokens import all_ids, to_ids
from qkv.training.recipes.answering import Answer, continued

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Library:
    """Documents by whom they are about, and the form in which questions about people are put.

    questions: those that may be learned from; what they have in common is how the library asks.
    length: tokens that a text may have; a document is cut so that a question and an answer fit behind it.
    """

    def __init__(
        self, documents: Sequence[str], questions: Sequence[Question], tokenizer: Tokenizer, mark: int, length: int
    ) -> None:
        self.tokenizer, self.mark, self.length = tokenizer, mark, length
        self.form = form_of(questions)
        told = [to_ids(tokenizer, question.answer or "") for question in questions]
        self.room = max(len(answer) for answer in told) + 1
        self.about: dict[str, list[Any]] = defaultdict(list)
        self.texts: dict[str, str] = defaultdict(str)
        for document, tokens in zip(documents, all_ids(tokenizer, documents), strict=True):
            self.about[title(document)].append(tokens)
            self.texts[title(document)] += document + "\n"
        self.others = [*all_ids(tokenizer, capitalised(documents)), *told]

    def open_book(self, questions: Sequence[Question], *, swap: float, times: int, seed: int) -> OpenBook:
        """The questions whose answer stands in their document, to be answered from it."""
        pages = []
        for question in questions:
            name = self.form.name(question.question)
            if question.answer and question.answer in self.texts.get(name, ""):
                pages += self.pages(name, question.answer)
        if not pages:
            raise ValueError(
                "no training question is about somebody whose document holds the answer: documents begin with a name "
                "and a full stop. Or set data.own_questions=false"
            )
        settings: dict[str, Any] = {"length": self.length, "room": self.room, "seed": seed}
        return OpenBook(pages, self.others, self.mark, swap=swap, times=times, **settings)

    def pages(self, name: str, answer: str | None = None) -> list[Page]:
        """The documents about somebody, each with the question where they were born."""
        asked = to_ids(self.tokenizer, self.form.about(name))
        told = None if answer is None else to_ids(self.tokenizer, answer)
        return [Page(document, asked, told) for document in self.about.get(name, [])]

    def looked_up(self, model: nn.Module, names: Sequence[str]) -> list[Answer]:
        """What the model answers about each with the document at hand; of several documents the surest counts."""
        asked = [(row, page) for row, name in enumerate(names) for page in self.pages(name)]
        prompts = [prompt(page, self.mark, self.length, self.room) for _, page in asked]
        answers = [Answer("", 0.0)] * len(names)
        told = continued(model, self.tokenizer, self.mark, prompts, longest=self.room)
        for (row, _), answer in zip(asked, told, strict=True):
            if answer.text in self.texts[names[row]]:
                answers[row] = max(answers[row], answer, key=lambda known: known.sure)
        return answers

    def unasked(self, known: Collection[str]) -> dict[str, str]:
        """A question about everybody whom no known question is about, with the name."""
        names = sorted(set(self.about) - {self.form.name(question) for question in known})
        return {self.form.about(name): name for name in names}

    def own_questions(self, model: nn.Module, known: Collection[str], least: float) -> list[dict[str, Any]]:
        """The questions that nobody asked, with the model's own answer where it is sure of one."""
        asked = self.unasked(known)
        return [
            {"question": question, "answer": answer.text, "sure": round(answer.sure, 6)}
            for question, answer in zip(asked, self.looked_up(model, list(asked.values())), strict=True)
            if answer.text and answer.sure >= least
        ]
