"""Selective question answering: precision at coverage and refusals, by hand and on a trained model."""

import random

import pytest

from qkv.bench.reproduce import ResultRow, RowPart
from qkv.bench.reproduce.rows import ANSWERS
from qkv.bench.reproduce.runner import Budget, make_unknown_people, measure_answers, precision_at_coverage, reproduce
from qkv.data.text.biographies import make_biographies
from qkv.data.text.question_answering import QuestionAnswer
from qkv.training import open_run
from qkv.training.inference import Predictor
from qkv.training.recipes.question_answering import Answer


def test_precision_at_coverage_counts_the_most_confident_answers():
    chance = random.Random(0)
    rows = [(chance.random(), chance.random() < 0.6) for _ in range(50)]
    answers = [Answer("right" if right else "wrong", sure) for sure, right in rows]
    questions = [QuestionAnswer("", "right", "")] * 50
    for coverage in (0.1, 0.5, 0.9, 1.0):
        surest = sorted(rows, reverse=True)[: round(50 * coverage)]
        expected = 100 * sum(right for _, right in surest) / len(surest)
        assert precision_at_coverage(answers, questions, coverage) == pytest.approx(expected)
    with pytest.raises(ValueError, match="coverage must be above 0"):
        precision_at_coverage(answers, questions, 0.0)
    with pytest.raises(ValueError, match="no questions"):
        precision_at_coverage([], [], 0.5)


def test_make_unknown_people_combines_known_names_that_appear_in_no_document_together():
    made = make_biographies(60, seed=2)
    known = [*made.train, *made.test]
    unknown = make_unknown_people(known, made.documents, 30)
    assert len({question.question for question in unknown}) == 30
    assert unknown == make_unknown_people(known, made.documents, 30)
    names = {part for question in known for part in question.question[10:-6].split()}
    for question in unknown:
        first, last = question.question.removeprefix("Where was ").removesuffix(" born?").split()
        assert first in names and last in names
        assert not any(first in line and f"{first} {last}" in line for line in made.documents)
    with pytest.raises(ValueError, match="to take names from"):
        make_unknown_people([QuestionAnswer("Who?", None, "")], made.documents)


def test_measure_answers_of_a_trained_model_uses_its_own_threshold(tmp_path, unchecked, monkeypatch):
    monkeypatch.setattr("qkv.training.report.report_page", lambda run, task, samples: "")
    changes = {
        "data.people": 40,
        "data.batch_size": 16,
        "data.finetune_batch_size": 8,
        "model.kind": "small",
        "model.dim": 16,
        "model.layers": 1,
        "model.heads": 2,
    }
    part = RowPart("small", "birthplaces", changes=changes)
    row = ResultRow("trust", "Trust", (part,), ANSWERS, "exact", measure="answers")
    (record,) = reproduce(row, budget=Budget(steps=10), runs=tmp_path / "runs", results=tmp_path / "kept").records
    test = record.test
    assert {figure.name for figure in ANSWERS} <= set(test)
    assert all(0 <= value <= 100 for name, value in test.items() if name != "threshold")
    if test["threshold"] > 1:  # no threshold reaches the precision: it answers nothing
        assert test["answered"] == 0 and test["refused"] == 100
    assert [stage.stage for stage in record.stages] == ["pretrain", "finetune"]
    assert record.steps == 10 and record.share_of_peak is not None
    assert record.curve[0][0] > record.stages[0].steps, "validation comes after pretraining, in steps and in minutes"
    run = open_run(tmp_path / "runs" / "trust" / "small-10steps-seed0")
    monkeypatch.setattr(
        "qkv.bench.reproduce.runner.load_predictor", lambda folder: Predictor(None, {"task": "classify"})
    )  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="does classify; expected a run of birthplaces"):
        measure_answers(run, run.config)
