"""Explain failed checks: the simplest hypothesis that explains the outputs exactly, else what was recorded inside.

A cause is called exact only if a hypothesis gives the observed outputs at several shapes (`qkv.check.hypotheses`). What
is recorded inside or named by a failing check is a likely cause. Without either, the bug is "not identified".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from qkv.check.checks.cache import WAYS, failing_pieces, piece_sizes
from qkv.check.checks.padding import find_padding_bug
from qkv.check.checks.paths import find_leaking_mode
from qkv.check.checks.state import HINT as KEPT
from qkv.check.contract import Contract
from qkv.check.hypotheses.cached import identify_cache_bug
from qkv.check.hypotheses.identify import identify, prove_scale
from qkv.check.hypotheses.input_positions import find_length_positions
from qkv.check.hypotheses.observed import Identified
from qkv.check.hypotheses.search import NAMED_MASKS
from qkv.check.implementation import Implementation
from qkv.check.report import EXACTLY, Diagnosis, Finding, Report
from qkv.check.tracing.leaks import find_leak
from qkv.check.tracing.lines import find_line
from qkv.check.tracing.readings import Reading, find_length_bug, find_unmasked_softmax

VISIBILITY = (
    "causal", "past reachable", "kind", "truncation", "layers", "rows sum to one", "softmax", "formula", "order",
)  # fmt: skip
HEADS_TOO = (*VISIBILITY, "heads", "head independence", "scale", "batch")
POSITIONS = (
    "relative positions", "long positions", "positions in scores only", "rotary", "padding removed", "alibi",
)  # fmt: skip
# which failing checks a bug that was recorded inside explains, by its family
EXPLAINED_BY: dict[str, tuple[str, ...]] = {
    "heads mixed": HEADS_TOO,
    "softmax axis": HEADS_TOO,
    "softmax replaced": VISIBILITY,
    "no mask": VISIBILITY,
    "mask off by one": VISIBILITY,
    "mask transposed": VISIBILITY,
    "mask not −∞": VISIBILITY,
    "mask after softmax": VISIBILITY,
    "leak": VISIBILITY,
    "window": ("past reachable", "kind"),
    "scale": ("scale", "formula", "truncation"),
    "scores changed": ("formula", "scale"),
    "inputs swapped": ("formula", "scale", "rows sum to one", "heads"),
    "low precision": (*POSITIONS, "formula", "softmax", "dtype", "gradient"),
    "rotary": (*POSITIONS, "truncation"),
}
FEW_FORMULAS = 1500  # are tried where an operation outside the attention leaks: few of them can explain that
MODES = ("no mask", "leak", "mask off by one", "mask transposed", "mask not −∞")  # may be of one mode
BACKWARD = "in the backward pass of "  # how a gradient that is wrong by a known factor is named
INSIDE = ("softmax", "scale", "heads", "grouped heads", "rotary")  # read off what is recorded
FIRST = ("deterministic in eval", "inputs not mutated", "state", "strides")  # they explain the others
LAST = (
    "fully masked row",
    "fully padded row",
    "finite",
    "dtype",
    "layers",
    "lengths",
    "lengths agree",
    "formula",
)  # fmt: skip (often only a consequence)
# checks that look at something else than the outputs of one call: a formula for these does not explain them
BESIDE_OUTPUTS = (
    "gradient", "parameters reached", "saved and loaded", "loss", "packing", "cache", "fully masked row", "finite",
    "fully padded row", "source", "cross attention", "labels", *FIRST,
)  # fmt: skip


def explain_findings(
    impl: Implementation, contract: Contract, findings: list[Finding], readings: list[Reading]
) -> tuple[list[Finding], Diagnosis | None]:
    """The findings, with the diagnosis as the hint of those that it explains, and the most likely cause of all."""
    findings = _absorb_gradients(findings)
    failed = [finding for finding in findings if finding.verdict == "fail"]
    untested = not failed and bool(Report("", "", "", contract, tuple(findings)).unproven)
    if not failed and not untested:
        return findings, None
    if untested and contract.scale is not None and contract.kind not in NAMED_MASKS:
        return _try_scale(impl, contract, findings), None
    names = [base_name(finding.check) for finding in failed]
    identified, leak = None, _find_leak(impl) if "causal" in names else None
    if untested or "parameters reached" in names or not all(name.startswith(BESIDE_OUTPUTS) for name in names):
        try:
            identified = identify(impl, contract, names, *(() if leak is None else (FEW_FORMULAS,)))
        except Exception:  # a diagnosis must not hide the findings
            identified = None
    if identified is not None and identified.family not in (None, "state") and "state" in names:
        words = f"after earlier calls, {identified.words}"  # what was observed came after them
        identified = replace(identified, family="state", words=words, condition="", also="")
    if identified is not None and identified.right:
        findings, overruled = _overrule(impl, findings, readings, identified)
        failed = [finding for finding in findings if finding.verdict == "fail"]
        if not failed:
            return findings, None
        readings, identified = [] if overruled else readings, None
        names = [base_name(finding.check) for finding in failed]
    if untested:
        if identified is None or identified.family is None or contract.kind is None:
            return findings, None
        words = "its outputs are those of attention with a bug"
        failed = [Finding("formula", "fail", 1.0, f"{words}, at {identified.cases} shapes", None, identified.family)]
        findings = [*findings, *failed]
    best: Diagnosis | None = None
    for cause, checks in _causes(impl, contract, findings, readings, identified, leak):
        explained = [f for f in failed if base_name(f.check).startswith(("like", *checks))]
        if not explained:
            continue
        if best is None:
            best = cause
        hint = f"{EXACTLY}{cause.hint}" if cause.exact else cause.hint
        findings = [
            replace(finding, hint=hint, family=cause.family)
            if finding in explained and EXACTLY not in (finding.hint or "") and (cause.exact or cause is best)
            else finding
            for finding in findings
        ]
        if cause.exact:
            break
    findings = [_locate_leak(finding, names) for finding in findings]
    cause = _most_likely(findings, best)
    if cause.family in MODES and not cause.condition and {"causal", "paths agree"} <= set(names) and impl.aligned:
        cause = replace(cause, condition=find_leaking_mode(impl))
    more = identified is not None and ("token" in identified.condition or not cause.condition)
    if identified is not None and more and not cause.exact and cause.family != "state":
        cause = replace(cause, condition=identified.condition)
    return findings, replace(cause, line=cause.line or find_line(impl, contract, cause))


def _absorb_gradients(findings: list[Finding]) -> list[Finding]:
    """The findings; where the gradient is found wrong inside a backward pass, others that saw it wrong say the same."""
    exact = next((f for f in findings if f.family == "wrong gradient" and BACKWARD in (f.hint or "")), None)
    if exact is None:
        return findings
    return [
        replace(finding, hint=exact.hint, family=exact.family, condition=exact.condition)
        if finding.verdict == "fail"
        and finding.family in ("wrong gradient", "detached")
        and base_name(finding.check) in ("formula", "like", "gradient")
        else finding
        for finding in findings
    ]


def _try_scale(impl: Implementation, contract: Contract, findings: list[Finding]) -> list[Finding]:
    """The findings, with one about the scale where no check could measure it but the outputs prove it."""
    if not any(missing.startswith("scale") for missing in Report("", "", "", contract, tuple(findings)).unproven):
        return findings
    try:
        proved = prove_scale(impl, contract)
    except Exception:  # a proof that fails leaves the promise unproven
        proved = False
    evidence = (
        "the outputs are those of softmax(q·kᵀ·scale + mask) v with the required scale, for a mask solved from them"
    )
    return [*findings, Finding("scale (from outputs)", "pass", 0.0, evidence)] if proved else findings


def _overrule(
    impl: Implementation, findings: list[Finding], readings: list[Reading], identified: Identified
) -> tuple[list[Finding], bool]:
    """Every attention gives the outputs of the formula: what was read off its inside, and failed, was misread.

    Online softmax, for example, divides by the sum at the end: its weights do not sum to 1 on the way.

    Returns:
        The findings, and whether that holds for every attention that was recorded.
    """
    layers = {reading.attention.name for reading in readings}
    if identified.cases < len(layers):
        return findings, False
    overruled = {*INSIDE, *(("lengths agree",) if identified.words else ())}
    if impl.attention is not None:  # how a function shares key heads is measured, also where no formula was tried
        overruled -= {"grouped heads"}
    words = identified.words or "the outputs are those of softmax(q·kᵀ·scale) v, from the projections on"
    kept = [
        replace(finding, verdict="described", evidence=f"{finding.evidence}; {words}", hint=None, family=None)
        if finding.verdict == "fail" and base_name(finding.check) in overruled
        else finding
        for finding in findings
    ]
    if not identified.words:
        kept.append(Finding("formula (from projections)", "pass", 0.0, f"{words}, at several shapes and dtypes"))
    return kept, True


def _locate_leak(finding: Finding, failed: list[str]) -> Finding:
    """Where outputs see the future although the weights do not, say that the leak is elsewhere."""
    if finding.check != "layers" or finding.verdict != "pass" or "causal" not in failed:
        return finding
    evidence = (
        "no attention puts weight on a later key: later tokens enter elsewhere (the sum of a softmax, a mean, a norm)"
    )
    return replace(finding, verdict="described", score=None, evidence=evidence)


def base_name(check: str) -> str:
    """The name of a check without its case: "padding content (left)" is "padding content"."""
    return check.partition(" (")[0]


def _causes(
    impl: Implementation,
    contract: Contract,
    findings: list[Finding],
    readings: list[Reading],
    identified: Identified | None,
    leak: Diagnosis | None,
) -> Iterator[tuple[Diagnosis, tuple[str, ...]]]:
    """Bugs and the checks that each explains; what is exact first."""
    failed = [finding.check for finding in findings if finding.verdict == "fail"]
    if identified is not None and identified.family is not None:
        cause = Diagnosis(
            identified.family,
            identified.words,
            identified.where,
            exact=True,
            condition=identified.condition,
            also=identified.also,
        )
        names = dict.fromkeys(base_name(check) for check in failed)
        explained = [name for name in names if not name.startswith(BESIDE_OUTPUTS)]
        if identified.condition == "without padding":
            explained = [name for name in explained if "padding" not in name and "padded" not in name]
        if identified.family == "inputs swapped" or "inverted" in identified.words:  # what is not used has no gradient
            explained += [name for name in names if name == "parameters reached"]
        if identified.family == "state":
            explained += [name for name in names if name == "state"]
            kept = [f.hint or "" for f in findings if f.verdict == "fail" and base_name(f.check) == "state"]
            place = next((hint for hint in kept if hint and hint != KEPT), "")
            if place:
                cause = replace(cause, words=f"{identified.words.partition(': something')[0]}: {place}")
        yield cause, tuple(explained)
        return
    if leak is not None:
        mixes_rows = any(base_name(check) == "batch" for check in failed)
        yield _add_rows(leak) if mixes_rows else leak, (*VISIBILITY, *(("batch", "padding ") if mixes_rows else ()))
    if not readings and impl.module is not None and impl.aligned and "causal" in [base_name(check) for check in failed]:
        bug = find_unmasked_softmax(impl)
        if bug is not None:
            yield bug, VISIBILITY
    bugs = [bug for reading in readings for bug in reading.find_bugs(contract)]
    bugs += [bug for reading in readings if (bug := reading.find_scale_bug(contract)) is not None]
    if contract.softmax is None:  # linear attention is a design unless a softmax is promised
        bugs = [bug for bug in bugs if bug.family != "softmax replaced"]
    for bug in bugs:
        yield bug, EXPLAINED_BY.get(bug.family, ("not one check",))
    if impl.module is not None and "truncation" in failed:
        bug = find_length_bug(impl, readings)
        bug = bug or find_length_positions(impl)
        if bug is not None:
            yield bug, ("truncation", "padding removed", "cache")
    if "cache" in [base_name(check) for check in failed] and not any(check in VISIBILITY for check in failed):
        bug = _find_cache_bug(impl, contract, failed)
        if bug is not None:
            yield bug, ("cache",)
    for check in failed:
        side = check.partition("(")[2].rstrip(")")
        if check.startswith("padding content"):
            padded = _find_leak(impl, padded=True)
            if padded is not None:
                yield padded, ("padding ",)
            bug = find_padding_bug(impl, side)
            if bug is not None:
                yield bug, ("padding ",)
        if check.startswith("source: padding") and impl.source is not None:
            for tried in [side] if side in impl.source.padding_sides else impl.source.padding_sides:
                bug = find_padding_bug(impl.source, tried)
                if bug is not None:
                    yield bug, ("source: padding", "source: fully padded row")
                    break


def _find_leak(impl: Implementation, *, padded: bool = False) -> Diagnosis | None:
    try:
        return find_leak(impl, padded=padded)
    except Exception:  # what cannot be traced is judged as a black box: a diagnosis must not hide the findings
        return None


def _add_rows(leak: Diagnosis) -> Diagnosis:
    """One operation explains both that tokens and that rows of the batch reach each other."""
    return replace(leak, family="batch mixed", words=f"{leak.words}; rows of the batch mix in the same way")


def _find_cache_bug(impl: Implementation, contract: Contract, failed: list[str]) -> Diagnosis | None:
    """The bug of a cache: by simulating it, else read off what is recorded of the first pieces that differ."""
    failing = {way: failing_pieces(impl, way) for way in WAYS if f"cache ({way})" in failed}
    others = [piece_sizes(way, impl.length) for way in WAYS if way not in failing]
    try:
        for ways in ([*failing.values(), *others], *([sizes] for sizes in failing.values())):
            found = identify_cache_bug(impl, contract, ways)
            if found is not None and found.family is not None:
                return Diagnosis(found.family, found.words, found.where, exact=len(ways) == len(WAYS))
    except Exception:  # what cannot be recorded or compared: a diagnosis must not hide the findings
        return None
    return None


def _most_likely(findings: list[Finding], best: Diagnosis | None) -> Diagnosis:
    """The cause that explains the findings, or else the first failing finding that names a bug family."""
    failed = [finding for finding in findings if finding.verdict == "fail"]
    named = [finding for finding in failed if finding.family is not None]
    for finding in named:
        if base_name(finding.check) in FIRST and not (best is not None and best.exact and best.family == "state"):
            return _name(finding)
    if best is not None:
        return best
    for finding in named:
        if finding.family == "wrong gradient" and base_name(finding.check) == "formula":
            return _name(finding)
    if not named:
        return Diagnosis("not identified", failed[0].evidence)
    named.sort(key=lambda finding: (base_name(finding.check) in LAST, not finding.check.startswith("batch")))
    return _name(named[0])


def _name(finding: Finding) -> Diagnosis:
    """The bug that a finding names."""
    words = (finding.hint or finding.evidence).removeprefix(EXACTLY).partition(" [")[0]
    return Diagnosis(str(finding.family), words, condition=finding.condition)


def explain_function(impl: Implementation, contract: Contract) -> Diagnosis | None:
    """The bug of a function, if a known one explains its outputs exactly at several shapes."""
    with torch.no_grad():
        found = identify(impl, contract)
    if found is None or found.family is None:
        return None
    return Diagnosis(found.family, found.words, exact=True, condition=found.condition, also=found.also)
