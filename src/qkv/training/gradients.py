"""Forward and backward pass: mixed precision, gradient accumulation, DDP and FSDP2, activation checkpointing.

The objective runs inside its own module, so that DDP and FSDP2 see everything it does with the model, whichever method
it calls.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from qkv._onednn import avoid_broken_amx
from qkv.data.batches import Batch
from qkv.nn import Block
from qkv.training.distributed import World
from qkv.training.objectives import Objective, named_sums, pack_sums, to_loss_sum


class ModelWithObjective(nn.Module):
    """Calls the objective on a batch; returns the total loss, and the sums and counts of all metrics as one vector."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        self.metric_names: list[str] = []

    def forward(self, batch: Batch, counts: bool) -> tuple[Tensor, Tensor]:
        loss = to_loss_sum(self.objective(self.model, batch), batch)
        sums = named_sums(loss)
        self.metric_names = list(sums)
        numbers = pack_sums(sums, loss.total.device)
        # an item that another process counts is computed, since all must take part, but has weight zero
        return (loss.total, numbers) if counts else (loss.total * 0, numbers * 0)


class GradientComputer:
    """Computes gradients of an objective, summed over items; the training loop divides once, by the total count."""

    def __init__(self, model: nn.Module, objective: Objective, world: World, parallel: str, dtype: str) -> None:
        self.world = world
        self.scored = ModelWithObjective(model, objective)
        self.device = next(model.parameters()).device
        self.dtype = autocast_dtype(dtype, self.device)
        self.module: nn.Module = self.scored
        if world.size > 1:
            for tensor in model.state_dict(keep_vars=True).values():  # all processes start with the first one's weights
                torch.distributed.broadcast(tensor.detach(), 0)
            self.module = shard_model(self.scored) if parallel == "fsdp" else DistributedDataParallel(self.scored)

    @property
    def metric_names(self) -> list[str]:
        """The loss, then the objective's metrics; each has a sum and a count in the packed numbers."""
        return self.scored.metric_names

    def backward(self, batch: Batch, *, last: bool) -> Tensor:
        """Add the gradient of a batch and return its packed sums. last: exchange gradients between processes now."""
        with self._gradient_sync(last):
            total, numbers = self.forward(batch)
            total.backward()
        return numbers

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute the total loss of this process's items, and their packed sums."""
        items, counts = self.world.shard_batch(batch)
        items = {name: tensor.to(self.device, non_blocking=True) for name, tensor in items.items()}
        with self.mixed_precision():
            return self.module(items, counts)

    def mixed_precision(self) -> AbstractContextManager[Any]:
        """Matrix products in the dtype of the config inside the block: of the model, and of Muon."""
        return nullcontext() if self.dtype is None else torch.autocast(self.device.type, self.dtype)

    @contextmanager
    def unsharded(self) -> Iterator[None]:
        """Hold all parameters in this process inside the block, so that the model can be called directly."""
        parts = [part for part in self.module.modules() if hasattr(part, "unshard")]
        for part in parts:
            part.unshard()  # type: ignore[operator]
        try:
            yield
        finally:
            for part in parts:
                part.reshard()  # type: ignore[operator]

    @contextmanager
    def _gradient_sync(self, enabled: bool) -> Iterator[None]:
        if isinstance(self.module, DistributedDataParallel) and not enabled:
            with self.module.no_sync():
                yield
            return
        if hasattr(self.module, "set_requires_gradient_sync"):
            self.module.set_requires_gradient_sync(enabled)  # type: ignore[operator]
        yield


def autocast_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """Return the dtype for autocast; None multiplies in the dtype of the parameters."""
    if name == "bfloat16":
        avoid_broken_amx()
        return torch.bfloat16
    if name == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return None


def shard_model(scored: ModelWithObjective) -> nn.Module:
    """Shard every parameter over the processes, block by block (FSDP2)."""
    from torch.distributed.fsdp import fully_shard

    for block in find_blocks(scored.model):
        fully_shard(block)
    fully_shard(scored)
    return scored


@contextmanager
def activation_checkpointing(model: nn.Module, enabled: bool = True) -> Iterator[None]:
    """Recompute the activations of each block in the backward pass (gradient checkpointing) inside the block.

    Results stay the same, dropout included. Only the blocks' `forward` is replaced, and restored afterwards: names and
    state stay as they are.
    """
    blocks = find_blocks(model) if enabled else []
    if enabled and not blocks:
        raise ValueError(f"{type(model).__name__} has no blocks to recompute; set activation_checkpointing=False")
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the repeated parts of a model: qkv's blocks, or the members of its module lists."""
    blocks: list[nn.Module] = [part for part in model.modules() if isinstance(part, Block)]
    if blocks:
        return blocks
    return [part for parent in model.modules() if isinstance(parent, nn.ModuleList) for part in parent]
