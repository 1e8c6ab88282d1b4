"""Diagnosis: for what fails, the likeliest mistake, by hypotheses that fit exactly and by what was seen inside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from qkv.check.checks.inside import all_heads
from qkv.check.checks.padding import flags as padding_flags
from qkv.check.contract import Contract
from qkv.check.diagnosis import Diagnosis
from qkv.check.finding import Finding
from qkv.check.functions import HEADS, WIDTH
from qkv.check.hypotheses import explained
from qkv.check.inside.cached import cache_mistake
from qkv.check.inside.padded import padding_mistake
from qkv.check.inside.read import Reading, length_mistake
from qkv.check.inside.scores import scale_words
from qkv.check.inside.seen import Projection, Recording
from qkv.check.inside.watch import watch
from qkv.check.subject import Subject

WHO = ("causal", "past reachable", "kind", "truncation", "layers", "rows sum to one", "softmax", "formula", "order")
HEADS_TOO = (*WHO, "heads", "head independence", "scale", "batch (alone)", "batch (with others)", "batch (reordered)")
PLACES = (
    "relative positions",
    "long positions",
    "positions in scores only",
    "rotary",
    "padding removed (left)",
    "alibi",
)
# which failing checks a family explains
EXPLAINS: dict[str, tuple[str, ...]] = {
    "heads mixed": HEADS_TOO,
    "softmax axis": HEADS_TOO,
    "softmax replaced": WHO,
    "no mask": WHO,
    "mask off by one": WHO,
    "mask transposed": WHO,
    "mask not −∞": WHO,
    "mask after softmax": WHO,
    "leak": WHO,
    "window": ("past reachable", "kind"),
    "scale": ("scale", "formula", "truncation"),
    "scores changed": ("formula", "scale"),
    "inputs swapped": ("formula", "scale", "rows sum to one", "heads"),
    "low precision": (*PLACES, "formula", "softmax", "dtype", "gradient"),
    "rotary": (*PLACES, "truncation"),
}
CACHES = ("cache (steps)", "cache (prefill)", "cache (chunks)")
LATE = ("fully masked row", "fully padded row", "finite", "dtype", "layers")  # often only a consequence
EARLY = ("steady in eval", "inputs not mutated")


def diagnose(
    subject: Subject, contract: Contract, findings: list[Finding], found: list[Reading]
) -> tuple[list[Finding], Diagnosis | None]:
    """The findings with the diagnosis as the hint of those that it explains, and the likeliest cause of all."""
    failed = {finding.check for finding in findings if finding.verdict == "fail"}
    if not failed:
        return findings, None
    best: Diagnosis | None = None
    for cause, checks in _causes(subject, contract, findings, found):
        checks = (*checks, *(name for name in failed if name.startswith("like")))
        if not failed & set(checks):
            continue
        best = best or cause
        findings = [
            replace(finding, hint=f"explained exactly: {cause.hint}", family=cause.family)
            if finding.verdict == "fail" and finding.check in checks and "explained exactly" not in (finding.hint or "")
            else finding
            for finding in findings
        ]
    return findings, _likeliest(findings, best)


def _causes(
    subject: Subject, contract: Contract, findings: list[Finding], found: list[Reading]
) -> Iterator[tuple[Diagnosis, tuple[str, ...]]]:
    """What is wrong, and which checks it explains; the likeliest first."""
    exact = explained(subject, contract)
    if exact is not None:
        yield exact, (*HEADS_TOO, *EXPLAINS.get(exact.family, ()))
    seen = found if subject.module is not None else function_readings(subject, contract)
    if subject.module is None:
        for reading in seen:
            swapped = _swapped(reading)
            if swapped is not None:
                yield swapped, (*HEADS_TOO, *EXPLAINS["inputs swapped"])
    mistakes = [mistake for reading in seen for mistake in reading.mistakes(contract)]
    mistakes += [m for reading in seen if (m := _scale_of(reading, contract)) is not None]
    for mistake in mistakes:
        yield mistake, EXPLAINS.get(mistake.family, ())
    lengths = (
        length_mistake(subject, found)
        if any(f.check == "truncation" and f.verdict == "fail" for f in findings)
        else None
    )
    if lengths is not None:
        yield lengths, ("truncation", "padding removed (right)", "padding removed (left)", *CACHES)
    whole = any(finding.verdict == "fail" and finding.check in WHO for finding in findings)
    for finding in findings:
        if finding.verdict != "fail":
            continue
        if finding.check.startswith("cache (") and not whole:
            mistake = cache_mistake(subject, _sizes(finding.check, subject.length))
            if mistake is not None:
                yield mistake, (finding.check,)
        if finding.check.startswith("padding content"):
            side = finding.check.partition("(")[2].rstrip(")")
            mistake = padding_mistake(subject, padding_flags(subject.length)[side])
            if mistake is not None:
                yield mistake, tuple(f.check for f in findings if f.check.startswith("padding "))


def _sizes(check: str, n: int) -> list[int]:
    return {"steps": [1] * n, "prefill": [n - 3, 1, 1, 1], "chunks": [3, 4, 2, n - 9]}[check[7:-1]]


def _likeliest(findings: list[Finding], best: Diagnosis | None) -> Diagnosis | None:
    """The cause that fits exactly, or else the first failing finding that names a family."""
    failed = [finding for finding in findings if finding.verdict == "fail" and finding.family is not None]
    for finding in failed:
        if finding.check in EARLY:
            return Diagnosis(str(finding.family), finding.evidence)
    if best is not None:
        return best
    failed.sort(key=lambda finding: (finding.check in LATE, not finding.check.startswith("batch")))
    if not failed:
        return None
    words = (failed[0].hint or failed[0].evidence).removeprefix("explained exactly: ").partition(" [")[0]
    return Diagnosis(str(failed[0].family), words)


def function_readings(subject: Subject, contract: Contract) -> list[Reading]:
    """The inside of a function: its inputs stand where a module has projections."""
    if subject.attend is None:
        return []
    causal = contract.kind == "causal" and (subject.flag is not None or subject.masked)
    generator = torch.Generator().manual_seed(29)
    q, k, v = (torch.randn(3, HEADS, 7, WIDTH, generator=generator, dtype=torch.float64) for _ in range(3))
    past = torch.ones(7, 7, dtype=torch.bool).tril()
    try:
        with torch.no_grad(), watch(None, 3) as found:
            flag = causal and subject.flag is not None
            subject.attend(q.clone(), k.clone(), v.clone(), past if causal and not flag else None, causal=flag)
    except Exception:  # what cannot be watched is judged from outside
        return []
    given = tuple(Projection(name, 0, _flat(x), _flat(x)) for name, x in (("q", q), ("k", k), ("v", v)))
    return [Reading(seen, Recording(found[0].seen, given)) for seen in found[0].seen]


def _swapped(reading: Reading) -> Diagnosis | None:
    """Inputs of a function that stand where others should."""
    names = ("queries", "keys", "values")
    found = {name: reading.matches[name] for name in names}
    wrong = [
        f"{names[match.projection]} stand where {name} should"
        for place, (name, match) in enumerate(found.items())
        if match is not None and match.projection != place
    ]
    return Diagnosis("inputs swapped", ", ".join(wrong)) if wrong else None


def _scale_of(reading: Reading, contract: Contract) -> Diagnosis | None:
    if reading.scale is None or contract.scale is None:
        return None
    promised = reading.seen.width**-0.5 if contract.scale == "head" else float(contract.scale)
    if abs(reading.scale / promised - 1) <= 0.01:
        return None
    words = scale_words(reading.scale, reading.seen.width, all_heads(reading))
    return Diagnosis("scale", f"the scale of q·k is {words}", reading.seen.name)


def _flat(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)
