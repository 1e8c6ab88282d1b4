"""Precision: a module in float32, bfloat16 and float16 against itself in float64, and against rounded weights.

What rounding the weights, the inputs and the scores alone does to the output, computed in float64, is the least error
that a written-out implementation in that dtype has; a naive one has about as much again from rounding in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qkv._operators import OperatorWatcher
from qkv.check.implementation import Implementation
from qkv.check.report import Finding, describe_error, judge
from qkv.check.shapes import Options, Sweep
from qkv.check.tracing.choices import has_weights, makes_choices

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Three times what a naive implementation has, in units of the error of rounding weights and inputs alone. Measured on
# sound layers and models, in blocks of 32 positions and more: up to 2.5 in 16 bits with a softmax, 4.5 with one that is
# written out inside a custom operator, up to 6 in float32, whose sums are rounded, too; angles of RoPE in bfloat16
# give 6.6 and more.
LIMITS = {torch.float32: 20.0, torch.bfloat16: 5.5, torch.float16: 5.5}
UNSEEN = 3e-5  # a relative error of float32 that is no bug: code may choose an epsilon by the dtype
SOFTMAXES = (
    torch.ops.aten._softmax.default, torch.ops.aten._safe_softmax.default, torch.ops.aten.exp.default,
    torch.ops.aten.exp2.default, torch.ops.aten.logsumexp.default,
)  # fmt: skip
SIZES = (1.0, 4.0)  # of the inputs: larger ones sharpen the attention, which shows errors of positions
FAR = 288  # bfloat16 has 8 bits: it rounds positions above 256
BLOCK = 32  # errors are averaged over at least so many positions


def check_precision(impl: Implementation, sweep: Sweep, options: Options | None = None) -> list[Finding]:
    """Low-precision outputs are off by no more than three times as much as a naive implementation's."""
    if impl.module is None or not any(p.is_floating_point() for p in impl.module.parameters()):
        return []
    if makes_choices(impl):
        return [Finding("dtype", "n/a", None, "it chooses by value (top-k, a router): rounding changes the choice")]
    if not has_weights(impl):
        return [Finding("dtype", "n/a", None, "it has no attention, for which the limits were measured")]
    cases = _cases(impl, sweep)
    worst, words, refused, where = 0.0, [], [], []
    hint = "part of the computation has lower precision than its inputs: positions, scores and softmax need float32"
    family = "low precision"
    asked = options.dtype if options is not None else None
    usual = DTYPES if impl.level == "layer" else DTYPES[:2]  # whole models overflow float16 by design
    for dtype in usual if asked is None else (asked,):
        if dtype == impl.dtype or (dtype == torch.float32 and impl.float32_inside):
            continue
        try:
            errors = [_relative_error(impl, y, exact, dtype) for y, exact in cases]
            if dtype == torch.float16 and errors[0][0] < float("inf"):  # large inputs may overflow by design
                if any(_exp_overflows(impl, y.to(dtype)) for y, _ in cases if y.is_floating_point()):
                    where.append("in float16")
                    hint, family = "exp overflows in float16: subtract the row's maximum first", "overflow"
                    worst = float("inf")
                errors = [case for case in errors if case[0] < float("inf")]
        except Exception as error:
            refused.append(f"{_name(dtype)} raises {describe_error(error)}")
            continue
        ratio, place = max(errors)
        worst = max(worst, ratio / LIMITS[dtype])
        words.append(f"{_name(dtype)} {ratio:.2g} ({place})")
        if ratio > LIMITS[dtype]:
            where.append(f"in {_name(dtype)}, worst at {place}")
    if not words:
        return [Finding("dtype", "n/a" if asked is None else "fail", None, "; ".join(refused) or "it runs in it")]
    evidence = f"errors relative to those of rounding weights and inputs alone: {', '.join(words)}"
    condition = "; ".join(where)
    return [judge("dtype", worst, 1.0, "; ".join([evidence, *refused]), hint, family, condition)]


def _cases(impl: Implementation, sweep: Sweep) -> list[tuple[Tensor, Tensor]]:
    """Inputs and their exact outputs; long enough for positions that bfloat16 rounds, if it takes such a length."""
    lengths = [FAR, sweep.longest(257)] if 257 in sweep.outs else [sweep.longest(257)]
    for length in lengths:
        x = sweep.x if length <= sweep.x.shape[1] else impl.random_input(2, length, torch.Generator().manual_seed(44))
        x = x[:, :length]
        inputs = [size * x for size in SIZES] if x.is_floating_point() else [x]
        try:
            return [(y, impl.run(y)) for y in inputs]
        except Exception:  # too long for it
            if length == lengths[-1]:
                raise
    raise AssertionError("the last length runs or raises")


