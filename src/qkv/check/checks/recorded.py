"""Checks of the attention recorded inside a module: layers, scale, softmax, heads, grouped heads and RoPE.

They say where in a module it happens. Promises of the contract are judged, the rest is described.
"""

import torch
from torch import Tensor

from qkv.check.checks.attention_function import LARGE
from qkv.check.contract import Contract
from qkv.check.hypotheses.observe import measure_grouping
from qkv.check.implementation import Implementation
from qkv.check.report import BUG_FAMILIES, Diagnosis, Finding, Verdict, judge
from qkv.check.tracing.heads import find_merge_bug, find_split_bug
from qkv.check.tracing.readings import Reading, read_unfinished
from qkv.check.tracing.rotary import find_rotary_bugs
from qkv.check.tracing.scores import (
    STRAIGHT,
    attended_pattern,
    describe_scale,
    find_softmax_bug,
    future_weight,
    measure_part_slopes,
    row_sum_error,
)


def check_recorded(
    impl: Implementation, readings: list[Reading], refused: str | None, contract: Contract, *, leaks: bool = False
) -> list[Finding]:
    """Layers, scale, softmax, heads and rotations of every attention recorded in a module.

    Args:
        refused: why nothing could be recorded.
        leaks: whether the influence map shows a leak, so that the leaking layer is worth naming.
    """
    if not readings:
        why = refused or "no attention was seen among its operators (fused, compiled or opaque code)"
        findings = [Finding("inside", "n/a", None, f"judged as a black box only: {why}")]
        scores = read_unfinished(impl) if contract.scale is not None and refused is None else []
        if scores:
            findings.append(_check_scale(scores, contract))
        elif contract.textbook:
            findings.append(Finding("scale", "inconclusive", None, f"the scale could not be measured: {why}"))
        if contract.grouped is not None:
            findings.append(_check_grouped(impl, readings, contract))
        return findings
    return [
        _describe(readings),
        _check_layers(readings, contract, leaks),
        *_check_moderate_masks(readings, contract),
        _check_scale(readings, contract),
        _check_softmax(readings, contract),
        _check_heads(readings, contract),
        _check_grouped(impl, readings, contract),
        _check_rotary(readings, contract),
    ]


def _describe(readings: list[Reading]) -> Finding:
    first = readings[0].attention
    kernels = sorted({reading.attention.kernel for reading in readings if reading.attention.kernel})
    by = f"by {', '.join(kernels)}" if kernels else "computed without a fused kernel"
    names = ", ".join(dict.fromkeys(reading.attention.name or "the module itself" for reading in readings[:3]))
    more = f" and {len(readings) - 3} more" if len(readings) > 3 else ""
    evidence = f"attention recorded in {names}{more}: heads {first.heads}, head dim {first.head_dim}, {by}"
    return Finding("inside", "described", None, evidence)


def _check_layers(readings: list[Reading], contract: Contract, leaks: bool) -> Finding:
    """Which layers put weight on later keys."""
    attentions = [reading.attention for reading in readings]
    square = [attention for attention in attentions if attention.weights.shape[-1] == attention.weights.shape[-2]]
    patterns = {attention.name or "the attention": attended_pattern(attention) for attention in square}
    if not patterns:
        return Finding("layers", "n/a", None, "no self-attention was recorded")
    kinds = sorted(set(patterns.values()))
    if len(kinds) == 1:
        words = f"judged by its weights, every attention is {kinds[0]}"
    else:
        words = f"judged by their weights, {', '.join(f'{name}: {kind}' for name, kind in patterns.items())}"
    if contract.kind != "causal":
        return Finding("layers", "described", None, words)
    leaking = {a.name or "the attention": share for a in square if (share := future_weight(a)) > 1e-6}
    if not leaking:
        return Finding("layers", "pass", 0.0, f"no layer puts weight on a later key; {words}")
    worst = max(leaking, key=lambda name: leaking[name])
    evidence = (
        f"{worst} puts {leaking[worst]:.2%} of its weight on later keys ({len(leaking)} of {len(square)} layers leak)"
    )
    return Finding("layers", "fail" if leaks else "described", leaking[worst], evidence)


def _check_moderate_masks(readings: list[Reading], contract: Contract) -> list[Finding]:
    """A causal mask lowers scores by so much that large ones do not get through."""
    if contract.kind not in ("causal", "window"):
        return []
    for reading in readings:
        attention = reading.attention
        scores, t, s = attention.scores, *attention.product.shape[-2:]
        if scores is None or t != s or t < 2 or reading.slope is None or reading.slope[1] > STRAIGHT:
            continue
        later = torch.ones(t, s, dtype=torch.bool).triu(1)
        rest = scores - reading.slope[0] * attention.product
        drop = float(rest[..., ~later].mean() - rest[..., later].max())
        if future_weight(attention) <= 1e-6 and 0 < drop < LARGE:
            evidence = f"the highest masked score is {drop:.4g} below what q·k gives on average for the others"
            hint = f"masked scores are only {drop:.4g} lower than others, not −∞: scores of this size get through"
            return [Finding("mask, large scores", "fail", drop, evidence, hint, "mask not −∞", "", "for large scores")]
    return []


