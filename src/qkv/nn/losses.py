"""Losses: cross-entropy for tokens, next tokens and classes, with label smoothing and masks.

Axes: b batch · t tokens · v vocabulary or classes.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def token_loss(
    logits: Float[Tensor, "b t v"],
    targets: Int[Tensor, "b t"],
    loss_mask: Bool[Tensor, "b t"] | None = None,
    *,
    label_smoothing: float = 0.0,
    divisor: float | Tensor | None = None,
) -> Float[Tensor, ""]:
    """Cross-entropy: the mean of −log p(target) over the tokens, in nats.

    Args:
        loss_mask: True for the tokens that count, default all. Without any the loss is 0, not NaN.
        label_smoothing: the fraction of each target that is spread evenly over the vocabulary.
        divisor: what the sum is divided by, default the number of tokens. With gradient accumulation pass the tokens of
            all batches, so that every token has the same weight.

    >>> round(token_loss(torch.zeros(1, 3, 8), torch.zeros(1, 3, dtype=torch.long)).item(), 3)
    2.079
    """
    _check_label_smoothing(label_smoothing)
    _check_target_shape(logits, targets)
    if loss_mask is None:
        logits, targets = logits.flatten(0, 1), targets.flatten()
    elif loss_mask.dtype == torch.bool and loss_mask.shape == targets.shape:
        # masked tokens must not enter at all, not even as 0·NaN or as a target of −100
        logits, targets = logits[loss_mask], targets[loss_mask]
    else:
        raise ValueError(
            f"loss_mask must be boolean with the targets' shape {tuple(targets.shape)}, got {loss_mask.dtype} of "
            f"{tuple(loss_mask.shape)}"
        )
    _check_target_range(logits, targets)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(logits, targets.long(), reduction="sum", label_smoothing=label_smoothing)
    return total / (max(targets.numel(), 1) if divisor is None else divisor)


def next_token_loss(
    logits: Float[Tensor, "b t v"],
    tokens: Int[Tensor, "b t"],
    token_mask: Bool[Tensor, "b t"] | None = None,
    *,
    label_smoothing: float = 0.0,
    divisor: float | Tensor | None = None,
) -> Float[Tensor, ""]:
    """The language-model loss: logits at position i are compared with the token at i + 1.

    A position counts where both the token read and the token predicted are real. Other arguments as in `token_loss`.

    >>> tokens = torch.tensor([[3, 1, 2]])
    >>> logits = 99.0 * F.one_hot(torch.tensor([[1, 2, 0]]), 4)
    >>> next_token_loss(logits, tokens).item()
    0.0
    """
    loss_mask = None if token_mask is None else token_mask[:, 1:] & token_mask[:, :-1]
    return token_loss(logits[:, :-1], tokens[:, 1:], loss_mask, label_smoothing=label_smoothing, divisor=divisor)


def class_loss(
    logits: Float[Tensor, "b v"],
    targets: Tensor,
    *,
    label_smoothing: float = 0.0,
    divisor: float | Tensor | None = None,
) -> Float[Tensor, ""]:
    """Cross-entropy of classes.

    Args:
        targets: classes (b,), or class probabilities (b, v) as mixup makes them.
        divisor: what the sum is divided by, default the number of items.

    >>> round(class_loss(torch.zeros(2, 10), torch.tensor([3, 7])).item(), 3)
    2.303
    """
    _check_label_smoothing(label_smoothing)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if targets.ndim != 2:
        _check_target_shape(logits, targets)
        _check_target_range(logits, targets)
        targets = targets.long()
    elif targets.shape != logits.shape or not targets.is_floating_point():
        raise ValueError(
            f"class probabilities must be floating with the logits' shape {tuple(logits.shape)}, got {targets.dtype} "
            f"of {tuple(targets.shape)}"
        )
    else:
        targets = targets.to(logits.dtype)
    total = F.cross_entropy(logits, targets, label_smoothing=label_smoothing, reduction="sum")
    return total / (max(len(logits), 1) if divisor is None else divisor)


def _check_target_shape(logits: Tensor, targets: Tensor) -> None:
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise ValueError(f"targets must be integers, got {targets.dtype}")
    if targets.shape != logits.shape[:-1]:
        raise ValueError(
            f"logits {tuple(logits.shape)} need targets {tuple(logits.shape[:-1])}, got {tuple(targets.shape)}"
        )


def _check_target_range(logits: Tensor, targets: Tensor) -> None:
    if targets.numel() and not 0 <= targets.min() <= targets.max() < logits.shape[-1]:
        raise ValueError(
            f"targets must be from 0 to {logits.shape[-1] - 1}, got {targets.min().item()} to {targets.max().item()}; "
            "leave out targets that do not count with loss_mask="
        )


def _check_label_smoothing(label_smoothing: float) -> None:
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1], got {label_smoothing}")
