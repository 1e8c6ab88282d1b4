"""States of a run: training, testing, finished, stopped, failed and unfinished, as another reader sees them."""

import os
import signal
from contextlib import suppress

import pytest

from qkv.training import open_run, run_recipe
from qkv.training import runs as runs_module
from qkv.training.lock import LockedError, lock_folder
from qkv.training.metrics import TrainCallback
from qkv.training.records import read_record

SMALL = {"model.layers": 1, "model.dim": 16}


def fail_in_the_test(monkeypatch, folder, error):
    def fail(task, model):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(runs_module, "evaluate_task", fail)
        with pytest.raises(type(error)):
            run_recipe("vit-digits", SMALL, steps=5, folder=folder)


def test_run_state_is_training_then_testing_then_finished(tmp_path, monkeypatch, unchecked):
    seen = []
    folder = tmp_path / "run"

    class Spy(TrainCallback):
        def on_log(self, progress):
            seen.append(open_run(folder).state)

    evaluate = runs_module.evaluate_task

    def spied(task, model):
        seen.append(open_run(folder).state)
        return evaluate(task, model)

    monkeypatch.setattr(runs_module, "evaluate_task", spied)
    run = run_recipe("vit-digits", SMALL, steps=5, folder=folder, callback=lambda *_: Spy())
    assert seen == ["training"] * 5 + ["testing"]
    assert run.state == open_run(folder).state == "finished"
    record = read_record(folder)
    for name in ("folder", "finished", "seconds", "parameters", "result", "state"):
        assert getattr(record, name) == getattr(open_run(folder), name)
    config = open_run(folder).config
    assert (record.recipe, record.model_kind, record.seed) == (config.recipe, config.model_kind, config.seed)


def test_run_state_is_failed_after_an_error_and_stopped_after_ctrl_c(tmp_path, monkeypatch, unchecked):
    folder = tmp_path / "run"

    fail_in_the_test(monkeypatch, folder, ValueError("no space left for the report"))
    assert open_run(folder).state == "failed"
    fail_in_the_test(monkeypatch, folder, KeyboardInterrupt())
    assert open_run(folder).state == "stopped"
    assert run_recipe("vit-digits", SMALL, steps=5, folder=folder).state == "finished"


def test_a_second_process_does_not_mark_a_run_as_failed(tmp_path, monkeypatch, unchecked):
    folder = tmp_path / "run"
    fail_in_the_test(monkeypatch, folder, KeyboardInterrupt())
    with lock_folder(folder), pytest.raises(LockedError, match="is in use by process"):
        run_recipe("vit-digits", SMALL, steps=5, folder=folder)
    assert open_run(folder).state == "unfinished"  # the other process has ended, and has not said why


@pytest.mark.parametrize(("number", "state"), [(signal.SIGTERM, "stopped"), (signal.SIGKILL, "unfinished")])
def test_a_run_that_was_asked_to_stop_is_stopped_and_one_that_was_killed_is_unfinished(tmp_path, number, state):
    folder = tmp_path / "run"

    class Signal(TrainCallback):
        def on_log(self, progress):
            os.kill(os.getpid(), number)

    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            run_recipe("vit-digits", SMALL, steps=5, folder=folder, callback=lambda *_: Signal())
        os._exit(0)
    os.waitpid(child, 0)
    assert read_record(folder).state == open_run(folder).state == state
    assert run_recipe("vit-digits", SMALL, steps=5, folder=folder).state == "finished"
