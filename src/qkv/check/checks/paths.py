"""Paths agree: with and without gradients, in training and eval, checkpointing, returned weights, save and load."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.checks.state import dropout_rates, forward_as
from qkv.check.implementation import Implementation, relative_difference
from qkv.check.report import Finding, describe_error, judge
from qkv.check.shapes import Sweep
from qkv.check.tracing.recorder import record_attention

WEIGHT_FLAGS = ("need_weights", "output_attentions", "return_weights", "weights", "return_attention", "return_attn")
CHECKPOINTING = ("gradient_checkpointing", "use_checkpoint", "checkpointing", "use_checkpointing", "grad_checkpointing")


def check_grad_modes(impl: Implementation, sweep: Sweep) -> Finding:
    """Outputs are the same with and without gradients, where libraries take different paths; with padding too."""
    x = impl.random_input(2, impl.length, torch.Generator().manual_seed(20))
    worst = 0.0
    for token_mask in _token_masks(impl):
        with torch.no_grad():
            fast = impl.run(x, token_mask)
        with torch.enable_grad():
            slow = impl.run(_tracked(impl, x), token_mask).detach()
        worst = max(worst, _difference(impl, token_mask, slow, fast))
    for length in sweep.only(1, 33, 129):
        with torch.enable_grad():
            slow = impl.run(_tracked(impl, sweep.x[:, :length])).detach()
        worst = max(worst, _difference(impl, None, slow, sweep.outs[length]))
    evidence = f"outputs with and without gradients differ by {worst:.2g} (relative)"
    hint = "a fast path without gradients computes something else"
    return judge("paths agree", worst, 10 * impl.tolerance, evidence, hint, "paths differ")


def find_leaking_mode(impl: Implementation) -> str:
    """In which mode the last token changes earlier outputs, if there is another in which it does not; else ""."""
    generator = torch.Generator().manual_seed(94)
    x = impl.random_input(2, impl.length, generator)
    inputs = x, impl.change_token(x, impl.length - 1, generator)

    def leaks(*, gradients: bool, training: bool = False) -> bool:
        with (
            torch.set_grad_enabled(gradients),
            _training_mode(impl.module) if training and impl.module is not None else nullcontext(),
        ):
            before, after = (impl.run(y).detach()[:, :-1] for y in inputs)
        return relative_difference(before, after) > impl.tolerance

    if not leaks(gradients=False):
        return ""
    if not leaks(gradients=True):
        return "without gradients"
    return "in eval mode" if impl.module is not None and not leaks(gradients=True, training=True) else ""


def _tracked(impl: Implementation, x: Tensor) -> Tensor:
    """The input with gradients, as a layer in the middle of a model gets it: not a leaf."""
    return x.clone().requires_grad_() * 1 if x.is_floating_point() and impl.differentiable else x


def check_paths(impl: Implementation, sweep: Sweep) -> list[Finding]:
    """Training and eval, checkpointing on and off, weights returned or not give the same outputs."""
    module = impl.module
    assert module is not None
    findings = [_compare_path(impl, "training", "in training and in eval", _training_mode, sweep)]
    if _checkpointing_switches(module) or hasattr(module, "gradient_checkpointing_enable"):
        words = "with and without activation checkpointing"
        findings.append(_compare_path(impl, "checkpointing", words, _checkpointing, sweep))
    flag = next((name for name in WEIGHT_FLAGS if name in inspect.signature(module.forward).parameters), None)
    if flag is not None:
        words = "with and without returning weights"
        findings.append(_compare_path(impl, "weights", words, partial(_returning_weights, flag=flag), sweep))
    return findings


def _compare_path(
    impl: Implementation, name: str, words: str, path: Callable[[nn.Module], Any], sweep: Sweep
) -> Finding:
    """The same input on the plain path and on another."""
    assert impl.module is not None
    x = impl.random_input(2, impl.length, torch.Generator().manual_seed(27))
    check, worst = f"paths agree ({name})", 0.0
    inputs = [(x, token_mask) for token_mask in _token_masks(impl)]
    inputs += [(sweep.x[:, :length], None) for length in sweep.only(1, 65)]
    with torch.enable_grad():
        for x, token_mask in inputs:
            plain = impl.run(x, token_mask).detach()
            with path(impl.module):
                first, again = (impl.run(_tracked(impl, x), token_mask).detach() for _ in range(2))
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
    """Training mode with dropout rates of 0 and batch norms in eval: they differ by design, and keep state."""
    with dropout_rates(module, 0.0):
        module.train()
        for part in module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.eval()
        try:
            yield
        finally:
            module.eval()


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
    with forward_as(module, partial(module.forward, **{flag: not default if isinstance(default, bool) else True})):
        yield


# -- context and returned weights --------------------------------------------------------------------------------------


CONTEXTS = ("context", "memory", "encoder_hidden_states", "kv", "key_value_states", "source", "cond", "encoder_out")


def check_context(impl: Implementation, kind: str) -> list[Finding]:
    """With an optional context, a query gives the same output alone and among others; queries do not see each other.

    A layer that is causal by its own positions is left out.
    """
    module = impl.module
    if module is None or impl.vocab_size is not None or not impl.aligned or kind != "bidirectional":
        return []
    parameters = inspect.signature(module.forward).parameters
    name = next((known for known in CONTEXTS if known in parameters and parameters[known].default is None), None)
    if name is None:
        return []
    check, worst, at = "context", 0.0, 0
    for length in (2, 7, 33):
        generator = torch.Generator().manual_seed(61 + length)
        x, context = (impl.random_input(2, n, generator) for n in (5, length))
        try:
            with forward_as(module, partial(module.forward, **{name: context})):
                whole = impl.run(x)
                parts = [impl.run(part) for part in (x[:, :1], x[:, 1:3], x[:, 3:])]
                control = impl.run(impl.change_token(x, 0, generator))[:, 1:]
        except Exception as error:  # a context of another width, or of the same length only
            return [
                Finding(check, "n/a", None, f"with {name} of {length} tokens the call raises {type(error).__name__}")
            ]
        if relative_difference(whole[:, 1:], control) > impl.tolerance:
            return [Finding(check, "n/a", None, "queries see each other beside the context")]
        off = relative_difference(whole, torch.cat(parts, dim=1))
        if off > worst:
            worst, at = off, length
    evidence = f"with {name}= {at or 33} tokens, queries alone and together differ by {worst:.2g} (relative)"
    hint = "the path for one or a few queries computes something else: check the axis of its softmax and its scale"
    return [judge(check, worst, 10 * impl.tolerance, evidence, hint, "paths differ")]


def check_returned_weights(impl: Implementation) -> list[Finding]:
    """Returned weights (b, h, t, s), or their mean over the heads, are those that made the output."""
    module = impl.module
    if module is None or impl.all_outputs is None or impl.source is not None:
        return []
    x = impl.random_input(2, impl.length, torch.Generator().manual_seed(62))
    flag = next((name for name in WEIGHT_FLAGS if name in inspect.signature(module.forward).parameters), None)
    flagged = flag is not None and inspect.signature(module.forward).parameters[flag].default is False
    with _returning_weights(module, str(flag)) if flagged else nullcontext():
        try:
            with torch.enable_grad(), record_attention(module, 2) as recordings:
                returned = [out.detach().double() for out in impl.all_outputs(x)]
        except Exception:  # this output cannot be recorded
            return []
    made = [attention.weights for attention in recordings[0].attentions]
    if not made or any(float((weights.sum(-1) - 1).abs().max()) > 1e-6 for weights in made):
        return []
    made += [weights.mean(1) for weights in made]
    worst = 0.0
    found = [out for out in returned if out.ndim >= 3 and any(out.shape == weights.shape for weights in made)]
    found = [out for out in found if bool((out >= 0).all()) and float((out.sum(-1) - 1).abs().max()) <= 1e-6]
    for out in found:
        same = [relative_difference(weights, out) for weights in made if weights.shape == out.shape]
        worst = max(worst, min(same))
    if not found:
        return []
    evidence = f"returned weights differ by {worst:.2g} (relative) from those that made the output"
    hint = "the returned weights are computed once more, in another way: scale, mask and axis must be the same"
    return [judge("returned weights", worst, 1e-4, evidence, hint, "paths differ")]


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
