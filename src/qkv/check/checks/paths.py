"""Its own paths agree: training and eval, checkpointing on and off, weights handed out or not, kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.finding import Finding
from qkv.check.subject import Subject

WEIGHTS = ("need_weights", "output_attentions", "return_weights", "weights", "return_attention", "return_attn")
CHECKPOINTING = ("gradient_checkpointing", "use_checkpoint", "checkpointing", "use_checkpointing", "grad_checkpointing")


def check_paths(subject: Subject) -> list[Finding]:
    module = subject.module
    if module is None:
        return []
    findings = [_compared(subject, "training", _training)]
    if _switches(module) or hasattr(module, "gradient_checkpointing_enable"):
        findings.append(_compared(subject, "checkpointing", _checkpointed))
    flag = next((name for name in WEIGHTS if name in inspect.signature(module.forward).parameters), None)
    if flag is not None:
        findings.append(_compared(subject, "weights", partial(_handing_out, flag=flag)))
    return findings


def _compared(subject: Subject, name: str, path: Callable[[nn.Module], Any]) -> Finding:
    """The same input by the plain path and by another."""
    assert subject.module is not None
    generator = torch.Generator().manual_seed(27)
    x = subject.draw(2, subject.length, generator)
    left = torch.arange(subject.length) >= 3
    flags: list[Tensor | None] = [None, torch.stack((left, torch.ones_like(left)))] if subject.pads else [None]
    worst = 0.0
    with torch.enable_grad():
        for present in flags:
            plain = subject.run(x, present).detach()
            with path(subject.module):
                first, again = (subject.run(x, present).detach() for _ in range(2))
            if not torch.equal(first.nan_to_num(), again.nan_to_num()):
                return Finding(
                    f"paths agree ({name})", "n/a", None, "this path draws at random (dropout): not compared"
                )
            if present is not None:
                plain, first = subject.at(plain, present), subject.at(first, present)
                both = plain.isnan() & first.isnan()  # what is NaN on both paths is said elsewhere
                plain, first = plain.masked_fill(both, 0.0), first.masked_fill(both, 0.0)
            size = float(plain.nan_to_num().abs().max()) or 1.0
            worst = max(worst, float((plain - first).abs().nan_to_num(nan=float("inf")).max()) / size)
    words = {"training": "in training and in eval", "checkpointing": "with and without checkpointing"}
    evidence = f"{words.get(name, 'with and without handing out weights')} outputs differ by {worst:.2g} of their size"
    if worst <= 10 * subject.tolerance:
        return Finding(f"paths agree ({name})", "pass", worst, evidence)
    hint = f"{words.get(name, 'when weights are handed out')} it computes something else: is the mask handed on?"
    return Finding(f"paths agree ({name})", "fail", worst, evidence, hint, "paths differ")


@contextmanager
def _training(module: nn.Module) -> Iterator[None]:
    """Training mode with all dropout modules silent and batch norms as in eval: they differ by design, and remember."""
    rates = [(part, part.p) for part in module.modules() if isinstance(part, nn.modules.dropout._DropoutNd)]
    for part, _ in rates:
        part.p = 0.0
    module.train()
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.eval()
    try:
        yield
    finally:
        module.eval()
        for part, rate in rates:
            part.p = rate


@contextmanager
def _checkpointed(module: nn.Module) -> Iterator[None]:
    """In training mode with every checkpointing switch the other way round."""
    with _training(module):
        enable, disable = (getattr(module, f"gradient_checkpointing_{word}", None) for word in ("enable", "disable"))
        if enable is not None and disable is not None:  # transformers' models hand the function out on enabling
            enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            try:
                yield
            finally:
                disable()
            return
        switches = _switches(module)
        for part, name, value in switches:
            setattr(part, name, not value)
        try:
            yield
        finally:
            for part, name, value in switches:
                setattr(part, name, value)


def _switches(module: nn.Module) -> list[tuple[nn.Module, str, bool]]:
    return [
        (part, name, getattr(part, name))
        for part in module.modules()
        for name in CHECKPOINTING
        if isinstance(getattr(part, name, None), bool)
    ]


@contextmanager
def _handing_out(module: nn.Module, flag: str) -> Iterator[None]:
    """With its flag for weights the other way round than its default."""
    default = inspect.signature(module.forward).parameters[flag].default
    plain = module.forward
    module.forward = partial(plain, **{flag: not default if isinstance(default, bool) else True})
    try:
        yield
    finally:
        del module.forward
