"""Check an implementation: load it, find out how to call it, run the registry of checks, and name the bug."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv._onednn import avoid_broken_amx
from qkv._threads import one_thread
from qkv.check.calling import TargetLoader, make_implementation, target_name
from qkv.check.calling.building import build, fewer_key_heads
from qkv.check.calling.guard import raised_by_target, seeded
from qkv.check.calling.hugging_face import family_contract
from qkv.check.checks.basics import check_determinism, check_inputs_not_mutated
from qkv.check.checks.causality import sample_maps
from qkv.check.checks.training_code import guess_part
from qkv.check.contract import Contract, make_contract
from qkv.check.explain import explain_findings
from qkv.check.implementation import Implementation
from qkv.check.influence import measure_influence, name_kind
from qkv.check.reference import compare_with_reference, measure_contract, torch_reference
from qkv.check.registry import CHECKS, TRAINING_CHECKS, Measurements, TrainingCheck
from qkv.check.report import Diagnosis, Finding, Report, describe_error
from qkv.check.shapes import Options, ShapeLog, limit_batch, make_options, on_device, run_lengths
from qkv.check.sizes import check_sizes
from qkv.check.tracing.readings import read_attentions


@one_thread()  # the tensors are small
def run(
    target: Any,
    contract: Contract | str | None = None,
    *,
    arguments: dict[str, Any] | None = None,
    call: str | None = None,
    adapter: Path | str | None = None,
    like: Any = None,
    seed: int = 0,
    thorough: bool = False,
    dtype: torch.dtype | str | None = None,
    device: str = "cpu",
    **promises: Any,
) -> Report:
    """Check a function, a class, a module, or the target of a name.

    Args:
        target: an object, or `file.py:Name`, `package.module:Name`, a checkpoint folder, or `hf:Architecture`.
        contract: the required properties: a Contract, or the name "textbook" or "encoder".
        arguments: for the constructor of a class; sizes that are not given are guessed.
        call: what the target is ("attention", "loss", "accumulate", "split"), or its call: "f(x, mask=blocked)[0]".
        adapter: a file whose functions build and call the target, if qkv cannot; target may then be None.
        like: a reference: "torch", an object or a name. The target must have its properties and, with its weights, its
            outputs and gradients.
        seed: of the inputs and of the shapes that `thorough` draws.
        thorough: also test lengths up to 4,096 and random shapes; takes minutes.
        dtype: test its precision in this dtype only, and fail if it does not run in it.
        device: where to run it.
        promises: more required properties, fields of Contract; causal=True is short for kind="causal".

    >>> import qkv
    >>> run(qkv.attention, "textbook").ok
    True
    >>> run(qkv.MultiHeadAttention(32, 4), causal=True, padding=True).kind
    'causal'
    """
    avoid_broken_amx()  # bfloat16 is among the dtypes
    promised = make_contract(contract, **promises)
    options = make_options(thorough, seed, dtype, device)
    if isinstance(target, str) and target.startswith("hf:") and not isinstance(contract, Contract):
        promised = family_contract(target, promised)
    loader = TargetLoader()
    if target is None and adapter is None:
        raise ValueError("name a target: an object, file.py:Name, package.module:Name or hf:Architecture")
    found, name = _load(target, loader), Path(str(adapter)).stem if target is None else target_name(target)
    part = guess_part(found) if call is None and adapter is None else call
    if part in TRAINING_CHECKS:
        return _check_training_code(found, name, TRAINING_CHECKS[part], promised)
    arguments = fewer_key_heads(found, arguments) if promised.grouped is not None else arguments
    declared = None if call == "attention" else call
    make = partial(make_implementation, found, name, arguments=arguments, call=declared, adapter=adapter)
    if like is None:
        impl = make(promised)
        if inspect.isclass(found) and impl.module is not None and issubclass(found, nn.Module):
            impl = replace(impl, fresh=lambda: build(found, arguments)[0])
        report = check_implementation(on_device(impl, device), promised, options)
        return _check_other_sizes(report, found, arguments or {}, make, options)
    if isinstance(like, str) and like == "torch":
        reference, like_arguments = torch_reference(make(promised).module), None
    else:
        reference = _load(like, loader)
        like_arguments = None if isinstance(reference, nn.Module) else arguments
    make_reference = partial(make_implementation, reference, target_name(like), arguments=like_arguments)
    return _check_like(make, make_reference, promised, options)


def assert_sound(target: Any, contract: Contract | str | None = None, **options: Any) -> None:
    """For tests: raise an AssertionError that says what failed. Takes the arguments of `run`.

    >>> import torch
    >>> assert_sound(torch.nn.functional.scaled_dot_product_attention, causal=True)
    """
    report = run(target, contract, **options)
    if not report.ok:
        lines = [f"{f.check}: {f.evidence}{f' ({f.hint})' if f.hint else ''}" for f in report.failed]
        lines += [f"not tested: {missing}" for missing in report.unproven]
        raise AssertionError(f"{report.target} is not sound under {report.contract}:\n  " + "\n  ".join(lines))


def _check_other_sizes(
    report: Report,
    found: Any,
    arguments: dict[str, Any],
    make: Callable[..., Implementation],
    options: Options,
) -> Report:
    """The report with what fails at other head counts and head dims; only where nothing fails at the usual ones."""
    if report.failed or not report.findings:
        return report

    def make_other(sizes: dict[str, Any]) -> Implementation:
        return on_device(make(report.contract, arguments=sizes), options.device)

    with torch.random.fork_rng():
        more, cause = check_sizes(found, arguments, make_other, report.contract, report.kind, report.findings[0])
    return replace(report, findings=(*report.findings, *more), diagnosis=report.diagnosis or cause)


def check_implementation(
    impl: Implementation,
    contract: Contract,
    options: Options | None = None,
    compare: Callable[[], list[Finding]] = list,
) -> Report:
    """Run every check that applies; `compare` gives the findings of a comparison with a reference."""
    options = options or Options()
    seed = options.seed
    log = ShapeLog()
    with torch.random.fork_rng(), torch.no_grad():
        impl = limit_batch(impl)
    impl = log.watch(impl)
    with seeded(seed):
        with torch.no_grad(), _errors_of_target(impl):
            mutation = _guarded("inputs not mutated", lambda: [check_inputs_not_mutated(impl)])[0]
            if mutation.verdict == "fail":  # the other checks use an input more than once
                impl = _with_copied_inputs(impl)
            determinism = check_determinism(impl)
            if determinism.verdict == "fail":  # outputs that differ from call to call cannot be compared
                cause = Diagnosis(str(determinism.family), determinism.hint or "", condition=determinism.condition)
                return Report(impl.name, impl.how, "random", contract, (determinism,), diagnosis=cause)
            influence = measure_influence(impl, seed=seed)
            sweep = run_lengths(impl, contract, options)
            samples = sample_maps(impl, sweep, contract, seed)
            readings, refused = read_attentions(impl) if impl.module is not None else ([], None)
        kind = name_kind(influence)
        measured = Measurements(
            impl, contract, determinism, influence, kind, sweep, samples, readings, refused, options
        )
        findings: list[Finding] = []
        shared = len(log)
        for check in CHECKS:
            if check.applies_to(impl):
                start = len(log)
                with torch.set_grad_enabled(check.gradients):
                    found = _guarded(check.name, lambda check=check: check.function(measured))
                if check.name == "inputs not mutated":
                    found = [mutation]
                shapes = log.since(start, shared if check.shares else 0)
                findings += [replace(finding, shapes=shapes) for finding in found]
        with torch.no_grad():
            start = len(log)
            findings += [replace(finding, shapes=log.since(start)) for finding in _guarded("like", compare)]
            findings, cause = explain_findings(impl, contract, findings, readings)
    rows = tuple(tuple(row) for row in influence.effects.tolist())
    return Report(impl.name, impl.how, measured.kind, contract, tuple(findings), rows, cause)


@contextmanager
def _errors_of_target(impl: Implementation) -> Iterator[None]:
    """An error that a call of the target raises, after calls that worked, in one sentence with the call."""
    try:
        yield
    except Exception as error:
        if isinstance(error, ValueError) or not raised_by_target(error):
            raise
        raise ValueError(
            f"{impl.how} works for some inputs, and raises {describe_error(error)} for others. "
            "Declare the call with --call, or write it in an --adapter"
        ) from error


def _with_copied_inputs(impl: Implementation) -> Implementation:
    """The same implementation, which gets a copy of each input."""
    run, attention = impl.run, impl.attention

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
        assert attention is not None
        return attention(q.clone(), k.clone(), v.clone(), None if mask is None else mask.clone(), causal=causal)

    def run_copy(x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        return run(x.clone(), None if token_mask is None else token_mask.clone())

    vars(attend)["function"] = getattr(attention, "function", None)
    return replace(impl, run=run_copy, attention=None if attention is None else attend)


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
    promised = Contract(loss=contract.loss)  # the promises of attention do not apply
    return Report(name, how, check.kind, promised, tuple(findings), diagnosis=cause)


def _check_like(
    make: Callable[[Contract], Implementation],
    make_reference: Callable[[Contract], Implementation],
    contract: Contract,
    options: Options,
) -> Report:
    """Check under the contract that a reference keeps, and compare with it number by number."""
    reference = make_reference(contract)
    with torch.no_grad():
        kind = name_kind(measure_influence(reference, seed=options.seed))
        promised = measure_contract(reference, kind, contract)
    impl, reference = make(promised), make_reference(promised)
    if impl.attention is not None:  # what the reference takes and it does not is no promise of its own
        untaken = {"mask": impl.takes_mask, "alignment": impl.causal_flag is not None}
        dropped = {name: getattr(contract, name) for name, takes in untaken.items() if not takes}
        promised = replace(promised, **dropped)
    report = check_implementation(impl, promised, options, lambda: compare_with_reference(impl, reference))
    return replace(report, how=f"{impl.how}; like {reference.name}")
