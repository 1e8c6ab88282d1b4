"""Check an implementation: load it, find out how to call it, run the registry of checks, and name the bug."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qkv.check.calling import TargetLoader, make_implementation, target_name
from qkv.check.calling.hugging_face import family_contract
from qkv.check.checks.basics import check_determinism
from qkv.check.checks.training_code import guess_part
from qkv.check.contract import Contract, make_contract
from qkv.check.explain import explain_findings
from qkv.check.implementation import Implementation
from qkv.check.influence import measure_influence, name_kind
from qkv.check.reference import compare_with_reference, measure_contract, torch_reference
from qkv.check.registry import CHECKS, TRAINING_CHECKS, Measurements, TrainingCheck
from qkv.check.report import Diagnosis, Finding, Report, describe_error
from qkv.check.tracing.readings import read_attentions


def run(
    target: Any,
    contract: Contract | str | None = None,
    *,
    arguments: dict[str, Any] | None = None,
    call: str | None = None,
    like: Any = None,
    seed: int = 0,
    **promises: Any,
) -> Report:
    """Check a function, a class, a module, or the target of a name.

    Args:
        target: an object, or `file.py:Name`, `package.module:Name`, a checkpoint folder, or `hf:Architecture`.
        contract: what it promises: a Contract, or the name "textbook" or "encoder".
        arguments: for the constructor of a class; sizes that are not given are guessed.
        call: what the target is ("attention", "loss", "accumulate", "split"), or its call: "f(x, mask=blocked)[0]".
        like: a reference: "torch", an object or a name. What it does is promised, and with its weights the outputs and
            gradients must be equal.
        seed: of the inputs of the influence map.
        promises: further promises, fields of Contract; causal=True is short for kind="causal".

    >>> import qkv
    >>> run(qkv.attention, "textbook").ok
    True
    >>> run(qkv.MultiHeadAttention(32, 4), causal=True, padding=True).kind
    'causal'
    """
    promised = make_contract(contract, **promises)
    if isinstance(target, str) and target.startswith("hf:") and not isinstance(contract, Contract):
        promised = family_contract(target, promised)
    loader = TargetLoader()
    found, name = _load(target, loader), target_name(target)
    part = guess_part(found) if call is None else call
    if part in TRAINING_CHECKS:
        return _check_training_code(found, name, TRAINING_CHECKS[part], promised)
    declared = None if call == "attention" else call
    make = partial(make_implementation, found, name, arguments=arguments, call=declared)
    if like is None:
        return check_implementation(make(promised), promised, seed)
    if isinstance(like, str) and like == "torch":
        reference, like_arguments = torch_reference(make(promised).module), None
    else:
        reference = _load(like, loader)
        like_arguments = None if isinstance(reference, nn.Module) else arguments
    make_reference = partial(make_implementation, reference, target_name(like), arguments=like_arguments)
    return _check_like(make, make_reference, promised, seed)


def assert_sound(target: Any, contract: Contract | str | None = None, **options: Any) -> None:
    """For tests: raise an AssertionError that says what failed. Takes the arguments of `run`.

    >>> import torch
    >>> assert_sound(torch.nn.functional.scaled_dot_product_attention, causal=True)
    """
    report = run(target, contract, **options)
    if not report.ok:
        lines = [f"{f.check}: {f.evidence}{f' ({f.hint})' if f.hint else ''}" for f in report.failed]
        raise AssertionError(f"{report.target} is not sound under {report.contract}:\n  " + "\n  ".join(lines))


def check_implementation(
    impl: Implementation,
    contract: Contract,
    seed: int = 0,
    compare: Callable[[], list[Finding]] = list,
) -> Report:
    """Run every check that applies; `compare` gives the findings of a comparison with a reference."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        with torch.no_grad():
            determinism = check_determinism(impl)
            if determinism.verdict == "fail":  # outputs that differ from call to call cannot be compared
                cause = Diagnosis(str(determinism.family), determinism.hint or "")
                return Report(impl.name, impl.how, "random", contract, (determinism,), diagnosis=cause)
            influence = measure_influence(impl, seed=seed)
            readings, refused = read_attentions(impl) if impl.module is not None else ([], None)
        measured = Measurements(impl, contract, determinism, influence, name_kind(influence), readings, refused)
        findings: list[Finding] = []
        for check in CHECKS:
            if check.applies_to(impl):
                with torch.set_grad_enabled(check.gradients):
                    findings += _guarded(check.name, lambda check=check: check.function(measured))
        with torch.no_grad():
            findings += _guarded("like", compare)
            findings, cause = explain_findings(impl, contract, findings, readings)
    rows = tuple(tuple(row) for row in influence.effects.tolist())
    return Report(impl.name, impl.how, measured.kind, contract, tuple(findings), rows, cause)


def _load(target: Any, loader: TargetLoader) -> Any:
    """The object behind a name; hf: names and folders stay names."""
    if not isinstance(target, str) or target.startswith("hf:") or Path(target).is_dir():
        return target
    return loader.find(target)


def _guarded(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    """A check that the implementation cannot go through is inconclusive, with the reason."""
    try:
        return check()
    except Exception as error:
        return [Finding(name, "inconclusive", None, f"the call failed: {describe_error(error)}")]


def _check_training_code(found: Any, name: str, check: TrainingCheck, contract: Contract) -> Report:
    """Check a loss, an accumulation or a split."""
    how, findings = check.function(found, contract)
    failed = [finding for finding in findings if finding.verdict == "fail" and finding.family is not None]
    cause = Diagnosis(str(failed[0].family), failed[0].hint or failed[0].evidence) if failed else None
    return Report(name, how, check.kind, contract, tuple(findings), diagnosis=cause)


def _check_like(
    make: Callable[[Contract], Implementation],
    make_reference: Callable[[Contract], Implementation],
    contract: Contract,
    seed: int,
) -> Report:
    """Check under the contract that a reference keeps, and compare with it number by number."""
    reference = make_reference(contract)
    with torch.no_grad():
        kind = name_kind(measure_influence(reference, seed=seed))
        promised = measure_contract(reference, kind, contract)
    impl, reference = make(promised), make_reference(promised)
    report = check_implementation(impl, promised, seed, lambda: compare_with_reference(impl, reference))
    return replace(report, how=f"{impl.how}; like {reference.name}")
