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
from qkv.data.mixture import Mixture
from qkv.training import Objective

TRIED = 6  # batches of an epoch that are counted, of each kind


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
    """Operations for each item (picture, token) of training: of an epoch, told from some batches of each kind."""
    work = items = 0.0
    for part in batches.parts if isinstance(batches, Mixture) else [batches]:
        count = part.count(0)
        places = sorted({index * count // TRIED for index in range(TRIED)})
        for place in places:
            done, scored = operations(model, objective, part.batch(0, place))
            work += done * count / len(places)
            items += scored * count / len(places)
    return work / max(items, 1.0)


@contextmanager
def _visible() -> Iterator[None]:
    """Fused attention and fused recurrences are opaque to the counter: here their plain forms are run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # switching oneDNN off warns of graphics cards that are not there
        with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
            yield
