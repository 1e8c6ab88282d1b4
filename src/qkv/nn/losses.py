"""What a model is punished for.

Axes: b batch · t tokens · v vocabulary or classes.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def token_loss(
    logits: Float[Tensor, "b t v"],
    targets: Int[Tensor, "b t"],
    scored: Bool[Tensor, "b t"] | None = None,
    *,
    smoothing: float = 0.0,
    count: float | Tensor | None = None,
) -> Float[Tensor, ""]:
    """The mean of −log p(target) over the scored tokens, in nats.

    scored: which tokens count; all of them if not given. Without any the loss is 0, not NaN.
    smoothing: the share of each target that is spread evenly over the whole vocabulary.
    count: what the sum is divided by. Batches that are accumulated divide by the tokens of all of them, so that
        every token weighs the same.

    >>> round(token_loss(torch.zeros(1, 3, 8), torch.zeros(1, 3, dtype=torch.long)).item(), 3)
    2.079
    """
    check_smoothing(smoothing)
    check_target_shape(logits, targets)
    if scored is None:
        logits, targets = logits.flatten(0, 1), targets.flatten()
    elif scored.dtype == torch.bool and scored.shape == targets.shape:
        # what is not scored cannot enter, not even as 0·NaN or as a target of −100
        logits, targets = logits[scored], targets[scored]
    else:
        raise ValueError(
            f"scored is boolean and says which of the targets {tuple(targets.shape)} count; got {scored.dtype} of "
            f"{tuple(scored.shape)}"
        )
    check_target_range(logits, targets)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(logits, targets.long(), reduction="sum", label_smoothing=smoothing)
    return total / (max(targets.numel(), 1) if count is None else count)


def next_token_loss(
    logits: Float[Tensor, "b t v"],
    tokens: Int[Tensor, "b t"],
    token_mask: Bool[Tensor, "b t"] | None = None,
    *,
    smoothing: float = 0.0,
    count: float | Tensor | None = None,
) -> Float[Tensor, ""]:
    """The language model's loss: logits at place i are scored against the token at i + 1.

    A step is scored where both the token read and the token predicted are present.

    >>> tokens = torch.tensor([[3, 1, 2]])
    >>> logits = 99.0 * F.one_hot(torch.tensor([[1, 2, 0]]), 4)
    >>> next_token_loss(logits, tokens).item()
    0.0
    """
    scored = None if token_mask is None else token_mask[:, 1:] & token_mask[:, :-1]
    return token_loss(logits[:, :-1], tokens[:, 1:], scored, smoothing=smoothing, count=count)


def class_loss(
    logits: Float[Tensor, "b v"], targets: Tensor, *, smoothing: float = 0.0, count: float | Tensor | None = None
) -> Float[Tensor, ""]:
    """The mean of −log p(class): targets are classes (b,), or shares of classes (b, v) as mixing images makes them.

    count: what the sum is divided by, if not the number of items.

    >>> round(class_loss(torch.zeros(2, 10), torch.tensor([3, 7])).item(), 3)
    2.303
    """
    check_smoothing(smoothing)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if targets.ndim != 2:
        check_target_shape(logits, targets)
        check_target_range(logits, targets)
        targets = targets.long()
    elif targets.shape != logits.shape or not targets.is_floating_point():
        raise ValueError(
            f"shares of classes are floating and have the logits' shape {tuple(logits.shape)}; got {targets.dtype} of "
            f"{tuple(targets.shape)}"
        )
    else:
        targets = targets.to(logits.dtype)
    total = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    return total / (max(len(logits), 1) if count is None else count)


def check_target_shape(logits: Tensor, targets: Tensor) -> None:
    """Raise a ValueError unless there is a whole number for each row of logits."""
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise ValueError(f"targets are whole numbers; got {targets.dtype}")
    if targets.shape != logits.shape[:-1]:
        raise ValueError(
            f"logits {tuple(logits.shape)} want targets {tuple(logits.shape[:-1])}; got {tuple(targets.shape)}"
        )


def check_target_range(logits: Tensor, targets: Tensor) -> None:
    """Raise a ValueError unless each target is within the vocabulary."""
    if targets.numel() and not 0 <= targets.min() <= targets.max() < logits.shape[-1]:
        raise ValueError(
            f"targets are from 0 to {logits.shape[-1] - 1}; got from {targets.min().item()} to {targets.max().item()}. "
            "Targets that do not count are left out by scored="
        )


def check_smoothing(smoothing: float) -> None:
    """Raise a ValueError unless smoothing is a share."""
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing is a share of the target, from 0 to 1; got {smoothing}")
