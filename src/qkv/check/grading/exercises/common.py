"""Checks that every layer with vectors in and out can go through, whatever it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check import influence
from qkv.check.checks.always import batch_independence, determinism, finite, paths
from qkv.check.checks.gradient import directional
from qkv.check.checks.kind import check_kind
from qkv.check.checks.length import check_truncation
from qkv.check.contract import Contract
from qkv.check.finding import Finding
from qkv.check.grading.exercises.exercise import Producer
from qkv.check.subject import Subject

BATCH = ("batch (alone)", "batch (with others)", "batch (reordered)")


class Opened:
    """A layer under grading: its subject, what is promised, and the grader's copy of its weights."""

    def __init__(self, subject: Subject, contract: Contract, shell: nn.Module) -> None:
        self.subject, self.contract, self.shell = subject, contract, shell

    @property
    def weights(self) -> dict[str, Tensor]:
        return dict(self.shell.named_parameters())


def without_gradients(check: Callable[[Any], list[Finding]]) -> Callable[[Any], list[Finding]]:
    """The same check, run without gradients."""

    def run(prepared: Any) -> list[Finding]:
        with torch.no_grad():
            return check(prepared)

    return run


def shape(opened: Opened) -> list[Finding]:
    """One vector out for each token in, at several lengths and batch sizes (the subject refuses other shapes)."""
    generator = torch.Generator().manual_seed(30)
    for batch, length in ((1, 1), (2, 5), (3, opened.subject.length)):
        opened.subject.run(opened.subject.draw(batch, length, generator))
    return [Finding("shape", "pass", 0.0, "one vector for each token, for texts of 1, 5 and more tokens")]


def kind(opened: Opened) -> list[Finding]:
    return check_kind(influence.measure(opened.subject), opened.contract)


def parameter_gradients(opened: Opened) -> list[Finding]:
    """The gradient of every parameter that matters equals the difference quotient: it is trained, not detached."""
    subject, generator = opened.subject, torch.Generator().manual_seed(31)
    named = {name: weight for name, weight in opened.shell.named_parameters() if weight.requires_grad}
    if not named:
        return [Finding("gradients of parameters", "fail", None, "it has no parameters that are trained")]
    x = subject.draw(2, subject.length, generator)
    with torch.enable_grad():
        out = subject.run(x)
        mixed = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
        slopes = torch.autograd.grad((out * mixed).sum(), list(named.values()), allow_unused=True)
    step = 1e-4 if subject.dtype == torch.float64 else 1e-2
    rows = []
    for (name, weight), slope in zip(named.items(), slopes, strict=True):
        way = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight.dtype)
        found = 0.0 if slope is None else float((slope * way).sum())
        rows.append((name, found, _quotient(subject, x, mixed, weight, way, step)))
    return [_compared(rows, 1e-4 if subject.dtype == torch.float64 else 5e-2)]


def _quotient(subject: Subject, x: Tensor, mixed: Tensor, weight: Tensor, way: Tensor, step: float) -> float:
    kept = weight.detach().clone()
    sides = []
    with torch.no_grad():
        for sign in (1, -1):
            weight.copy_(kept + sign * step * way)
            sides.append(float((subject.run(x) * mixed).sum()))
        weight.copy_(kept)
    return (sides[0] - sides[1]) / (2 * step)


def _compared(rows: list[tuple[str, float, float]], limit: float) -> Finding:
    size = max(abs(quotient) for _, _, quotient in rows)
    if not size > 0:
        return Finding("gradients of parameters", "fail", None, "no parameter changes the output")
    name, slope, quotient = max(rows, key=lambda row: abs(row[1] - row[2]))
    score = abs(slope - quotient) / size
    evidence = (
        f"of {len(rows)} parameters {name} is furthest off: gradient {slope:.4g}, difference quotient {quotient:.4g}"
    )
    if score <= limit:
        return Finding("gradients of parameters", "pass", score, evidence)
    hint = "part of the way is detached (detach, item, no_grad, numpy), so training misses it"
    return Finding("gradients of parameters", "fail", score, evidence, hint)


PRODUCERS = (
    Producer(("shape",), without_gradients(shape)),
    Producer(("finite",), without_gradients(lambda opened: [finite(opened.subject)])),
    Producer(("steady in eval",), without_gradients(lambda opened: [determinism(opened.subject)])),
    Producer(BATCH, without_gradients(lambda opened: batch_independence(opened.subject))),
    Producer(("paths agree",), lambda opened: [paths(opened.subject)]),
    Producer(("causal", "past reachable", "kind"), without_gradients(kind)),
    Producer(("truncation",), without_gradients(lambda opened: check_truncation(opened.subject, opened.contract))),
    Producer(("gradient",), lambda opened: [directional(opened.subject)]),
    Producer(("gradients of parameters",), parameter_gradients),
)
