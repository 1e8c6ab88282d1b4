"""Question answering with a language model: greedy answers with confidence, threshold calibration, and self-training.

Self-training: the model answers questions about everybody else with the document at hand (reading comprehension), and
these answers become pseudo-labels for answering without the document.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from qkv.data.text.question_answering import (
    DocumentQuestion,
    QuestionAnswer,
    ReadingComprehensionExamples,
    document_subject,
    find_capitalized,
    infer_template,
    question_prompt,
    reading_prompt,
)
from qkv.data.text.tokenizers import decode, encode, encode_all
from qkv.training.evaluation import eval_mode

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_ANSWER_TOKENS = 40
BATCH_SIZE = 100


@dataclass(frozen=True)
class Answer:
    """A generated answer. confidence: the probability of the whole text, its end included."""

    text: str
    confidence: float


def answer_questions(
    model: nn.Module, tokenizer: Tokenizer, mask_id: int, questions: Sequence[QuestionAnswer]
) -> list[Answer]:
    """Answer each question greedily."""
    prompts = [question_prompt(question.question, tokenizer) for question in questions]
    return generate_answers(model, tokenizer, mask_id, prompts)


def generate_answers(
    model: nn.Module,
    tokenizer: Tokenizer,
    mask_id: int,
    prompts: Sequence[Tensor],
    max_new_tokens: int = MAX_ANSWER_TOKENS,
) -> list[Answer]:
    """Continue each prompt up to its ⁇. Prompts of one length are batched together, so that nothing is padded."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for index, tokens in enumerate(prompts):
        by_length[len(tokens)].append(index)
    answers: list[Answer] = [Answer("", 0.0)] * len(prompts)
    with eval_mode(model) as device:
        for length, indices in by_length.items():
            limit: Any = model.max_positions
            count = max_new_tokens if limit is None else min(max_new_tokens, limit - length + 1)
            for start in range(0, len(indices), BATCH_SIZE):
                rows = indices[start : start + BATCH_SIZE]
                prompt = torch.stack([prompts[row] for row in rows]).to(device)
                answer = prompt[:, :0]
                if count > 0:
                    answer = model.generate(prompt, count, stop_token=mask_id)[:, length:]  # type: ignore[operator]
                for row, found in zip(rows, _score_answers(model, tokenizer, mask_id, prompt, answer), strict=True):
                    answers[row] = found
    return answers


def _score_answers(
    model: nn.Module, tokenizer: Tokenizer, mask_id: int, prompt: Tensor, answer: Tensor
) -> list[Answer]:
    """Decode the answers, with the probability of each up to its ⁇."""
    tokens = torch.cat((prompt, answer), dim=1)[:, :-1]
    log_p = model(tokens)[:, prompt.shape[1] - 1 :].log_softmax(-1).gather(-1, answer[..., None])[..., 0]
    answers = []
    for ids, logs in zip(answer.cpu(), log_p.cpu(), strict=True):
        stops = (ids == mask_id).nonzero()
        end = int(stops[0]) if len(stops) else len(ids)
        confidence = float(logs[: end + 1].sum().exp()) if len(stops) else 0.0
        answers.append(Answer(decode(tokenizer, ids[:end]), confidence))
    return answers


def scale_confidence(
    answers: Sequence[Answer], questions: Sequence[QuestionAnswer], reading_confidence: Mapping[str, float]
) -> list[Answer]:
    """Multiply each confidence with the confidence the model had when it read the answer in the document.

    reading_confidence: the latter, by question; a missing question had a true answer in training, or no document.

    >>> scale_confidence([Answer("Rome", 0.9)], [QuestionAnswer("Where?", None, "")], {"Where?": 0.5})
    [Answer(text='Rome', confidence=0.45)]
    """
    return [
        replace(answer, confidence=answer.confidence * reading_confidence.get(question.question, 1.0))
        for answer, question in zip(answers, questions, strict=True)
    ]


def calibrate_threshold(
    answers: Sequence[Answer], questions: Sequence[QuestionAnswer], precision: float = 0.95
) -> float:
    """Return the lowest confidence from which on answers have this precision; above 1 if there is none.

    >>> asked = [QuestionAnswer("", "a", ""), QuestionAnswer("", "b", ""), QuestionAnswer("", "c", "")]
    >>> calibrate_threshold([Answer("a", 0.9), Answer("b", 0.6), Answer("x", 0.3)], asked)
    0.6
    """
    correct: dict[float, list[bool]] = defaultdict(
        list
    )  # equally confident answers are accepted together or not at all
    for answer, question in zip(answers, questions, strict=True):
        correct[answer.confidence].append(answer.text == question.answer)
    threshold, accepted = 1.01, list[bool]()
    for confidence in sorted(correct, reverse=True):
        accepted += correct[confidence]
        if sum(accepted) >= precision * len(accepted):
            threshold = confidence
    return threshold


