"""Resume: a killed run equals an uninterrupted one bit by bit."""

import random
import signal
import time
from dataclasses import replace

import pytest
import torch
from tiny_runs import CONFIG, Letters, Notes, assert_same_run, gpt, in_process, kill_at, lines, run, with_optimizer


def child(folder, config, kind=None, number=0):
    if kind is not None:
        kill_at(kind, number)
    run(folder, config)


def kill_during_save(folder, config, kind, number):
    process = in_process(child, folder, config, kind, number)
    process.join(60)
    return process.exitcode


def kill_after(folder, config, seconds):
    process = in_process(child, folder, config)
    time.sleep(seconds)
    process.kill()
    process.join(60)
    return process.exitcode


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """For each optimizer the directory of an uninterrupted run, and its duration."""
    made = {}

    def folder(name):
        if name not in made:
            directory = tmp_path_factory.mktemp(name)
            began = time.perf_counter()
            process = in_process(child, directory, with_optimizer(name))
            process.join(60)
            assert process.exitcode == 0
            made[name] = directory, time.perf_counter() - began
        return made[name]

    return folder


def kill_until_done(folder, config, kills, whole):
    """Kill a run several times, inside a save or anywhere; then let it finish."""
    for kind, when in kills:
        if kind == "anywhere":
            kill_after(folder, config, when * whole)
        else:
            assert kill_during_save(folder, config, kind, when) in (-signal.SIGKILL, 0)
    process = in_process(child, folder, config)
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.parametrize(
    ("optimizer", "workers", "kills"),
    [
        ("adamw", 0, [("piece", 9), ("anywhere", 0.5)]),
        ("muon", 2, [("rename", 2), ("anywhere", 0.7)]),
    ],
)
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one_bit_exactly(
    tmp_path, uninterrupted, optimizer, workers, kills
):
    whole, took = uninterrupted(optimizer)
    kill_until_done(tmp_path, replace(with_optimizer(optimizer), num_workers=workers), kills, took)
    assert_same_run(tmp_path, whole)


@pytest.mark.long
@pytest.mark.parametrize("trial", range(25))
def test_fifty_kills_leave_no_trace(tmp_path, uninterrupted, trial):
    choose = random.Random(trial)
    optimizer, workers = choose.choice(["adamw", "muon"]), choose.choice([0, 2])
    kind = choose.choice(["piece", "fsync", "rename"])
    inside = (kind, choose.randint(1, {"piece": 90, "fsync": 20, "rename": 4}[kind]))
    kills = [inside, ("anywhere", choose.random())]
    choose.shuffle(kills)
    whole, took = uninterrupted(optimizer)
    kill_until_done(tmp_path, replace(with_optimizer(optimizer), num_workers=workers), kills, took)
    assert_same_run(tmp_path, whole)


@pytest.mark.parametrize("number", [3, 7, 9])
def test_a_kill_during_a_save_resumes_from_the_previous_checkpoint(tmp_path, number):
    config = replace(CONFIG, steps=6, checkpoint=replace(CONFIG.checkpoint, evaluate_every=0))
    run(tmp_path / "whole", config)
    folder = tmp_path / "killed"
    run(folder, replace(config, steps=3))  # its last step leaves a checkpoint, and one more line in metrics.jsonl
    assert kill_during_save(folder, config, "fsync", number) == -signal.SIGKILL
    notes = Notes()
    run(folder, config, callback=notes)
    assert notes.began == [3 if number < 9 else 6]  # the last fsync is of the parent directory, after the rename
    assert not any("is damaged" in note for note in notes.notes)
    assert not list((folder / "checkpoints").glob(".*"))
    assert lines(folder)[-2:] == lines(tmp_path / "whole")[-2:]


def test_a_run_stopped_between_log_lines_writes_the_same_line(tmp_path):
    config = replace(CONFIG, checkpoint=replace(CONFIG.checkpoint, log_every=5, checkpoint_every=1))
    run(tmp_path / "whole", config)
    process = in_process(stop_after, tmp_path / "stopped", config, 3)
    process.join(60)
    assert process.exitcode == 0
    notes = Notes()
    run(tmp_path / "stopped", config, callback=notes)
    assert notes.began == [3]
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def stop_after(folder, config, steps):
    class Stop(Notes):
        def on_checkpoint(self, step, path):
            if step == steps - 1:
                signal.raise_signal(signal.SIGTERM)

    outcome = run(folder, config, callback=Stop())
    assert outcome.stopped == "SIGTERM" and outcome.step == steps and not outcome.finished


def test_num_workers_does_not_change_the_batches(tmp_path):
    for workers in (0, 2):
        process = in_process(child, tmp_path / str(workers), replace(CONFIG, num_workers=workers))
        process.join(60)
        assert process.exitcode == 0
    assert_same_run(tmp_path / "0", tmp_path / "2")
    positions = [line["position"] for line in lines(tmp_path / "2") if "position" in line]
    order = [(0, i) for i in range(5)] + [(1, i) for i in range(6)] + [(2, i) for i in range(5)]
    order += [(3, i) for i in range(6)] + [(4, 0), (4, 1)]
    numbers = [1000 * epoch + index for epoch, index in order]
    assert positions == [sum(numbers[i : i + 4]) / 4 for i in range(0, 24, 4)]


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


def test_a_run_can_be_made_longer_with_a_note(tmp_path):
    run(tmp_path, replace(CONFIG, steps=6))
    notes = Notes()
    assert run(tmp_path, CONFIG, callback=notes).finished
    assert notes.began == [6] and any("steps 6 → 12" in note for note in notes.notes)
    with pytest.raises(ValueError, match="has made 12 steps already; steps=6 is fewer"):
        run(tmp_path, replace(CONFIG, steps=6))


def test_resume_refuses_other_data_and_another_model(tmp_path):
    from qkv import training

    run(tmp_path, replace(CONFIG, steps=3))
    with pytest.raises(ValueError, match="other data: epoch 1 had 6 batches and has 8"):
        training.train(gpt(), Letters(epoch=7), training.language_model(), CONFIG, tmp_path)
    with pytest.raises(ValueError, match=r"belongs to another model.*has shape .* there"):
        run(tmp_path, model=gpt(dim=8))


def test_resume_always_and_never_say_what_they_need(tmp_path):
    with pytest.raises(ValueError, match="no complete checkpoint to resume from"):
        run(tmp_path, resume="always")
    run(tmp_path, replace(CONFIG, steps=3), resume="never")
    with pytest.raises(ValueError, match="contains a run already"):
        run(tmp_path, resume="never")
