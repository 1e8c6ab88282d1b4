"""What a model is trained for: functions of (model, batch) that return a Score.

Each is made by a function that takes its choices, so that the loop knows nothing of them:

    classification()    images (or another input), targets        → model(images)
    language_model()    tokens, targets, scored                   → model(tokens)
    sequence_to_sequence()   source, target_in, targets, scored   → model(source, target_in, source_present)
    ctc()               features, lengths, labels, label_lengths  → model(features, present)

Span corruption and question → answer are the language model: the data says by `scored` which tokens count.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.data.batches import Batch
from qkv.nn.losses import class_loss, token_loss
from qkv.training.score import Objective, Score


def classification(*, smoothing: float = 0.0, key: str = "images") -> Objective:
    """−log p(class); targets are classes (b,) or shares of classes (b, classes). Accuracy is counted too.

    A mixture counts as right when the class with the largest share is found.
    """

    def objective(model: nn.Module, batch: Batch) -> Score:
        inputs, targets = take(batch, key, "targets")
        logits = model(inputs)
        total = class_loss(logits, targets, smoothing=smoothing, count=1.0)
        with torch.no_grad():
            right = logits.argmax(-1) == (targets.argmax(-1) if targets.ndim == 2 else targets)
        return Score(total, len(targets), {"accuracy": right.sum()})

    return objective


def language_model(*, smoothing: float = 0.0, accuracy: bool = False) -> Objective:
    """−log p(target) over the scored tokens.

    `present` and `documents`, if the batch has them, tell the model which tokens exist and which belong together.
    accuracy: also count where the likeliest token is the target, which costs a pass over the vocabulary.
    """

    def objective(model: nn.Module, batch: Batch) -> Score:
        tokens, targets = take(batch, "tokens", "targets")
        known = {name: batch[name] for name in ("present", "documents") if name in batch}
        return _token_score(model(tokens, **known), targets, batch.get("scored"), smoothing, accuracy)

    return objective


def sequence_to_sequence(*, smoothing: float = 0.0, accuracy: bool = False) -> Objective:
    """−log p(target) over the scored target tokens, given the source and the target before."""

    def objective(model: nn.Module, batch: Batch) -> Score:
        source, target_in, targets = take(batch, "source", "target_in", "targets")
        logits = model(source, target_in, batch.get("source_present"))
        return _token_score(logits, targets, batch.get("scored"), smoothing, accuracy)

    return objective


def ctc() -> Objective:
    """−log p(labels) summed over every way to place them in the frames (blank is 0); counted by label.

    features (b, t, f) of which `lengths` (b,) exist; labels (b, l) of which `label_lengths` (b,) do. A model that has
    fewer frames than features says so by `model.frames(lengths)`. A recording too short for its labels has no way to
    place them: it is left out, and `too_short` says what share of recordings that was.
    """

    def objective(model: nn.Module, batch: Batch) -> Score:
        features, lengths, labels, label_lengths = take(batch, "features", "lengths", "labels", "label_lengths")
        present = torch.arange(features.shape[1], device=features.device) < lengths[:, None]
        logits = model(features, present)
        frames = model.frames(lengths) if hasattr(model, "frames") else lengths  # type: ignore[operator]
        fits = frames >= label_lengths + _repeats(labels, label_lengths)
        log_p = logits.float().log_softmax(-1).transpose(0, 1)
        costs = F.ctc_loss(log_p, labels, frames, label_lengths, reduction="none", zero_infinity=True)
        total = torch.where(fits, costs, 0.0).sum()
        count = torch.where(fits, label_lengths, 0).sum()
        return Score(total, count, {"too_short": ((~fits).sum(), len(fits))})

    return objective


def take(batch: Batch, *names: str) -> tuple[Tensor, ...]:
    """The named tensors of a batch; one that is not there is a ValueError that names it."""
    if missing := [name for name in names if name not in batch]:
        raise ValueError(f"the objective reads {', '.join(names)}; the batch has {', '.join(batch)}, not {missing[0]}")
    return tuple(batch[name] for name in names)


def _token_score(logits: Tensor, targets: Tensor, scored: Tensor | None, smoothing: float, accuracy: bool) -> Score:
    total = token_loss(logits, targets, scored, smoothing=smoothing, count=1.0)
    count = targets.numel() if scored is None else scored.sum()
    if not accuracy:
        return Score(total, count)
    with torch.no_grad():
        right = logits.argmax(-1) == targets
        return Score(total, count, {"accuracy": (right if scored is None else right & scored).sum()})


def _repeats(labels: Tensor, lengths: Tensor) -> Tensor:
    """How many labels follow an equal one: each needs a blank between."""
    places = torch.arange(1, labels.shape[1], device=labels.device)
    return ((labels[:, 1:] == labels[:, :-1]) & (places < lengths[:, None])).sum(-1)
