"""Checkpointing: complete or skipped checkpoints, one writer per directory, full disks, signals."""

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
from safetensors.torch import load_file
from tiny_runs import CONFIG, Letters, Notes, assert_same_run, gpt, in_process, last_checkpoint, lines, run

import qkv
from qkv import training
from qkv.training.checkpointing import CheckpointStore, FileWriter, find_damage
from qkv.training.lock import describe_process, is_alive, lock_folder, lock_holder
from qkv.training.metrics import MetricsFile


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with checkpoints at 6 and 9 and, with an evaluation, 12."""
    folder = tmp_path_factory.mktemp("finished")
    run(folder)
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def flip_bit(path, where):
    content = bytearray(path.read_bytes())
    content[int(where * (len(content) - 1))] ^= 0x04
    path.write_bytes(content)


DAMAGES = {
    "torn": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "flipped at the start": lambda path: flip_bit(path, 0.0),
    "flipped in the middle": lambda path: flip_bit(path, 0.5),
    "flipped at the end": lambda path: flip_bit(path, 1.0),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
def test_store_skips_a_damaged_checkpoint_and_returns_the_one_before(folder, name, what):
    newest = last_checkpoint(folder)
    DAMAGES[what](newest / name)
    if name == "manifest.json" and what == "flipped at the end":
        (newest / name).write_text((newest / name).read_text()[:-3])
    notes = []
    newest = CheckpointStore(folder).newest(notes.append)
    assert newest is not None and newest.name == "step-00000009"
    assert len(notes) == 1 and "step-00000012 is damaged" in notes[0]
    assert name in notes[0] or "SHA-256" in notes[0]


def test_train_resumes_from_the_checkpoint_before_a_damaged_one_bit_exactly(folder, finished):
    flip_bit(last_checkpoint(folder) / "optimizer.safetensors", 0.7)
    notes = Notes()
    run(folder, callback=notes)
    assert notes.began == [9] and len(notes.notes) == 1
    assert_same_run(folder, finished)
    assert (folder / "checkpoints" / "damaged-step-00000012").is_dir()


def test_train_starts_again_with_notes_if_no_checkpoint_is_complete(folder, finished):
    for path in (folder / "checkpoints").glob("step-*"):
        (path / "model.safetensors").unlink()
    notes = Notes()
    run(folder, callback=notes)
    assert notes.began == [0] and len(notes.notes) == 2
    assert_same_run(folder, finished)


def test_train_removes_what_a_killed_process_left(folder):
    checkpoints = folder / "checkpoints"
    (checkpoints / ".step-00000015.writing").mkdir()
    (checkpoints / ".step-00000015.writing" / "model.safetensors").write_bytes(b"half")
    run(folder, callback=(notes := Notes()))
    assert notes.began == [12] and not notes.notes
    assert not list(checkpoints.glob(".*"))


def test_store_keeps_the_last_checkpoints_and_the_best(tmp_path):
    values = iter([3.0, 1.0, 2.0, 5.0, 4.0, 4.5])
    checkpoint = training.CheckpointConfig(
        evaluate_every=2, checkpoint_every=1, keep_last=2, best_metric="cost", greater_is_better=False
    )
    config = replace(CONFIG, checkpoint=checkpoint)
    outcome = training.train(
        gpt(), Letters(), training.language_model(), config, tmp_path, evaluate=lambda _: {"cost": next(values)}
    )
    assert CheckpointStore(tmp_path).steps() == [4, 11, 12]
    assert outcome.best is not None and outcome.best.name == "step-00000004" and outcome.best_value == 1.0
    config = replace(CONFIG, checkpoint=replace(checkpoint, best_metric="coast"))
    with pytest.raises(ValueError, match=r"checkpoint.best_metric='coast' is not a metric of evaluate: cost"):
        training.train(
            gpt(), Letters(), training.language_model(), config, tmp_path / "b", evaluate=lambda _: {"cost": 1.0}
        )


def test_a_checkpoint_is_a_model_folder_that_qkv_load_reads(finished, tmp_path):
    checkpoint = last_checkpoint(finished)
    model = qkv.load(checkpoint)
    weights = load_file(checkpoint / "model.safetensors")
    assert all(torch.equal(model.state_dict()[name], weights[name]) for name in weights)
    exported = training.export_model(finished, tmp_path / "model")
    again = qkv.load(tmp_path / "model")
    tokens = Letters().batch(0, 0)["tokens"]
    assert torch.equal(exported(tokens), again(tokens))
    with pytest.raises(ValueError, match="neither a checkpoint nor a run directory"):
        training.load_checkpoint(tmp_path)
    assert not [path for path in checkpoint.iterdir() if path.suffix not in (".json", ".safetensors")]


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path):
    run(tmp_path, replace(CONFIG, steps=3), model=gpt(tie_embeddings=True))
    model = gpt(tie_embeddings=True, seed=4)
    run(tmp_path, replace(CONFIG, steps=3), model=model)
    assert model.head.weight is model.tokens.weight
    assert "head.weight" not in load_file(last_checkpoint(tmp_path) / "model.safetensors")


def test_file_writer_writes_every_dtype_as_standard_safetensors(tmp_path):
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
    writer = FileWriter(tmp_path)
    writer.write_tensors("all.safetensors", tensors)
    writer.write_manifest()
    assert find_damage(tmp_path) is None
    found = load_file(tmp_path / "all.safetensors")
    assert set(found) == set(tensors)
    assert all(torch.equal(found[name], tensors[name]) and found[name].dtype == tensors[name].dtype for name in found)


def test_a_full_disk_keeps_the_previous_checkpoint_and_is_reported(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk can be mounted by root only")
    try:
        config = replace(CONFIG, checkpoint=replace(CONFIG.checkpoint, keep_last=9))
        with pytest.raises(OSError, match=r"could not write .*: the disk is full. The checkpoint of step") as raised:
            run(small, config, model=gpt(dim=32))
        assert raised.value.filename == str(small / "checkpoints")
        steps = CheckpointStore(small).steps()
        assert steps and find_damage(CheckpointStore(small).path(steps[-1])) is None
        assert not list((small / "checkpoints").glob(".*"))
        roomy = shutil.copytree(small, tmp_path / "roomy")
    finally:
        subprocess.run(["umount", str(small)], check=True)
    run(roomy, config, model=gpt(dim=32), callback=(notes := Notes()))
    assert notes.began == [steps[-1]]
    run(tmp_path / "whole", config, model=gpt(dim=32))
    assert_same_run(roomy, tmp_path / "whole")


def test_metrics_file_reports_a_full_disk(tmp_path):
    with Path("/dev/full").open("ab", buffering=0) as full:
        metrics_file = MetricsFile(tmp_path)
        metrics_file.file.close()
        metrics_file.file = full
        with pytest.raises(OSError, match=r"could not write a line: the disk is full.*start again") as raised:
            metrics_file.append({"step": 1})
    assert raised.value.filename == str(tmp_path / "metrics.jsonl")


def test_lock_folder_allows_one_writer(tmp_path):
    process = in_process(hold, tmp_path)
    wait_for(tmp_path / "locked")
    try:
        with pytest.raises(ValueError, match=f"in use by process {process.pid}.*choose another directory"):
            run(tmp_path)
        assert not (tmp_path / "metrics.jsonl").exists()
    finally:
        process.kill()
        process.join()
    assert json.loads((tmp_path / "lock").read_text())["pid"] == process.pid
    run(tmp_path, replace(CONFIG, steps=3))  # its holder has ended: the lock is taken over
    assert (tmp_path / "lock").read_text() == ""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs a system that tells of processes in /proc")
def test_is_alive_is_false_for_a_zombie_process():
    child = subprocess.Popen(["sleep", "60"])
    process = describe_process(child.pid)
    assert is_alive(process)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its number is still in use
    os.kill(child.pid, 0)
    assert not is_alive(process)
    child.wait()
    assert not is_alive(process)


def test_lock_folder_takes_over_the_lock_of_a_reused_process_number(tmp_path):
    with lock_folder(tmp_path):
        lock = json.loads((tmp_path / "lock").read_text())
    (tmp_path / "lock").write_text(json.dumps({**lock, "began": "earlier"}))
    with lock_folder(tmp_path):
        pass
    (tmp_path / "lock").write_text(json.dumps({**lock, "host": "elsewhere"}))
    with pytest.raises(ValueError, match=r"on elsewhere.*delete"), lock_folder(tmp_path):
        pass


def hold(folder):
    with lock_folder(folder):
        (folder / "locked").touch()
        time.sleep(60)


def wait_for(path):
    until = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_train_after_a_step_with_a_checkpoint(tmp_path, number):
    config = replace(CONFIG, steps=10_000, num_workers=1, checkpoint=training.CheckpointConfig(log_every=1))
    process = in_process(run_until_stopped, tmp_path, config)
    wait_for(tmp_path / "metrics.jsonl")
    time.sleep(0.3)
    os.kill(process.pid, number)
    process.join(30)
    assert process.exitcode == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["stopped"] == signal.Signals(number).name
    assert (
        last_checkpoint(tmp_path).name == f"step-{result['step']:08d}"
        and find_damage(last_checkpoint(tmp_path)) is None
    )
    assert lines(tmp_path)[-1]["step"] == result["step"]


def run_until_stopped(folder, config):
    outcome = run(folder, config)
    (folder / "result.json").write_text(json.dumps({"stopped": outcome.stopped, "step": outcome.step}))


def test_checkpoint_store_refuses_a_link_as_its_directory(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a symbolic link"):
        CheckpointStore(tmp_path / "run")


def test_a_hard_link_to_its_lock_does_not_make_a_run_look_stopped(tmp_path):
    with lock_folder(tmp_path):
        os.link(tmp_path / "lock", tmp_path / "backup")
        holder = lock_holder(tmp_path)
    assert holder is not None
    assert holder["pid"] == os.getpid()
