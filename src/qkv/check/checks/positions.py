"""Positions: whether only distances matter, also far out, and whether the order matters at all.

Axes: b batch · h heads · t queries · s keys.

On a sequence of one token repeated, content is the same everywhere: what is left in the scores is position alone. If
only distances matter they are constant along every diagonal, and the outputs are the same at every place.
"""

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.finding import Finding, Verdict
from qkv.check.inside.read import recorded
from qkv.check.inside.scores import slope_of
from qkv.check.inside.seen import Recording, Seen
from qkv.check.subject import Subject

FAR = 200


def check_positions(subject: Subject, contract: Contract, kind: str) -> list[Finding]:
    findings = [_order(subject, contract)] if kind == "bidirectional" else []
    if subject.module is None:
        return findings
    findings.append(_diagonals(subject, contract, subject.length, "relative positions"))
    if contract.relative:
        findings.append(_diagonals(subject, contract, FAR, "long positions"))
        findings.append(_outputs(subject))
    if contract.position == "alibi":
        findings.append(_slopes(subject))
    return findings


def _same_token(subject: Subject, length: int) -> Tensor:
    x = subject.draw(2, 1, torch.Generator().manual_seed(24))
    return x.expand(2, length, *x.shape[2:]).contiguous()


def _diagonals(subject: Subject, contract: Contract, length: int, name: str) -> Finding:
    promised = contract.relative
    recording = recorded(subject, _same_token(subject, length))
    if not recording.seen or recording.seen[0].scores is None:
        verdict: Verdict = "inconclusive" if promised and length < FAR else "n/a"
        said = recording.refused or "the scores were not seen"
        return Finding(name, verdict, None, f"{length} tokens: {said}")
    off = _uneven(recording.seen[0])
    evidence = f"one token {length} times: scores along a diagonal differ by {off:.2g} of their size"
    limit = 1e-6 if length < FAR else 1e-3
    if subject.dtype != torch.float64:
        limit *= 1e3
    if off <= limit:
        return Finding(name, "pass" if promised else "described", off, evidence)
    if not promised:
        return Finding(name, "described", off, f"{evidence}: where a token stands matters")
    if length == FAR:
        hint = "angles lose precision far out: compute them in float32 at least, from integer places"
        return Finding(name, "fail", off, evidence, hint, "rotary")
    hint = "where a token stands matters, not only how far apart two are: queries and keys must be turned alike"
    return Finding(name, "fail", off, evidence, hint, "rotary")


def _uneven(seen: Seen) -> float:
    """How far scores are from being constant along diagonals."""
    assert seen.scores is not None
    there = seen.allowed
    assert there is not None
    scores = seen.scores.masked_fill(~there, 0.0)
    both = there[..., 1:, 1:] & there[..., :-1, :-1]
    moved = (scores[..., 1:, 1:] - scores[..., :-1, :-1]).masked_fill(~both, 0.0).abs()
    return float(moved.max() / scores.abs().max().clamp(min=1e-12))


def _outputs(subject: Subject) -> Finding:
    """One token repeated gives one output repeated, if positions reach the scores only and rows sum to one."""
    out = subject.run(_same_token(subject, subject.length))
    size = float(out.abs().max()) or 1.0
    off = float((out - out[:, :1]).abs().max()) / size
    evidence = f"one token {subject.length} times: outputs differ by {off:.2g} from place to place"
    if off <= 100 * subject.tolerance:
        return Finding("positions in scores only", "pass", off, evidence)
    hint = "positions reach what is gathered, not only the scores: values are turned, or positions are added to tokens"
    return Finding("positions in scores only", "fail", off, evidence, hint, "rotary")


def _order(subject: Subject, contract: Contract) -> Finding:
    """Tokens in another order give the same outputs in that order, if there are no positions."""
    generator = torch.Generator().manual_seed(25)
    x = subject.draw(2, subject.length, generator)
    order = torch.randperm(subject.length, generator=generator)
    out, turned = subject.run(x), subject.run(x[:, order])
    off = float((turned - out[:, order]).abs().max()) / (float(out.abs().max()) or 1.0)
    evidence = f"tokens in another order: outputs differ by {off:.2g} from the same outputs in that order"
    same = off <= 10 * subject.tolerance
    if contract.position != "none":
        return Finding("order", "described", off, f"{evidence}{'' if same else ': the order matters'}")
    if same:
        return Finding("order", "pass", off, evidence)
    hint = "the order matters although no positions were promised: a view that mixes tokens, or a mask"
    return Finding("order", "fail", off, evidence, hint, "heads mixed")


def _slopes(subject: Subject) -> Finding:
    """The slopes of a bias that falls with distance."""
    recording: Recording = recorded(subject, subject.draw(2, subject.length, torch.Generator().manual_seed(26)))
    if not recording.seen or (slope := slope_of(recording.seen[0])) is None or recording.seen[0].scores is None:
        return Finding("alibi", "inconclusive", None, f"the bias was not seen: {recording.refused or 'no scores'}")
    seen = recording.seen[0]
    assert seen.scores is not None
    bias = (seen.scores - slope[0] * seen.product)[0]  # (h, t, s)
    t, h = bias.shape[-1], bias.shape[0]
    found = [float(bias[head, t - 1, t - 1] - bias[head, t - 1, 0]) / (t - 1) for head in range(h)]
    right = [2.0 ** (-8 * (head + 1) / h) for head in range(h)]
    off = max(abs(a - b) / b for a, b in zip(found, right, strict=True))
    evidence = f"slopes are {', '.join(f'{x:.4g}' for x in found)}; promised {', '.join(f'{x:.4g}' for x in right)}"
    if off <= 0.01:
        return Finding("alibi", "pass", off, evidence)
    late = [2.0 ** (-8 * head / h) for head in range(h)]
    if max(abs(a - b) for a, b in zip(found, late, strict=True)) <= 0.01:
        hint = "the exponents are off by one: the first head's slope is 2^(−8/h), not 1"
    elif max(abs(a + b) for a, b in zip(found, right, strict=True)) <= 0.01 * right[0]:
        hint = "the sign is wrong: the bias grows with distance"
    else:
        hint = "the slopes are others than 2^(−8/h), 2^(−16/h), …"
    return Finding("alibi", "fail", off, evidence, hint, "alibi")
