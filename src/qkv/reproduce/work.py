"""The work of training: operations of a step, and what share of the machine's peak is used for them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from qkv.data.batches import Batch, Batches
from qkv.loop import Objective

TRIED = 3  # batches of an epoch that are counted


def operations(model: nn.Module, objective: Objective, batch: Batch) -> tuple[int, float]:
    """Multiplications and additions of one forward and backward pass, and how many items the batch scores.

    Counted where matrices are multiplied; what the optimiser does is not. Attention is counted in full, as the formula
    has it, causal or not.
    """
    model = copy.deepcopy(model).train()
    device = next(model.parameters()).device
    with torch.random.fork_rng(), _visible(), FlopCounterMode(display=False) as counter:
        score = objective(model, {name: tensor.to(device) for name, tensor in batch.items()})
        score.total.backward()
    return counter.get_total_flops(), float(score.count)


def operations_of_item(model: nn.Module, objective: Objective, batches: Batches) -> float:
    """Operations for each item (picture, token) of training, over some batches spread over an epoch."""
    count = batches.count(0)
    places = sorted({index * count // TRIED for index in range(TRIED)})
    counted = [operations(model, objective, batches.batch(0, place)) for place in places]
    return sum(work for work, _ in counted) / max(sum(items for _, items in counted), 1.0)


@contextmanager
def _visible() -> Iterator[None]:
    """Fused attention and fused recurrences are opaque to the counter: here their plain forms are run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # switching oneDNN off warns of graphics cards that are not there
        with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
            yield