def _check_scale(readings: list[Reading], contract: Contract) -> Finding:
    """The factor on the projections' q·k in all, layer by layer; the worst layer is reported."""
    known = [(reading, reading.scale) for reading in readings if reading.scale is not None]
    if not known and contract.scale is not None and any(reading.normed_scales for reading in readings):
        return _check_normed_scale(readings, contract)
    features = [(reading, scales) for reading in readings if (scales := reading.feature_scales) is not None]
    if not known and features and contract.scale is not None:
        return _check_scale_of_features(features, contract)
    sums = [(reading, slopes) for reading in readings if (slopes := measure_part_slopes(reading.attention))]
    if not known and sums and contract.scale is not None:
        return _check_scale_of_sum(*sums[0], contract)
    if not known:
        bent = any(reading.slope is not None and reading.slope[1] > 1e-5 for reading in readings)
        why = "something (a norm, a convolution) is between the projections and q·k"
        if bent:
            why = "scores are not a straight line of q·k (a softcap, a clip)"
        if contract.scale is not None and not bent and _slopes_are_promised(readings, contract):
            return Finding("scale", "pass", 0.0, f"scores grow with the product as required; {why}")
        verdict: Verdict = "described" if contract.scale is None else "inconclusive"
        return Finding("scale", verdict, None, f"the scale could not be measured: {why}")

    def error(reading: Reading, scale: float) -> float:
        head_dim = reading.attention.head_dim
        return abs(scale / (contract.scale_for(head_dim) or head_dim**-0.5) - 1)

    reading, scale = max(known, key=lambda pair: error(*pair))
    attention = reading.attention
    words = describe_scale(scale, attention.head_dim, reading.model_heads)
    where = f"{attention.name}: " if attention.name else ""
    evidence = f"{where}q·k is multiplied by {scale:.4f}, which is {words} (d = {attention.head_dim})"
    if contract.scale is None:
        return Finding("scale", "described", None, evidence)
    if error(reading, scale) <= 0.01:
        return Finding("scale", "pass", error(reading, scale), evidence)
    hint = Diagnosis("scale", f"the scale of q·k is {words}", attention.name).hint
    return Finding("scale", "fail", error(reading, scale), evidence, hint, "scale")


def _check_scale_of_features(features: list[tuple[Reading, Tensor]], contract: Contract) -> Finding:
    """The factor on each product of two features, where queries or keys come from several projections."""
    found = []
    for reading, scales in features:
        promised = contract.scale_for(reading.attention.head_dim)
        assert promised is not None
        worst = int((scales / promised - 1).abs().argmax())
        found.append((abs(float(scales[worst]) / promised - 1), reading, scales, float(scales[worst])))
    error, reading, scales, scale = max(found, key=lambda one: one[0])
    attention = reading.attention
    words = describe_scale(scale, attention.head_dim, reading.model_heads)
    wrong = (scales / scale - 1).abs() <= 0.01
    part = "" if bool(wrong.all()) else f", for {int(wrong.sum())} of the {len(scales)} features"
    evidence = f"products of features are multiplied by {scale:.4f}{part}, which is {words} (d = {attention.head_dim})"
    hint = Diagnosis("scale", f"the scale of q·k is {words}{part}", attention.name).hint
    return judge("scale", error, 0.01, evidence, hint, "scale")


def _check_scale_of_sum(reading: Reading, slopes: list[float], contract: Contract) -> Finding:
    """The factor on each of the products that the scores are a sum of."""
    attention = reading.attention
    promised = contract.scale_for(attention.head_dim)
    assert promised is not None
    worst = max(slopes, key=lambda slope: abs(slope / promised - 1))
    factors = " and ".join(f"{slope:.4f}" for slope in slopes)
    evidence = f"scores are a sum of products, multiplied by {factors} (d = {attention.head_dim} in all)"
    part = ", for one of them only" if max(slopes) > 1.01 * min(slopes) else ""
    name = describe_scale(worst, attention.head_dim, reading.model_heads)
    dims = next((n for n in range(2, attention.head_dim) if abs(worst * n**0.5 - 1) < 1e-3), None)
    if dims is not None:
        name = f"1/√{dims}, but queries and keys have {attention.head_dim} features in all"
    words = f"the scale of q·k is {name}{part}"
    hint = Diagnosis("scale", words, attention.name).hint
    return judge("scale", abs(worst / promised - 1), 0.01, evidence, hint, "scale")


