"""Positions: whether only distances matter (also far out), ALiBi slopes, and permutation equivariance.

On a sequence of one repeated token the content is the same everywhere, so what remains in the scores is position alone.
If only distances matter, scores are constant along every diagonal and outputs are the same at every position.

Axes: b batch · h heads · t queries · s keys.
"""

from dataclasses import replace

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.implementation import Implementation, relative_difference
from qkv.check.report import Finding, Verdict, judge
from qkv.check.tracing.readings import record_run
from qkv.check.tracing.recorder import AttentionRecord, Recording
from qkv.check.tracing.scores import measure_slope

FAR = 300  # the length of a long sequence; beyond 256, bfloat16 rounds positions


def check_positions(impl: Implementation, contract: Contract, kind: str) -> list[Finding]:
    """What the contract promises of positions; without a promise, what they do."""
    findings = [_check_order(impl, contract)] if kind == "bidirectional" else []
    if impl.module is None:
        return findings
    findings.append(_check_diagonals(impl, contract, impl.length, "relative positions"))
    if contract.relative:
        findings.append(_check_diagonals(impl, contract, FAR, "long positions"))
        findings.append(_check_scores_only(impl, contract))
    if contract.position == "alibi":
        findings.append(_check_alibi_slopes(impl))
    return findings


def _repeated_token(impl: Implementation, length: int) -> Tensor:
    x = impl.random_input(2, 1, torch.Generator().manual_seed(24))
    return x.expand(2, length, *x.shape[2:]).contiguous()


def _check_diagonals(impl: Implementation, contract: Contract, length: int, name: str) -> Finding:
    """Scores of one repeated token are constant along diagonals."""
    promised = contract.relative
    length = impl.nearest_length(length)
    recording = record_run(impl, _repeated_token(impl, length))
    if not recording.attentions or recording.attentions[0].scores is None:
        verdict: Verdict = "inconclusive" if promised and name == "relative positions" else "n/a"
        return Finding(name, verdict, None, f"{length} tokens: {recording.refused or 'no scores were recorded'}")
    far = name == "long positions"
    limit = (1e-3 if far else 1e-6) * (1 if impl.dtype == torch.float64 else 1e3)
    off = _diagonal_difference(recording.attentions[0])
    evidence = f"with one token repeated {length} times, scores on a diagonal differ by {off:.2g} (relative)"
    if off <= limit and promised:
        found = _check_two_tokens(impl, name, length, limit) or _check_same_distances(impl, recording, name, limit)
        if found is not None:
            return found
    if off <= limit:
        return Finding(name, "pass" if promised else "described", off, evidence)
    if not promised:
        return Finding(name, "described", off, f"{evidence}: absolute positions matter")
    rotates = contract.position == "rotary"
    if not far:
        hint = "absolute positions matter, not only distances"
        family = "positions" if contract.position == "relative" else "rotary"
        return Finding(name, "fail", off, evidence, f"{hint}{_ROTATED if rotates else ''}", family)
    hint, condition = _explain_far(recording.attentions[0], limit, rotates=rotates)
    family = {"rotary": "rotary", "alibi": "alibi"}.get(str(contract.position), "positions")
    return Finding(name, "fail", off, evidence, hint, family, condition=condition)


def _check_two_tokens(impl: Implementation, name: str, length: int, limit: float) -> Finding | None:
    """With two tokens in turn, scores two places further on a diagonal are the same; None if they are.

    One token alone hides what a softmax cancels: the rotation of queries without that of keys.
    """
    x = _repeated_token(impl, length)
    other = impl.random_input(2, 1, torch.Generator().manual_seed(27))
    x[:, 1::2] = other.expand_as(x[:, 1::2])
    recording = record_run(impl, x)
    if not recording.attentions or recording.attentions[0].scores is None:
        return None
    off = _diagonal_difference(recording.attentions[0], step=2)
    if off <= limit:
        return None
    evidence = f"with two tokens in turn, {length} in all, scores two places further on a diagonal differ by {off:.2g}"
    hint = "absolute positions matter, not only distances: queries and keys must be rotated, or shifted, alike"
    return Finding(name, "fail", off, evidence, hint, "rotary")


def _check_same_distances(impl: Implementation, recording: Recording, name: str, limit: float) -> Finding | None:
    """The scores of the first tokens of a long sequence are those of a short one; None if they are."""
    n = impl.length
    if name != "long positions" or impl.fixed_length is not None:
        return None
    short = record_run(impl, _repeated_token(impl, n))
    if not short.attentions or short.attentions[0].scores is None or short.attentions[0].mask is None:
        return None
    long, mask = recording.attentions[0].scores, short.attentions[0].mask
    assert long is not None
    change = (long[..., :n, :n] - short.attentions[0].scores).masked_fill(~mask, 0.0).nan_to_num(0.0, 0.0, 0.0)
    shared = change.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    off = float((change - shared).masked_fill(~mask, 0.0).abs().max())
    off /= float(short.attentions[0].scores.masked_fill(~mask, 0.0).abs().max().clamp(min=1e-12))
    if off <= limit:
        return None
    evidence = (
        f"with one token repeated, scores of the first {n} tokens differ by {off:.2g} in a sequence of {long.shape[-1]}"
    )
    hint = "what positions add to the scores depends on the length of the sequence, not on the distance alone"
    return Finding(name, "fail", off, evidence, hint, "positions")


