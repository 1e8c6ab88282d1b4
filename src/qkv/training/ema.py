"""The exponential average of the weights: often better than the weights themselves."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from qkv.training.shards import copy_into


class Average:
    """average ← d·average + (1 − d)·weights after each step, with d = min(decay, (1 + step)/(10 + step)), so that the
    first steps are forgotten soon."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: p for name, p in model.named_parameters() if p.is_floating_point()}
        self.held = {name: p.detach().clone() for name, p in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """step: how many updates the weights have had."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.held.values()), list(self.weights.values()), share)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        if set(tensors) != set(self.held):
            raise ValueError("the saved average is of other parameters than the model has")
        for name, tensor in tensors.items():
            copy_into(self.held[name], tensor)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model with the average as its weights; afterwards with its own again."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, weight in self.weights.items():
            kept = weight.detach().clone()
            weight.copy_(self.held[name])
            self.held[name].copy_(kept)