def _slopes_are_promised(readings: list[Reading], contract: Contract) -> bool:
    """Whether every attention multiplies the product of its queries and keys, as they are, by the promised scale."""
    slopes = [(reading.slope, contract.scale_for(reading.attention.head_dim)) for reading in readings]
    return all(slope is not None and scale and abs(slope[0] / scale - 1) <= 1e-3 for slope, scale in slopes)


def _check_normed_scale(readings: list[Reading], contract: Contract) -> Finding:
    """The factor on the product of queries and keys that a norm made; a convention that fits the promise passes."""
    errors = []
    for reading in readings:
        promised = contract.scale_for(reading.attention.head_dim)
        assert promised is not None
        if reading.normed_scales:
            errors.append(min((abs(scale / promised - 1), scale) for scale in reading.normed_scales))
    error, scale = max(errors)
    evidence = f"queries and keys are normalized; their product is multiplied by {scale:.4f}"
    hint = f"q·k is multiplied by {scale:.4g}, required: {contract.scale}"
    return judge("scale", error, 0.01, evidence, hint, "scale")


def _check_softmax(readings: list[Reading], contract: Contract) -> Finding:
    """The axis and precision of the softmax, and whether rows sum to one."""
    attentions = [reading.attention for reading in readings]
    bugs = [bug for attention in attentions if (bug := find_softmax_bug(attention)) is not None]
    dropped = next((attention for attention in attentions if attention.dropped), None)
    if dropped is not None:
        bugs.append(Diagnosis("random in eval", "dropout changes the weights in eval", dropped.name))
    error = max(row_sum_error(attention.weights) for attention in attentions)
    dtypes = sorted({str(a.precision).removeprefix("torch.") for a in attentions if a.precision is not None})
    softmax = f"softmax in {', '.join(dtypes) or 'no operator'}"
    evidence = f"the sums of the rows of weights differ from 1 by at most {error:.2g}; {softmax}"
    if not bugs and error > 1e-5:
        words = "weights are changed after the softmax: masked there, or a sink takes a share"
        bugs.append(Diagnosis("mask after softmax" if contract.kind == "causal" else "softmax replaced", words))
    if not bugs:
        return Finding("softmax", "pass" if contract.softmax else "described", error, evidence)
    verdict: Verdict = "fail" if contract.softmax else "described"
    return Finding("softmax", verdict, error, f"{evidence}; {bugs[0].words}", bugs[0].hint, bugs[0].family)


def _check_heads(readings: list[Reading], contract: Contract) -> Finding:
    """How projections are split into heads, and heads merged into one output."""
    found = []
    for reading in readings:
        found.append(find_split_bug(reading.attention, reading.matches, reading.recording))
        found.append(find_merge_bug(reading.attention, reading.recording))
    bugs = [bug for bug in found if bug is not None]
    if not bugs:
        known = sum(all(reading.matches.values()) for reading in readings)
        evidence = (
            f"each head uses a contiguous slice of the projections (in {known} of {len(readings)} recorded attentions)"
        )
        return Finding("heads", "pass" if contract.textbook and known else "described", None, evidence)
    always_wrong = any(bug.family == "head layout" for bug in bugs)
    verdict: Verdict = "fail" if contract.textbook or always_wrong else "described"
    return Finding("heads", verdict, 1.0, bugs[0].words, bugs[0].hint, bugs[0].family)


def _check_grouped(impl: Implementation, readings: list[Reading], contract: Contract) -> Finding:
    """How query heads share key heads (GQA); where it is promised and cannot be read, what changing a key head does."""
    layouts = {layout for reading in readings if (layout := reading.grouped) is not None}
    if contract.grouped is not None and layouts != {contract.grouped} and (measured := measure_grouping(impl)):
        layouts = {measured}
    if not layouts:
        return Finding("grouped heads", "n/a", None, "each query head has its own keys")
    evidence = f"key heads are {', '.join(sorted(layouts))} over the query heads"
    if contract.grouped is None:
        return Finding("grouped heads", "described", None, evidence)
    if layouts == {contract.grouped}:
        return Finding("grouped heads", "pass", 0.0, evidence)
    hint = f"required: {contract.grouped}. {BUG_FAMILIES['head layout']}"
    return Finding("grouped heads", "fail", 1.0, evidence, hint, "head layout")


def _check_rotary(readings: list[Reading], contract: Contract) -> Finding:
    """Rotary positions."""
    known = {name: rotation for name, rotation in readings[0].rotations.items() if rotation is not None}
    evidence = "; ".join(f"{name} {rotation}" for name, rotation in known.items())
    evidence = evidence or "the rotation could not be measured"
    promised = contract.position == "rotary"
    bugs = [bug for r in readings for bug in find_rotary_bugs(r.rotations, r.attention.name, promised=promised)]
    if not bugs:
        return Finding("rotary", "pass" if promised and known else "described", None, evidence)
    verdict: Verdict = "fail" if contract.relative else "described"
    return Finding("rotary", verdict, 1.0, evidence, bugs[0].hint, bugs[0].family)
