"""Judge an implementation: find out how to call it, measure, compare with what it promises."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from qkv import checkpoints as hub
from qkv.check import build, hugging_face, influence
from qkv.check.checks.always import check_always, determinism
from qkv.check.checks.cache import check_cache
from qkv.check.checks.cross import check_source
from qkv.check.checks.gradient import check_gradient
from qkv.check.checks.inside import check_inside
from qkv.check.checks.kind import check_kind
from qkv.check.checks.layout import check_layout
from qkv.check.checks.length import check_truncation
from qkv.check.checks.loss import check_own_loss
from qkv.check.checks.masked import check_masked
from qkv.check.checks.packing import check_packing
from qkv.check.checks.padding import check_padding
from qkv.check.checks.paths import check_paths
from qkv.check.checks.positions import check_positions
from qkv.check.checks.precision import check_precision
from qkv.check.checks.saved import check_saved
from qkv.check.checks.weights import check_weights
from qkv.check.contract import NOTHING, Contract
from qkv.check.declared import declared, declared_subject
from qkv.check.diagnosis import Diagnosis
from qkv.check.explain import diagnose
from qkv.check.finding import Finding, Report, told
from qkv.check.functions import function_subject, is_attention_function
from qkv.check.inside.read import readings
from qkv.check.like import compared, measured
from qkv.check.like import torch_reference as like_torch
from qkv.check.modules import module_subject
from qkv.check.subject import Subject
from qkv.check.training import Call, guess, judge_training

WORDS = get_args(Call)  # what a target may be said to be; another --call is how it is called


def run(
    target: Any,
    contract: Contract | None = None,
    *,
    arguments: dict[str, Any] | None = None,
    call: str | None = None,
    like: Any = None,
    seed: int = 0,
) -> Report:
    """Check a function, a class, a module, or `file.py:Name` / `package.module:Name`.

    >>> from qkv.check.contract import COURSE
    >>> import qkv
    >>> run(qkv.attention, COURSE).ok
    True
    """
    contract = _promised(target) if contract is None else contract
    word: Any = call if call in WORDS or call is None else "attention"
    part = _part_of_training(target, contract, word)
    if part is not None:
        return part
    written = None if call in WORDS else call
    if like is None:
        subject, how = subject_of(target, contract, arguments, written)
        return judge(subject, how, contract, seed)
    return _beside(target, contract, arguments, like, seed, written)


def _beside(
    target: Any, contract: Contract, arguments: dict[str, Any] | None, like: Any, seed: int, call: str | None
) -> Report:
    """Judge under the contract that a reference keeps, and compare with it number by number."""
    subject, _ = subject_of(target, contract, arguments, call)
    model = like_torch(subject.module) if like == "torch" else like
    given = None if isinstance(model, nn.Module) or like == "torch" else arguments
    reference, _ = subject_of(model, contract, given)
    with torch.no_grad():
        kind = influence.name_kind(influence.measure(reference, seed=seed))
        promised = measured(reference, kind, contract)
    subject, how = subject_of(target, promised, arguments, call)
    reference, _ = subject_of(model, promised, given)
    name = "torch" if like == "torch" else reference.name
    return judge(subject, f"{how}; like {name}", promised, seed, lambda: compared(subject, reference))


def judge(
    subject: Subject,
    how: str,
    contract: Contract,
    seed: int = 0,
    beside: Callable[[], list[Finding]] = list,
) -> Report:
    """All checks of a subject; `beside`: a comparison with a reference."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        with torch.no_grad():
            steady = determinism(subject)
            if steady.verdict == "fail":  # what differs from call to call can be compared with nothing
                cause = Diagnosis(str(steady.family), steady.hint or "")
                return Report(subject.name, how, "random", contract, (steady,), diagnosis=cause)
            felt = influence.measure(subject, seed=seed)
            kind = influence.name_kind(felt)
            findings = [*check_kind(felt, contract), steady]
            leaks = any(finding.verdict == "fail" for finding in findings)
            found, refused = readings(subject) if subject.module is not None else ([], None)
            inside = partial(check_inside, subject, contract, found, refused, leaks=leaks)
            findings += _all(subject, contract, kind, inside)
        findings += _guarded("mask", lambda: check_masked(subject, contract))
        findings += _guarded("paths", lambda: check_paths(subject))
        findings += _guarded("loss alignment", lambda: check_own_loss(subject, contract))
        findings += _guarded("packing", lambda: check_packing(subject, contract))
        findings += _guarded("gradient", lambda: check_gradient(subject))
        with torch.no_grad():
            findings += _guarded("like", beside)
            findings, cause = diagnose(subject, contract, findings, found)
    rows = tuple(tuple(row) for row in felt.moves.tolist())
    return Report(subject.name, how, kind, contract, tuple(findings), rows, cause)


