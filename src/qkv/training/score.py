"""What an objective returns: sums and counts, so that batches, processes and windows add up exactly."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from qkv.data.batches import Batch

Sum = tuple[Tensor, Tensor | int]


@dataclass(frozen=True)
class Score:
    """The loss of a batch as a sum.

    total: the sum of the losses of the scored items; what is differentiated.
    count: how many items were scored: images, tokens. The loss is total / count, over however many batches.
    metrics: other numbers: a sum to be divided by `count`, or a sum and a count of its own.
    """

    total: Tensor
    count: Tensor | int
    metrics: dict[str, Tensor | Sum] = field(default_factory=dict)


Objective = Callable[[nn.Module, Batch], Score]


def sums_of(score: Score) -> dict[str, Sum]:
    """Each number of a score by name, the loss first, as a sum and its count."""
    sums: dict[str, Sum] = {"loss": (score.total.detach(), score.count)}
    for name, value in score.metrics.items():
        sums[name] = value if isinstance(value, tuple) else (value, score.count)
    return sums


def packed(sums: dict[str, Sum], device: torch.device) -> Tensor:
    """The sums and counts as one vector (2·names,), so that they are added, sent and read at once."""
    dtype = torch.float32 if device.type == "mps" else torch.float64
    numbers = [torch.as_tensor(number, device=device).detach() for pair in sums.values() for number in pair]
    return torch.stack([number.to(dtype).reshape(()) for number in numbers])
