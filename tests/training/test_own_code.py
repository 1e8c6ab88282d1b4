"""A PyTorch user's own code: Dataset, collate function, plain loss, TensorBoard; resumed bit-exactly after a kill."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from qkv.training import DatasetBatches, TrainConfig, read_metrics, run_recipe, supervised, train

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "nanogpt_style.py"


class Pairs(torch.utils.data.Dataset):
    """Items of different lengths: they need a collate function."""

    def __len__(self):
        return 12

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(number)
        return torch.randn(number % 3 + 1, generator=generator), float(number)


def pad(items):
    inputs = nn.utils.rnn.pad_sequence(
        [torch.nn.functional.pad(x, (0, 3 - len(x))) for x, _ in items], batch_first=True
    )
    return {"inputs": inputs, "targets": torch.tensor([y for _, y in items])[:, None]}


def mean_loss(model, batch):
    return nn.functional.mse_loss(model(batch["inputs"]), batch["targets"])


def test_train_takes_a_collate_function_and_a_mean_loss_or_a_loss_with_metrics(tmp_path):
    def with_metrics(model, batch):
        loss = mean_loss(model, batch)
        return loss, {"error": loss.detach().sqrt()}

    losses = {}
    for name, objective in (("plain", mean_loss), ("metrics", with_metrics)):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        expected = mean_loss(model, pad([Pairs()[number] for number in range(4)])).item()
        data = DatasetBatches(Pairs(), 4, shuffle=False, collate_fn=pad)
        train(model, data, objective, TrainConfig(steps=3), tmp_path / name)
        lines = [line for line in read_metrics(tmp_path / name) if "loss" in line]
        losses[name] = [line["loss"] for line in lines]
        assert name == "plain" or "error" in lines[0]
    assert losses["plain"] == losses["metrics"]
    assert losses["plain"][0] == pytest.approx(expected, rel=1e-6) or len(losses["plain"]) == 1


def test_an_objective_that_returns_no_single_number_is_refused(tmp_path):
    data = DatasetBatches(Pairs(), 4, collate_fn=pad)
    with pytest.raises(ValueError, match=r"must return the mean loss.*got a tensor of shape \(4, 1\)"):
        train(nn.Linear(3, 1), data, lambda model, batch: model(batch["inputs"]), TrainConfig(steps=3), tmp_path)


def test_train_says_what_to_wrap(tmp_path, unchecked):
    batches, loss = DatasetBatches(Pairs(), 4, collate_fn=pad), nn.functional.mse_loss
    wrong = [
        (Pairs(), mean_loss, r"got a Pairs; DatasetBatches\(dataset, batch_size=32\) makes them"),
        (torch.utils.data.DataLoader(Pairs()), mean_loss, r"got a DataLoader; pass DatasetBatches\(loader.dataset"),
        (batches, loss, r"takes \(model, batch\): pass supervised\(mse_loss\)"),
        (batches, nn.MSELoss(), r"takes \(model, batch\): pass supervised\(MSELoss\)"),
        (batches, supervised(lambda a, b: a - b), r"must return one number.*got shape \(4, 1\)"),
    ]
    for data, objective, message in wrong:
        with pytest.raises(ValueError, match=message):
            train(nn.Linear(3, 1), data, objective, TrainConfig(steps=3), tmp_path / "run")


def test_train_says_that_the_loss_function_returned_nan(tmp_path):
    data = DatasetBatches(Pairs(), 4, collate_fn=pad)
    objective = supervised(lambda output, target: (output - target).sum() * float("nan"))
    with pytest.raises(ValueError, match=r"the objective itself computed a loss that is not.*division by 0"):
        train(nn.Linear(3, 1), data, objective, TrainConfig(steps=3), tmp_path)


def test_run_recipe_refuses_a_device_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="there is no device 'cuda:7' here; there is cpu"):
        run_recipe("vit-digits", steps=5, folder=tmp_path / "run", device="cuda:7")


@pytest.mark.long
def test_nanogpt_style_example_killed_three_times_ends_like_the_uninterrupted_run(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 400, encoding="utf-8")

    def command(folder):
        return [sys.executable, str(EXAMPLE), str(text), str(tmp_path / folder), "200"]

    whole = subprocess.run(command("whole"), capture_output=True, text=True, check=True).stdout
    for kill in range(3):
        process = subprocess.Popen(command("killed"), stdout=subprocess.DEVNULL)
        checkpoints = tmp_path / "killed" / "checkpoints"
        while not checkpoints.is_dir() or not any(f"{50 * kill + 10}" in path.name for path in checkpoints.iterdir()):
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    resumed = subprocess.run(command("killed"), capture_output=True, text=True, check=True).stdout
    assert resumed == whole and whole.startswith("step 200")
    curves = EventAccumulator(str(tmp_path / "killed" / "tensorboard")).Reload()
    steps = [event.step for event in curves.Scalars("loss/train")]
    assert steps == sorted(set(steps)) and steps[-1] == 200
