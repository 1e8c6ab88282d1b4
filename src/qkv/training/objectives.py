"""Training objectives: functions of (model, batch) that return the loss.

A function of yours may return the mean loss of the batch, or (loss, metrics). Those here return a LossSum. Each is made
by a function that takes its options:

    classification()         images (or another input), targets        → model(images)
    language_model()         tokens, targets, loss_mask                → model(tokens)
    sequence_to_sequence()   source, target_in, targets, loss_mask     → model(source, target_in, source_token_mask)
    ctc()                    features, lengths, labels, label_lengths  → model(features, token_mask)
    supervised(loss)         inputs, targets                           → loss(model(inputs), targets)

Span corruption and question answering use the language model: `loss_mask` in the batch says which tokens count.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.data.batches import Batch
from qkv.nn.losses import class_loss, token_loss

Sum = tuple[Tensor, Tensor | int]


@dataclass(frozen=True)
class LossSum:
    """The loss of a batch as a sum and a count, so that batches, processes and log windows add up exactly.

    total: sum of the losses of the scored items; this is what is differentiated.
    count: number of scored items (images, tokens). The loss is total / count, over any number of batches.
    metrics: further numbers: a sum to divide by `count`, or a sum with its own count.
    """

    total: Tensor
    count: Tensor | int
    metrics: dict[str, Tensor | Sum] = field(default_factory=dict)


Loss = LossSum | Tensor | tuple[Tensor, Mapping[str, Tensor | float]]
Objective = Callable[[nn.Module, Batch], Loss]


def classification(*, label_smoothing: float = 0.0, key: str = "images") -> Objective:
    """Cross-entropy of classes, and accuracy. Targets are classes (b,) or class probabilities (b, classes).

    Probabilities (MixUp, CutMix) count as correct when the class with the largest one is predicted. `patches`
    (b, kept), if the batch has them, tell a ViT which patches it sees; they are the same for all images.
    """

    def objective(model: nn.Module, batch: Batch) -> LossSum:
        inputs, targets = take(batch, key, "targets")
        known = {"patches": batch["patches"][0]} if "patches" in batch else {}
        logits = model(inputs, **known)
        total = class_loss(logits, targets, label_smoothing=label_smoothing, divisor=1.0)
        with torch.no_grad():
            correct = logits.argmax(-1) == (targets.argmax(-1) if targets.ndim == 2 else targets)
        return LossSum(total, len(targets), {"accuracy": correct.sum()})

    return objective


def language_model(*, label_smoothing: float = 0.0, accuracy: bool = False) -> Objective:
    """Cross-entropy of the target tokens, over those in `loss_mask`.

    `token_mask` and `documents`, if the batch has them, tell the model which tokens are real and which belong together.
    accuracy: also count how often the most likely token is the target, which costs a pass over the vocabulary.
    """

    def objective(model: nn.Module, batch: Batch) -> LossSum:
        tokens, targets = take(batch, "tokens", "targets")
        known = {name: batch[name] for name in ("token_mask", "documents") if name in batch}
        return _token_loss_sum(model(tokens, **known), targets, batch.get("loss_mask"), label_smoothing, accuracy)

    return objective


def sequence_to_sequence(*, label_smoothing: float = 0.0, accuracy: bool = False) -> Objective:
    """Cross-entropy of the target tokens in `loss_mask`, given the source and the previous target tokens."""

    def objective(model: nn.Module, batch: Batch) -> LossSum:
        source, target_in, targets = take(batch, "source", "target_in", "targets")
        logits = model(source, target_in, batch.get("source_token_mask"))
        return _token_loss_sum(logits, targets, batch.get("loss_mask"), label_smoothing, accuracy)

    return objective


def ctc() -> Objective:
    """Connectionist temporal classification: −log p(labels) summed over all alignments (blank is 0), per label.

    features (b, t, f) of which `lengths` (b,) are real; labels (b, l) of which `label_lengths` (b,) are. A model with
    fewer output frames than features provides `model.count_tokens(lengths)`. A recording too short for its labels has
    no alignment: it is left out, and `too_short` is the share of such recordings.
    """

    def objective(model: nn.Module, batch: Batch) -> LossSum:
        features, lengths, labels, label_lengths = take(batch, "features", "lengths", "labels", "label_lengths")
        token_mask = torch.arange(features.shape[1], device=features.device) < lengths[:, None]
        logits = model(features, token_mask)
        frames = model.count_tokens(lengths) if hasattr(model, "count_tokens") else lengths  # type: ignore[operator]
        fits = frames >= label_lengths + _count_repeats(labels, label_lengths)
        log_p = logits.float().log_softmax(-1).transpose(0, 1)
        costs = F.ctc_loss(log_p, labels, frames, label_lengths, reduction="none", zero_infinity=True)
        total = torch.where(fits, costs, 0.0).sum()
        count = torch.where(fits, label_lengths, 0).sum()
        return LossSum(total, count, {"too_short": ((~fits).sum(), len(fits))})

    return objective


def supervised(loss: Callable[[Tensor, Tensor], Tensor]) -> Objective:
    """Use a loss function such as `F.cross_entropy`: the mean over a batch of loss(model(inputs), targets).

    Works with `DatasetBatches`, which makes batches of a torch Dataset of pairs.
    """

    def objective(model: nn.Module, batch: Batch) -> LossSum:
        inputs, targets = take(batch, "inputs", "targets")
        mean = loss(model(inputs), targets)
        if mean.numel() != 1:
            raise ValueError(
                f"the loss function must return one number, the mean over the batch; got shape {tuple(mean.shape)}"
            )
        return LossSum(mean.reshape(()) * len(targets), len(targets))

    return objective


def check_objective(objective: object) -> None:
    """Raise a ValueError that says what to wrap if an objective is a loss of (input, target), as PyTorch's are."""
    is_loss = isinstance(objective, nn.modules.loss._Loss)
    if callable(objective) and not is_loss:
        try:
            is_loss = list(inspect.signature(objective).parameters)[:2] == ["input", "target"]
        except (TypeError, ValueError):  # a builtin without a signature
            return
    if is_loss:
        name = getattr(objective, "__name__", type(objective).__name__)
        raise ValueError(
            f"{name} is a loss of (input, target); an objective takes (model, batch): pass supervised({name})"
        )


