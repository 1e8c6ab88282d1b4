"""Training code as a target: gradient accumulation equals one batch, and a train/validation split is disjoint."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from qkv.check.contract import Contract
from qkv.check.report import Finding, describe_error

LOGITS = ("logits", "lm_logits", "predictions", "preds", "pred", "scores", "outputs", "output")
MODELS = ("model", "module", "net", "network")
BATCHES = ("batches", "micro_batches", "microbatches", "loader", "batch_list", "data")
LOSSES = ("loss_fn", "loss", "criterion", "loss_function", "objective")
OPTIMIZERS = ("optimizer", "optimiser", "opt", "optim")
WINDOWS = (
    "accumulation_steps", "accumulate", "accumulation", "grad_accum", "steps", "gradient_accumulation_steps", "every",
)  # fmt: skip
EXAMPLES = 200
LEARNING_RATE = 1e-3

Batch = tuple[Tensor, Tensor]


def guess_part(found: Any) -> Literal["loss", "accumulate", "split"] | None:
    """Which part of a training run a function is, by its name and its parameters; None if it is none."""
    if inspect.isclass(found) or not callable(found) or hasattr(found, "parameters"):
        return None
    try:
        names = [name.lower() for name in inspect.signature(found).parameters]
    except (TypeError, ValueError):
        return None
    called = getattr(found, "__name__", type(found).__name__).lower()
    if len(names) >= 2 and (names[0] in LOGITS or ("loss" in called and names[0] not in MODELS)):
        return "loss"
    if len(names) >= 2 and names[0] in MODELS and names[1] in BATCHES:
        return "accumulate"
    if "split" in called and names and not called.startswith("split_heads") and names[0] not in ("x", "q"):
        return "split"
    return None


# -- gradient accumulation ---------------------------------------------------------------------------------------------


def check_accumulation(function: Callable[..., Any], contract: Contract) -> tuple[str, list[Finding]]:
    """accumulate(model, batches, …) gives the update of whole batches; returns how it is called and the findings.

    Batches are pairs (inputs, targets); the loss is a mean over the rows of a batch.
    """
    names = [name.lower() for name in inspect.signature(function).parameters]
    how = f"({', '.join(names)}): batches are (inputs, targets), the loss is the mean squared error"
    findings = [_compare_update(function, "accumulation", [4, 4, 4, 4], 4)]
    if _takes_optimizer(function) and any(name in WINDOWS for name in names):
        findings.append(_compare_update(function, "partial window", [4, 4, 4, 4, 4, 4], 4))
    findings.append(_compare_update(function, "unequal batches", [4, 4, 2], 3))
    return how, findings


def _compare_update(function: Callable[..., Any], name: str, rows: list[int], window: int) -> Finding:
    batches = _random_batches(rows)
    try:
        found = _update_of(function, batches, window)
    except Exception as error:
        return Finding(name, "inconclusive", None, f"the call failed: {describe_error(error)}")
    expected = _expected_update(function, batches, window)
    score = float((found - expected).abs().max() / expected.abs().max())
    ratio = float((found * expected).sum() / (expected * expected).sum())
    evidence = (
        f"with {len(rows)} batches of {rows} rows the update differs by {score:.2g} (relative) from that of whole "
        f"batches ({ratio:.3g} times its size)"
    )
    if score <= 1e-6:
        return Finding(name, "pass", score, evidence)
    verdict = "warn" if name == "unequal batches" else "fail"  # most code expects batches of one size
    hint = _explain_update(function, name, batches, window, found, expected, ratio)
    return Finding(name, verdict, score, evidence, hint, "accumulation")


def _explain_update(
    function: Callable[..., Any],
    name: str,
    batches: list[Batch],
    window: int,
    found: Tensor,
    expected: Tensor,
    ratio: float,
) -> str:
    n = len(batches)
    parallel = float((found - ratio * expected).abs().max()) <= 1e-3 * float(found.abs().max() or 1)
    if name == "accumulation" and parallel:
        if abs(ratio * n - 1) <= 1e-2:
            return (
                "the loss is divided twice: the mean of a batch is already a mean, divide by the number of batches once"
            )
        if abs(ratio / n - 1) <= 1e-2:
            return "the loss is not divided: the gradients of the batches are summed"
        return "the update has the right direction but the wrong size"
    if name == "partial window":
        dropped = _expected_update(function, batches[: n // window * window], window)
        if float((found - dropped).abs().max()) <= 1e-6 * float(dropped.abs().max()):
            return "leftover batches at the end are dropped: step once more for them"
        return "the last, partial window is divided by the size of a whole one, or its gradient is carried over"
    if name == "unequal batches":
        return "a mean of means is not the mean: weight each batch by its rows (or tokens)"
    return "gradients are lost or kept between the batches: zero them once per window, after the step"


def _update_of(function: Callable[..., Any], batches: list[Batch], window: int) -> Tensor:
    """What the function did to the weights: the gradient it left, or the change by its steps over the learning rate."""
    model = _fresh_model()
    before = _flatten(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    known = {
        **dict.fromkeys(LOSSES, _mean_squared_error),
        **dict.fromkeys(OPTIMIZERS, optimizer),
        **dict.fromkeys(WINDOWS, window),
    }
    names = list(inspect.signature(function).parameters)[2:]
    with torch.enable_grad():
        function(model, batches, **{name: known[name.lower()] for name in names if name.lower() in known})
    if _takes_optimizer(function):
        return (before - _flatten(model.parameters())) / LEARNING_RATE
    return _flatten([p.new_zeros(p.shape) if p.grad is None else p.grad for p in model.parameters()])


def _expected_update(function: Callable[..., Any], batches: list[Batch], window: int) -> Tensor:
    """The same by whole batches, one per window."""
    model = _fresh_model()
    before = _flatten(model.parameters())
    steps = _takes_optimizer(function)
    window = window if steps else len(batches)
    for start in range(0, len(batches), window):
        inputs, targets = (torch.cat(side) for side in zip(*batches[start : start + window], strict=True))
        with torch.enable_grad():
            loss = _mean_squared_error(model(inputs), targets)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
        if not steps:
            return _flatten(gradients)
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= LEARNING_RATE * gradient
    return (before - _flatten(model.parameters())) / LEARNING_RATE


def _takes_optimizer(function: Callable[..., Any]) -> bool:
    return any(name.lower() in OPTIMIZERS for name in inspect.signature(function).parameters)


def _mean_squared_error(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 2).mean()


def _random_batches(rows: Sequence[int]) -> list[Batch]:
    generator = torch.Generator().manual_seed(33)

    def random(n: int, c: int) -> Tensor:
        return torch.randn(n, c, generator=generator, dtype=torch.float64)

    return [(random(n, 5), random(n, 3)) for n in rows]


def _fresh_model() -> nn.Module:
    model = nn.Linear(5, 3).double()
    generator = torch.Generator().manual_seed(34)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def _flatten(parts: Any) -> Tensor:
    return torch.cat([part.detach().flatten() for part in parts])


# -- train/validation split --------------------------------------------------------------------------------------------


def check_split(function: Callable[..., Any], contract: Contract) -> tuple[str, list[Finding]]:
    """split(examples, …) -> train, validation, …: called with 200 different examples."""
    names = list(inspect.signature(function).parameters)
    forms = {
        "a list": list(range(EXAMPLES)),
        "a tensor": torch.arange(EXAMPLES),
        "a text": [f"example {i}" for i in range(EXAMPLES)],
    }
    tried = []
    for form, data in forms.items():
        try:
            parts = function(data)
            parts = tuple(parts.values()) if isinstance(parts, dict) else tuple(parts)
            if len(parts) >= 2 and all(hasattr(part, "__len__") for part in parts):
                how = f"({', '.join(names)}) with {form} of {EXAMPLES} examples"
                return how, [_check_disjoint(parts), _describe_kept(parts)]
            tried.append(f"{form}: {len(parts)} parts")
        except Exception as error:  # try another form
            tried.append(f"{form}: {type(error).__name__}: {error}")
    raise ValueError(f"the split could not be called with examples alone; tried {'; '.join(tried)}")


def _examples_in(part: Any) -> set[Any]:
    if isinstance(part, Tensor):
        return set(part.flatten().tolist())
    examples: set[Any] = set()
    for item in part:
        examples |= _examples_in(item) if isinstance(item, Tensor | list | tuple) else {item}
    return examples


def _check_disjoint(parts: tuple[Any, ...]) -> Finding:
    train, held_out = _examples_in(parts[0]), set().union(*(_examples_in(part) for part in parts[1:]))
    both = train & held_out
    evidence = f"{len(train)} examples to train on, {len(held_out)} held out, {len(both)} on both sides"
    if not train or not held_out:
        return Finding("split is disjoint", "inconclusive", None, evidence)
    if not both:
        return Finding("split is disjoint", "pass", 0.0, evidence)
    hint = f"{sorted(both, key=str)[0]!r} is on both sides: split first, then cut into windows and shuffle"
    return Finding("split is disjoint", "fail", len(both) / len(held_out), evidence, hint, "split")


def _describe_kept(parts: tuple[Any, ...]) -> Finding:
    kept = set().union(*(_examples_in(part) for part in parts))
    return Finding("split keeps all", "described", None, f"{len(kept)} of {EXAMPLES} examples are in some part")
