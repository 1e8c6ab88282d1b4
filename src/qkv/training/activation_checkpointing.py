"""Gradient checkpointing: blocks keep their input only, and compute what is inside again on the way back."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from qkv.training.gradients import blocks


@contextmanager
def recomputed(model: nn.Module, wanted: bool = True) -> Iterator[None]:
    """The model with each of its blocks recomputed in the backward pass; the numbers stay the same, dropout included.

    Names and state stay as they are: only the blocks' forward is replaced, and put back afterwards.
    """
    parts = blocks(model) if wanted else []
    if wanted and not parts:
        raise ValueError(f"{type(model).__name__} has no blocks to recompute: say recompute=False")
    for part in parts:
        part.forward = partial(checkpoint, part.forward, use_reentrant=False)
    try:
        yield
    finally:
        for part in parts:
            del part.forward