def _all(subject: Subject, contract: Contract, kind: str, inside: Callable[[], list[Finding]]) -> list[Finding]:
    """The checks that need no gradients."""
    checks: dict[str, Callable[[], list[Finding]]] = {
        "always": lambda: check_always(subject),
        "truncation": lambda: check_truncation(subject, contract),
        "padding": lambda: check_padding(subject, contract),
        "source": lambda: check_source(subject, contract),
        "cache": lambda: check_cache(subject, contract, kind),
        "weights": lambda: check_weights(subject, contract),
        "dtype": lambda: check_precision(subject),
        "layout": lambda: check_layout(subject, contract),
        "inside": inside,
        "positions": lambda: check_positions(subject, contract, kind),
        "saved": lambda: check_saved(subject),
    }
    return [finding for name, check in checks.items() for finding in _guarded(name, check)]


def _part_of_training(target: Any, contract: Contract, call: Call | None) -> Report | None:
    """The report of a loss, an accumulation or a split; None if the target is none."""
    if call == "attention" or (isinstance(target, str) and (target.startswith("hf:") or ":" not in target)):
        return None
    found = build.find(target) if isinstance(target, str) else target
    call = guess(found) if call is None else call
    if call is None or call == "attention":
        return None
    name = target.rpartition(":")[2] if isinstance(target, str) else getattr(found, "__name__", type(found).__name__)
    return judge_training(found, name, call, contract)


def subject_of(
    target: Any, contract: Contract, arguments: dict[str, Any] | None = None, call: str | None = None
) -> tuple[Subject, str]:
    """The target as a subject, and how it is called, in words; `call` declares how (see `qkv.check.declared`)."""
    declaration = None if call is None else declared(call)
    name = target if isinstance(target, str) else getattr(target, "__name__", type(target).__name__)
    if isinstance(target, str) and target.startswith("hf:"):
        subject = hugging_face.subject(target.removeprefix("hf:"), contract, arguments)
        return subject, subject.how
    if isinstance(target, str) and Path(target).is_dir():
        subject = module_subject(hub.load(target), target, contract, drawn=False)
        return subject, f"{subject.how}, with the weights of {target}"
    found = build.find(target) if isinstance(target, str) else target
    if declaration is not None and "q" in declaration.words:
        found, _ = build.built(found, arguments)
        subject = declared_subject(found, name.rpartition(":")[2], contract, declaration)
        return subject, subject.how
    if is_attention_function(found):
        subject = function_subject(found, name.rpartition(":")[2], contract)
        return subject, subject.how
    made, built_as = build.built(found, arguments)
    if not isinstance(made, nn.Module):
        kind = "class" if inspect.isclass(found) else type(made).__name__
        raise ValueError(f"{name} is neither a function of q, k, v nor a torch.nn.Module; got a {kind}")
    if declaration is not None:
        subject = declared_subject(made, name.rpartition(":")[2], contract, declaration)
    else:
        subject = module_subject(made, name.rpartition(":")[2], contract)
    return subject, f"{subject.how}{f', built as {built_as}' if built_as else ''}"


def assert_sound(target: Any, *, contract: Contract | None = None, **promises: Any) -> None:
    """For tests: raise an AssertionError that tells what failed. `causal=True` promises a causal implementation."""
    if promises.pop("causal", False):
        promises["kind"] = "causal"
    contract = Contract(**promises) if contract is None else contract
    report = run(target, contract)
    if not report.ok:
        lines = [f"{f.check}: {f.evidence}{f' ({f.hint})' if f.hint else ''}" for f in report.failed]
        raise AssertionError(f"{report.target} is not sound under {contract}:\n  " + "\n  ".join(lines))


def _promised(target: Any) -> Contract:
    """What a target promises by its name."""
    return hugging_face.contract_of(target) if isinstance(target, str) and target.startswith("hf:") else NOTHING


def _guarded(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    """A check that the implementation cannot go through is inconclusive, with the reason."""
    try:
        return check()
    except Exception as error:
        return [Finding(name, "inconclusive", None, f"the call failed: {told(error)}")]
