"""Which texts share a batch, so that little of it is padding: those of like length, or several packed into one row."""

import bisect

import torch
from jaxtyping import Int64
from torch import Tensor

from qkv.data.batches import generator_for

GROUPS = 5  # the stream of randomness that orders batches


def by_length(
    lengths: Int64[Tensor, "n sides"],
    *,
    rows: int | None = None,
    tokens: int | None = None,
    seed: int = 0,
    epoch: int = 0,
    shuffled: bool = True,
) -> list[list[int]]:
    """Items grouped into batches of like lengths: of `rows` items each, or of up to `tokens` places, padding included.

    lengths: of each item, on each side (a pair has two). Among equals chance decides, by (seed, epoch), and so it
    does over the order of the batches; a side is sorted up and down in turn within the one before, so that
    neighbours are alike.

    >>> by_length(torch.tensor([[3], [9], [3], [8]]), rows=2, shuffled=False)
    [[0, 2], [3, 1]]
    """
    check_budget(rows, tokens)
    generator = generator_for(seed, GROUPS, epoch)
    count = len(lengths)
    order = torch.randperm(count, generator=generator) if shuffled else torch.arange(count)
    keys = lengths[order].clone()
    for side in range(1, lengths.shape[1]):
        keys[:, side] = torch.where(keys[:, side - 1] % 2 == 0, keys[:, side], -keys[:, side])
    for side in reversed(range(lengths.shape[1])):
        by = keys[:, side].argsort(stable=True)
        order, keys = order[by], keys[by]
    batches = _cut(order.tolist(), lengths.tolist(), rows, tokens)
    if not shuffled:
        return batches
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def _cut(order: list[int], lengths: list[list[int]], rows: int | None, tokens: int | None) -> list[list[int]]:
    if rows is not None:
        return [order[i : i + rows] for i in range(0, len(order), rows)]
    assert tokens is not None
    batches: list[list[int]] = []
    widest: list[int] = []
    for item in order:
        wide = [max(pair) for pair in zip(widest, lengths[item], strict=True)] if widest else lengths[item]
        if batches and (len(batches[-1]) + 1) * max(wide) <= tokens:
            batches[-1].append(item)
            widest = wide
        else:
            batches.append([item])
            widest = lengths[item]
    return batches


def packed(
    lengths: Int64[Tensor, " n"], capacity: int, *, seed: int = 0, epoch: int = 0, shuffled: bool = True
) -> list[list[int]]:
    """Items packed into rows of `capacity` places: the longest first, each into the fullest row that has room for it.

    >>> packed(torch.tensor([5, 4, 3, 6, 2]), 10, shuffled=False)
    [[3, 1], [0, 2, 4]]
    """
    if len(lengths) and int(lengths.max()) > capacity:
        raise ValueError(f"a text of {int(lengths.max())} tokens does not fit into rows of {capacity}")
    generator = generator_for(seed, GROUPS, epoch)
    order = torch.randperm(len(lengths), generator=generator) if shuffled else torch.arange(len(lengths))
    order = order[lengths[order].argsort(stable=True, descending=True)]
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free places, row), sorted
    for item, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        at = bisect.bisect_left(room, (length, -1))
        if at == len(room):
            rows.append([item])
            bisect.insort(room, (capacity - length, len(rows) - 1))
        else:
            free, row = room.pop(at)
            rows[row].append(item)
            bisect.insort(room, (free - length, row))
    return [rows[i] for i in torch.randperm(len(rows), generator=generator).tolist()] if shuffled else rows


def check_budget(rows: int | None, tokens: int | None) -> None:
    """Raise a ValueError unless one of the two is given, 1 or more."""
    if (rows is None) == (tokens is None) or (rows or tokens or 0) < 1:
        raise ValueError(f"a batch is of so many rows or of so many tokens, one of the two; got {rows} and {tokens}")
