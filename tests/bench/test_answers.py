"""Trust in answers, measured: against a count by hand, and on a model that was really trained."""

import random

import pytest

from qkv.bench.reproduce import Part, Row
from qkv.bench.reproduce.answers import asked, precision_at, strangers
from qkv.bench.reproduce.carry_out import Budget, reproduce
from qkv.bench.reproduce.rows import ANSWERS
from qkv.data.biographies import biographies
from qkv.data.questions import Question
from qkv.training.recipes import open_run
from qkv.training.recipes.answering import Answer
from qkv.training.recipes.use import Tool


def test_precision_at_a_coverage_is_that_of_the_surest_answers():
    chance = random.Random(0)
    rows = [(chance.random(), chance.random() < 0.6) for _ in range(50)]
    answers = [Answer("right" if right else "wrong", sure) for sure, right in rows]
    questions = [Question("", "right", "")] * 50
    for coverage in (0.1, 0.5, 0.9, 1.0):
        surest = sorted(rows, reverse=True)[: round(50 * coverage)]
        expected = 100 * sum(right for _, right in surest) / len(surest)
        assert precision_at(answers, questions, coverage) == pytest.approx(expected)
    with pytest.raises(ValueError, match="coverage is a share above 0"):
        precision_at(answers, questions, 0.0)
    with pytest.raises(ValueError, match="no questions"):
        precision_at([], [], 0.5)


def test_strangers_bear_known_names_that_stand_in_no_line_together():
    made = biographies(60, seed=2)
    known = [*made.train, *made.test]
    unknown = strangers(known, made.documents, 30)
    assert len({question.question for question in unknown}) == 30
    assert unknown == strangers(known, made.documents, 30)
    names = {part for question in known for part in question.question[10:-6].split()}
    for question in unknown:
        first, last = question.question.removeprefix("Where was ").removesuffix(" born?").split()
        assert first in names and last in names
        assert not any(first in line and f"{first} {last}" in line for line in made.documents)
    with pytest.raises(ValueError, match="to take names from"):
        strangers([Question("Who?", None, "")], made.documents)


def test_a_trained_model_is_asked_and_refuses_by_its_own_threshold(tmp_path, unchecked, monkeypatch):
    monkeypatch.setattr("qkv.training.recipes.report.report_page", lambda run, task, samples: "")
    changes = {
        "data.people": 40,
        "data.batch": 16,
        "data.finetune_batch": 8,
        "model.kind": "small",
        "model.dim": 16,
        "model.layers": 1,
        "model.heads": 2,
    }
    part = Part("small", "birthplaces", changes=changes)
    row = Row("trust", "Trust", (part,), ANSWERS, "exact", measure="answers")
    (kept,) = reproduce(row, budget=Budget(steps=10), home=tmp_path / "runs", kept=tmp_path / "kept").parts
    told = kept.test
    assert {figure.name for figure in ANSWERS} <= set(told)
    assert all(0 <= value <= 100 for name, value in told.items() if name != "threshold")
    if told["threshold"] > 1:  # never right so often: it answers nothing
        assert told["answered"] == 0 and told["refused"] == 100
    assert [stage.stage for stage in kept.stages] == ["pretrain", "finetune"]
    assert kept.steps == 10 and kept.share_of_peak is not None
    assert kept.curve[0][0] > kept.stages[0].steps, "validation comes after pretraining, in steps and in minutes"
    run = open_run(tmp_path / "runs" / "trust" / "small-10steps-seed0")
    monkeypatch.setattr("qkv.bench.reproduce.answers.open_tool", lambda folder: Tool(None, {"task": "classify"}))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is for classify; questions are answered by a run of birthplaces"):
        asked(run, run.recipe)
