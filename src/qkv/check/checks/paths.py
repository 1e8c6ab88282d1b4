"""Paths agree: with and without gradients, in training and eval, checkpointing, returned weights, save and load."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.implementation import Implementation, relative_difference
from qkv.check.report import Finding, describe_error, judge

WEIGHT_FLAGS = ("need_weights", "output_attentions", "return_weights", "weights", "return_attention", "return_attn")
CHECKPOINTING = ("gradient_checkpointing", "use_checkpoint", "checkpointing", "use_checkpointing", "grad_checkpointing")


def check_grad_modes(impl: Implementation) -> Finding:
    """Outputs are the same with and without gradients, where libraries take different paths; with padding too."""
    x = impl.random_input(2, impl.length, torch.Generator().manual_seed(20))
    worst = 0.0
    for token_mask in _token_masks(impl):
        with torch.no_grad():
            fast = impl.run(x, token_mask)
        with torch.enable_grad():
            slow = impl.run(x, token_mask).detach()
        worst = max(worst, _difference(impl, token_mask, slow, fast))
    evidence = f"outputs with and without gradients differ by {worst:.2g} (relative)"
    hint = "a fast path without gradients computes something else"
    return judge("paths agree", worst, 10 * impl.tolerance, evidence, hint, "paths differ")


def check_paths(impl: Implementation) -> list[Finding]:
    """Training and eval, checkpointing on and off, weights returned or not give the same outputs."""
    module = impl.module
    assert module is not None
    findings = [_compare_path(impl, "training", "in training and in eval", _training_mode)]
    if _checkpointing_switches(module) or hasattr(module, "gradient_checkpointing_enable"):
        words = "with and without activation checkpointing"
        findings.append(_compare_path(impl, "checkpointing", words, _checkpointing))
    flag = next((name for name in WEIGHT_FLAGS if name in inspect.signature(module.forward).parameters), None)
    if flag is not None:
        words = "with and without returning weights"
        findings.append(_compare_path(impl, "weights", words, partial(_returning_weights, flag=flag)))
    return findings


def _compare_path(impl: Implementation, name: str, words: str, path: Callable[[nn.Module], Any]) -> Finding:
    """The same input on the plain path and on another."""
    assert impl.module is not None
    x = impl.random_input(2, impl.length, torch.Generator().manual_seed(27))
    check, worst = f"paths agree ({name})", 0.0
    with torch.enable_grad():
        for token_mask in _token_masks(impl):
            plain = impl.run(x, token_mask).detach()
            with path(impl.module):
                first, again = (impl.run(x, token_mask).detach() for _ in range(2))
            if not torch.equal(first.nan_to_num(), again.nan_to_num()):
                return Finding(check, "n/a", None, "this path is random (dropout): not compared")
            worst = max(worst, _difference(impl, token_mask, plain, first))
    evidence = f"outputs {words} differ by {worst:.2g} (relative)"
    hint = f"{words} it computes something else: is the mask passed on?"
    return judge(check, worst, 10 * impl.tolerance, evidence, hint, "paths differ")


def _token_masks(impl: Implementation) -> list[Tensor | None]:
    """No padding, and left padding in the first row if padding can be passed."""
    left = torch.arange(impl.length) >= 3
    return [None, torch.stack((left, torch.ones_like(left)))] if impl.takes_padding else [None]


def _difference(impl: Implementation, token_mask: Tensor | None, expected: Tensor, found: Tensor) -> float:
    """The relative difference of the outputs of real tokens."""
    if token_mask is not None:
        expected, found = impl.select_tokens(expected, token_mask), impl.select_tokens(found, token_mask)
        both_nan = expected.isnan() & found.isnan()  # NaN on both paths is reported by other checks
        expected, found = expected.masked_fill(both_nan, 0.0), found.masked_fill(both_nan, 0.0)
    return relative_difference(expected, found)


@contextmanager
def _training_mode(module: nn.Module) -> Iterator[None]:
    """Training mode with dropout modules off and batch norms in eval: they differ by design, and keep state."""
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
def _checkpointing(module: nn.Module) -> Iterator[None]:
    """Training mode with every checkpointing switch inverted."""
    with _training_mode(module):
        enable, disable = (getattr(module, f"gradient_checkpointing_{word}", None) for word in ("enable", "disable"))
        if enable is not None and disable is not None:  # models of transformers
            enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            try:
                yield
            finally:
                disable()
            return
        switches = _checkpointing_switches(module)
        for part, name, value in switches:
            setattr(part, name, not value)
        try:
            yield
        finally:
            for part, name, value in switches:
                setattr(part, name, value)


def _checkpointing_switches(module: nn.Module) -> list[tuple[nn.Module, str, bool]]:
    return [
        (part, name, getattr(part, name))
        for part in module.modules()
        for name in CHECKPOINTING
        if isinstance(getattr(part, name, None), bool)
    ]


@contextmanager
def _returning_weights(module: nn.Module, flag: str) -> Iterator[None]:
    """With its flag for weights inverted."""
    default = inspect.signature(module.forward).parameters[flag].default
    forward = module.forward
    module.forward = partial(forward, **{flag: not default if isinstance(default, bool) else True})
    try:
        yield
    finally:
        del module.forward


# -- save and load -----------------------------------------------------------------------------------------------------


def check_save_and_load(impl: Implementation) -> list[Finding]:
    """Loaded from its own state it gives the same outputs, and tied weights stay tied."""
    module, name = impl.module, "saved and loaded"
    assert module is not None
    if not any(True for _ in module.parameters()):
        return []
    try:
        other = copy.deepcopy(module)
    except Exception as error:
        return [Finding(name, "n/a", None, f"it cannot be copied: {type(error).__name__}")]
    state = {key: value.clone() for key, value in module.state_dict().items() if isinstance(value, Tensor)}
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.is_floating_point():
                parameter.add_(0.1)
    try:
        other.load_state_dict(state)
    except Exception as error:
        evidence = f"load_state_dict refuses its own state: {describe_error(error)}"
        return [Finding(name, "fail", 1.0, evidence, "the names of weights change", "untied")]
    untied = tied_weights(module) - tied_weights(other)
    if untied:
        evidence = f"after loading, {' and '.join(sorted(next(iter(untied))))} are two tensors; before they were one"
        hint = "loading unties: copy into the existing tensor, or tie again afterwards"
        return [Finding(name, "fail", 1.0, evidence, hint, "untied")]
    score = _difference_after_loading(impl, module, other)
    evidence = f"loaded from its own state, outputs differ by {score:.2g} (relative)"
    return [judge(name, score, 10 * impl.tolerance, evidence, "some weights are not in the state, or change", "untied")]


def tied_weights(module: nn.Module) -> set[frozenset[str]]:
    """The groups of names that are one tensor."""
    groups: dict[int, set[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.numel():
            groups.setdefault(parameter.data_ptr(), set()).add(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}


def _difference_after_loading(impl: Implementation, module: nn.Module, other: nn.Module) -> float:
    """How much the outputs change when the module gets the loaded weights."""
    x = impl.random_input(2, impl.length, torch.Generator().manual_seed(28))
    before = impl.run(x)
    kept = [parameter.detach().clone() for parameter in module.parameters()]
    loaded = dict(other.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, parameter in module.named_parameters(remove_duplicate=False):
            parameter.copy_(loaded[name])
        after = impl.run(x)
        for parameter, value in zip(module.parameters(), kept, strict=True):
            parameter.copy_(value)
    return relative_difference(before, after)
