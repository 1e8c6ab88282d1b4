"""Which run is gone on with, and how one that was stopped or killed goes on."""

import json
import signal
from dataclasses import replace
from functools import partial

import pytest

from qkv.training import Report
from qkv.training.recipes import open_run, system, train
from qkv.training.recipes import time_budget as pace
from qkv.training.runs import begin, chosen_folder


def test_a_finished_run_is_not_run_again_and_another_recipe_is_refused(tmp_path, unchecked):
    small, told = {"model.dim": 16, "model.layers": 1, "model.heads": 2}, []
    once = train("vit-digits", small, steps=4, folder=tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    again = train("vit-digits", small, steps=4, folder=tmp_path / "run", note=told.append)
    assert again.result == json.loads(json.dumps(once.result))
    assert "finished already" in told[0]
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    with pytest.raises(ValueError, match=r"model.dim was 16 and is now 32"):
        train("vit-digits", {**small, "model.dim": 32}, steps=4, folder=tmp_path / "run")
    with pytest.raises(ValueError, match="holds a run of 4 steps, not of 5"):
        train("vit-digits", small, steps=5, folder=tmp_path / "run")
    with pytest.raises(ValueError, match="holds a run of vit-digits"):
        train("speech", folder=tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files"):
        train("vit-digits", steps=1, folder=tmp_path / "mine")


def test_without_a_folder_an_unfinished_run_of_the_same_length_is_gone_on_with_and_no_other(tmp_path):
    recipe = system("vit-digits").recipe({"model.layers": 1})
    task = pace.given(system("vit-digits").build(recipe), None, 50, lambda text: None)
    begin(tmp_path / "vit-digits-1", task)
    chosen = partial(chosen_folder, recipe, "auto", home=tmp_path)
    assert chosen(None, 50).name == "vit-digits-1"
    assert chosen(5.0, None).name == "vit-digits-2"  # that one was given steps
    assert chosen(None, 60).name == "vit-digits-2"
    assert chosen(None, None).name == "vit-digits-2"
    begin(tmp_path / "vit-digits-2", replace(task, recipe=pace.as_long_as(recipe, task.recipe)), 5.0)
    assert chosen(5.0, None).name == "vit-digits-2"  # as many steps as fitted into these minutes when it began
    assert chosen(6.0, None).name == "vit-digits-3"
    bolder = system("vit-digits").recipe({"model.layers": 1, "train.optimiser.lr": 0.5})
    for length in ((None, 50), (5.0, None)):
        assert chosen_folder(bolder, "auto", *length, home=tmp_path).name == "vit-digits-3"


def test_a_run_without_pretraining_is_gone_on_with_by_the_steps_it_makes(tmp_path):
    recipe = system("birthplaces").recipe({"data.pretrain": False, "data.people": 20})
    begin(tmp_path / "birthplaces-1", pace.given(system("birthplaces").build(recipe), None, 100, lambda text: None))
    assert chosen_folder(recipe, "auto", None, 100, home=tmp_path).name == "birthplaces-1"
    longer = system("birthplaces").recipe({"data.pretrain": False, "data.people": 20, "model.max_length": 512})
    assert chosen_folder(longer, "auto", None, 100, home=tmp_path).name == "birthplaces-2"


def test_a_run_killed_while_it_began_begins_anew(tmp_path):
    task = pace.given(system("vit-digits").build(system("vit-digits").recipe()), None, 50, lambda text: None)
    (tmp_path / "run.json").write_text("{}")
    begin(tmp_path, task)
    assert open_run(tmp_path).recipe.stages["train"].steps == 50


def test_a_signal_in_the_last_step_ends_the_run_before_its_test_and_the_same_call_ends_it(tmp_path, unchecked):
    small = {"model.dim": 16, "model.layers": 1, "model.heads": 2}

    class Asks(Report):
        def evaluated(self, step, numbers):
            if step == 4:
                signal.raise_signal(signal.SIGTERM)

    run = train("vit-digits", small, steps=4, folder=tmp_path / "run", listen=lambda stage, settings: Asks())
    assert (run.finished, run.stopped, dict(run.result)) == (False, "SIGTERM", {})
    again = train("vit-digits", small, steps=4, folder=tmp_path / "run")
    whole = train("vit-digits", small, steps=4, folder=tmp_path / "whole")
    assert again.finished and again.result == whole.result


def test_a_model_of_few_places_writes_samples_and_texts_too_long_for_a_model_are_refused_before_a_run(
    tmp_path, unchecked
):
    short = {"model.position": "learned", "data.length": 32, "model.dim": 16, "model.layers": 1, "model.heads": 2}
    run = train("gpt-text", short, steps=2, folder=tmp_path / "run")
    assert run.finished
    with pytest.raises(ValueError, match="texts of 256 tokens are too long for a model of 128 positions"):
        train("birthplaces", {"data.length": 256}, model="vanilla", steps=2, folder=tmp_path / "other")
    assert not (tmp_path / "other").exists()
