"""How far a trained model's answers can be trusted: right among the surest, and refused where nothing was read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from qkv.data.batches import drawn, generator_for
from qkv.data.questions import Question
from qkv.training.recipes import Recipe, Run
from qkv.training.recipes.answering import Answer
from qkv.training.recipes.facts import opened
from qkv.training.recipes.use import open_tool

NAMED = re.compile(r"(Where was )(\S.*\S)( born\?)")
STRANGERS, ASKED = 13, 100  # the stream of randomness that puts names together; how many are asked about


def asked(run: Run, recipe: Recipe) -> dict[str, Any]:
    """How `qkv use` answers, in percent: right among the surest 50 and 90 % of the dev questions, answered by the model
    itself and right among these, and how many questions about people of whom nothing was read are refused.

    recipe: the run's, with the place where its data is now.
    """
    tool = open_tool(run.folder)
    if tool.task != "answer":
        raise ValueError(f"{run.folder} is for {tool.task}; questions are answered by a run of birthplaces")
    facts = opened(recipe.data, recipe.seed)
    told = [tool(question.question) for question in facts.dev]
    answers = [Answer(str(used.more.get("unsure", used.result)), used.sure or 0.0) for used in told]
    own = [used.more["from"] == "the model" for used in told]
    right = sum(a and used.result == q.answer for a, used, q in zip(own, told, facts.dev, strict=True))
    unknown = strangers(facts.train + facts.dev, facts.documents)
    refused = [tool(question.question).more["from"] == "nothing found" for question in unknown]
    return {
        "precision_at_50": precision_at(answers, facts.dev, 0.5),
        "precision_at_90": precision_at(answers, facts.dev, 0.9),
        "answered": 100 * sum(own) / len(told),
        "precision_of_answered": 100 * right / max(sum(own), 1),
        "refused": 100 * sum(refused) / len(refused),
        "threshold": float(tool.purpose["threshold"]),
    }


def precision_at(answers: Sequence[Answer], questions: Sequence[Question], coverage: float) -> float:
    """How many of the surest answers are exact, in percent; coverage: the share of the questions that they are.

    >>> told = [Answer("a", 0.9), Answer("x", 0.5), Answer("c", 0.7), Answer("y", 0.1)]
    >>> precision_at(told, [Question("", right, "") for right in "abcd"], 0.5)
    100.0
    """
    if not 0 < coverage <= 1:
        raise ValueError(f"coverage is a share above 0, at most 1; got {coverage}")
    if not questions:
        raise ValueError("there are no questions to measure on")
    order = torch.tensor([answer.sure for answer in answers]).argsort(descending=True, stable=True).tolist()
    surest = order[: max(round(coverage * len(order)), 1)]
    return 100 * sum(answers[i].text == questions[i].answer for i in surest) / len(surest)


def strangers(questions: Sequence[Question], documents: Sequence[str], count: int = ASKED) -> list[Question]:
    """Questions about people of whom nothing was read: first names and last names that stand in no line together."""
    names = [found[2].split() for question in questions if (found := NAMED.fullmatch(question.question))]
    if len(names) < 2:
        raise ValueError("expected questions such as 'Where was Ada Lovelace born?' to take names from")
    lines = [set(line.replace(".", " ").split()) for line in documents]
    generator, made = generator_for(STRANGERS), dict[str, Question]()
    for _ in range(100 * count):
        first, last = (names[drawn(0, len(names) - 1, generator)] for _ in range(2))
        if not any(first[0] in words and last[-1] in words for words in lines):
            question = f"Where was {first[0]} {last[-1]} born?"
            made[question] = Question(question, None, "a name put together")
        if len(made) == count:
            break
    if not made:
        raise ValueError("every first name stands beside every last name in the documents: nobody is unknown")
    return list(made.values())