def _relative_error(impl: Implementation, x: Tensor, exact: Tensor, dtype: torch.dtype) -> tuple[float, str]:
    """The error in units of the error of rounding weights and inputs alone, in the worst block of positions."""
    assert impl.module is not None
    given = x.to(dtype) if x.is_floating_point() else x
    with rounded_weights(impl.module, dtype), RoundedScores(dtype), EpsilonOf(dtype):
        rounded = impl.run(given.to(x.dtype))
    with parameters_in(impl.module, dtype):
        low = impl.run(given)
    errors, floors = (_square_errors(exact, other) for other in (low, rounded))
    least = UNSEEN / LIMITS[dtype] if dtype == torch.float32 else 0.1 * torch.finfo(dtype).eps
    least *= float(exact.abs().mean())
    cases = []
    for start, end in _blocks(errors.shape[0]):
        floor = max(float(floors[start:end].mean()) ** 0.5, least)
        error = float(errors[start:end].mean().nan_to_num(nan=float("inf"))) ** 0.5
        cases.append((error / floor, f"positions {start} to {end - 1}"))
    return max(cases)


def _exp_overflows(impl: Implementation, x: Tensor) -> bool:
    """Whether an exponential of moderate numbers is infinite in the dtype of x."""
    assert impl.module is not None
    watcher = ExpWatcher()
    with parameters_in(impl.module, x.dtype), watcher:
        impl.run(x)
    return watcher.overflows


class ExpWatcher(OperatorWatcher):
    """Watches for exponentials of finite numbers that are infinite."""

    overflows = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.exp.default, torch.ops.aten.exp2.default) and isinstance(args[0], Tensor):
            self.overflows |= bool(out.isinf().any()) and not bool((args[0] == torch.inf).any())
        return out


class RoundedScores(OperatorWatcher):
    """Rounds what goes into a softmax to a dtype, but keeps its own: large scores (ALiBi far out) cost digits."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func in SOFTMAXES and isinstance(args[0], Tensor) and args[0].is_floating_point():
            largest = torch.finfo(self._dtype).max
            scores = args[0].clamp(-largest, largest) if args[0].isfinite().all() else args[0]
            args = (scores.to(self._dtype).to(args[0].dtype), *args[1:])
        named = dict(kwargs or {})
        bias = named.get("attn_mask")  # of a fused kernel
        if isinstance(bias, Tensor) and bias.is_floating_point():
            named["attn_mask"] = bias.to(self._dtype).to(bias.dtype)
        return func(*args, **named)


class EpsilonOf(TorchFunctionMode):
    """PyTorch's RMS norm without an epsilon takes that of its input's dtype: here that of another."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._epsilon = torch.finfo(dtype).eps

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        named = dict(kwargs or {})
        if func is torch.rms_norm and len(args) == 4 and args[3] is None:
            args = (*args[:3], self._epsilon)
        if func is nn.functional.rms_norm and len(args) < 4 and named.get("eps") is None:
            named["eps"] = self._epsilon
        return func(*args, **named)


def _square_errors(exact: Tensor, found: Tensor) -> Tensor:
    """The mean square error at each position."""
    return (exact - found.to(exact.dtype)).flatten(2).double().pow(2).mean((0, 2))


def _blocks(count: int) -> list[tuple[int, int]]:
    """Blocks of positions that double in size."""
    edges = [0, *(edge for edge in (BLOCK * 2**power for power in range(8)) if edge < count - BLOCK // 2), count]
    return list(pairwise(edges))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@contextmanager
def rounded_weights(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """The parameters rounded to a dtype, but kept in their own."""
    kept = [(parameter, parameter.data) for parameter in module.parameters() if parameter.is_floating_point()]
    for parameter, data in kept:
        parameter.data = data.to(dtype).to(data.dtype)
    try:
        yield
    finally:
        for parameter, data in kept:
            parameter.data = data


@contextmanager
def parameters_in(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """The parameters and buffers in another dtype for a while; the old values come back afterwards."""
    kept = [(parameter, parameter.data) for parameter in module.parameters() if parameter.is_floating_point()]
    buffers = [
        (part, name, buffer)
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None and buffer.is_floating_point()
    ]
    try:
        for parameter, data in kept:
            parameter.data = data.to(dtype)
        for part, name, buffer in buffers:
            part._buffers[name] = buffer.to(dtype)
        yield
    finally:
        for parameter, data in kept:
            parameter.data = data
        for part, name, buffer in buffers:
            part._buffers[name] = buffer
