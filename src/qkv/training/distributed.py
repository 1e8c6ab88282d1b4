"""The processes that train together. One is a world of its own; torchrun starts more, and `joined` connects them.

Each process computes its share of every batch's items; sums are added over all of them. What may fail in one process
only is agreed upon, so that all stop together.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from qkv.data.batches import Batch

_ALONE: ContextVar[bool] = ContextVar("alone", default=False)


@dataclass(frozen=True)
class World:
    """Which process this is (from 0) of how many, and the device that its collectives run on."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009  (immutable)

    @staticmethod
    def here() -> "World":
        """The world this process is in."""
        if _ALONE.get() or not (dist.is_available() and dist.is_initialized()):
            return World()
        device = (
            torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
        )
        return World(dist.get_rank(), dist.get_world_size(), device)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    def total(self, numbers: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            dist.all_reduce(numbers)
        return numbers

    def share(self, batch: Batch) -> tuple[Batch, bool]:
        """This process's items of a batch. With fewer items than processes some get one that must not count (False)."""
        if self.size == 1:
            return batch, True
        items = len(next(iter(batch.values())))
        begin, end = (items * number // self.size for number in (self.rank, self.rank + 1))
        if begin == end:
            return {name: tensor[:1] for name, tensor in batch.items()}, False
        return {name: tensor[begin:end] for name, tensor in batch.items()}, True

    def text(self, mine: str, rank: int = 0) -> str:
        """The text of one process, in all of them."""
        if self.size == 1:
            return mine
        raw = mine.encode()
        length = torch.tensor([len(raw)], device=self.device)
        dist.broadcast(length, rank)
        content = torch.zeros(max(int(length), 1), dtype=torch.uint8, device=self.device)
        if rank == self.rank and raw:
            content = torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(self.device)
        dist.broadcast(content, rank)
        return bytes(content[: int(length)].tolist()).decode()

    def texts(self, mine: str) -> list[str]:
        """The text of each process, in all of them."""
        return [self.text(mine, rank) for rank in range(self.size)]

    def agreed(self, act: Callable[[], str]) -> str:
        """Let the first process act, and all have its answer; if it fails, all fail with the same words."""
        answer, failure = "", None
        if self.first:
            try:
                answer = act()
            except (OSError, ValueError) as error:
                failure = error
        said = self.text("" if failure is None else f"{type(failure).__name__}: {failure}")
        if failure is not None:
            raise failure
        if said:
            raise ValueError(f"the first process stopped: {said}")
        return self.text(answer)


@contextmanager
def alone() -> Iterator[None]:
    """In here this process is a world of its own: what only one does, such as a last test, waits for no other."""
    before = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(before)


@contextmanager
def joined() -> Iterator[World]:
    """The world that torchrun's environment describes, connected; on its own a world of one.

    NCCL between GPUs, gloo between CPUs. The model belongs on the world's device.
    """
    if "RANK" not in os.environ or (dist.is_available() and dist.is_initialized()):
        yield World.here()
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield World.here()
    finally:
        dist.destroy_process_group()
