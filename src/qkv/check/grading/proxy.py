"""A submission as the checks see it: a function of tensors with gradients, though every call crosses to its sandbox.

Its parameters live here, drawn by the grader, and are sent with each call; gradients come back as tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.grading.remote import Call, Remote, UnansweredError
from qkv.check.subject import randomised


class _Crossing(torch.autograd.Function):
    """Forward: one call. Backward: the call again, with what to multiply its output's gradient by."""

    @staticmethod
    def forward(
        ctx: Any,
        remote: Remote,
        places: tuple[Any, ...],
        named: dict[str, Any],
        names: tuple[str, ...],
        grad: bool,
        *tensors: Tensor,
    ) -> Tensor:
        ctx.remote, ctx.places, ctx.named, ctx.names = remote, places, named, names
        ctx.tensors = [tensor.detach().clone() for tensor in tensors]
        call, weights = _assembled(places, named, names, ctx.tensors, None)
        (out,), _ = remote.call([call], weights, grad=grad)
        if isinstance(out, str) or not out.is_floating_point():
            raise UnansweredError("it returned no tensor of real numbers")
        ctx.shape, ctx.kind = out.shape, out.dtype
        return out

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        call, weights = _assembled(ctx.places, ctx.named, ctx.names, ctx.tensors, slopes[0].to(ctx.kind))
        (out,), found = ctx.remote.call([call], weights, grad=True)
        if isinstance(out, str) or out.shape != ctx.shape:
            raise UnansweredError("with gradients it returned another shape")
        given = []
        for name, tensor in zip(ctx.names, ctx.tensors, strict=True):
            slope = found.get(f"0.w.{name[2:]}" if name.startswith("w.") else f"0.i.0.{name}")
            if slope is not None and slope.shape != tensor.shape:
                raise UnansweredError(
                    f"it handed back a gradient of shape {tuple(slope.shape)} for {tuple(tensor.shape)}"
                )
            given.append(None if slope is None else slope.to(tensor.dtype))
        return (None, None, None, None, None, *given)


def crossed(
    remote: Remote, places: Sequence[Any], named: dict[str, Any] | None = None, weights: dict[str, Tensor] | None = None
) -> Tensor:
    """Call the submission; the result has gradients with respect to the tensors handed in and the weights."""
    named, weights = named or {}, weights or {}
    inputs = {str(place): said for place, said in enumerate(places) if isinstance(said, Tensor)}
    inputs |= {name: said for name, said in named.items() if isinstance(said, Tensor)}
    everything = inputs | {f"w.{name}": weight for name, weight in weights.items()}
    template = tuple(None if isinstance(said, Tensor) else said for said in places)
    plain = {name: said for name, said in named.items() if not isinstance(said, Tensor)}
    out = _Crossing.apply(remote, template, plain, tuple(everything), torch.is_grad_enabled(), *everything.values())
    assert isinstance(out, Tensor)
    return out


def _assembled(
    places: tuple[Any, ...], named: dict[str, Any], names: tuple[str, ...], tensors: list[Tensor], slopes: Tensor | None
) -> tuple[Call, dict[str, Tensor]]:
    given = dict(zip(names, tensors, strict=True))
    weights = {name[2:]: tensor for name, tensor in given.items() if name.startswith("w.")}
    filled = tuple(given.get(str(place), said) for place, said in enumerate(places))
    extra = {name: t for name, t in given.items() if not name.startswith("w.") and not name.isdigit()}
    return Call(filled, named | extra, slopes), weights


def shell_of(values: dict[str, Tensor], trained: dict[str, bool]) -> nn.Module:
    """A submission's parameters under their dotted names, without its code."""
    shell = nn.Module()
    for name, value in values.items():
        *path, last = name.split(".")
        holder = shell
        for part in path:
            if not isinstance(getattr(holder, part, None), nn.Module):
                holder.add_module(part, nn.Module())
            holder = holder.get_submodule(part)
        learned = trained[name] and value.is_floating_point()
        holder.register_parameter(last, nn.Parameter(value, requires_grad=learned))
    return shell


def opened(remote: Remote, seed: int) -> nn.Module:
    """Ask the submission for its parameters, and draw those that are trained anew."""
    values, trained = remote.describe()
    try:
        shell = shell_of(values, trained)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UnansweredError("its parameters have names that make no module") from None
    return randomised(shell, seed)


def of_shape(out: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The output, if it has the shape that was asked for."""
    if tuple(out.shape) != shape:
        raise UnansweredError(f"its output has shape {tuple(out.shape)}, expected {shape}")
    return out