class DocumentIndex:
    """Documents by the person they are about, and the template of questions about people.

    Args:
        questions: training questions; what they have in common is how new questions are asked.
        mask_id: the token id of ⁇.
        max_length: tokens of a text; a document is cut so that question and answer fit behind it.
    """

    def __init__(
        self,
        documents: Sequence[str],
        questions: Sequence[QuestionAnswer],
        tokenizer: Tokenizer,
        mask_id: int,
        max_length: int,
    ) -> None:
        self.tokenizer, self.mask_id, self.max_length = tokenizer, mask_id, max_length
        self.template = infer_template(questions)
        answers = [encode(tokenizer, question.answer or "") for question in questions]
        self.max_answer_length = max(len(answer) for answer in answers) + 1
        self.tokens: dict[str, list[Tensor]] = defaultdict(list)
        self.texts: dict[str, str] = defaultdict(str)
        for document, tokens in zip(documents, encode_all(tokenizer, documents), strict=True):
            subject = document_subject(document)
            self.tokens[subject].append(tokens)
            self.texts[subject] += document + "\n"
        self.distractors = [*encode_all(tokenizer, find_capitalized(documents)), *answers]

    def reading_examples(
        self, questions: Sequence[QuestionAnswer], *, swap_prob: float, repeats: int, seed: int
    ) -> ReadingComprehensionExamples:
        """Make reading-comprehension examples of the questions whose answer is in their document."""
        items = []
        for question in questions:
            name = self.template.extract_name(question.question)
            if question.answer and question.answer in self.texts.get(name, ""):
                items += self.document_questions(name, question.answer)
        if not items:
            raise ValueError(
                "no training question is about a person whose document contains the answer: documents must begin with "
                "a name and a full stop. Or set data.self_training=false"
            )
        return ReadingComprehensionExamples(
            items,
            self.distractors,
            self.mask_id,
            max_length=self.max_length,
            max_answer_length=self.max_answer_length,
            swap_prob=swap_prob,
            repeats=repeats,
            seed=seed,
        )

    def document_questions(self, name: str, answer: str | None = None) -> list[DocumentQuestion]:
        """Return the documents about a person, each with the question about that person."""
        question = encode(self.tokenizer, self.template.fill(name))
        tokens = None if answer is None else encode(self.tokenizer, answer)
        return [DocumentQuestion(document, question, tokens) for document in self.tokens.get(name, [])]

    def answer_from_documents(self, model: nn.Module, names: Sequence[str]) -> list[Answer]:
        """Answer the question about each person from the document; of several documents the most confident counts."""
        items = [(row, item) for row, name in enumerate(names) for item in self.document_questions(name)]
        prompts = [reading_prompt(item, self.mask_id, self.max_length, self.max_answer_length) for _, item in items]
        answers = [Answer("", 0.0)] * len(names)
        found = generate_answers(model, self.tokenizer, self.mask_id, prompts, max_new_tokens=self.max_answer_length)
        for (row, _), answer in zip(items, found, strict=True):
            if answer.text in self.texts[names[row]]:
                answers[row] = max(answers[row], answer, key=lambda known: known.confidence)
        return answers

    def new_questions(self, known: Collection[str]) -> dict[str, str]:
        """Return a question about everybody whom no known question is about, with the name."""
        names = sorted(set(self.tokens) - {self.template.extract_name(question) for question in known})
        return {self.template.fill(name): name for name in names}

    def pseudo_labels(self, model: nn.Module, known: Collection[str], min_confidence: float) -> list[dict[str, Any]]:
        """Answer the new questions from the documents; keep the answers with enough confidence (pseudo-labels)."""
        questions = self.new_questions(known)
        answers = self.answer_from_documents(model, list(questions.values()))
        return [
            {"question": question, "answer": answer.text, "confidence": round(answer.confidence, 6)}
            for question, answer in zip(questions, answers, strict=True)
            if answer.text and answer.confidence >= min_confidence
        ]
