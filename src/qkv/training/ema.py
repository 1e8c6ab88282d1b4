"""Exponential moving average (EMA) of the weights, which often evaluates better than the weights themselves."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from qkv.training.distributed import copy_into


class WeightEMA:
    """ema ← d·ema + (1 − d)·weights after each step, with d = min(decay, (1 + step)/(10 + step)).

    The second term makes the average forget the first steps quickly.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: p for name, p in model.named_parameters() if p.is_floating_point()}
        self.average = {name: p.detach().clone() for name, p in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Include the current weights. step: number of optimizer steps that the weights have had."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.average.values()), list(self.weights.values()), share)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Load a saved average."""
        if set(tensors) != set(self.average):
            raise ValueError("the saved EMA has other parameters than the model")
        for name, tensor in tensors.items():
            copy_into(self.average[name], tensor)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Give the model the averaged weights inside the block and its own weights afterwards."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, weight in self.weights.items():
            own = weight.detach().clone()
            weight.copy_(self.average[name])
            self.average[name].copy_(own)
