"""A run that was killed goes on to the same bits."""

import random
import signal
import time
from dataclasses import replace

import pytest
import torch
from loop_runs import SETTINGS, Letters, Notes, assert_same_run, die_at, gpt, in_process, lines, run, with_optimiser


def child(folder, settings, kind=None, number=0):
    if kind is not None:
        die_at(kind, number)
    run(folder, settings)


def killed_inside_a_save(folder, settings, kind, number):
    process = in_process(child, folder, settings, kind, number)
    process.join(60)
    return process.exitcode


def killed_after(folder, settings, seconds):
    process = in_process(child, folder, settings)
    time.sleep(seconds)
    process.kill()
    process.join(60)
    return process.exitcode


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """For each optimiser the folder of a run that nobody disturbed, and how long it took."""
    made = {}

    def folder(name):
        if name not in made:
            place = tmp_path_factory.mktemp(name)
            began = time.perf_counter()
            process = in_process(child, place, with_optimiser(name))
            process.join(60)
            assert process.exitcode == 0
            made[name] = place, time.perf_counter() - began
        return made[name]

    return folder


def kill_until_done(folder, settings, kills, whole):
    """Kill a run again and again, by turns inside a save and anywhere; then let it finish."""
    for kind, when in kills:
        if kind == "anywhere":
            killed_after(folder, settings, when * whole)
        else:
            assert killed_inside_a_save(folder, settings, kind, when) in (-signal.SIGKILL, 0)
    process = in_process(child, folder, settings)
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.parametrize(
    ("optimiser", "workers", "kills"),
    [
        ("adamw", 0, [("piece", 9), ("anywhere", 0.5)]),
        ("muon", 2, [("rename", 2), ("anywhere", 0.7)]),
    ],
)
def test_a_run_killed_and_resumed_ends_with_the_bits_of_one_never_interrupted(
    tmp_path, uninterrupted, optimiser, workers, kills
):
    whole, took = uninterrupted(optimiser)
    kill_until_done(tmp_path, replace(with_optimiser(optimiser), workers=workers), kills, took)
    assert_same_run(tmp_path, whole)


@pytest.mark.long
@pytest.mark.parametrize("trial", range(25))
def test_fifty_kills_leave_no_trace(tmp_path, uninterrupted, trial):
    choose = random.Random(trial)
    optimiser, workers = choose.choice(["adamw", "muon"]), choose.choice([0, 2])
    kind = choose.choice(["piece", "fsync", "rename"])
    inside = (kind, choose.randint(1, {"piece": 90, "fsync": 20, "rename": 4}[kind]))
    kills = [inside, ("anywhere", choose.random())]
    choose.shuffle(kills)
    whole, took = uninterrupted(optimiser)
    kill_until_done(tmp_path, replace(with_optimiser(optimiser), workers=workers), kills, took)
    assert_same_run(tmp_path, whole)


@pytest.mark.parametrize("number", [3, 7, 9])
def test_whatever_file_was_being_written_the_older_checkpoint_is_taken(tmp_path, number):
    settings = replace(SETTINGS, steps=6, saving=replace(SETTINGS.saving, evaluate_every=0))
    run(tmp_path / "whole", settings)
    folder = tmp_path / "killed"
    run(folder, replace(settings, steps=3))  # its last step leaves a checkpoint, and the journal one line more
    assert killed_inside_a_save(folder, settings, "fsync", number) == -signal.SIGKILL
    notes = Notes()
    run(folder, settings, report=notes)
    assert notes.began == [3 if number < 9 else 6]  # the last is of the folder above, after the rename
    assert not any("not taken" in note for note in notes.notes)
    assert not list((folder / "checkpoints").glob(".*"))
    assert lines(folder)[-2:] == lines(tmp_path / "whole")[-2:]


def test_a_run_stopped_in_the_middle_of_a_log_window_writes_the_same_line(tmp_path):
    settings = replace(SETTINGS, saving=replace(SETTINGS.saving, log_every=5, checkpoint_every=1))
    run(tmp_path / "whole", settings)
    process = in_process(stop_after, tmp_path / "stopped", settings, 3)
    process.join(60)
    assert process.exitcode == 0
    notes = Notes()
    run(tmp_path / "stopped", settings, report=notes)
    assert notes.began == [3]
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def stop_after(folder, settings, steps):
    class Stop(Notes):
        def saved(self, step, place):
            if step == steps - 1:
                signal.raise_signal(signal.SIGTERM)

    outcome = run(folder, settings, report=Stop())
    assert outcome.stopped == "SIGTERM" and outcome.step == steps and not outcome.finished


def test_workers_bring_the_batches_that_the_process_itself_would_make(tmp_path):
    for workers in (0, 2):
        process = in_process(child, tmp_path / str(workers), replace(SETTINGS, workers=workers))
        process.join(60)
        assert process.exitcode == 0
    assert_same_run(tmp_path / "0", tmp_path / "2")
    places = [line["place"] for line in lines(tmp_path / "2") if "place" in line]
    order = [(0, i) for i in range(5)] + [(1, i) for i in range(6)] + [(2, i) for i in range(5)]
    order += [(3, i) for i in range(6)] + [(4, 0), (4, 1)]
    numbers = [1000 * epoch + index for epoch, index in order]
    assert places == [sum(numbers[i : i + 4]) / 4 for i in range(0, 24, 4)]


def test_a_finished_run_is_not_trained_further(tmp_path):
    first = run(tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    model = gpt(seed=5)
    again = run(tmp_path, model=model)
    assert again.finished and again.step == 12 and again.evaluation == first.evaluation
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    from safetensors.torch import load_file

    saved = load_file(first.checkpoint / "model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in model.state_dict().items())


def test_a_run_can_be_made_longer_and_says_that_it_was(tmp_path):
    run(tmp_path, replace(SETTINGS, steps=6))
    notes = Notes()
    assert run(tmp_path, SETTINGS, report=notes).finished
    assert notes.began == [6] and any("steps 6 → 12" in note for note in notes.notes)
    with pytest.raises(ValueError, match="has made 12 steps already; steps=6 asks for fewer"):
        run(tmp_path, replace(SETTINGS, steps=6))


def test_other_data_or_another_model_is_refused(tmp_path):
    from qkv import training as loop

    run(tmp_path, replace(SETTINGS, steps=3))
    with pytest.raises(ValueError, match="other data: epoch 1 had 6 batches and has 8"):
        loop.train(gpt(), Letters(epoch=7), loop.language_model(), SETTINGS, tmp_path)
    with pytest.raises(ValueError, match=r"of another model.*is .* there"):
        run(tmp_path, model=gpt(width=8))


def test_resume_says_what_it_needs(tmp_path):
    with pytest.raises(ValueError, match="no whole checkpoint to go on from"):
        run(tmp_path, resume="always")
    run(tmp_path, replace(SETTINGS, steps=3), resume="never")
    with pytest.raises(ValueError, match="holds a run already"):
        run(tmp_path, resume="never")
