"""Two processes train as one does."""

import json
import signal
import time
from dataclasses import replace

import pytest
import torch
from loop_processes import together
from loop_runs import SETTINGS, Letters, assert_same_run, gpt, last_checkpoint, lines, run
from loop_runs import objective as scored
from safetensors.torch import load_file

import qkv
from qkv import training as loop

ALIKE = replace(SETTINGS, steps=20, saving=replace(SETTINGS.saving, log_every=1, checkpoint_every=10))


def exact(folder, settings):  # each process begins with other weights: the first one's are taken
    run(
        folder, settings, model=gpt(dropout=0.0, seed=torch.distributed.get_rank() if loop.World.here().size > 1 else 0)
    )


@pytest.mark.parametrize(
    ("parallel", "optimiser", "steps"),
    [
        ("ddp", "adamw", 20),
        ("fsdp", "muon", 3),
        pytest.param("ddp", "muon", 20, marks=pytest.mark.long),
        pytest.param("fsdp", "adamw", 20, marks=pytest.mark.long),
        pytest.param("fsdp", "muon", 20, marks=pytest.mark.long),
    ],
)
def test_two_processes_have_the_losses_of_one(tmp_path, parallel, optimiser, steps):
    chosen = replace(ALIKE.optimiser, name=optimiser)
    settings = replace(ALIKE, steps=steps, parallel=parallel, optimiser=chosen)
    exact(tmp_path / "one", settings)
    together(2, exact, tmp_path / "two", settings)
    one, two = lines(tmp_path / "one"), lines(tmp_path / "two")
    assert [line["step"] for line in one] == [line["step"] for line in two]
    for a, b in zip(one, two, strict=True):
        a, b = a.get("evaluation", a), b.get("evaluation", b)
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
        assert a.get("gradient_norm") == pytest.approx(b.get("gradient_norm"), abs=1e-4)
        assert a.get("place") == b.get("place")
    for name in ("model.safetensors", "optimiser.safetensors", "average.safetensors"):
        a, b = (load_file(last_checkpoint(tmp_path / side) / name) for side in ("one", "two"))
        assert list(a) == list(b)
        assert all((a[key] - b[key]).abs().max() < 1e-4 for key in a)
    loop.export(tmp_path / "two", tmp_path / "model")
    model = qkv.load(tmp_path / "model")
    tokens = Letters().batch(0, 0)["tokens"]
    assert (model(tokens) - loop.restored(tmp_path / "one")(tokens)).abs().max() < 1e-3


def measure(folder):
    """The first process trains longer than the second believes, and tests alone when the second has left."""
    first = loop.World.here().first
    run(folder, replace(SETTINGS, steps=4 if first else 3))
    if first:
        time.sleep(1)
        with loop.alone():
            numbers = loop.over(Letters(), loop.language_model())(loop.restored(folder))
        (folder / "numbers.json").write_text(json.dumps(numbers))


def test_one_process_tests_when_the_others_have_left(tmp_path):
    together(2, measure, tmp_path)
    found = json.loads((tmp_path / "numbers.json").read_text())
    assert found == loop.over(Letters(), loop.language_model())(loop.restored(tmp_path))
    assert last_checkpoint(tmp_path).name == "step-00000004"


@pytest.mark.long
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_what_two_have_saved_two_resume_to_the_bit(tmp_path, parallel):
    settings = replace(SETTINGS, parallel=parallel)  # with dropout, which each process draws for itself
    together(2, run, tmp_path / "whole", settings)
    together(2, run_until, tmp_path / "stopped", settings, 6)
    together(2, run, tmp_path / "stopped", settings)
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def run_until(folder, settings, step):
    """Stop the second process's run at a step: all must stop with it."""

    def objective(model, batch):
        calls[0] += 1
        if loop.World.here().rank == 1 and calls[0] == 2 * step - 2:
            signal.raise_signal(signal.SIGTERM)
        return scored(model, batch)

    calls = [0]
    outcome = run(folder, settings, objective=objective)
    assert outcome.step == step and not outcome.finished
    assert outcome.stopped == ("SIGTERM" if loop.World.here().rank == 1 else "another process")
