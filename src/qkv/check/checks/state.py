"""State: what a call leaves behind. A result may depend neither on earlier calls nor on another instance, and a
dropout rate may not matter in eval."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.calling.building import DROPOUT_NAMES
from qkv.check.checks.kept import find_kept
from qkv.check.implementation import Implementation, cast_module, randomize_weights, relative_difference
from qkv.check.report import Finding, judge
from qkv.check.shapes import Sweep

HINT = "something is kept between calls and used again: a mask, positions, keys or a flag of an earlier input"


def check_state(impl: Implementation, sweep: Sweep) -> list[Finding]:
    """The same input gives the same output after longer calls, after an error, after a cache and beside another
    instance."""
    short = sweep.only(13, 3, impl.length)[0]
    lengths = sorted({short, *sweep.only(1)[:1]} if 1 in sweep.outs else {short}, reverse=True)
    x = sweep.x[:, :short]
    cases = {"a longer call": lambda: None}  # the sweep made longer calls
    bad = _call_that_raises(impl, x)
    if bad is not None:
        cases["a call that raises an error"] = bad
    if impl.run_cached is not None:
        cases["calls with a cache"] = lambda: _run_cached(impl, sweep.x[:, : sweep.longest(20)])
    if impl.module is not None:
        cases["a call of another instance"] = lambda: _run_other_instance(impl, x)
    worst, after, at = 0.0, "", short
    for words, between in cases.items():
        if worst > _limit(impl):  # the first cause is enough
            break
        between()
        for length in lengths:
            try:
                off = relative_difference(sweep.outs[length], impl.run(sweep.x[:, :length]))
            except Exception:  # it worked before
                off = float("inf")
            if off > worst:
                worst, after, at = off, words, length
    evidence = f"{' and '.join(map(_tokens, lengths))} give the same output after {', '.join(cases)}"
    if worst <= _limit(impl):
        inputs = [sweep.x[:, :length] for length in reversed(lengths)]
        return [judge("state", worst, _limit(impl), evidence, HINT, "state"), *_check_instances(impl, inputs)]
    evidence = (
        f"after {after}, {_tokens(at)} give{'s' if at == 1 else ''} an output that differs by {worst:.2g} (relative)"
    )
    hint = _name_kept(impl, sweep.x[:, :at], sweep.outs[at])
    condition = f"{'for a single token ' if at == 1 and short != 1 else ''}after {after}"
    return [judge("state", worst, _limit(impl), evidence, hint, "state", condition=condition)]


def _tokens(count: int) -> str:
    return f"{count} token{'' if count == 1 else 's'}"


def _name_kept(impl: Implementation, x: Tensor, expected: Tensor) -> str:
    """What is wrong, with the place that keeps what an earlier call left behind, if it is found.

    expected: the output, if no instance that was never called can be made.
    """
    fresh = _fresh_copy(impl, same_buffers=False) if impl.fresh is not None else None
    first = _fresh_copy(impl, same_buffers=False) if fresh is not None else None
    rights = [expected]
    if first is not None:  # the usual calls may have left something behind before the first output
        with other_instance(impl.module, first):
            rights.append(impl.run(x))
    for right in rights:
        place = find_kept(impl, fresh, lambda right=right: relative_difference(right, impl.run(x)) <= _limit(impl))
        if place:
            return f"{place} keeps what an earlier call left behind, and it is used again"
    return HINT


def find_kept_source(impl: Implementation, is_read: Callable[[], bool]) -> str:
    """The place that keeps an earlier source, so that another one is not read; "" if none does."""
    return find_kept(impl, _fresh_copy(impl, same_buffers=False) if impl.fresh is not None else None, is_read)


def _limit(impl: Implementation) -> float:
    return 1e-9 if impl.dtype == torch.float64 else 1e-4


def _call_that_raises(impl: Implementation, x: Tensor) -> Any:
    """A call on an input that the implementation refuses; None if it refuses none."""
    wrong = [torch.cat((x, x[..., :1]), dim=-1)] if x.is_floating_point() else [x + 10 * (impl.vocab_size or 1)]
    masks = [torch.ones(x.shape[0], x.shape[1] + 1, dtype=torch.bool)] if impl.takes_padding else []
    calls = [lambda y=y: impl.run(y) for y in wrong] + [lambda m=m: impl.run(x, m) for m in masks]

    def call_all() -> None:
        for call in calls:
            try:
                call()
            except Exception:  # this is what is wanted
                continue

    return call_all


def _run_cached(impl: Implementation, x: Tensor) -> None:
    assert impl.run_cached is not None
    try:
        impl.run_cached(x.split(1, dim=1))
    except Exception:  # reported by the checks of the cache
        return


def _run_other_instance(impl: Implementation, x: Tensor) -> None:
    """Runs a copy with other weights on another input, in the place of the module."""
    with other_instance(impl.module) as other:
        if other is not None:
            randomize_weights(other, seed=1)
            impl.run(x.flip(1))


@contextmanager
def other_instance(module: nn.Module | None, other: nn.Module | None = None) -> Iterator[nn.Module | None]:
    """Another module, or a copy, that is called in the place of a module; None if it cannot be copied."""
    assert module is not None
    try:
        other = other or _copy(module)
    except Exception:  # it holds something that cannot be copied
        yield None
        return
    with forward_as(module, other.forward):
        yield other


def _copy(module: nn.Module) -> nn.Module:
    """A deep copy with the same weights; some classes (Keras) round those of a copy to a dtype of their own."""
    other = copy.deepcopy(module)
    for ours, theirs in zip(module.parameters(), other.parameters(), strict=True):
        theirs.data = ours.data.clone()
    return other


@contextmanager
def forward_as(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Another function in the place of a module's forward for a while; the module may have one of its own."""
    own = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


