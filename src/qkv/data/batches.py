"""The Batches protocol: batches as pure functions of (seed, epoch, index), shuffling, splitting, mixing of sources.

Any batch can be made again, so an interrupted run resumes with the batch it would have read next. No random state is
stored: the order of an epoch, the augmentation of a batch and the noise of a step follow from numbers.
"""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Int64
from torch import Tensor

Batch = dict[str, Tensor]  # named tensors with the item as first axis, e.g. images, targets; tokens, targets, loss_mask
Plan = TypeVar("Plan")  # what one batch of a planned epoch holds

# Streams of randomness: the number after the seed says what it is used for, so that no two uses share one.
ORDER_STREAM, SPLIT_STREAM, MIX_STREAM = 1, 2, 12


@runtime_checkable
class Batches(Protocol):
    """A data set as batches. Both methods are pure: same arguments, same result, in any process."""

    def num_batches(self, epoch: int) -> int:
        """Number of batches in the epoch."""
        ...

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at that index, on the CPU."""
        ...


def generator_for(*numbers: int) -> torch.Generator:
    """A random generator seeded by numbers such as (seed, epoch, index); nearby numbers give unrelated streams.

    >>> torch.rand(1, generator=generator_for(0, 1)) == torch.rand(1, generator=generator_for(0, 1))
    tensor([True])
    """
    return torch.Generator().manual_seed(mix_seed(*numbers))


def mix_seed(*numbers: int) -> int:
    """Hash whole numbers into one 63-bit seed.

    >>> mix_seed(0, 1) != mix_seed(1, 0)
    True
    """
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1


def randint_inclusive(low: int, high: int, generator: torch.Generator) -> int:
    """Draw a whole number from low to high, both included.

    >>> randint_inclusive(3, 3, generator_for(0))
    3
    """
    return int(torch.randint(low, high + 1, (), generator=generator))


def epoch_order(count: int, seed: int, epoch: int, *, shuffle: bool = True) -> Int64[Tensor, " n"]:
    """The order of the items in an epoch: a permutation of 0 … count−1.

    >>> epoch_order(5, seed=0, epoch=1).sort().values.tolist()
    [0, 1, 2, 3, 4]
    """
    if not shuffle:
        return torch.arange(count)
    return torch.randperm(count, generator=generator_for(seed, ORDER_STREAM, epoch))


def split_indices(count: int, fraction: float, seed: int) -> tuple[Int64[Tensor, " train"], Int64[Tensor, " held"]]:
    """Split item indices at random into those for training and a held-out `fraction`, at least one item each.

    >>> train, held_out = split_indices(10, 0.2, seed=0)
    >>> len(train), len(held_out), len(set(train.tolist()) & set(held_out.tolist()))
    (8, 2, 0)
    """
    if not 0 < fraction < 1:
        raise ValueError(f"the held-out fraction must be between 0 and 1, got {fraction}")
    if count < 2:
        raise ValueError(f"a split into training and validation needs at least 2 items, got {count}")
    held = min(max(round(count * fraction), 1), count - 1)
    order = torch.randperm(count, generator=generator_for(seed, SPLIT_STREAM))
    return order[held:].sort().values, order[:held].sort().values


def batch_indices(order: Int64[Tensor, " n"], batch_size: int, index: int) -> Int64[Tensor, " b"]:
    """The item indices of one batch, given the order of the epoch."""
    if not 0 <= index * batch_size < max(len(order), 1):
        raise IndexError(f"this epoch has batches 0 … {-(-len(order) // batch_size) - 1}, got index {index}")
    return order[index * batch_size : (index + 1) * batch_size]


class PlannedBatches(Generic[Plan]):
    """Base class for batches planned one epoch at a time by `_plan`; only the last plan is cached."""

    _cached_plan: tuple[int, list[Plan]] | None = None

    def num_batches(self, epoch: int) -> int:
        """Number of batches in the epoch."""
        return len(self.plan(epoch))

    def plan(self, epoch: int) -> list[Plan]:
        """What each batch of the epoch holds."""
        if self._cached_plan is None or self._cached_plan[0] != epoch:
            self._cached_plan = epoch, self._plan(epoch)
        return self._cached_plan[1]

    def _plan(self, epoch: int) -> list[Plan]:
        raise NotImplementedError

    def _planned(self, epoch: int, index: int) -> Plan:
        """What the batch at that index holds."""
        plan = self.plan(epoch)
        if not 0 <= index < len(plan):
            raise IndexError(f"this epoch has batches 0 … {len(plan) - 1}, got index {index}")
        return plan[index]


class MixedBatches(PlannedBatches[tuple[int, int]]):
    """Batches of several sources in random order: every batch of each source once per epoch.

    A batch comes from one source, so each source keeps its weight however few of its tokens are scored.
    """

    def __init__(self, sources: Sequence[Batches], seed: int = 0) -> None:
        if not sources:
            raise ValueError("expected at least one source of batches, got none")
        self.sources, self.seed = list(sources), seed

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at that index."""
        source, place = self._planned(epoch, index)
        return self.sources[source].batch(epoch, place)

    def _plan(self, epoch: int) -> list[tuple[int, int]]:
        """(source, index in that source) for each batch."""
        every = [(i, place) for i, source in enumerate(self.sources) for place in range(source.num_batches(epoch))]
        order = torch.randperm(len(every), generator=generator_for(self.seed, MIX_STREAM, epoch)).tolist()
        return [every[i] for i in order]