def to_loss_sum(loss: Loss, batch: Batch) -> LossSum:
    """Convert what an objective returned: a mean loss and means of metrics count once for each item of the batch.

    >>> to_loss_sum((torch.tensor(0.5), {"accuracy": 0.25}), {"inputs": torch.zeros(4, 3)})
    LossSum(total=tensor(2.), count=4, metrics={'accuracy': tensor(1.)})
    """
    if isinstance(loss, LossSum):
        return loss
    mean, metrics = loss if isinstance(loss, tuple) and len(loss) == 2 else (loss, {})
    if not isinstance(mean, Tensor) or mean.numel() != 1 or not isinstance(metrics, Mapping):
        what = f"a tensor of shape {tuple(mean.shape)}" if isinstance(mean, Tensor) else f"a {type(loss).__name__}"
        raise ValueError(f"an objective must return the mean loss, (loss, metrics) or a LossSum; got {what}")
    count = len(next(iter(batch.values())))
    sums: dict[str, Tensor | Sum] = {name: torch.as_tensor(value).detach() * count for name, value in metrics.items()}
    return LossSum(mean.reshape(()) * count, count, sums)


def take(batch: Batch, *names: str) -> tuple[Tensor, ...]:
    """Return the named tensors of a batch; a missing one raises a ValueError that names it."""
    if missing := [name for name in names if name not in batch]:
        raise ValueError(f"the objective needs {', '.join(names)}; the batch has {', '.join(batch)}, not {missing[0]}")
    return tuple(batch[name] for name in names)


def named_sums(loss: LossSum) -> dict[str, Sum]:
    """Return each number by name, the loss first, as a sum and its count."""
    sums: dict[str, Sum] = {"loss": (loss.total.detach(), loss.count)}
    for name, value in loss.metrics.items():
        sums[name] = value if isinstance(value, tuple) else (value, loss.count)
    return sums


def pack_sums(sums: dict[str, Sum], device: torch.device) -> Tensor:
    """Pack sums and counts into one vector (2·names,), so that they are added, reduced and read at once."""
    dtype = torch.float32 if device.type == "mps" else torch.float64
    numbers = [torch.as_tensor(number, device=device).detach() for pair in sums.values() for number in pair]
    return torch.stack([number.to(dtype).reshape(()) for number in numbers])


def _token_loss_sum(
    logits: Tensor, targets: Tensor, loss_mask: Tensor | None, label_smoothing: float, accuracy: bool
) -> LossSum:
    total = token_loss(logits, targets, loss_mask, label_smoothing=label_smoothing, divisor=1.0)
    count = targets.numel() if loss_mask is None else loss_mask.sum()
    if not accuracy:
        return LossSum(total, count)
    with torch.no_grad():
        correct = logits.argmax(-1) == targets
        return LossSum(total, count, {"accuracy": (correct if loss_mask is None else correct & loss_mask).sum()})


def _count_repeats(labels: Tensor, lengths: Tensor) -> Tensor:
    """Count the labels that follow an equal one: each needs a blank in between."""
    index = torch.arange(1, labels.shape[1], device=labels.device)
    return ((labels[:, 1:] == labels[:, :-1]) & (index < lengths[:, None])).sum(-1)
