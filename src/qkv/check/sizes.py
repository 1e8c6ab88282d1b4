"""Other sizes: a class is built again with other head counts and head dims, and its main properties are checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from qkv.check.calling.building import SIZES
from qkv.check.contract import Contract
from qkv.check.explain import explain_findings
from qkv.check.implementation import Implementation
from qkv.check.influence import measure_influence, name_kind
from qkv.check.registry import CHECKS, Measurements
from qkv.check.report import Diagnosis, Finding
from qkv.check.shapes import ShapeLog, run_lengths
from qkv.check.tracing.readings import read_attentions

HEADS, KEY_HEADS, HEAD_DIMS = SIZES[4], ("kv_heads", "num_kv_heads", "n_kv_heads", "num_key_value_heads"), SIZES[8][:8]
MANY_DRAWS = 6
VARIANTS = ((1, 24), (3, 40), (6, 8))  # heads and head dims
CHECKED = ("kind", "finite", "batch", "truncation", "padding", "cache", "inside", "gradient")
SHORT = 33  # the longest sequence


def check_sizes(
    found: Any,
    arguments: dict[str, Any],
    make: Callable[[dict[str, Any]], Implementation],
    contract: Contract,
    kind: str,
    determinism: Finding,
) -> tuple[list[Finding], Diagnosis | None]:
    """What fails with other head counts and head dims, and why; one finding that names them if nothing does.

    Args:
        make: from the arguments of the class to the implementation.
        kind: the kind of attention that the influence map shows at the usual sizes.
    """
    if not inspect.isclass(found):
        return [], None
    passed = []
    for words, sizes in size_variants(found, arguments):
        try:
            impl = make({**arguments, **sizes})
        except Exception:  # these sizes do not fit together
            continue
        failed, cause, shapes = _check_variant(impl, contract, kind, determinism)
        if failed:
            if cause is not None:
                cause = replace(cause, condition=", ".join(filter(None, (f"with {words}", cause.condition))))
            return [
                replace(finding, check=f"{finding.check} ({words})", evidence=f"with {words}: {finding.evidence}")
                for finding in failed
            ], cause
        passed.append((words, shapes))
    if not passed:
        return [], None
    evidence = f"the same with {', '.join(words for words, _ in passed)}"
    return [Finding("sizes", "pass", 0.0, evidence, shapes=passed[-1][1])], None


def size_variants(found: Any, arguments: dict[str, Any]) -> Iterator[tuple[str, dict[str, int]]]:
    """Arguments for other head counts and head dims, for a class that takes a width and a head count."""
    try:
        names = list(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return
    heads = next((name for name in names if name in HEADS), None)
    widths = [name for name in names if name in SIZES[32]]
    if heads is None or not widths or heads in arguments or any(name in arguments for name in widths):
        return
    for count, dim in VARIANTS:
        sizes = {heads: count} | dict.fromkeys(widths, count * dim)
        sizes |= {name: dim for name in names if name in HEAD_DIMS and name not in arguments}
        sizes |= {name: max(count // 2, 1) for name in names if name in KEY_HEADS and name not in arguments}
        yield f"{count} head{'s' if count > 1 else ''} of {dim}", sizes


def _check_variant(
    impl: Implementation, contract: Contract, kind: str, determinism: Finding
) -> tuple[list[Finding], Diagnosis | None, str]:
    """The findings that fail at these sizes, their cause, and the shapes."""
    log = ShapeLog()
    if impl.module is not None:  # with one head, a norm over the heads takes out what is learned for each of them
        single = [name.lower() for name, parameter in impl.module.named_parameters() if parameter.numel() == 1]
        impl = replace(impl, unused_by_design=(*impl.unused_by_design, *single))
    impl = log.watch(impl)
    with torch.no_grad():
        influence = measure_influence(impl, draws=1)
        if name_kind(influence) == "irregular":  # sharp attention, such as unscaled scores, hides pairs from one draw
            influence = measure_influence(impl, draws=MANY_DRAWS)
        sweep = run_lengths(impl, contract, longest=SHORT)
        readings, refused = read_attentions(impl) if impl.module is not None else ([], None)
    measured = Measurements(impl, contract, determinism, influence, name_kind(influence), sweep, [], readings, refused)
    findings: list[Finding] = []
    for check in CHECKS:
        if check.name == "kind" and measured.kind == kind:  # judged at the usual sizes, with longer sequences
            continue
        if check.name in CHECKED and check.applies_to(impl):
            with torch.set_grad_enabled(check.gradients):
                try:
                    findings += check.function(measured)
                except Exception:  # at these sizes it does not apply
                    continue
    cause = None
    if any(finding.verdict == "fail" for finding in findings):
        with torch.no_grad():
            findings, cause = explain_findings(impl, contract, findings, readings)
    failed = [finding for finding in findings if finding.verdict == "fail"]
    if not failed and contract.kind is None and kind != measured.kind and "irregular" not in (kind, measured.kind):
        evidence = f"the influence map shows {measured.kind}; at the usual sizes it shows {kind}"
        cause = Diagnosis("leak", "what a token sees depends on the sizes")
        failed = [Finding("kind", "fail", 1.0, evidence, cause.words, cause.family)]
    return failed, cause, log.since(0)
