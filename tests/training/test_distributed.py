"""Two processes train as one does: losses, weights, signals, exact resume."""

import json
import signal
import time
from dataclasses import replace

import pytest
import torch
from gloo_processes import run_processes
from safetensors.torch import load_file
from tiny_runs import CONFIG, Letters, assert_same_run, gpt, last_checkpoint, lines, run
from tiny_runs import objective as scored

import qkv
from qkv import training

SAME_STEPS = replace(CONFIG, steps=20, checkpoint=replace(CONFIG.checkpoint, log_every=1, checkpoint_every=10))


def run_exact(folder, config):  # each process starts with other weights: those of rank zero are used
    run(
        folder,
        config,
        model=gpt(dropout=0.0, seed=torch.distributed.get_rank() if training.World.current().size > 1 else 0),
    )


@pytest.mark.parametrize(
    ("parallel", "optimizer", "steps"),
    [
        ("ddp", "adamw", 20),
        ("fsdp", "muon", 3),
        pytest.param("ddp", "muon", 20, marks=pytest.mark.long),
        pytest.param("fsdp", "adamw", 20, marks=pytest.mark.long),
        pytest.param("fsdp", "muon", 20, marks=pytest.mark.long),
    ],
)
def test_two_processes_have_the_losses_of_one(tmp_path, parallel, optimizer, steps):
    chosen = replace(SAME_STEPS.optimizer, name=optimizer)
    config = replace(SAME_STEPS, steps=steps, parallel=parallel, optimizer=chosen)
    run_exact(tmp_path / "one", config)
    run_processes(2, run_exact, tmp_path / "two", config)
    one, two = lines(tmp_path / "one"), lines(tmp_path / "two")
    assert [line["step"] for line in one] == [line["step"] for line in two]
    for a, b in zip(one, two, strict=True):
        a, b = a.get("evaluation", a), b.get("evaluation", b)
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
        assert a.get("gradient_norm") == pytest.approx(b.get("gradient_norm"), abs=1e-4)
        assert a.get("position") == b.get("position")
    for name in ("model.safetensors", "optimizer.safetensors", "ema.safetensors"):
        a, b = (load_file(last_checkpoint(tmp_path / side) / name) for side in ("one", "two"))
        assert list(a) == list(b)
        assert all((a[key] - b[key]).abs().max() < 1e-4 for key in a)
    training.export_model(tmp_path / "two", tmp_path / "model")
    model = qkv.load(tmp_path / "model")
    tokens = Letters().batch(0, 0)["tokens"]
    assert (model(tokens) - training.load_checkpoint(tmp_path / "one")(tokens)).abs().max() < 1e-3


def evaluate_alone(folder):
    """Rank zero has another config, which both use; it evaluates alone when the second process has left."""
    first = training.World.current().is_first
    run(folder, replace(CONFIG, steps=4 if first else 3))
    if first:
        time.sleep(1)
        with training.single_process():
            numbers = training.evaluator(Letters(), training.language_model())(training.load_checkpoint(folder))
        (folder / "numbers.json").write_text(json.dumps(numbers))


def test_single_process_evaluates_after_the_others_have_left(tmp_path):
    run_processes(2, evaluate_alone, tmp_path)
    found = json.loads((tmp_path / "numbers.json").read_text())
    assert found == training.evaluator(Letters(), training.language_model())(training.load_checkpoint(tmp_path))
    assert last_checkpoint(tmp_path).name == "step-00000004"


@pytest.mark.long
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_resume_bit_exactly(tmp_path, parallel):
    config = replace(CONFIG, parallel=parallel)  # with dropout, which each process draws for itself
    run_processes(2, run, tmp_path / "whole", config)
    run_processes(2, run_until, tmp_path / "stopped", config, 6)
    run_processes(2, run, tmp_path / "stopped", config)
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def run_until(folder, config, step):
    """Stop the second process at a step: all must stop with it."""

    def objective(model, batch):
        calls[0] += 1
        if training.World.current().rank == 1 and calls[0] == 2 * step - 2:
            signal.raise_signal(signal.SIGTERM)
        return scored(model, batch)

    calls = [0]
    outcome = run(folder, config, objective=objective)
    assert outcome.step == step and not outcome.finished
    assert outcome.stopped == ("SIGTERM" if training.World.current().rank == 1 else "another process")
