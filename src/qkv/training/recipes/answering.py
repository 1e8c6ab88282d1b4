"""Questions answered by a language model: the likeliest answer, and how sure it is of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from qkv.data.questions import Question, prompt
from qkv.training.recipes.measure import judging

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LONGEST = 40  # tokens of an answer


@dataclass(frozen=True)
class Answer:
    """What was answered. sure: the probability that the model gives to all of it, its end included."""

    text: str
    sure: float


def answered(
    model: nn.Module, tokenizer: Tokenizer, mark: int, questions: Sequence[Question], size: int = 100
) -> list[Answer]:
    """The greedy answer to each question."""
    return continued(model, tokenizer, mark, [prompt(question.question, tokenizer) for question in questions], size)


def continued(
    model: nn.Module,
    tokenizer: Tokenizer,
    mark: int,
    prompts: Sequence[torch.Tensor],
    size: int = 100,
    longest: int = LONGEST,
) -> list[Answer]:
    """How each text goes on up to its mark. Texts of one length go on together, so that nothing is padded."""
    alike: dict[int, list[int]] = defaultdict(list)
    for number, tokens in enumerate(prompts):
        alike[len(tokens)].append(number)
    answers: list[Answer] = [Answer("", 0.0)] * len(prompts)
    with judging(model) as device:
        for length, numbers in alike.items():
            for begin in range(0, len(numbers), size):
                rows = numbers[begin : begin + size]
                asked = torch.stack([prompts[row] for row in rows]).to(device)
                limit: Any = model.limit
                count = longest if limit is None else min(longest, limit - length + 1)
                told = model.generate(asked, count, stop=mark)[:, length:] if count > 0 else asked[:, :0]  # type: ignore[operator]
                for row, answer in zip(rows, _judged(model, tokenizer, mark, asked, told), strict=True):
                    answers[row] = answer
    return answers


def _judged(model: nn.Module, tokenizer: Tokenizer, mark: int, asked: torch.Tensor, told: torch.Tensor) -> list[Answer]:
    """The answers as text, with the probability of each up to its mark."""
    read = torch.cat((asked, told), dim=1)[:, :-1]
    chances = model(read)[:, asked.shape[1] - 1 :].log_softmax(-1).gather(-1, told[..., None])[..., 0]
    answers = []
    for tokens, logs in zip(told.cpu(), chances.cpu(), strict=True):
        ended = (tokens == mark).nonzero()
        stop = int(ended[0]) if len(ended) else len(tokens)
        sure = float(logs[: stop + 1].sum().exp()) if len(ended) else 0.0
        answers.append(Answer(tokenizer.decode(tokens[:stop].tolist()), sure))
    return answers


def weighed(answers: Sequence[Answer], questions: Sequence[Question], read: Mapping[str, float]) -> list[Answer]:
    """The answers, each as sure as the model is of it now times as sure as it was when it read of it.

    read: the latter, by question; a question that is not there was answered for it, or it never read of it.

    >>> weighed([Answer("Rome", 0.9)], [Question("Where?", None, "")], {"Where?": 0.5})
    [Answer(text='Rome', sure=0.45)]
    """
    return [
        replace(answer, sure=answer.sure * read.get(question.question, 1.0))
        for answer, question in zip(answers, questions, strict=True)
    ]


def threshold_for(answers: Sequence[Answer], questions: Sequence[Question], precision: float = 0.95) -> float:
    """The least certainty from which on answers are right so often; above 1 if they never are.

    >>> asked = [Question("", "a", ""), Question("", "b", ""), Question("", "c", "")]
    >>> threshold_for([Answer("a", 0.9), Answer("b", 0.6), Answer("x", 0.3)], asked)
    0.6
    """
    right: dict[float, list[bool]] = defaultdict(list)  # by certainty: equally sure answers are told together or not
    for answer, question in zip(answers, questions, strict=True):
        right[answer.sure].append(answer.text == question.answer)
    best, told = 1.01, list[bool]()
    for sure in sorted(right, reverse=True):
        told += right[sure]
        if sum(told) >= precision * len(told):
            best = sure
    return best
