"""Models that compute their own loss: what each place is asked for."""

import inspect
from typing import Any

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.finding import Finding
from qkv.check.subject import Subject
from qkv.check.training.loss import alignment, read, unique_tokens

LABELS = ("labels", "targets", "target", "y")


def check_own_loss(subject: Subject, contract: Contract) -> list[Finding]:
    """For a model on tokens that takes labels: the gradient of its loss with respect to the logits that it returns."""
    if subject.module is None or subject.vocab is None or subject.source is not None:
        return []
    names = inspect.signature(subject.module.forward).parameters
    name = next((known for known in LABELS if known in names), None)
    if name is None or subject.vocab < 2 * subject.length:
        return []
    x = subject.draw(1, subject.length, torch.Generator().manual_seed(35))
    labels = unique_tokens(1, subject.length, subject.vocab)
    with torch.enable_grad():
        result = subject.module(x, **{name: labels})
        loss, logits = _parts(result, subject.vocab)
        if loss is None or logits is None or not loss.requires_grad:
            return [Finding("loss alignment", "n/a", None, "no loss and logits were returned together")]
        (slope,) = torch.autograd.grad(loss, logits, allow_unused=True)
    if slope is None or slope.ndim != 3 or slope.shape[1] != subject.length:
        return [Finding("loss alignment", "n/a", None, "the loss is not computed from the logits that are returned")]
    return [alignment(read(slope.double(), logits.detach().double(), labels), contract, name)]


def _parts(result: Any, vocab: int) -> tuple[Tensor | None, Tensor | None]:
    values = list(result.values()) if isinstance(result, dict) else list(result) if isinstance(result, tuple) else []
    values = [getattr(result, "loss", None), getattr(result, "logits", None), *values]
    tensors = [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
    loss = next((value for value in tensors if value.numel() == 1), None)
    logits = next((value for value in tensors if value.ndim == 3 and value.shape[-1] == vocab), None)
    return loss, logits
