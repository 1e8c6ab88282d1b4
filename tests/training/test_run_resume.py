"""Runs: which run is resumed, and how a stopped or killed one resumes."""

import json
import signal
from dataclasses import replace
from functools import partial

import pytest

from qkv.training import TrainCallback, open_run, run_recipe, time_budget
from qkv.training.recipes import get_recipe
from qkv.training.runs import choose_folder, create_run


def test_run_recipe_returns_a_finished_run_and_refuses_another_config(tmp_path, unchecked):
    small, notes = {"model.dim": 16, "model.layers": 1, "model.heads": 2}, []
    once = run_recipe("vit-digits", small, steps=4, folder=tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    again = run_recipe("vit-digits", small, steps=4, folder=tmp_path / "run", on_note=notes.append)
    assert again.result == json.loads(json.dumps(once.result))
    assert "finished already" in notes[0]
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    with pytest.raises(ValueError, match=r"model.dim was 16 and is now 32"):
        run_recipe("vit-digits", {**small, "model.dim": 32}, steps=4, folder=tmp_path / "run")
    with pytest.raises(ValueError, match="contains a run of 4 steps, not of 5"):
        run_recipe("vit-digits", small, steps=5, folder=tmp_path / "run")
    with pytest.raises(ValueError, match="contains a run of vit-digits"):
        run_recipe("speech", folder=tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="contains other files"):
        run_recipe("vit-digits", steps=1, folder=tmp_path / "mine")


def test_choose_folder_resumes_an_unfinished_run_of_the_same_length_only(tmp_path):
    recipe = get_recipe("vit-digits").resolve({"model.layers": 1})
    task = time_budget.fit_to_length(get_recipe("vit-digits").build(recipe), None, 50, lambda text: None)
    create_run(tmp_path / "vit-digits-1", task)
    chosen = partial(choose_folder, recipe, "auto", home=tmp_path)
    assert chosen(None, 50).name == "vit-digits-1"
    assert chosen(5.0, None).name == "vit-digits-2"  # the other has a number of steps
    assert chosen(None, 60).name == "vit-digits-2"
    assert chosen(None, None).name == "vit-digits-2"
    create_run(tmp_path / "vit-digits-2", replace(task, config=time_budget.with_length_of(recipe, task.config)), 5.0)
    assert chosen(5.0, None).name == "vit-digits-2"  # as many steps as fitted into these minutes when it started
    assert chosen(6.0, None).name == "vit-digits-3"
    bolder = get_recipe("vit-digits").resolve({"model.layers": 1, "train.optimizer.lr": 0.5})
    for length in ((None, 50), (5.0, None)):
        assert choose_folder(bolder, "auto", *length, home=tmp_path).name == "vit-digits-3"


def test_choose_folder_counts_the_steps_of_the_stages_that_run(tmp_path):
    recipe = get_recipe("birthplaces").resolve({"data.pretrain": False, "data.people": 20})
    create_run(
        tmp_path / "birthplaces-1",
        time_budget.fit_to_length(get_recipe("birthplaces").build(recipe), None, 100, lambda text: None),
    )
    assert choose_folder(recipe, "auto", None, 100, home=tmp_path).name == "birthplaces-1"
    longer = get_recipe("birthplaces").resolve({"data.pretrain": False, "data.people": 20, "model.max_length": 512})
    assert choose_folder(longer, "auto", None, 100, home=tmp_path).name == "birthplaces-2"


def test_create_run_replaces_a_run_that_was_killed_while_created(tmp_path):
    task = time_budget.fit_to_length(
        get_recipe("vit-digits").build(get_recipe("vit-digits").resolve()), None, 50, lambda text: None
    )
    (tmp_path / "run.json").write_text("{}")
    create_run(tmp_path, task)
    assert open_run(tmp_path).config.stages["train"].steps == 50


def test_a_signal_in_the_last_step_stops_before_the_test_and_the_same_call_finishes(tmp_path, unchecked):
    small = {"model.dim": 16, "model.layers": 1, "model.heads": 2}

    class Asks(TrainCallback):
        def on_evaluate(self, step, metrics):
            if step == 4:
                signal.raise_signal(signal.SIGTERM)

    run = run_recipe("vit-digits", small, steps=4, folder=tmp_path / "run", callback=lambda stage, config: Asks())
    assert (run.finished, run.stopped, dict(run.result)) == (False, "SIGTERM", {})
    again = run_recipe("vit-digits", small, steps=4, folder=tmp_path / "run")
    whole = run_recipe("vit-digits", small, steps=4, folder=tmp_path / "whole")
    assert again.finished and again.result == whole.result


def test_a_model_with_few_positions_writes_samples_and_refuses_long_texts(tmp_path, unchecked):
    short = {"model.position": "learned", "data.max_length": 32, "model.dim": 16, "model.layers": 1, "model.heads": 2}
    run = run_recipe("gpt-text", short, steps=2, folder=tmp_path / "run")
    assert run.finished
    with pytest.raises(ValueError, match="texts of 256 tokens are too long for a model of 128 positions"):
        run_recipe("birthplaces", {"data.max_length": 256}, model="vanilla", steps=2, folder=tmp_path / "other")
    assert not (tmp_path / "other").exists()
