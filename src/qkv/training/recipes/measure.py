"""Numbers on data that a model does not learn from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from qkv.data.batches import Batch, Batches
from qkv.training import Objective, over


@contextmanager
def judging(model: nn.Module) -> Iterator[torch.device]:
    """A model as it is used: no dropout, no gradients; afterwards it is as it was. Gives the device it is on."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield next(model.parameters()).device
    finally:
        model.train(was_training)


def epoch_of(batches: Batches, device: torch.device) -> Iterator[Batch]:
    """Every batch of the first epoch, on the device."""
    for index in range(batches.count(0)):
        yield {name: tensor.to(device) for name, tensor in batches.batch(0, index).items()}


def measured(model: nn.Module, batches: Batches, objective: Objective) -> dict[str, float]:
    """The objective's numbers over all of the data, each item weighing the same."""
    with judging(model):
        return over(batches, objective)(model)
