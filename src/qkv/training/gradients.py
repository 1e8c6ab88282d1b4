"""One update's gradient: forward and backward over its batches, in one process or many.

The objective runs inside a module of its own, so that DDP and FSDP2 see everything it does with the model, whichever
method it calls.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from qkv.data.batches import Batch
from qkv.nn import Block
from qkv.training.distributed import World
from qkv.training.score import Objective, Score, packed, sums_of


class Scored(nn.Module):
    """A model with its objective: called with a batch, it returns the total, and the sums and counts by name."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        self.names: list[str] = []

    def forward(self, batch: Batch, counts: bool) -> tuple[Tensor, Tensor]:
        score = self.objective(self.model, batch)
        if not isinstance(score, Score):
            raise ValueError(f"an objective returns a Score; got {type(score).__name__}")
        sums = sums_of(score)
        self.names = list(sums)
        numbers = packed(sums, score.total.device)
        # an item that another process counts is computed, since all must take part, but weighs nothing
        return (score.total, numbers) if counts else (score.total * 0, numbers * 0)


class Computer:
    """Computes gradients of a model's objective, summed over items; divided once, by whoever knows the count."""

    def __init__(self, model: nn.Module, objective: Objective, world: World, parallel: str, dtype: str) -> None:
        self.world = world
        self.scored = Scored(model, objective)
        self.device = next(model.parameters()).device
        self.dtype = chosen_dtype(dtype, self.device)
        self.module: nn.Module = self.scored
        if world.size > 1:
            _same_everywhere(model)
            self.module = sharded(self.scored) if parallel == "fsdp" else DistributedDataParallel(self.scored)

    @property
    def names(self) -> list[str]:
        """What the numbers are: the loss, then the objective's metrics, each as a sum and a count."""
        return self.scored.names

    def add(self, batch: Batch, *, last: bool) -> Tensor:
        """Add a batch's gradient; return its numbers. last: whether the update's gradients are now to be exchanged."""
        with self._alone(not last):
            total, numbers = self.forward(batch)
            total.backward()
        return numbers

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The total of this process's share of a batch, and its numbers."""
        mine, counts = self.world.share(batch)
        mine = {name: tensor.to(self.device, non_blocking=True) for name, tensor in mine.items()}
        with self.precision():
            return self.module(mine, counts)

    def precision(self) -> torch.autocast | nullcontext[None]:
        """The context in which matrices are multiplied in the chosen dtype."""
        return nullcontext() if self.dtype is None else torch.autocast(self.device.type, self.dtype)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """The model with all its parameters in this process, to be called directly."""
        spread = [part for part in self.module.modules() if hasattr(part, "unshard")]
        for part in spread:
            part.unshard()  # type: ignore[operator]
        try:
            yield
        finally:
            for part in spread:
                part.reshard()  # type: ignore[operator]

    @contextmanager
    def _alone(self, alone: bool) -> Iterator[None]:
        """Without exchanging gradients, if so."""
        if isinstance(self.module, DistributedDataParallel) and alone:
            with self.module.no_sync():
                yield
            return
        if hasattr(self.module, "set_requires_gradient_sync"):
            self.module.set_requires_gradient_sync(not alone)  # type: ignore[operator]
        yield


def chosen_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """What to multiply in, if not in the parameters' own dtype."""
    if name == "auto":
        quick = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if quick else None
    return torch.bfloat16 if name == "bfloat16" else None


def sharded(scored: Scored) -> nn.Module:
    """The module with every parameter spread over the processes, block by block (FSDP2)."""
    from torch.distributed.fsdp import fully_shard

    for block in blocks(scored.model):
        fully_shard(block)
    fully_shard(scored)
    return scored


def blocks(model: nn.Module) -> list[nn.Module]:
    """A model's repeated parts: our blocks, or else the members of its lists of modules."""
    ours: list[nn.Module] = [part for part in model.modules() if isinstance(part, Block)]
    if ours:
        return ours
    return [part for parent in model.modules() if isinstance(parent, nn.ModuleList) for part in parent]


def _same_everywhere(model: nn.Module) -> None:
    """Let every process begin with the first one's weights."""
    for tensor in model.state_dict(keep_vars=True).values():
        torch.distributed.broadcast(tensor.detach(), 0)
