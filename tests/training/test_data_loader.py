"""DatasetBatches: a torch Dataset and a plain loss function train as in a plain PyTorch loop, and resume exactly."""

import signal

import pytest
import torch
from tiny_runs import CONFIG, assert_same_run
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from qkv import training


class NoisyPoints(Dataset):
    """Points with noise from the global generator, as a random transform adds it."""

    def __init__(self, count=10):
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(count, 3, generator=generator)
        self.y = self.x @ torch.tensor([1.0, -2.0, 0.5])

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + 0.1 * torch.randn(3), self.y[index]


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        return self.linear(x)[..., 0]


def fit(folder, callback=None):
    batches = training.DatasetBatches(NoisyPoints(), batch_size=4)
    objective = training.supervised(nn.functional.mse_loss)
    return training.train(Regression(), batches, objective, CONFIG, folder, callback=callback)


class StopAtFirstCheckpoint(training.TrainCallback):
    def on_checkpoint(self, step, path):
        signal.raise_signal(signal.SIGTERM)


def test_dataset_batches_cover_every_item_once_per_epoch_and_are_reproducible():
    dataset = TensorDataset(torch.arange(10.0), torch.arange(10))
    batches = training.DatasetBatches(dataset, batch_size=4, seed=3)
    epochs = [
        torch.cat([batches.batch(epoch, i)["targets"] for i in range(batches.num_batches(epoch))]) for epoch in (0, 1)
    ]
    assert all(torch.equal(epoch.sort().values, torch.arange(10)) for epoch in epochs)
    assert not torch.equal(*epochs)
    noisy = training.DatasetBatches(NoisyPoints(), batch_size=4)
    state = torch.get_rng_state()
    assert torch.equal(noisy.batch(2, 1)["inputs"], noisy.batch(2, 1)["inputs"])
    assert torch.equal(torch.get_rng_state(), state), "the global generator stays as it was"


def test_train_with_dataset_batches_resumes_bit_exactly(tmp_path):
    assert fit(tmp_path / "whole").finished
    stopped = fit(tmp_path / "stopped", StopAtFirstCheckpoint())
    assert stopped.stopped == "SIGTERM" and 0 < stopped.step < CONFIG.steps
    assert fit(tmp_path / "stopped").finished
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def test_dataset_batches_name_a_dataset_of_another_kind():
    with pytest.raises(ValueError, match=r"must yield \(input, target\) pairs or dicts of tensors; got a list"):
        training.DatasetBatches(TensorDataset(*torch.zeros(3, 2)), batch_size=1).batch(0, 0)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        training.DatasetBatches(NoisyPoints(), batch_size=0)
