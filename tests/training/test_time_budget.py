"""Time budget: steps that fit into minutes, and rescaled schedules."""

import contextlib
import signal

import pytest

from qkv.training import CheckpointConfig, ScheduleConfig, TrainConfig, run_recipe, time_budget


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