_ROTATED = ": queries and keys must be rotated alike"


def _explain_far(attention: AttentionRecord, limit: float, *, rotates: bool) -> tuple[str, str]:
    """Why far positions are wrong, and from which sequence length on."""
    right, wrong = 2, attention.product.shape[-1]  # lengths
    while wrong - right > 1:
        middle = (right + wrong) // 2
        fine = _diagonal_difference(attention, middle) <= limit
        right, wrong = (middle, wrong) if fine else (right, middle)
    condition = f"from {wrong} tokens on" if right > 8 else ""
    if _diagonal_difference(attention) <= 0.02:
        return "angles lose precision far out: compute them in float32 at least, from integer positions", condition
    assert attention.scores is not None and attention.mask is not None
    last, seen = attention.scores[..., -1, right:], attention.mask[..., -1, right:]
    change = float((last - last[..., -1:]).masked_fill(~seen, 0.0).abs().max())
    if last.shape[-1] > 4 and change <= limit * float(last[seen].abs().max()):
        return f"positions stop growing: all tokens from position {right - 1} on are at the same one", condition
    if rotates:
        return (
            "far positions are not rotated by their distance: a table ends, or positions are clamped or wrap",
            condition,
        )
    return "far positions do not count by their distance: positions are clamped or wrap, or a table ends", condition


def _diagonal_difference(attention: AttentionRecord, length: int | None = None, step: int = 1) -> float:
    """How far scores are from being constant along diagonals, up to a number for each query, which a softmax cancels.

    BLOOM adds slope · key position, which is slope · distance up to such a number.

    Args:
        length: only of the first positions. step: how many places further scores are compared.
    """
    assert attention.scores is not None
    mask = attention.mask
    assert mask is not None
    size = attention.scores.masked_fill(~mask, 0.0).abs().max().clamp(min=1e-12)
    scores, mask = (x[..., :length, :length] for x in (attention.scores, mask))
    scores = scores.masked_fill(~mask, 0.0)
    both = mask[..., step:, step:] & mask[..., :-step, :-step]
    change = (scores[..., step:, step:] - scores[..., :-step, :-step]).masked_fill(~both, 0.0)
    shared = change.sum(-1, keepdim=True) / both.sum(-1, keepdim=True).clamp(min=1)
    change = (change - shared).masked_fill(~both, 0.0).abs()
    return float(change.max() / size)


def _check_scores_only(impl: Implementation, contract: Contract) -> Finding:
    """One repeated token gives one repeated output, if positions enter the scores only and rows sum to one.

    Relative positions may also enter the values (Shaw et al., 2018), by distance; rotary ones and ALiBi may not.
    """
    x = _repeated_token(impl, impl.length)
    out = impl.run(x)
    off = relative_difference(out, out[:, :1].expand_as(out))
    repeated = f"with one token repeated {impl.length} times"
    evidence = f"{repeated}, outputs differ by {off:.2g} (relative) from position to position"
    if off > 100 * impl.tolerance and (values := _values_with_sinks(impl, x)) is not None:
        off = relative_difference(values, values[:, :, :1].expand_as(values))
        evidence = f"{repeated}, values differ by {off:.2g} (relative); a sink takes a share of rows"
    hint = "positions reach the values, not only the scores: values are rotated, or positions are added to tokens"
    finding = judge("positions in scores only", off, 100 * impl.tolerance, evidence, hint, "rotary")
    if contract.position == "relative" and finding.verdict == "fail":
        return replace(finding, verdict="described", hint=None, family=None)
    return finding


def _values_with_sinks(impl: Implementation, x: Tensor) -> Tensor | None:
    """The values (b, h, s, e) of an attention whose weights sum to less than 1, as with sinks; None if they do not.

    How much a sink takes depends on the number of keys, so outputs differ though values do not.
    """
    recording = record_run(impl, x)
    if not recording.attentions:
        return None
    attention = recording.attentions[0]
    sums = attention.weights.sum(-1)
    positive = bool((attention.weights >= 0).all())
    return attention.values if positive and float(sums.min()) < 1 - 1e-6 and float(sums.max()) <= 1 + 1e-6 else None


def _check_order(impl: Implementation, contract: Contract) -> Finding:
    """Without positions, reordered tokens give the same outputs in the new order (permutation equivariance)."""
    generator = torch.Generator().manual_seed(25)
    x = impl.random_input(2, impl.length, generator)
    order = torch.randperm(impl.length, generator=generator)
    off = relative_difference(impl.run(x)[:, order], impl.run(x[:, order]))
    evidence = f"with reordered tokens, outputs differ by {off:.2g} (relative) from the reordered outputs"
    same = off <= 10 * impl.tolerance
    if contract.position != "none":
        return Finding("order", "described", off, evidence if same else f"{evidence}: the order matters")
    if same:
        return Finding("order", "pass", off, evidence)
    hint = "the order matters although the contract says position none: a view that mixes tokens, or a mask"
    return Finding("order", "fail", off, evidence, hint, "heads mixed")


