"""Wrong parts of training code: losses, gradient accumulation, data splits.

Axes: b batch · t positions · v vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.check.contract import NO_PROMISES, Contract
from qkv.check.mutants.suite import mutant

NEXT = Contract(loss="next")
Batches = Sequence[tuple[Tensor, Tensor]]


def next_token_loss(logits: Tensor, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """The right loss: position i predicts token i + 1; mask (b, t) is True for the tokens that count."""
    each = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    scored = torch.ones_like(each) if mask is None else mask[:, 1:].to(each)
    return (each * scored).sum() / scored.sum()


@mutant("loss: labels shifted twice", "loss shift", NEXT)
def shifted_twice() -> Callable[..., Tensor]:
    def loss(logits: Tensor, tokens: Tensor) -> Tensor:
        return next_token_loss(logits[:, :-1], tokens[:, 1:])

    return loss


@mutant("loss: labels not shifted", "loss shift", NEXT)
def not_shifted() -> Callable[..., Tensor]:
    def loss(logits: Tensor, tokens: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    return loss


@mutant("loss: labels shifted the wrong way", "loss shift", NEXT)
def shifted_back() -> Callable[..., Tensor]:
    def loss(logits: Tensor, tokens: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, 1:].transpose(1, 2), tokens[:, :-1])

    return loss


@mutant("loss: flattened before it is shifted", "loss shift", NEXT)
def flattened_first() -> Callable[..., Tensor]:
    def loss(logits: Tensor, tokens: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1)[:-1], tokens.flatten()[1:])

    return loss


@mutant("loss: mask off by one", "loss mask", NEXT)
def mask_off_by_one() -> Callable[..., Tensor]:
    def loss(logits: Tensor, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return next_token_loss(logits, tokens, None if mask is None else mask.roll(1, dims=1))

    return loss


@mutant("loss: mask not used", "loss mask", NEXT)
def mask_unused() -> Callable[..., Tensor]:
    def loss(logits: Tensor, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return next_token_loss(logits, tokens)

    return loss


@mutant("loss: masked tokens counted in the mean", "loss mean", NEXT)
def mean_of_all() -> Callable[..., Tensor]:
    def loss(logits: Tensor, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        each = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
        return each.mean() if mask is None else (each * mask[:, 1:].to(each)).mean()

    return loss


def accumulate(model: nn.Module, batches: Batches, loss_fn: Any, optimizer: Any, accumulation_steps: int) -> None:
    """The right accumulation: the gradient of a window is that of one batch of all its rows."""
    for start in range(0, len(batches), accumulation_steps):
        window = batches[start : start + accumulation_steps]
        rows = sum(len(inputs) for inputs, _ in window)
        for inputs, targets in window:
            (loss_fn(model(inputs), targets) * len(inputs) / rows).backward()
        optimizer.step()
        optimizer.zero_grad()


@mutant("accumulation: divided twice", "accumulation", NO_PROMISES)
def divided_twice() -> Callable[..., None]:
    def accumulate(model: nn.Module, batches: Batches, loss_fn: Any) -> None:
        for inputs, targets in batches:
            (loss_fn(model(inputs), targets) / len(batches)).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= len(batches)

    return accumulate


@mutant("accumulation: not divided", "accumulation", NO_PROMISES)
def not_divided() -> Callable[..., None]:
    def accumulate(model: nn.Module, batches: Batches, loss_fn: Any) -> None:
        for inputs, targets in batches:
            loss_fn(model(inputs), targets).backward()

    return accumulate


@mutant("accumulation: the partial window dropped", "accumulation", NO_PROMISES)
def partial_dropped() -> Callable[..., None]:
    def train(model: nn.Module, batches: Batches, loss_fn: Any, optimizer: Any, accumulation_steps: int) -> None:
        for number, (inputs, targets) in enumerate(batches, 1):
            (loss_fn(model(inputs), targets) / accumulation_steps).backward()
            if number % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    return train


@mutant("accumulation: the partial window divided as a full one", "accumulation", NO_PROMISES)
def partial_divided() -> Callable[..., None]:
    def train(model: nn.Module, batches: Batches, loss_fn: Any, optimizer: Any, accumulation_steps: int) -> None:
        for number, (inputs, targets) in enumerate(batches, 1):
            (loss_fn(model(inputs), targets) / accumulation_steps).backward()
            if number % accumulation_steps == 0 or number == len(batches):
                optimizer.step()
                optimizer.zero_grad()

    return train


@mutant("accumulation: gradients never zeroed", "accumulation", NO_PROMISES)
def never_zeroed() -> Callable[..., None]:
    def train(model: nn.Module, batches: Batches, loss_fn: Any, optimizer: Any, accumulation_steps: int) -> None:
        for inputs, targets in batches:
            (loss_fn(model(inputs), targets) / accumulation_steps).backward()
            optimizer.step()

    return train


def split(examples: Any, share: float = 0.9) -> tuple[Any, Any]:
    """The right split: the first part for training, the rest held out."""
    cut = int(len(examples) * share)
    return examples[:cut], examples[cut:]


@mutant("split: a validation batch trained on", "split", NO_PROMISES)
def overlapping() -> Callable[..., Any]:
    def split(examples: Any) -> tuple[Any, Any]:
        return examples[: len(examples) * 9 // 10 + 4], examples[len(examples) * 9 // 10 :]

    return split


@mutant("split: windows cut before the split", "split", NO_PROMISES)
def windows_first() -> Callable[..., Any]:
    def split(examples: Any) -> tuple[Any, Any]:
        windows = [examples[i : i + 8] for i in range(len(examples) - 8)]
        return windows[::2], windows[1::2]

    return split
