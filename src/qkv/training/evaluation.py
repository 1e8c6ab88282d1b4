"""Evaluation: loss and metrics of a model on batches that it does not learn from."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from qkv.data.batches import Batch, Batches
from qkv.training.distributed import World
from qkv.training.objectives import Objective, named_sums, pack_sums, to_loss_sum


def evaluator(
    batches: Batches, objective: Objective, *, limit: int | None = None, prefix: str = ""
) -> Callable[[nn.Module], dict[str, float]]:
    """Make a function for `train(evaluate=…)`: loss and metrics over epoch 0 of the batches, or the first `limit`.

    Under torchrun each process evaluates its share of the items, and all get the metrics of the whole.
    """

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        world, device = World.current(), next(model.parameters()).device
        count = batches.num_batches(0) if limit is None else min(limit, batches.num_batches(0))
        if count < 1:
            raise ValueError("there are no batches to evaluate on")
        names: list[str] = []
        numbers = []
        for index in range(count):
            items, counts = world.shard_batch(batches.batch(0, index))
            sums = named_sums(to_loss_sum(objective(model, move_to(items, device)), items))
            names = list(sums)
            numbers.append(pack_sums(sums, device) * counts)
        packed = world.all_reduce(torch.stack(numbers).sum(0)).tolist()
        means = [total / n if n else 0.0 for total, n in zip(packed[::2], packed[1::2], strict=True)]
        return {prefix + name: mean for name, mean in zip(names, means, strict=True)}

    return evaluate


def evaluate_all(model: nn.Module, batches: Batches, objective: Objective) -> dict[str, float]:
    """Compute loss and metrics over all of the data, in eval mode; each item has the same weight."""
    with eval_mode(model):
        return evaluator(batches, objective)(model)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[torch.device]:
    """Switch dropout and gradients off inside the block, and restore the mode afterwards. Yields the model's device."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield next(model.parameters()).device
    finally:
        model.train(was_training)


def first_epoch(batches: Batches, device: torch.device) -> Iterator[Batch]:
    """Yield every batch of the first epoch, on the device."""
    for index in range(batches.num_batches(0)):
        yield move_to(batches.batch(0, index), device)


def move_to(batch: Batch, device: torch.device) -> Batch:
    """The batch on a device."""
    return {name: tensor.to(device) for name, tensor in batch.items()}