def _check_alibi_slopes(impl: Implementation) -> Finding:
    """The slopes of a bias that falls with distance are 2^(−8/h), 2^(−16/h), …."""
    recording = record_run(impl, impl.random_input(2, impl.length, torch.Generator().manual_seed(26)))
    attention = recording.attentions[0] if recording.attentions else None
    slope = None if attention is None else measure_slope(attention)
    if attention is None or slope is None or attention.scores is None:
        return Finding("alibi", "inconclusive", None, f"no bias was recorded: {recording.refused or 'no scores'}")
    bias = (attention.scores - slope[0] * attention.product)[0]  # (h, t, s)
    t, h = bias.shape[-1], bias.shape[0]
    found = [float(bias[head, t - 1, t - 1] - bias[head, t - 1, 0]) / (t - 1) for head in range(h)]
    promised = alibi_slopes(h)["the paper's formula"]
    forms = {name: _slope_error(found, slopes) for name, slopes in alibi_slopes(h).items()}
    form, off = min(forms.items(), key=lambda pair: pair[1])
    evidence = f"slopes are {', '.join(f'{x:.4g}' for x in found)}; required: {', '.join(f'{x:.4g}' for x in promised)}"
    if off <= 0.01:
        more = "" if forms["the paper's formula"] <= 0.01 else f", or {form} for {h} heads"
        far = _check_far_bias(impl, torch.tensor(alibi_slopes(h)[form], dtype=torch.float64))
        if far is not None:
            return far
        return Finding("alibi", "pass", off, f"{evidence}{more}")
    shifted = [2.0 ** (-8 * head / h) for head in range(h)]
    if max(abs(a - b) for a, b in zip(found, shifted, strict=True)) <= 0.01:
        hint = "the exponents are off by one: the slope of the first head is 2^(−8/h), not 1"
    elif max(abs(a + b) for a, b in zip(found, promised, strict=True)) <= 0.01 * promised[0]:
        hint = "the sign is wrong: the bias grows with distance"
    else:
        hint = "the slopes are not 2^(−8/h), 2^(−16/h), …"
    return Finding("alibi", "fail", off, evidence, hint, "alibi")


def _check_far_bias(impl: Implementation, slopes: Tensor) -> Finding | None:
    """What is wrong with the bias of distant keys, whose scores, with one repeated token, differ by it alone."""
    recording = record_run(impl, _repeated_token(impl, impl.nearest_length(FAR)))
    attention = recording.attentions[0] if recording.attentions else None
    if attention is None or attention.scores is None or attention.mask is None or attention.heads != len(slopes):
        return None
    scores, seen = attention.scores[0, :, -1].flip(-1), attention.mask[0, :, -1].flip(-1)  # (h, s) by distance
    bias = scores - scores[:, :1]
    expected = -slopes[:, None] * torch.arange(scores.shape[-1])
    wrong = ((bias - expected).abs() > 0.01 * expected.abs() + 1e-4) & seen
    if not bool(wrong.any()):
        return None
    first = int(wrong.any(0).nonzero()[0])
    off = float(((bias - expected).abs() / expected.abs().clamp(min=1e-4))[wrong].max())
    head = int(wrong[:, first].nonzero()[0])
    evidence = (
        f"{scores.shape[-1]} tokens: at distance {first} the bias of head {head} is {float(bias[head, first]):.4g}, "
        f"required: {float(expected[head, first]):.4g}"
    )
    stopped = float((bias[:, first:] - bias[:, first - 1 : first]).masked_fill(~seen[:, first:], 0.0).abs().max())
    hint = "the bias is not −slope · distance for distant keys: distances wrap, or a table ends"
    if stopped <= 1e-4:
        hint = f"the bias stops growing: distances are clamped at {first - 1}"
    return Finding("alibi", "fail", off, evidence, hint, "alibi", condition=f"from {first + 1} tokens on")


def alibi_slopes(heads: int) -> dict[str, list[float]]:
    """The slopes of ALiBi; for head counts that are no power of two, three forms are in use.

    >>> alibi_slopes(2)["the paper's formula"]
    [0.0625, 0.00390625]
    """

    def geometric(count: int) -> list[float]:
        return [2.0 ** (-8 * (head + 1) / count) for head in range(count)]

    below = 1 << (heads.bit_length() - 1)
    above = below if below == heads else 2 * below
    return {
        "the paper's formula": geometric(heads),
        "the authors' code and BLOOM": geometric(below) + geometric(2 * below)[0::2][: heads - below],
        "MPT": geometric(heads) if above == heads else (geometric(above)[1::2] + geometric(above)[0::2])[:heads],
    }


def _slope_error(found: list[float], slopes: list[float]) -> float:
    return max(abs(a - b) / b for a, b in zip(found, slopes, strict=True))
