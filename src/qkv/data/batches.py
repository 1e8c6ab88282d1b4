"""What a training loop reads: batches that are functions of their place, so that any of them can be made again.

A run that was stopped goes on with the batch it would have had: nothing random is kept, because the order of an epoch,
the augmentation of a batch and the noise of a step all follow from numbers.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

Batch = dict[str, Tensor]  # named tensors whose first axis is the item, e.g. images, targets; tokens, targets, scored


@runtime_checkable
class Batches(Protocol):
    """A data set as batches. Both functions are pure: the same arguments, the same answer, in any process."""

    def count(self, epoch: int) -> int:
        """How many batches the epoch has."""
        ...

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at that place, on the CPU."""
        ...


def generator_for(*numbers: int) -> torch.Generator:
    """A source of randomness for one place, such as (seed, epoch, index): near numbers give unrelated streams.

    >>> torch.rand(1, generator=generator_for(0, 1)) == torch.rand(1, generator=generator_for(0, 1))
    tensor([True])
    """
    return torch.Generator().manual_seed(mixed(*numbers))


def mixed(*numbers: int) -> int:
    """Whole numbers as one of 63 bits, well stirred.

    >>> mixed(0, 1) != mixed(1, 0)
    True
    """
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1


def drawn(low: int, high: int, generator: torch.Generator) -> int:
    """A whole number from low to high, both included.

    >>> drawn(3, 3, generator_for(0))
    3
    """
    return int(torch.randint(low, high + 1, (), generator=generator))