def _check_instances(impl: Implementation, inputs: list[Tensor]) -> list[Finding]:
    """A new instance with the same weights gives the same outputs on its first calls, whatever others were called on.

    inputs: of the calls, short ones first.
    """
    if impl.module is None or "forward" in vars(impl.module):
        return []
    expected = [impl.run(x) for x in inputs]
    other = _fresh_copy(impl) if impl.fresh is not None else None
    words = "a second instance with the same weights"
    with other_instance(impl.module, other) as found:
        if found is None:
            return []
        if other is None:
            impl.run(inputs[-1].flip(0))
        else:
            words = "the first call of a new instance with the same weights"
        first = [impl.run(x) for x in inputs]
    offs = [relative_difference(*pair) for pair in zip(expected, first, strict=True)]
    off, place = max((off, place) for place, off in enumerate(offs))
    evidence = f"{words} differs by {off:.2g} (relative)"
    if off <= _limit(impl):
        return [judge("state (two instances)", off, _limit(impl), evidence, HINT, "state")]
    hint = HINT if other is None else _name_kept(impl, inputs[place], first[place])
    condition = "after earlier calls"
    return [judge("state (two instances)", off, _limit(impl), evidence, hint, "state", condition=condition)]


def _fresh_copy(impl: Implementation, *, same_buffers: bool = True) -> nn.Module | None:
    """A new module with the weights of the old one; None if they cannot be moved or something else differs."""
    assert impl.fresh is not None and impl.module is not None
    try:
        other = cast_module(impl.fresh(), impl.dtype).eval()
        other.load_state_dict(impl.module.state_dict())
    except Exception:  # lazily built layers, or names that change
        return None
    ours, theirs = dict(impl.module.named_buffers()), dict(other.named_buffers())
    same = ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    return other if same or not same_buffers else None


# -- dropout in eval ---------------------------------------------------------------------------------------------------


def check_dropout_rate(impl: Implementation, sweep: Sweep) -> list[Finding]:
    """In eval a dropout rate does not matter: with every rate at one half the outputs are the same, call after call."""
    if impl.module is None:
        return []
    x = sweep.x[:, : sweep.only(13, impl.length)[0]]
    with dropout_rates(impl.module, 0.0) as count:
        if not count:
            return []
        expected = impl.run(x)
    with dropout_rates(impl.module, 0.5):
        found = [impl.run(x) for _ in range(2)]
    name = "deterministic in eval (dropout)"
    if relative_difference(*found) > _limit(impl):
        evidence = f"with dropout at 0.5, two calls in eval differ by {relative_difference(*found):.2g} (relative)"
        hint = "dropout is active in eval: pass training=self.training, or a rate of 0 in eval"
        return [Finding(name, "fail", relative_difference(*found), evidence, hint, "random in eval")]
    off = relative_difference(expected, found[0])
    evidence = f"in eval, outputs with dropout at 0 and at 0.5 differ by {off:.2g} (relative)"
    hint = "the dropout rate changes the output in eval: scale in training only, by 1/(1 − rate)"
    return [judge(name, off, _limit(impl), evidence, hint, "random in eval")]


@contextmanager
def dropout_rates(module: nn.Module, rate: float) -> Iterator[int]:
    """Every dropout rate in a module and in its config at `rate`; yields how many there are."""
    places = list(_dropout_places(module))
    try:
        for holder, name, _ in places:
            setattr(holder, name, rate)
        yield len(places)
    finally:
        for holder, name, value in places:
            setattr(holder, name, value)


def _dropout_places(module: nn.Module) -> Iterator[tuple[Any, str, float]]:
    """The attributes that hold a dropout rate."""
    holders: dict[int, Any] = {}
    for part in module.modules():
        holders[id(part)] = part
        for name in ("config", "cfg", "args", "hparams"):
            if hasattr(config := vars(part).get(name), "__dict__"):
                holders[id(config)] = config
    for holder in holders.values():
        for name, value in vars(holder).items():
            known = "drop" in name.lower() or name in DROPOUT_NAMES
            if known and isinstance(value, float) and 0.0 <= value < 1.0 and _can_set(holder, name, value):
                yield holder, name, value


def _can_set(holder: Any, name: str, value: float) -> bool:
    try:
        setattr(holder, name, value)
    except Exception:  # a frozen config
        return False
    return True
