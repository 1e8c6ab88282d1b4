"""Time budget: steps that fit into minutes, and rescaled schedules."""

import contextlib
import signal

import pytest
import torch

from qkv.training import CheckpointConfig, ScheduleConfig, TrainConfig, run_recipe, time_budget
from qkv.training.recipes import get_recipe


def test_rescale_steps_keeps_the_shape_of_the_schedule():
    config = TrainConfig(
        steps=3000,
        schedule=ScheduleConfig(warmup_steps=300),
        checkpoint=CheckpointConfig(evaluate_every=500, checkpoint_every=500),
    )
    short = time_budget.rescale_steps(config, 30)
    assert short.steps == 30
    assert short.schedule.warmup_steps == 3
    assert short.checkpoint.evaluate_every == 5


def test_a_trial_run_is_evaluated_twice_and_a_longer_one_as_often_as_the_recipe():
    for name in ("gpt-text", "vit-digits", "birthplaces", "translate", "speech"):
        config = get_recipe(name).resolve()
        for steps in (1, 10, 49):
            for stage in time_budget.with_steps(config, steps).stages.values():
                every = stage.checkpoint.evaluate_every
                assert every == 0 or stage.steps <= 2 * every
    every = time_budget.with_steps(get_recipe("gpt-text").resolve(), 100).stages["train"].checkpoint.evaluate_every
    assert 100 // every == 10


def test_a_signal_during_the_speed_measurement_creates_no_run(tmp_path, monkeypatch):
    def send_signal(timer, progress):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(time_budget._StepTimer, "on_log", send_signal)
    run = run_recipe("vit-digits", folder=tmp_path / "run", minutes=1)
    assert (run.finished, run.stopped) == (False, "SIGTERM")
    assert not (tmp_path / "run").exists()


def test_measure_speed_uses_many_steps_and_skips_the_first(monkeypatch, unchecked):
    now = [0.0]
    monkeypatch.setattr(time_budget.time, "perf_counter", lambda: now[0])

    def measure(trial_seconds, durations):
        timer = time_budget._StepTimer(trial_seconds)
        with contextlib.suppress(time_budget._EnoughError):
            for seconds in durations:
                now[0] += seconds
                timer.on_log(None)
        return len(timer.times), timer.step_time

    count, step = measure(8.0, [1.0] * 3 + [0.1, 0.3] * 100)  # three slow ones first, then short and long ones
    assert 16 < count < 60 and step == pytest.approx(0.2, rel=0.05)
    assert measure(0.0, [0.01] * 100)[0] == 16  # a short run: no fewer
    assert measure(60.0, [9.0] * 100)[0] == 4  # slow steps: no more than needed
    patient = time_budget._StepTimer(None)
    for _ in range(1000):
        patient.on_log(None)
    assert len(patient.times) == 1000  # with several processes, none stops before the others


def test_a_run_of_few_steps_is_evaluated_on_a_sample_and_says_so(tmp_path, unchecked):
    notes = []
    run = run_recipe("vit-digits", steps=10, folder=tmp_path / "trial", on_note=notes.append)
    assert any("trial run of 10 steps" in note for note in notes)
    assert any("trial run" in note for note in run.notes)
    longer = run_recipe("vit-digits", {"model.layers": 1}, steps=50, folder=tmp_path / "run", on_note=notes.append)
    sample, everything = (torch.tensor(each.result["test"]["confusion"]).sum() for each in (run, longer))
    assert sample == 256 < everything


def test_minutes_state_the_minimum_of_ten_steps(monkeypatch, unchecked):
    monkeypatch.setattr(time_budget, "measure_speed", lambda *_, **__: (20.0, 1.0))
    notes = []
    recipe = get_recipe("vit-digits")
    task = time_budget.fit_to_length(recipe.build(recipe.resolve(), None), 1, None, notes.append)
    assert task.config.stages["train"].steps == 10
    assert "minimum of 10 is made in about 200 s" in notes[0]
