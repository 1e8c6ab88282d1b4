"""Grade a training step: zero the gradients, compute the loss, backpropagate, step; for one batch or for an epoch.

The model is the grader's, a linear classifier trained by SGD, so that the parameters after each step are known. In
training mode it drops some features, so that the parameters also tell the mode in which it was called.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.check.grading.client import Sandbox, SubmissionError
from qkv.check.grading.exercises.common import EXPLAINED, FIX, Exercise, GradedCheck, compare, relative_error
from qkv.check.grading.probes import read_probe
from qkv.check.report import Finding

if TYPE_CHECKING:
    from qkv.check.grading.rubric import GradedExercise

BATCH, CLASSES, FEATURES, LR = 5, 4, 12, 0.1
LIMIT = 1e-5
MODES = ((True, True), (False, False), (True, False), (False, True))  # training mode in the first and second batch
DIVISORS = {"divided by the batch size": BATCH, "divided by the batches": 2, "divided by the images": 2 * BATCH}
MISTAKES = {
    "no update": "the parameters do not change: optimizer.step() is missing, or the gradients are cleared before it",
    "no zero_grad": "gradients of earlier batches are added: call optimizer.zero_grad() before loss.backward()",
    "softmax first": "the loss is taken of probabilities: nn.CrossEntropyLoss applies the softmax itself",
    "sum": "the step is that of the sum of the losses of a batch; expected their mean",
    "first batch only": "only the first batch is used",
    "last batch only": "only the last batch is used",
    "ascent": "the loss grows: the sign of the loss is wrong",
    "one step": "all batches make one step together: step after each batch",
    "divided by the batch size": "the loss, a mean already, is divided by the batch size: the step is too small",
    "divided by the batches": "the loss is divided by the number of batches: the step is too small",
    "divided by the images": "the loss is divided by the number of images: the step is too small",
    "two steps": "there are two steps for each batch",
    "read twice": "the data is read twice: each batch makes two steps",
    "own labels": "the loss is that of the model's own predictions: the labels of the batch are not used",
}
ELSEWHERE = ("first batch only", "last batch only", "one step", "read twice")  # charged as "every batch"


@dataclass(frozen=True)
class Trained:
    """Batches, the parameters before, and what the function did."""

    weight: Tensor
    bias: Tensor
    kept: Tensor  # by what the model multiplies its input in training mode: 0 where it drops a feature
    batches: tuple[tuple[Tensor, Tensor], ...]
    tensors: dict[str, Tensor]
    values: dict[str, Any]

    @property
    def final(self) -> Tensor:
        found = [self.tensors[name] for name in sorted(self.tensors) if name.startswith("state")]
        expected = self.weight.numel() + self.bias.numel()
        if not found or found[-1].numel() != expected:
            raise SubmissionError("the parameters of the model are not those that it had")
        return found[-1].double()

    def simulate(self, mistake: str, modes: tuple[bool, bool] | None = None) -> tuple[Tensor, list[float]]:
        """The parameters after both batches, and the losses, right or with a mistake.

        modes: whether each batch is in training mode; by default as the parameters show.
        """
        modes = self.modes if modes is None else modes
        weight, bias = self.weight.clone().requires_grad_(), self.bias.clone().requires_grad_()
        losses, kept = [], [torch.zeros_like(weight), torch.zeros_like(bias)]
        batches = list(self.batches)
        batches = [(x.flatten(1) * (self.kept if on else 1), y) for (x, y), on in zip(batches, modes, strict=True)]
        chosen = {"first batch only": batches[:1], "last batch only": batches[1:], "read twice": batches * 2}
        batches = chosen.get(mistake, batches)
        with torch.enable_grad():
            for x, y in batches:
                logits = x @ weight.mT + bias
                logits = logits.softmax(-1) if mistake == "softmax first" else logits
                y = logits.argmax(-1) if mistake == "own labels" else y
                loss = F.cross_entropy(logits, y, reduction="sum" if mistake == "sum" else "mean")
                loss = loss / DIVISORS.get(mistake, 1)
                losses.append(float(loss.detach()))
                gradients = torch.autograd.grad(-loss if mistake == "ascent" else loss, (weight, bias))
                kept = [k + g for k, g in zip(kept, gradients, strict=True)]
                used = kept if mistake == "no zero_grad" else list(gradients)
                factor = {"no update": 0.0, "one step": 0.0, "two steps": 2.0}.get(mistake, 1.0)
                with torch.no_grad():
                    weight, bias = (p - factor * LR * g for p, g in zip((weight, bias), used, strict=True))
                weight, bias = weight.requires_grad_(), bias.requires_grad_()
        if mistake == "one step":
            weight, bias = weight - LR * kept[0], bias - LR * kept[1]
        return torch.cat((weight.detach().flatten(), bias.detach().flatten())), losses

    @cached_property
    def explained(self) -> tuple[str, tuple[bool, bool]] | None:
        """The mistake ("" for none) and the modes of both batches that give these parameters; None if nothing does."""
        for mistake in ("", *MISTAKES):
            for modes in MODES:
                if relative_error(self.final, self.simulate(mistake, modes)[0]) <= LIMIT:
                    return mistake, modes
        return None

    @property
    def modes(self) -> tuple[bool, bool]:
        """Whether the model is in training mode: as the parameters show, or else as the model noted it."""
        noted = [bool(each) for each in self.values.get("modes", [])] or [False]
        if self.explained is None or self.explained[0] == "no update":
            return noted[0], noted[min(1, len(noted) - 1)]
        return self.explained[1]

    def explain(self) -> str:
        """The mistake that gives these parameters; "" if they are right, "?" if nothing explains them."""
        return self.explained[0] if self.explained else "?"


def prepare(sandbox: Sandbox, rubric: GradedExercise) -> Trained:
    sandbox.describe_function()
    generator = torch.Generator().manual_seed(150)
    weight, bias = torch.randn(CLASSES, FEATURES, generator=generator), torch.randn(CLASSES, generator=generator)
    batches = tuple(
        (
            torch.randn(BATCH, 3, 2, 2, generator=generator),
            torch.randint(0, CLASSES, (BATCH,), generator=generator),
        )
        for _ in range(2)
    )
    kept = torch.ones(FEATURES)
    kept[torch.randperm(FEATURES, generator=generator)[: FEATURES // 3]] = 0.0
    sandbox.dtype = "float32"
    sent = {"weight": weight, "bias": bias, "kept": kept}
    for number, (x, y) in enumerate(batches):
        sent |= {f"images{number}": x, f"labels{number}": y}
    tensors, values = sandbox.probe(read_probe("training_step"), {}, sent)
    doubled = tuple((x.double(), y) for x, y in batches)
    return Trained(weight.double(), bias.double(), kept.double(), doubled, tensors, values)


def require_response_of_training(trained: Trained) -> None:
    if not trained.values.get("modes"):
        raise SubmissionError("the model is never called")


def check_step(trained: Trained) -> list[Finding]:
    """The parameters after the batches are those of SGD on the mean cross-entropy, one step for each batch."""
    if not trained.values.get("takes optimizer"):
        evidence = (
            f"the function takes no optimizer; its arguments are {', '.join(map(str, trained.values.get('names', [])))}"
        )
        return [
            Finding("step", "fail", None, evidence, "take the model, the data, the optimizer and the loss function")
        ]
    error, cause = relative_error(trained.final, trained.simulate("")[0]), trained.explain()
    if cause == "no zero_grad" or (cause in ELSEWHERE and check_batches(trained)[0].verdict == "fail"):  # judged there
        return [Finding("step", "pass", 0.0, "the first batch makes the right step")]
    hint = "loss = criterion(model(images), labels); optimizer.zero_grad(); loss.backward(); optimizer.step()"
    if cause not in MISTAKES and trained.values.get("same images") is False:
        hint = "the model gets other images than those of the batch: if they are mixed, mix the labels in the same way"
    words = MISTAKES.get(cause)
    if cause == "no update":
        cause, words = _explain_no_update(trained)
    hint = f"{EXPLAINED}{words}" if words else hint
    evidence = "after two batches the parameters differ from those of SGD on the mean cross-entropy"
    return [replace(finding, family=cause) for finding in compare("step", error, LIMIT, evidence, hint)]


def _explain_no_update(trained: Trained) -> tuple[str, str]:
    """Why no parameter changes, by the order of the calls: its family and words."""
    events = [str(each) for each in trained.values.get("events", [])]
    if "backward without gradient" in events:
        words = "the loss has no gradient: compute it outside torch.no_grad(), and without detach() or item()"
        return "no gradient", words
    if "backward" not in events:
        return "no backward", "the parameters do not change: loss.backward() is never called, so there are no gradients"
    if "step" not in events:
        return "no step", "the parameters do not change: optimizer.step() is never called"
    if events.index("step") < events.index("backward"):
        return "step first", "optimizer.step() comes before loss.backward(), when there are no gradients: call it after"
    words = "the gradients are cleared between loss.backward() and optimizer.step(): clear them before backward()"
    return "no update", words


def check_zero_grad(trained: Trained) -> list[Finding]:
    cause = trained.explain()
    if cause == "no zero_grad":
        evidence = "the second step uses the gradients of both batches"
        return [Finding("gradients cleared", "fail", None, evidence, f"explained exactly: {MISTAKES[cause]}")]
    stale = trained.values.get("stale")
    if cause in ("no update", "?") and isinstance(stale, list) and any(stale):
        evidence = "when the gradients of the second batch are computed, those of the first are still there"
        return [Finding("gradients cleared", "fail", None, evidence, "call optimizer.zero_grad() in every step")]
    return [Finding("gradients cleared", "pass", 0.0, "each step uses the gradients of its own batch")]


def check_batches(trained: Trained) -> list[Finding]:
    """One step for each batch."""
    steps, calls = trained.values.get("num_steps"), len(trained.values.get("modes", []))
    if trained.explain() == "":
        return [Finding("every batch", "pass", 0.0, "two batches make two steps")]
    if calls >= 2 and (steps == 2 or (steps == 0 and trained.explain() == "no update")):
        return [Finding("every batch", "pass", 0.0, "two batches make two steps")]
    if calls >= 2 and trained.explain() == "two steps":
        return [Finding("every batch", "pass", 0.0, "every batch is used; that it makes two steps is judged elsewhere")]
    evidence = f"two batches make {steps} steps of the optimizer and {calls} calls of the model"
    hint, cause = "loop over the whole loader and step once for each batch; return after the loop", trained.explain()
    if cause in ELSEWHERE:
        cause = "one step" if cause == "last batch only" and calls > 1 else cause
        return [Finding("every batch", "fail", None, evidence, f"{EXPLAINED}{MISTAKES[cause]}{FIX}{hint}", cause)]
    return [Finding("every batch", "fail", None, evidence, hint)]


def check_mode(trained: Trained) -> list[Finding]:
    if all(trained.modes):
        return [Finding("train mode", "pass", 0.0, "the model is in training mode")]
    if not trained.values.get("takes loader"):
        if trained.values.get("switched to eval") is True:
            evidence = "the function itself puts the model into eval mode: dropout is off while training"
            return [
                Finding("train mode", "fail", None, evidence, "call model.train() before the step, not model.eval()")
            ]
        return [Finding("train mode", "pass", None, "a function of one batch may leave the mode to its caller")]
    evidence = "the model was handed over in eval mode and stays in it: dropout is off while training"
    return [Finding("train mode", "fail", None, evidence, "call model.train() before the loop")]


def check_loss(trained: Trained) -> list[Finding]:
    """The loss is among the returned numbers: the mean, or that of each batch."""
    losses = trained.simulate("")[1]
    returned = trained.values.get("returned")
    returned = [float(each) for each in returned if isinstance(each, int | float)] if isinstance(returned, list) else []
    cause = trained.explain()
    if cause in MISTAKES:
        losses = trained.simulate(cause)[1] or losses
    first = trained.simulate("no update")[1]  # where the parameters do not change between batches
    means = (
        sum(losses) / len(losses),
        sum(losses) / 2,
    )  # the latter if batches are left out, which is judged elsewhere
    accepted = (*means, sum(first) / 2)
    if cause == "?" and any(value > 0 for value in returned):
        return [Finding("loss", "pass", None, "it returns a number; what its own step makes of the loss is not known")]
    if any(_close(value, each) for value in returned for each in accepted) or all(
        any(_close(value, each) for value in returned) for each in losses
    ):
        return [Finding("loss", "pass", 0.0, f"it returns the loss, {accepted[0]:.4g} on average")]
    shown = ", ".join(f"{value:.4g}" for value in returned[:4]) or "nothing"
    evidence = f"it returns {shown}; the losses of the batches are {', '.join(f'{each:.4g}' for each in losses)}"
    if any(
        abs(value - sum(losses) * factor) <= 1e-3 * sum(losses) * factor for value in returned for factor in (1, BATCH)
    ):
        evidence += ": it is their sum"
    elif any(_close(value, losses[-1]) for value in returned):
        evidence += ": it is the loss of the last batch"
    elif any(_close(value, losses[0]) for value in returned):
        evidence += ": it is the loss of the first batch"
    return [Finding("loss", "fail", None, evidence, "return the mean of loss.item() over the batches")]


def _close(value: float, expected: float) -> bool:
    return abs(value - expected) <= 1e-3 * max(1.0, abs(expected))


def validate(rubric: GradedExercise, where: str) -> None:
    if rubric.interface.build is not None or rubric.interface.settings:
        raise ValueError(f'{where}: this exercise is a function without further settings: function = "train_epoch"')


TRAINING_STEP = Exercise(
    prepare,
    (
        GradedCheck(("step",), check_step),
        GradedCheck(("gradients cleared",), check_zero_grad),
        GradedCheck(("every batch",), check_batches),
        GradedCheck(("train mode",), check_mode),
        GradedCheck(("loss",), check_loss),
    ),
    validate,
    require_response_of_training,
    lines={
        "step": (r"opt\w*\.step\(|scaler\.step\(", r"backward", r"criterion|cross_entropy|loss"),
        **dict.fromkeys(("softmax first", "sum", "ascent"), (r"softmax", r"\bloss\s*=|criterion\(|cross_entropy\(")),
        **dict.fromkeys(DIVISORS, (r"loss\w*\s*=.*/|/=|loss.*/", r"loss\s*=|backward")),
        "own labels": (r"\bloss\s*=|criterion\(|cross_entropy\(",),
        "no gradient": (r"no_grad|detach\(|\.item\(", r"backward"),
        "no backward": (r"\bloss\s*=|criterion\(|cross_entropy\(",),
        "no step": (r"backward",),
        "step first": (r"opt\w*\.step\(|scaler\.step\(",),
        "read twice": (r"\bfor\b",),
        "no update": (r"zero_grad|opt\w*\.step\(", r"backward"),
        "first batch only": (r"return|break", r"\bfor\b"),
        "last batch only": (r"opt\w*\.step\(|scaler\.step\(",),
        "one step": (r"opt\w*\.step\(|scaler\.step\(",),
        "gradients cleared": (r"zero_grad", r"backward"),
        "every batch": (r"\bfor\b", r"return"),
        "train mode": (r"\.train\(|\.eval\(", r"\bfor\b"),
        "loss": (r"return", r"print.*loss", r"loss"),
    },
)
