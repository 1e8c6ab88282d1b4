"""Distributed training: the processes that torchrun starts (DDP, FSDP2), collectives, and sharded tensors (DTensor).

Each process computes its share of every batch; sums are reduced over all of them. What may fail in one process only is
done through `World.run_on_first`, so that all processes stop together.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from qkv.data.batches import Batch

_SINGLE: ContextVar[bool] = ContextVar("single_process", default=False)


@dataclass(frozen=True)
class World:
    """The rank of this process (from 0), the number of processes, and the device of its collectives."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009  (immutable)

    @staticmethod
    def current() -> "World":
        """Return the world this process is in; a world of size 1 without torchrun."""
        if _SINGLE.get() or not (dist.is_available() and dist.is_initialized()):
            return World()
        device = torch.device("cpu")
        if dist.get_backend() == "nccl":
            device = torch.device("cuda", torch.cuda.current_device())
        return World(dist.get_rank(), dist.get_world_size(), device)

    @property
    def is_first(self) -> bool:
        """Whether this is rank zero, the process that writes files and reports progress."""
        return self.rank == 0

    def all_reduce(self, numbers: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(numbers)
        return numbers

    def shard_batch(self, batch: Batch) -> tuple[Batch, bool]:
        """Take this process's items of a batch.

        With fewer items than processes some processes get one item that must not count; the second value is then False.
        """
        if self.size == 1:
            return batch, True
        items = len(next(iter(batch.values())))
        start, stop = (items * number // self.size for number in (self.rank, self.rank + 1))
        if start == stop:
            return {name: tensor[:1] for name, tensor in batch.items()}, False
        return {name: tensor[start:stop] for name, tensor in batch.items()}, True

    def broadcast_text(self, text: str, rank: int = 0) -> str:
        """Send the text of one process to all of them."""
        if self.size == 1:
            return text
        raw = text.encode()
        length = torch.tensor([len(raw)], device=self.device)
        dist.broadcast(length, rank)
        content = torch.zeros(max(int(length), 1), dtype=torch.uint8, device=self.device)
        if rank == self.rank and raw:
            content = torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(self.device)
        dist.broadcast(content, rank)
        return bytes(content[: int(length)].tolist()).decode()

    def all_gather_text(self, text: str) -> list[str]:
        """Send the text of each process to all of them."""
        return [self.broadcast_text(text, rank) for rank in range(self.size)]

    def run_on_first(self, action: Callable[[], str]) -> str:
        """Run `action` on rank zero and return its answer everywhere; if it fails, all fail with the same message."""
        answer, failure = "", None
        if self.is_first:
            try:
                answer = action()
            except (OSError, ValueError) as error:
                failure = error
        message = self.broadcast_text("" if failure is None else f"{type(failure).__name__}: {failure}")
        if failure is not None:
            raise failure
        if message:
            raise ValueError(f"rank zero stopped: {message}")
        return self.broadcast_text(answer)


@contextmanager
def single_process() -> Iterator[None]:
    """Make this process a world of size 1 inside the block: what only one process does must not wait for the others."""
    before = _SINGLE.set(True)
    try:
        yield
    finally:
        _SINGLE.reset(before)


@contextmanager
def init_distributed() -> Iterator[World]:
    """Connect the processes that torchrun started; without torchrun this is a world of size 1.

    GPUs use NCCL, CPUs gloo. Move the model to the world's device.
    """
    if "RANK" not in os.environ or (dist.is_available() and dist.is_initialized()):
        yield World.current()
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield World.current()
    finally:
        dist.destroy_process_group()


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor in every process; all processes must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this process's shard of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard_like(full: Tensor, like: Tensor) -> Tensor:
    """Shard a full tensor as another one is sharded. Nothing is sent, because every process has all of it."""
    if not isinstance(like, DTensor):
        return full
    mesh = like.device_mesh
    replicated = DTensor.from_local(full, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicated.redistribute(mesh, like.placements)


def copy_into(target: Tensor, full: Tensor) -> None:
    """Overwrite a tensor, sharded or not, by a full one."""
    with torch.no_grad():
        local_tensor(target).copy_(local_tensor(shard_like(full.to(device=target.device), target)))
