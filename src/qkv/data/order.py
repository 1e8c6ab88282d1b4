"""In which order a data set is read, and which part of it is kept apart: functions of numbers alone."""

import torch
from jaxtyping import Int64
from torch import Tensor

from qkv.data.batches import generator_for

ORDER, HELD_OUT = 1, 2  # what a stream of randomness is for, so that no two uses share one


def epoch_order(count: int, seed: int, epoch: int, *, shuffled: bool = True) -> Int64[Tensor, " n"]:
    """Which item comes when in an epoch: a permutation of 0 … count−1.

    >>> epoch_order(5, seed=0, epoch=1).sort().values.tolist()
    [0, 1, 2, 3, 4]
    """
    if not shuffled:
        return torch.arange(count)
    return torch.randperm(count, generator=generator_for(seed, ORDER, epoch))


def held_out(count: int, share: float, seed: int) -> tuple[Int64[Tensor, " kept"], Int64[Tensor, " held"]]:
    """Which items stay for training and which are kept apart: `share` of them, at least one of each.

    >>> kept, apart = held_out(10, 0.2, seed=0)
    >>> len(kept), len(apart), len(set(kept.tolist()) & set(apart.tolist()))
    (8, 2, 0)
    """
    if not 0 < share < 1:
        raise ValueError(f"the part kept apart is a share between 0 and 1; got {share}")
    if count < 2:
        raise ValueError(f"a set is split into training and validation from 2 items on; got {count}")
    held = min(max(round(count * share), 1), count - 1)
    order = torch.randperm(count, generator=generator_for(seed, HELD_OUT))
    return order[held:].sort().values, order[:held].sort().values


def batch_rows(order: Int64[Tensor, " n"], size: int, index: int) -> Int64[Tensor, " b"]:
    """The items of one batch of an order."""
    if not 0 <= index * size < max(len(order), 1):
        raise IndexError(f"this epoch has batches 0 … {-(-len(order) // size) - 1}; got {index}")
    return order[index * size : (index + 1) * size]
