"""A hand-written backward pass: which gradient is not the derivative, and by what factor or term."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qkv.check.checks.backward_terms import name_term, weighted_gradients

NO_FACTOR = "not the derivative: no constant factor, so a term is missing or wrong"


def compare_backward(function: type, call: Callable[[], object]) -> list[str]:
    """What is wrong in a hand-written backward pass, argument by argument, in words; empty if nothing was found.

    Args:
        function: a subclass of torch.autograd.Function. call: runs code that applies it.
    """
    kept: list[tuple[Any, ...]] = []
    apply = function.apply  # pyright: ignore[reportAttributeAccessIssue]

    def remember(*arguments: Any) -> Any:
        kept.append(arguments)
        return apply(*arguments)

    own = "apply" in vars(function)
    function.apply = staticmethod(remember)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        call()
    finally:
        if own:
            function.apply = apply  # pyright: ignore[reportAttributeAccessIssue]
        else:
            del function.apply  # pyright: ignore[reportAttributeAccessIssue]
    if not kept:
        return []
    arguments = [x.detach().clone() if isinstance(x, Tensor) else x for x in kept[0]]
    names = list(inspect.signature(function.forward).parameters)  # pyright: ignore[reportAttributeAccessIssue]
    names = names[1:] if len(names) > len(arguments) else names
    wrong: dict[str, list[str]] = {}
    for place, name in enumerate(names[: len(arguments)]):
        x = arguments[place]
        if isinstance(x, Tensor) and x.dtype == torch.float64:
            ratios = _gradient_ratios(apply, arguments, place)
            words = None if ratios is None else _describe_ratios(ratios, x.shape[-1])
            if words is not None:
                term = _find_term(apply, arguments, place) if words == NO_FACTOR else ""
                wrong.setdefault(term or words, []).append(name)
    return [
        f"the gradient{'s' if len(who) > 1 else ''} of {' and '.join(who)} {'are' if len(who) > 1 else 'is'} {words}"
        for words, who in wrong.items()
    ]


def _find_term(apply: Callable[..., Any], arguments: list[Any], place: int) -> str:
    try:
        return name_term(apply, arguments, place)
    except Exception:  # it is not attention, or of other shapes: the gradient is still known to be wrong
        return ""


def _gradient_ratios(apply: Callable[..., Any], arguments: list[Any], place: int) -> list[float] | None:
    """The gradient along some directions of one argument, divided by the difference quotient; None without one."""
    generator = torch.Generator().manual_seed(17)
    x = arguments[place].clone().requires_grad_()

    def run(y: Tensor) -> Tensor:
        out = apply(*arguments[:place], y, *arguments[place + 1 :])
        return out[0] if isinstance(out, tuple) else out

    out = run(x)
    weights = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    (gradient,) = weighted_gradients(out, weights, [x])
    ratios = []
    for _ in range(3):
        direction = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        slope = 0.0 if gradient is None else float((gradient * direction).sum())
        with torch.no_grad():
            ahead, behind = (run(x.detach() + sign * 1e-5 * direction) for sign in (1, -1))
        quotient = float(((ahead - behind) * weights).sum()) / 2e-5
        if abs(quotient) < 1e-9:
            return None
        ratios.append(slope / quotient)
    return ratios


def _describe_ratios(ratios: list[float], head_dim: int) -> str | None:
    """A wrong gradient in words; None if it is right."""
    if all(abs(ratio - 1) < 1e-3 for ratio in ratios):
        return None
    middle = sorted(ratios)[1]
    if any(abs(ratio - middle) > 1e-3 * max(abs(middle), 1e-3) for ratio in ratios):
        return NO_FACTOR
    known = {
        0.0: "0",
        -1.0: "the negative of the derivative",
        head_dim**0.5: "√d times the derivative: the scale 1/√d is missing",
        head_dim**-0.5: "1/√d of the derivative: the scale is applied twice",
        float(head_dim): "d times the derivative",
        2.0: "twice the derivative",
        0.5: "half of the derivative",
    }
    words = next((words for value, words in known.items() if abs(middle - value) < 2e-3 * max(abs(value), 1.0)), None)
    return words or f"{middle:.4g} times the derivative"


def written_backwards(out: Tensor) -> dict[str, type | None]:
    """The autograd functions with a hand-written backward pass in the graph of an output, by name."""
    found: dict[str, type | None] = {}
    seen, waiting = set(), [out.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            found[type(node).__name__.removesuffix("Backward")] = getattr(type(node), "_forward_cls", None)
        waiting += [child for child, _ in node.next_functions]
    return dict(sorted(found.items()))
