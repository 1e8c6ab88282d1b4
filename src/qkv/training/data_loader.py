"""Data loading: batches in order from any position, in this process or in workers, with the same bits.

`DatasetBatches` turns a map-style torch Dataset into batches that can be resumed exactly.
"""

import signal
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from qkv._threads import one_thread
from qkv.data.batches import Batch, Batches, generator_for, mix_seed


class Position(NamedTuple):
    """A position in the data: the next batch."""

    epoch: int = 0
    index: int = 0

    @property
    def next(self) -> "Position":
        return Position(self.epoch, self.index + 1)


def check_batches(data: object) -> None:
    """Raise a ValueError that says what to wrap, unless data gives batches by (epoch, index)."""
    if hasattr(data, "num_batches") and hasattr(data, "batch"):
        return
    advice = "DatasetBatches(dataset, batch_size=32) makes them from a torch Dataset"
    if isinstance(data, DataLoader):
        advice = "pass DatasetBatches(loader.dataset, batch_size=32), which can be resumed, instead of the DataLoader"
    raise ValueError(
        f"data must have num_batches(epoch) and batch(epoch, index), got a {type(data).__name__}; {advice}"
    )


def iterate_positions(batches: Batches, start: Position) -> Iterator[Position]:
    """Yield every position from `start` on, epoch after epoch, without end."""
    epoch, first = start
    while True:
        count = batches.num_batches(epoch)
        if count < 1:
            raise ValueError(f"epoch {epoch} of the data has no batches")
        for index in range(first, count):
            yield Position(epoch, index)
        epoch, first = epoch + 1, 0


def load_batches(
    batches: Batches, start: Position, count: int, num_workers: int
) -> Generator[tuple[Position, Batch], None, None]:
    """Yield `count` batches from `start` on, each with its position. num_workers: processes that prepare them ahead."""
    positions = islice(iterate_positions(batches, start), count)
    if num_workers == 0:
        for position in positions:
            yield position, _make_batch(batches, position)
        return
    loader = DataLoader(
        _PositionDataset(batches),
        sampler=_PositionSampler(positions),
        batch_size=None,
        num_workers=num_workers,
        collate_fn=_identity,
        worker_init_fn=_ignore_signals,
        generator=torch.Generator(),  # otherwise it would draw from the generator that dropout uses
    )
    yield from loader


class DatasetBatches:
    """Batches of a map-style torch Dataset, for `train`: {"inputs": …, "targets": …}, or the dict that it yields.

    collate_fn: makes a batch of a list of items, as in torch's DataLoader.

    The order of an epoch follows from (seed, epoch). The global torch generator is seeded for each batch, so random
    transforms are resumed exactly as well.

    >>> from torch.utils.data import TensorDataset
    >>> data = DatasetBatches(TensorDataset(torch.arange(6.0), torch.arange(6)), batch_size=4)
    >>> data.num_batches(0), data.batch(0, 1)["targets"].shape
    (2, torch.Size([2]))
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.dataset, self.batch_size, self.shuffle, self.seed = dataset, batch_size, shuffle, seed
        self.collate_fn = collate_fn

    def num_batches(self, epoch: int) -> int:
        return -(-len(self.dataset) // self.batch_size)  # type: ignore[arg-type]

    def batch(self, epoch: int, index: int) -> Batch:
        size = len(self.dataset)  # type: ignore[arg-type]
        order = torch.randperm(size, generator=generator_for(self.seed, epoch)) if self.shuffle else torch.arange(size)
        rows = order[index * self.batch_size : (index + 1) * self.batch_size].tolist()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(mix_seed(self.seed, epoch, index))
            items = self.collate_fn([self.dataset[row] for row in rows])
        if isinstance(items, dict):
            return items
        if isinstance(items, list | tuple) and len(items) == 2 and all(isinstance(part, Tensor) for part in items):
            return {"inputs": items[0], "targets": items[1]}
        raise ValueError(
            f"the dataset must yield (input, target) pairs or dicts of tensors; got a {type(items).__name__}"
        )


def _make_batch(batches: Batches, position: Position) -> Batch:
    """Compute a batch with one thread, as in a worker: sums over several threads may round differently."""
    with one_thread():
        return batches.batch(*position)


class _PositionDataset(Dataset[tuple[Position, Batch]]):
    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __getitem__(self, position: Position) -> tuple[Position, Batch]:
        return position, self.batches.batch(*position)


class _PositionSampler(Sampler[Position]):
    def __init__(self, positions: Iterator[Position]) -> None:
        self.positions = positions

    def __iter__(self) -> Iterator[Position]:
        return self.positions


def _identity(item: Any) -> Any:
    return item


def _ignore_signals(_: int) -> None:
    """A signal to the process group is for the main process, which needs its workers until it has stopped."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
