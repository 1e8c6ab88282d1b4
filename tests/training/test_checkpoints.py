"""Checkpoints are whole or not taken; a folder has one writer; a full disk loses nothing."""

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from loop_runs import SETTINGS, Letters, Notes, assert_same_run, gpt, in_process, last_checkpoint, lines, run
from safetensors.torch import load_file

import qkv
from qkv import training as loop
from qkv.training.checkpointing import Store
from qkv.training.lock import alive, claimed, process
from qkv.training.manifest import Writer, damage
from qkv.training.metrics_log import Journal


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with checkpoints at 6 and 9 and, with an evaluation, 12."""
    folder = tmp_path_factory.mktemp("finished")
    run(folder)
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 0x04
    path.write_bytes(content)


DAMAGES = {
    "torn": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "flipped at the start": lambda path: flip(path, 0.0),
    "flipped in the middle": lambda path: flip(path, 0.5),
    "flipped at the end": lambda path: flip(path, 1.0),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("name", ["model.safetensors", "optimiser.safetensors", "state.json", "manifest.json"])
def test_a_damaged_checkpoint_is_not_taken_but_the_one_before(folder, name, what):
    newest = last_checkpoint(folder)
    DAMAGES[what](newest / name)
    if name == "manifest.json" and what == "flipped at the end":
        (newest / name).write_text((newest / name).read_text()[:-3])
    notes = []
    taken = Store(folder).newest(notes.append)
    assert taken is not None and taken.name == "step-00000009"
    assert len(notes) == 1 and "step-00000012 is not taken" in notes[0]
    assert name in notes[0] or "SHA-256" in notes[0]


def test_from_one_back_the_run_ends_as_it_would_have(folder, finished):
    flip(last_checkpoint(folder) / "optimiser.safetensors", 0.7)
    notes = Notes()
    run(folder, report=notes)
    assert notes.began == [9] and len(notes.notes) == 1
    assert_same_run(folder, finished)
    assert (folder / "checkpoints" / "damaged-step-00000012").is_dir()


def test_if_none_is_whole_the_run_begins_again_and_says_so(folder, finished):
    for place in (folder / "checkpoints").glob("step-*"):
        (place / "model.safetensors").unlink()
    notes = Notes()
    run(folder, report=notes)
    assert notes.began == [0] and len(notes.notes) == 2
    assert_same_run(folder, finished)


def test_what_a_killed_process_left_is_swept(folder):
    checkpoints = folder / "checkpoints"
    (checkpoints / ".step-00000015.writing").mkdir()
    (checkpoints / ".step-00000015.writing" / "model.safetensors").write_bytes(b"half")
    run(folder, report=(notes := Notes()))
    assert notes.began == [12] and not notes.notes
    assert not list(checkpoints.glob(".*"))


def test_the_last_few_and_the_best_are_kept(tmp_path):
    values = iter([3.0, 1.0, 2.0, 5.0, 4.0, 4.5])
    saving = loop.Saving(evaluate_every=2, checkpoint_every=1, keep_last=2, best="cost", larger=False)
    settings = replace(SETTINGS, saving=saving)
    outcome = loop.train(
        gpt(), Letters(), loop.language_model(), settings, tmp_path, evaluate=lambda _: {"cost": next(values)}
    )
    assert Store(tmp_path).steps() == [4, 11, 12]
    assert outcome.best is not None and outcome.best.name == "step-00000004" and outcome.best_value == 1.0
    settings = replace(SETTINGS, saving=replace(saving, best="coast"))
    with pytest.raises(ValueError, match=r"saving.best='coast' is not among what evaluation gives: cost"):
        loop.train(gpt(), Letters(), loop.language_model(), settings, tmp_path / "b", evaluate=lambda _: {"cost": 1.0})


def test_a_checkpoint_is_a_model_that_load_reads(finished, tmp_path):
    place = last_checkpoint(finished)
    model = qkv.load(place)
    weights = load_file(place / "model.safetensors")
    assert all(torch.equal(model.state_dict()[name], weights[name]) for name in weights)
    exported = loop.export(finished, tmp_path / "model")
    again = qkv.load(tmp_path / "model")
    tokens = Letters().batch(0, 0)["tokens"]
    assert torch.equal(exported(tokens), again(tokens))
    with pytest.raises(ValueError, match="neither a checkpoint nor a run's folder"):
        loop.restored(tmp_path)
    assert not [path for path in place.iterdir() if path.suffix not in (".json", ".safetensors")]


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path):
    run(tmp_path, replace(SETTINGS, steps=3), model=gpt(tied=True))
    model = gpt(tied=True, seed=4)
    run(tmp_path, replace(SETTINGS, steps=3), model=model)
    assert model.head.weight is model.tokens.weight
    assert "head.weight" not in load_file(last_checkpoint(tmp_path) / "model.safetensors")


def test_tensors_of_every_kind_are_safetensors_that_others_read(tmp_path):
    tensors = {
        "a": torch.randn(3, 4),
        "b": torch.randn(2, 2).bfloat16(),
        "c": torch.tensor(7),
        "d": torch.zeros(0, 3),
        "é": torch.tensor([True, False]),
        "turned": torch.randn(4, 3).T,
        "half": torch.randn(5).half(),
        "double": torch.randn(5).double(),
    }
    writer = Writer(tmp_path)
    writer.tensors("all.safetensors", tensors)
    writer.manifest()
    assert damage(tmp_path) is None
    found = load_file(tmp_path / "all.safetensors")
    assert set(found) == set(tensors)
    assert all(torch.equal(found[name], tensors[name]) and found[name].dtype == tensors[name].dtype for name in found)


def test_a_full_disk_leaves_the_checkpoint_before_and_says_so(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk can be mounted by root only")
    try:
        settings = replace(SETTINGS, saving=replace(SETTINGS.saving, keep_last=9))
        with pytest.raises(OSError, match=r"could not be written: the disk is full. The one of step") as raised:
            run(small, settings, model=gpt(width=32))
        assert raised.value.filename == str(small / "checkpoints")
        steps = Store(small).steps()
        assert steps and damage(Store(small).place(steps[-1])) is None
        assert not list((small / "checkpoints").glob(".*"))
        roomy = shutil.copytree(small, tmp_path / "roomy")
    finally:
        subprocess.run(["umount", str(small)], check=True)
    run(roomy, settings, model=gpt(width=32), report=(notes := Notes()))
    assert notes.began == [steps[-1]]
    run(tmp_path / "whole", settings, model=gpt(width=32))
    assert_same_run(roomy, tmp_path / "whole")


def test_a_disk_without_room_for_a_line_is_named(tmp_path):
    with Path("/dev/full").open("ab", buffering=0) as full:
        journal = Journal(tmp_path)
        journal.file.close()
        journal.file = full
        with pytest.raises(OSError, match=r"a line could not be written: the disk is full.*start again") as raised:
            journal.add({"step": 1})
    assert raised.value.filename == str(tmp_path / "metrics.jsonl")


def test_a_folder_has_one_writer(tmp_path):
    process = in_process(hold, tmp_path)
    wait_for(tmp_path / "held")
    try:
        with pytest.raises(ValueError, match=f"being written to by process {process.pid}.*choose another folder"):
            run(tmp_path)
        assert not (tmp_path / "metrics.jsonl").exists()
    finally:
        process.kill()
        process.join()
    assert json.loads((tmp_path / "lock").read_text())["pid"] == process.pid
    run(tmp_path, replace(SETTINGS, steps=3))  # its holder is gone: the lock is taken over
    assert (tmp_path / "lock").read_text() == ""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs a system that tells of processes in /proc")
def test_a_killed_process_that_nobody_has_asked_after_holds_no_lock():
    child = subprocess.Popen(["sleep", "60"])
    told = process(child.pid)
    assert alive(told)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its number is still taken
    os.kill(child.pid, 0)
    assert not alive(told)
    child.wait()
    assert not alive(told)


def test_a_lock_of_another_process_with_the_same_number_is_stale(tmp_path):
    with claimed(tmp_path):
        held = json.loads((tmp_path / "lock").read_text())
    (tmp_path / "lock").write_text(json.dumps({**held, "began": "earlier"}))
    with claimed(tmp_path):
        pass
    (tmp_path / "lock").write_text(json.dumps({**held, "host": "elsewhere"}))
    with pytest.raises(ValueError, match=r"on elsewhere.*delete"), claimed(tmp_path):
        pass


def hold(folder):
    with claimed(folder):
        (folder / "held").touch()
        time.sleep(60)


def wait_for(path):
    until = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_at_a_boundary_with_a_checkpoint(tmp_path, number):
    settings = replace(SETTINGS, steps=10_000, workers=1, saving=loop.Saving(log_every=1))
    process = in_process(until_told, tmp_path, settings)
    wait_for(tmp_path / "metrics.jsonl")
    time.sleep(0.3)
    os.kill(process.pid, number)
    process.join(30)
    assert process.exitcode == 0
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["stopped"] == signal.Signals(number).name
    assert last_checkpoint(tmp_path).name == f"step-{told['step']:08d}" and damage(last_checkpoint(tmp_path)) is None
    assert lines(tmp_path)[-1]["step"] == told["step"]


def until_told(folder, settings):
    outcome = run(folder, settings)
    (folder / "told.json").write_text(json.dumps({"stopped": outcome.stopped, "step": outcome.step}))
