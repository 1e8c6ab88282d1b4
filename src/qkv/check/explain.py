"""Explain failed checks: name the likely bug, by hypotheses that fit exactly and by what was recorded inside.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.check.calling.functions import HEAD_DIM, HEADS, random_qkv
from qkv.check.checks.cache import find_cache_bug, piece_sizes
from qkv.check.checks.padding import find_padding_bug
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation
from qkv.check.report import Diagnosis, Finding
from qkv.check.tracing.readings import OPERANDS, Reading, find_length_bug
from qkv.check.tracing.recorder import ProjectionRecord, Recording, record_attention

VISIBILITY = (
    "causal", "past reachable", "kind", "truncation", "layers", "rows sum to one", "softmax", "formula", "order",
)  # fmt: skip
HEADS_TOO = (
    *VISIBILITY, "heads", "head independence", "scale", "batch (alone)", "batch (with others)", "batch (reordered)",
)  # fmt: skip
POSITIONS = (
    "relative positions", "long positions", "positions in scores only", "rotary", "padding removed (left)", "alibi",
)  # fmt: skip
CACHES = ("cache (steps)", "cache (prefill)", "cache (chunks)")
# which failing checks a bug family explains
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
FIRST = ("deterministic in eval", "inputs not mutated")  # they explain the others
LAST = ("fully masked row", "fully padded row", "finite", "dtype", "layers")  # often only a consequence
EXACTLY = "explained exactly: "


def explain_findings(
    impl: Implementation, contract: Contract, findings: list[Finding], readings: list[Reading]
) -> tuple[list[Finding], Diagnosis | None]:
    """The findings, with the diagnosis as the hint of those that it explains, and the most likely cause of all."""
    failed = {finding.check for finding in findings if finding.verdict == "fail"}
    if not failed:
        return findings, None
    best: Diagnosis | None = None
    for cause, checks in _causes(impl, contract, findings, readings):
        checks = (*checks, *(name for name in failed if name.startswith("like")))
        if not failed & set(checks):
            continue
        best = best or cause
        findings = [
            replace(finding, hint=f"{EXACTLY}{cause.hint}", family=cause.family)
            if finding.verdict == "fail" and finding.check in checks and EXACTLY not in (finding.hint or "")
            else finding
            for finding in findings
        ]
    return findings, _most_likely(findings, best)


def _causes(
    impl: Implementation, contract: Contract, findings: list[Finding], readings: list[Reading]
) -> Iterator[tuple[Diagnosis, tuple[str, ...]]]:
    """Bugs and the checks that each explains; the likely ones first."""
    failed = [finding.check for finding in findings if finding.verdict == "fail"]
    exact = explain_function(impl, contract)
    if exact is not None:
        yield exact, (*HEADS_TOO, *EXPLAINED_BY.get(exact.family, ()))
    if impl.module is None:
        readings = read_function(impl, contract)
        for reading in readings:
            swapped = _find_swapped_inputs(reading)
            if swapped is not None:
                yield swapped, (*HEADS_TOO, *EXPLAINED_BY["inputs swapped"])
    bugs = [bug for reading in readings for bug in reading.find_bugs(contract)]
    bugs += [bug for reading in readings if (bug := reading.find_scale_bug(contract)) is not None]
    for bug in bugs:
        yield bug, EXPLAINED_BY.get(bug.family, ())
    if impl.module is not None and "truncation" in failed:
        bug = find_length_bug(impl, readings)
        if bug is not None:
            yield bug, ("truncation", "padding removed (right)", "padding removed (left)", *CACHES)
    whole_is_wrong = any(check in VISIBILITY for check in failed)
    for check in failed:
        if check in CACHES and not whole_is_wrong:
            bug = find_cache_bug(impl, piece_sizes(check.removeprefix("cache (").rstrip(")"), impl.length))
            if bug is not None:
                yield bug, (check,)
        if check.startswith("padding content"):
            bug = find_padding_bug(impl, check.partition("(")[2].rstrip(")"))
            if bug is not None:
                yield bug, tuple(f.check for f in findings if f.check.startswith("padding "))


def _most_likely(findings: list[Finding], best: Diagnosis | None) -> Diagnosis | None:
    """The cause that fits exactly, or else the first failing finding that names a bug family."""
    failed = [finding for finding in findings if finding.verdict == "fail" and finding.family is not None]
    for finding in failed:
        if finding.check in FIRST:
            return Diagnosis(str(finding.family), finding.evidence)
    if best is not None or not failed:
        return best
    failed.sort(key=lambda finding: (finding.check in LAST, not finding.check.startswith("batch")))
    words = (failed[0].hint or failed[0].evidence).removeprefix(EXACTLY).partition(" [")[0]
    return Diagnosis(str(failed[0].family), words)


# -- functions: their recorded inside, and hypotheses ------------------------------------------------------------------


def read_function(impl: Implementation, contract: Contract) -> list[Reading]:
    """The inside of a function; its inputs take the place of a module's projections."""
    if impl.attention is None:
        return []
    q, k, v = random_qkv(7, torch.Generator().manual_seed(29), batch=3)
    try:
        with torch.no_grad(), record_attention(None, 3) as found:
            _call_as_promised(impl, contract, q, k, v)
    except Exception:  # what cannot be recorded is judged as a black box
        return []
    inputs = [x.transpose(1, 2).flatten(2) for x in (q, k, v)]
    projections = tuple(ProjectionRecord(name, 0, x, x) for name, x in zip("qkv", inputs, strict=True))
    attentions = found[0].attentions
    return [Reading(attention, Recording(attentions, projections)) for attention in attentions]


