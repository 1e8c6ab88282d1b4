"""Calls into the sandbox as differentiable PyTorch functions, so that the checks can treat a submission as one.

The parameters live here: the grader draws them and sends them with each call. Gradients come back as tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.grading.client import Call, Sandbox, SubmissionError
from qkv.check.implementation import randomize_weights

MAX_PARAMETERS, MAX_DEPTH = 1000, 50  # of a submission; its names are split at the dots


class _RemoteCall(torch.autograd.Function):
    """Forward: one call. Backward: the same call again, with the gradient of its output."""

    @staticmethod
    def forward(
        ctx: Any,
        sandbox: Sandbox,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        names: tuple[str, ...],
        grad: bool,
        *tensors: Tensor,
    ) -> Tensor:
        ctx.sandbox, ctx.args, ctx.kwargs, ctx.names = sandbox, args, kwargs, names
        ctx.tensors = [tensor.detach().clone() for tensor in tensors]
        call, weights = _make_call(args, kwargs, names, ctx.tensors, None)
        (out,), _ = sandbox.call([call], weights, grad=grad)
        if isinstance(out, str) or not out.is_floating_point():
            raise SubmissionError("it returned no tensor of real numbers")
        ctx.shape, ctx.dtype = out.shape, out.dtype
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        call, weights = _make_call(ctx.args, ctx.kwargs, ctx.names, ctx.tensors, grad_outputs[0].to(ctx.dtype))
        (out,), gradients = ctx.sandbox.call([call], weights, grad=True)
        if isinstance(out, str) or out.shape != ctx.shape:
            raise SubmissionError("with gradients it returned another shape")
        results = []
        for name, tensor in zip(ctx.names, ctx.tensors, strict=True):
            gradient = gradients.get(f"0.w.{name[2:]}" if name.startswith("w.") else f"0.i.0.{name}")
            if gradient is not None and gradient.shape != tensor.shape:
                raise SubmissionError(
                    f"it returned a gradient of shape {tuple(gradient.shape)} for {tuple(tensor.shape)}"
                )
            results.append(None if gradient is None else gradient.to(tensor.dtype))
        return (None, None, None, None, None, *results)


def call_remote(
    sandbox: Sandbox,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    weights: dict[str, Tensor] | None = None,
) -> Tensor:
    """Call the submission. The result has gradients with respect to the tensors of the call and the weights."""
    kwargs, weights = kwargs or {}, weights or {}
    tensors = {str(index): value for index, value in enumerate(args) if isinstance(value, Tensor)}
    tensors |= {name: value for name, value in kwargs.items() if isinstance(value, Tensor)}
    tensors |= {f"w.{name}": weight for name, weight in weights.items()}
    template = tuple(None if isinstance(value, Tensor) else value for value in args)
    constants = {name: value for name, value in kwargs.items() if not isinstance(value, Tensor)}
    out = _RemoteCall.apply(sandbox, template, constants, tuple(tensors), torch.is_grad_enabled(), *tensors.values())
    assert isinstance(out, Tensor)
    return out


def _make_call(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    names: tuple[str, ...],
    tensors: list[Tensor],
    grad_output: Tensor | None,
) -> tuple[Call, dict[str, Tensor]]:
    """Put the tensors back where they belong: positional (named by a digit), keyword, or weight (w.name)."""
    named = dict(zip(names, tensors, strict=True))
    weights = {name[2:]: tensor for name, tensor in named.items() if name.startswith("w.")}
    filled = tuple(named.get(str(index), value) for index, value in enumerate(args))
    extra = {name: tensor for name, tensor in named.items() if not name.startswith("w.") and not name.isdigit()}
    return Call(filled, kwargs | extra, grad_output), weights


def load_parameters(sandbox: Sandbox, seed: int) -> nn.Module:
    """Ask a submission for its parameters and draw the trainable ones anew: a module without its code."""
    values, trainable = sandbox.describe()
    _check_parameters(values)
    try:
        module = _module_of(values, trainable)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise SubmissionError("the names of its parameters do not form a module") from None
    return randomize_weights(module, seed)


def _check_parameters(values: dict[str, Tensor]) -> None:
    """Raise on parameters that no layer has: too many, or too deeply nested."""
    if len(values) > MAX_PARAMETERS:
        raise SubmissionError(f"it has {len(values)} parameters; {MAX_PARAMETERS} are allowed")
    for name in values:
        if name.count(".") >= MAX_DEPTH:
            raise SubmissionError(f"the name of a parameter has {name.count('.') + 1} parts; {MAX_DEPTH} are allowed")


def _module_of(values: dict[str, Tensor], trainable: dict[str, bool]) -> nn.Module:
    """A module that holds these parameters under their dotted names."""
    root = nn.Module()
    for name, value in values.items():
        *path, last = name.split(".")
        parent = root
        for part in path:
            if not isinstance(getattr(parent, part, None), nn.Module):
                parent.add_module(part, nn.Module())
            parent = parent.get_submodule(part)
        requires_grad = trainable[name] and value.is_floating_point()
        parent.register_parameter(last, nn.Parameter(value, requires_grad=requires_grad))
    return root


def check_shape(out: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the output if it has the expected shape."""
    if tuple(out.shape) != shape:
        raise SubmissionError(f"its output has shape {tuple(out.shape)}, expected {shape}")
    return out
