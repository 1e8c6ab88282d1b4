"""Measuring a model on batches that it does not learn from, with the objective it is trained for."""

from collections.abc import Callable

import torch
from torch import nn

from qkv.data.batches import Batches
from qkv.training.distributed import World
from qkv.training.score import Objective, packed, sums_of


def over(
    batches: Batches, objective: Objective, *, limit: int | None = None, prefix: str = ""
) -> Callable[[nn.Module], dict[str, float]]:
    """A function for train's `evaluate`: loss and metrics over epoch 0 of the batches, or the first `limit` of them.

    Under torchrun each process measures its share of the items, and all get the numbers of the whole.
    """

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        world, device = World.here(), next(model.parameters()).device
        count = batches.count(0) if limit is None else min(limit, batches.count(0))
        if count < 1:
            raise ValueError("there are no batches to evaluate on")
        names: list[str] = []
        numbers = []
        for index in range(count):
            mine, counts = world.share(batches.batch(0, index))
            sums = sums_of(objective(model, {name: tensor.to(device) for name, tensor in mine.items()}))
            names = list(sums)
            numbers.append(packed(sums, device) * counts)
        flat = world.total(torch.stack(numbers).sum(0)).tolist()
        means = [total / n if n else 0.0 for total, n in zip(flat[::2], flat[1::2], strict=True)]
        return {prefix + name: mean for name, mean in zip(names, means, strict=True)}

    return evaluate