def _call_as_promised(impl: Implementation, contract: Contract, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Call a function on copies; causal, by its flag or a mask, if a causal kind is promised."""
    assert impl.attention is not None
    flag = is_called_causal(impl, contract) and impl.causal_flag is not None
    t = q.shape[-2]
    mask = torch.ones(t, t, dtype=torch.bool).tril() if is_called_causal(impl, contract) and not flag else None
    return impl.attention(q.clone(), k.clone(), v.clone(), mask, causal=flag)


def is_called_causal(impl: Implementation, contract: Contract) -> bool:
    """Whether a causal kind is promised and the function has a flag or a mask for it."""
    return contract.kind == "causal" and (impl.causal_flag is not None or impl.takes_mask)


def _find_swapped_inputs(reading: Reading) -> Diagnosis | None:
    """Inputs of a function that are used in place of others."""
    wrong = []
    for place, name in enumerate(OPERANDS):
        match = reading.matches[name]
        if match is not None and match.projection != place:
            wrong.append(f"{OPERANDS[match.projection]} are used in place of {name}")
    return Diagnosis("inputs swapped", ", ".join(wrong)) if wrong else None


Hypothesis = tuple[str, str, Tensor]  # the bug family, words, and the output that the bug would give


def explain_function(impl: Implementation, contract: Contract) -> Diagnosis | None:
    """The bug of a function, if a known one explains its output up to rounding."""
    if impl.attention is None:
        return None
    causal = is_called_causal(impl, contract)
    q, k, v = random_qkv(7, torch.Generator().manual_seed(19), batch=2)
    ones = torch.ones(7, 7, dtype=torch.bool)
    mask = ones.tril() if causal else ones
    with torch.no_grad():
        out = _call_as_promised(impl, contract, q, k, v)
        if _is_equal(out, (HEAD_DIM**-0.5 * q @ k.mT).masked_fill(~mask, float("-inf")).softmax(-1) @ v):
            return None  # this is correct: the bug is elsewhere
        for family, words, expected in hypotheses(q, k, v, mask, causal):
            if _is_equal(out, expected):
                return Diagnosis(family, words)
    return None


def _is_equal(out: Tensor, expected: Tensor) -> bool:
    tolerance = 1e-9 * (float(expected.abs().max()) or 1.0)
    return out.shape == expected.shape and float((out - expected).abs().max()) <= tolerance


def hypotheses(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, causal: bool) -> Iterator[Hypothesis]:
    """The output that each known bug would give; the correct output is not among them."""
    scale = HEAD_DIM**-0.5
    scores = scale * q @ k.mT
    masked = scores.masked_fill(~mask, float("-inf"))

    def softmax(x: Tensor) -> Tensor:
        return x.masked_fill(~mask, float("-inf")).softmax(-1)

    if causal:
        yield from _mask_hypotheses(scores, v, mask)
    scales = {
        "the scale is missing": 1.0,
        "the scale is 1/d: the square root is missing, or 1/√d is applied twice": 1.0 / HEAD_DIM,
        "the scale is √d, inverted": HEAD_DIM**0.5,
        "the scale is 1/√(number of keys)": k.shape[-2] ** -0.5,
        "the scale is log 2 / √d: powers of 2 instead of e": HEAD_DIM**-0.5 * 0.6931471805599453,
        "the scale is 1/√(model dim) instead of 1/√(head dim)": (HEADS * HEAD_DIM) ** -0.5,
    }
    for words, other in scales.items():
        yield "scale", words, softmax(other * q @ k.mT) @ v
    yield "inputs swapped", "keys are used in place of values", softmax(scores) @ k
    yield "inputs swapped", "values are used in place of keys", softmax(scale * q @ v.mT) @ v
    yield "inputs swapped", "queries and keys are swapped", softmax(scores.mT) @ v
    yield from _softmax_hypotheses(scores, masked, v, mask)
    yield "scores changed", "weights are all equal: the scores are not used", softmax(0 * scores) @ v
    unit = scale * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
    yield "scores changed", "queries and keys are normalized to length 1 first", softmax(unit) @ v
    yield "heads mixed", "weights are averaged over the heads", softmax(scores).mean(1, keepdim=True) @ v
    yield "heads mixed", "heads are summed", (softmax(scores) @ v).sum(1, keepdim=True).expand_as(v)
    for bound in (1.0, 5.0, 10.0):
        yield "scores changed", f"scores are clipped at ±{bound:g}", softmax(scores.clamp(-bound, bound)) @ v
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        words = f"the softmax is computed in {str(dtype).removeprefix('torch.')}"
        yield "low precision", words, masked.to(dtype).softmax(-1).to(v) @ v


def _softmax_hypotheses(scores: Tensor, masked: Tensor, v: Tensor, mask: Tensor) -> Iterator[Hypothesis]:
    """A softmax over another axis, or something else in its place."""

    def zero_masked(weights: Tensor) -> Tensor:
        return weights.masked_fill(~mask, 0.0)

    axis, replaced = "softmax axis", "softmax replaced"
    yield axis, "the softmax is over the queries", masked.softmax(-2) @ v
    yield axis, "the softmax is over the queries", zero_masked(scores.softmax(-2)) @ v
    yield axis, "the softmax is over queries and keys together", masked.flatten(-2).softmax(-1).view_as(masked) @ v
    yield axis, "the softmax is over the heads", zero_masked(scores.softmax(1)) @ v
    yield replaced, "each weight is a sigmoid", masked.sigmoid() @ v
    undivided = "weights are exponentials that are never divided by their sum"
    yield replaced, undivided, zero_masked(scores.exp()) @ v
    yield replaced, undivided, zero_masked((scores - scores.amax(-1, keepdim=True)).exp()) @ v
    yield replaced, "each weight is a ReLU", masked.relu() @ v
    yield replaced, "each weight is a squared ReLU", masked.relu() ** 2 @ v
    yield replaced, "the softmax is missing", zero_masked(scores) @ v
    best = F.one_hot(masked.argmax(-1), masked.shape[-1]).to(v)
    yield replaced, "only the best key counts (hard attention)", best @ v


def _mask_hypotheses(scores: Tensor, v: Tensor, mask: Tensor) -> Iterator[Hypothesis]:
    """Wrong causal masks."""
    t = scores.shape[-1]
    ones = torch.ones(t, t, dtype=torch.bool)

    def attend(other: Tensor) -> Tensor:
        empty = ~other.any(-1, keepdim=True)
        return scores.masked_fill(~(other | empty), float("-inf")).softmax(-1).masked_fill(empty, 0.0) @ v

    yield "no mask", "there is no causal mask on this path", scores.softmax(-1) @ v
    yield "mask off by one", "a query does not see itself", attend(ones.tril(-1))
    yield "mask off by one", "a query sees one key ahead", attend(ones.tril(1))
    yield "mask transposed", "the mask is transposed", attend(ones.triu())
    late = "the mask is applied after the softmax"
    yield "mask after softmax", late, scores.softmax(-1).masked_fill(~mask, 0.0) @ v
    for number in (1.0, 2.0, 4.0, 5.0, 8.0, 10.0, 20.0, 50.0, 100.0):
        lower = f"masked scores are not −∞ but lower by {number:g}"
        yield "mask not −∞", lower, (scores - number * (~mask).to(scores)).softmax(-1) @ v
        filled = f"masked scores are not −∞ but −{number:g}"
        yield "mask not −∞", filled, scores.masked_fill(~mask, -number).softmax(-1) @ v
    words = "masked scores are multiplied by 0, which is a score like any other"
    yield "mask not −∞", words, (scores * mask).softmax(-1) @ v
    for size in range(2, 6):
        block = torch.arange(t) // size
        words = f"the mask is cut into blocks of {size}: within a block, future tokens are visible"
        yield "leak", words, attend(block[None, :] <= block[:, None])
