"""Gradient accumulation: several small batches give the gradient of one large one, also when some are left over."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.contract import Contract
from qkv.check.finding import Finding, told

LOSSES = ("loss_fn", "loss", "criterion", "loss_function", "objective")
OPTIMISERS = ("optimizer", "optimiser", "opt", "optim")
WINDOWS = (
    "accumulation_steps",
    "accumulate",
    "accumulation",
    "grad_accum",
    "steps",
    "gradient_accumulation_steps",
    "every",
)
Batch = tuple[Tensor, Tensor]


def check_accumulation(function: Callable[..., Any], contract: Contract) -> tuple[str, list[Finding]]:
    """accumulate(model, batches, …): batches are pairs (inputs, targets); the loss is a mean over a batch's rows."""
    names = [name.lower() for name in inspect.signature(function).parameters]
    steps = any(name in OPTIMISERS for name in names)
    how = f"({', '.join(names)}): batches are (inputs, targets), the loss is the mean squared error"
    findings = [_whole(function, "accumulation", [4, 4, 4, 4], 4)]
    if steps and any(name in WINDOWS for name in names):
        findings.append(_whole(function, "partial window", [4, 4, 4, 4, 4, 4], 4))
    findings.append(_whole(function, "unequal batches", [4, 4, 2], 3))
    return how, findings


def _mean_square(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 2).mean()


def _draw(rows: Sequence[int]) -> list[Batch]:
    generator = torch.Generator().manual_seed(33)
    draw = lambda n, c: torch.randn(n, c, generator=generator, dtype=torch.float64)  # noqa: E731
    return [(draw(n, 5), draw(n, 3)) for n in rows]


def _fresh() -> nn.Module:
    model = nn.Linear(5, 3).double()
    generator = torch.Generator().manual_seed(34)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def _moved(function: Callable[..., Any], batches: list[Batch], window: int) -> Tensor:
    """What the function did to the weights: the gradient it left, or what its steps of size 1e-3 changed, by 1e-3."""
    model = _fresh()
    before = _flat([p.detach().clone() for p in model.parameters()])
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    named: dict[str, Any] = {}
    names = list(inspect.signature(function).parameters)
    for name in names[2:]:
        low = name.lower()
        known = {
            **dict.fromkeys(LOSSES, _mean_square),
            **dict.fromkeys(OPTIMISERS, optimiser),
            **dict.fromkeys(WINDOWS, window),
        }
        if low in known:
            named[name] = known[low]
    with torch.enable_grad():
        function(model, batches, **named)
    if any(name.lower() in OPTIMISERS for name in names):
        return (before - _flat([p.detach() for p in model.parameters()])) / 1e-3
    return _flat([p.new_zeros(p.shape) if p.grad is None else p.grad for p in model.parameters()])


def _expected(function: Callable[..., Any], batches: list[Batch], window: int) -> Tensor:
    """The same by whole batches: one for each window."""
    model = _fresh()
    before = _flat([p.detach().clone() for p in model.parameters()])
    steps = any(name.lower() in OPTIMISERS for name in inspect.signature(function).parameters)
    for start in range(0, len(batches), window if steps else len(batches)):
        part = batches[start : start + (window if steps else len(batches))]
        inputs, targets = (torch.cat(side) for side in zip(*part, strict=True))
        with torch.enable_grad():
            slopes = torch.autograd.grad(_mean_square(model(inputs), targets), list(model.parameters()))
        if not steps:
            return _flat(slopes)
        with torch.no_grad():
            for parameter, slope in zip(model.parameters(), slopes, strict=True):
                parameter -= 1e-3 * slope
    return (before - _flat([p.detach() for p in model.parameters()])) / 1e-3


def _whole(function: Callable[..., Any], name: str, rows: list[int], window: int) -> Finding:
    batches = _draw(rows)
    try:
        found = _moved(function, batches, window)
    except Exception as error:
        return Finding(name, "inconclusive", None, f"the call failed: {told(error)}")
    expected = _expected(function, batches, window)
    score = float((found - expected).abs().max() / expected.abs().max())
    ratio = float((found * expected).sum() / (expected * expected).sum())
    evidence = (
        f"{len(rows)} batches of {rows} rows differ by {score:.2g} from whole ones ({ratio:.3g} times the update)"
    )
    if score <= 1e-6:
        return Finding(name, "pass", score, evidence)
    verdict = "warn" if name == "unequal batches" else "fail"  # most code counts on batches of one size
    return Finding(
        name, verdict, score, evidence, _why(function, name, batches, window, found, expected, ratio), "accumulation"
    )


def _why(
    function: Callable[..., Any],
    name: str,
    batches: list[Batch],
    window: int,
    found: Tensor,
    expected: Tensor,
    ratio: float,
) -> str:
    n = len(batches)
    straight = float((found - ratio * expected).abs().max()) <= 1e-3 * float(found.abs().max() or 1)
    if name == "accumulation" and straight:
        if abs(ratio * n - 1) <= 1e-2:
            return "the loss is divided twice: a batch's mean is a mean already, divide by the number of batches once"
        if abs(ratio / n - 1) <= 1e-2:
            return "the loss is not divided: the gradients of the batches are summed"
        return "the update points the right way but has the wrong size"
    if name == "partial window":
        dropped = _expected(function, batches[: n // window * window], window)
        if float((found - dropped).abs().max()) <= 1e-6 * float(dropped.abs().max()):
            return "batches left over at the end are dropped: step once more for them"
        return "the last, partial window is divided by the whole window's size, or its gradient is carried on"
    if name == "unequal batches":
        return "a mean of means is not the mean: weigh each batch by its rows (or tokens)"
    return "gradients are lost or kept between the batches: zero them once a window, after the step"


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])
