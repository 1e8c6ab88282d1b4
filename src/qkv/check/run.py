"""Judge an implementation: find out how to call it, measure, compare with what it promises."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qkv import hub
from qkv.check import build, hugging_face, influence
from qkv.check.checks.always import check_always, determinism
from qkv.check.checks.cache import check_cache
from qkv.check.checks.cross import check_source
from qkv.check.checks.gradient import check_gradient
from qkv.check.checks.kind import check_kind
from qkv.check.checks.layout import check_layout
from qkv.check.checks.length import check_truncation
from qkv.check.checks.masked import check_masked
from qkv.check.checks.padding import check_padding
from qkv.check.checks.weights import check_weights
from qkv.check.contract import NOTHING, Contract
from qkv.check.declared import declared, declared_subject
from qkv.check.explain import explain
from qkv.check.finding import Finding, Report
from qkv.check.functions import function_subject, is_attention_function
from qkv.check.modules import module_subject
from qkv.check.subject import Subject


def run(
    target: Any,
    contract: Contract | None = None,
    *,
    arguments: dict[str, Any] | None = None,
    call: str | None = None,
    seed: int = 0,
) -> Report:
    """Check a function, a class, a module, or `file.py:Name` / `package.module:Name`.

    >>> from qkv.check.contract import COURSE
    >>> import qkv
    >>> run(qkv.attention, COURSE).ok
    True
    """
    contract = _promised(target) if contract is None else contract
    subject, how = subject_of(target, contract, arguments, call)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        with torch.no_grad():
            steady = determinism(subject)
            if steady.verdict == "fail":  # what differs from call to call can be compared with nothing
                return Report(subject.name, how, "random", contract, (steady,))
            felt = influence.measure(subject, seed=seed)
            kind = influence.name_kind(felt)
            findings = [*check_kind(felt, contract), steady]
            findings += _guarded("always", lambda: check_always(subject))
            findings += _guarded("truncation", lambda: check_truncation(subject, contract))
            findings += _guarded("padding", lambda: check_padding(subject, contract))
            findings += _guarded("source", lambda: check_source(subject, contract))
            findings += _guarded("cache", lambda: check_cache(subject, contract))
            findings += _guarded("weights", lambda: check_weights(subject, contract))
            findings += _guarded("layout", lambda: check_layout(subject, contract))
        findings += _guarded("mask", lambda: check_masked(subject, contract))
        findings += _guarded("gradient", lambda: check_gradient(subject))
    if any(finding.verdict == "fail" for finding in findings):
        findings = _diagnosed(findings, explain(subject, contract))
    rows = tuple(tuple(row) for row in felt.moves.tolist())
    return Report(subject.name, how, kind, contract, tuple(findings), rows)


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


def _diagnosed(findings: list[Finding], words: str | None) -> list[Finding]:
    """An explanation that fits exactly stands first, in every finding that it explains."""
    if words is None:
        return findings
    explained = ("causal", "past reachable", "kind", "truncation", "rows sum to one", "scale", "formula")
    return [
        replace(finding, hint=f"explained exactly: {words}")
        if finding.verdict == "fail" and finding.check in explained
        else finding
        for finding in findings
    ]


def _guarded(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    """A check that the implementation cannot go through is inconclusive, with the reason."""
    try:
        return check()
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError, NotImplementedError) as error:
        said = str(error).splitlines()[0][:160] if str(error) else ""
        return [Finding(name, "inconclusive", None, f"the call failed: {type(error).__name__}: {said}")]
