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
    return _of_gradients(wrong)


def _of_gradients(wrong: dict[str, list[str]]) -> list[str]:
    """Sentences from what is wrong to the arguments whose gradients have it."""
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


def name_grouped_sums(call: Callable[..., Tensor], parts: list[Tensor]) -> str:
    """How the gradients of fewer key heads come from those of one key head for each query head, if they are wrong.

    Args:
        call: a function of q, k and v. parts: q (b, h, t, d), k and v (b, g, s, d).
    """
    q, k, v = parts
    groups, rate = k.shape[1], q.shape[1] // k.shape[1]
    ways = {"repeated": lambda x: x.repeat_interleave(rate, 1), "tiled": lambda x: x.repeat(1, rate, 1, 1)}
    sums = {
        "repeated": lambda x: x.unflatten(1, (groups, rate)).sum(2),
        "tiled": lambda x: x.unflatten(1, (rate, groups)).sum(1),
    }
    leaves = [x.clone().requires_grad_() for x in parts]
    out = call(*leaves)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(20), dtype=torch.float64).to(out.dtype)
    found = weighted_gradients(out, weights, leaves)
    for way, share in ways.items():
        apart = [q.clone().requires_grad_(), share(k).requires_grad_(), share(v).requires_grad_()]
        try:
            same = _equal(call(*apart), out)
        except RuntimeError:  # it takes this number of key heads only
            return ""
        if not same:
            continue
        expected = weighted_gradients(call(*apart), weights, apart)
        other = "tiled" if way == "repeated" else "repeated"
        named: dict[str, list[str]] = {}
        for name, got, whole in zip("kv", found[1:], expected[1:], strict=True):
            if got is None or whole is None or _equal(sums[way](whole), got):
                continue
            heads = whole.unflatten(1, (groups, rate) if way == "repeated" else (rate, groups))
            axis = 2 if way == "repeated" else 1
            wrong = {
                f"summed over the wrong query heads ({other} instead of {way})": sums[other](whole),
                "averaged over the query heads that share a key head, not summed": heads.mean(axis),
                "that of the first query head only, of those that share a key head": heads.select(axis, 0),
                "that of the last query head only, of those that share a key head": heads.select(axis, -1),
            }
            words = next((words for words, gradient in wrong.items() if _equal(gradient, got)), "")
            if words:
                named.setdefault(words, []).append(name)
        return "; ".join(_of_gradients(named))
    return ""


def _equal(a: Tensor, b: Tensor) -> bool:
    a, b = a.detach(), b.detach()
    return a.shape == b.shape and float((a - b).abs().max()) <= 1e-5 * float(b.abs().max().clamp(min=1e-300))


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
