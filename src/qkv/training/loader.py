"""Batches in order, from any place on; prepared here, or ahead of time by other processes, with the same bits."""

import signal
from collections.abc import Generator, Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from qkv.data.batches import Batch, Batches


class Position(NamedTuple):
    """Where a run stands in its data: the batch that comes next."""

    epoch: int = 0
    index: int = 0

    @property
    def next(self) -> "Position":
        return Position(self.epoch, self.index + 1)


def positions(batches: Batches, start: Position) -> Iterator[Position]:
    """Every place from `start` on, epoch after epoch, without end."""
    epoch, index = start
    while True:
        count = batches.count(epoch)
        if count < 1:
            raise ValueError(f"epoch {epoch} of the data has no batches: there is nothing to train on")
        for place in range(index, count):
            yield Position(epoch, place)
        epoch, index = epoch + 1, 0


def load(batches: Batches, start: Position, count: int, workers: int) -> Generator[tuple[Position, Batch], None, None]:
    """`count` batches from `start` on, each with its place. workers: processes that prepare them ahead; 0 for none."""
    places = islice(positions(batches, start), count)
    if workers == 0:
        for place in places:
            yield place, _made(batches, place)
        return
    loader = DataLoader(
        _Placed(batches),
        sampler=_Places(places),
        batch_size=None,
        num_workers=workers,
        collate_fn=_same,
        worker_init_fn=_quiet,
        generator=torch.Generator(),  # else it would draw from the generator that dropout uses
    )
    yield from loader


def _made(batches: Batches, place: Position) -> Batch:
    """The batch, computed by one thread as in a worker: sums over several threads may round otherwise."""
    threads = torch.get_num_threads()
    if threads == 1:
        return batches.batch(*place)
    torch.set_num_threads(1)
    try:
        return batches.batch(*place)
    finally:
        torch.set_num_threads(threads)


class _Placed(Dataset[tuple[Position, Batch]]):
    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __getitem__(self, place: Position) -> tuple[Position, Batch]:
        return place, self.batches.batch(*place)


class _Places(Sampler[Position]):
    def __init__(self, places: Any) -> None:
        self.places = places

    def __iter__(self) -> Iterator[Position]:
        return iter(self.places)


def _same(item: Any) -> Any:
    return item


def _quiet(_: int) -> None:
    """A signal to the whole group is for the main process, which needs its workers until it has stopped."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
