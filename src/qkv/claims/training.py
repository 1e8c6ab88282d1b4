"""The plain training step that the trained claims share."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


def train(
    model: nn.Module,
    loss: Callable[[int], Tensor],
    steps: int,
    *,
    rate: float = 3e-3,
    warm: int = 20,
    decay: float = 0.0,
    parameters: Iterable[Tensor] | None = None,
) -> list[float]:
    """Take `steps` steps of AdamW down `loss(step)`, with a warm-up and a cosine to 0; returns the losses."""
    optimiser = torch.optim.AdamW(parameters or model.parameters(), lr=rate, weight_decay=decay)

    def factor(step: int) -> float:
        progress = torch.tensor(step / max(steps, 1))
        return min(1.0, (step + 1) / warm) * float(0.5 * (1 + torch.cos(torch.pi * progress)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, factor)
    losses = []
    model.train()
    for step in range(steps):
        found = loss(step)
        optimiser.zero_grad()
        found.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(found.item())
    model.eval()
    return losses
