"""Padding must not matter: not its content, and not that it is there, wherever it stands."""

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.finding import Finding, Verdict
from qkv.check.subject import Subject


def check_padding(subject: Subject, contract: Contract) -> list[Finding]:
    if not subject.pads:
        verdict: Verdict = "fail" if contract.padding else "n/a"
        return [Finding("padding", verdict, None, "it takes no padding mask that could be recognised")]
    findings = []
    for side, present in flags(subject.length).items():
        findings.append(_content(subject, contract, side, present))
        findings.append(_removed(subject, contract, side, present))
    return [*findings, _empty_row(subject)]


def flags(n: int) -> dict[str, Tensor]:
    """Padding on the right, on the left, and holes: True = exists."""
    places = torch.arange(n)
    return {
        "right": places < n - 3,
        "left": places >= 3,
        "holes": (places != 2) & (places != n - 4),
    }


def _content(subject: Subject, contract: Contract, side: str, present: Tensor) -> Finding:
    """What stands in the padding is irrelevant to the tokens that exist."""
    generator = torch.Generator().manual_seed(9)
    x = subject.draw(2, subject.length, generator)
    both = torch.stack((present, torch.ones_like(present)))  # rows differ, so that mixing them shows
    other = torch.where(_like(present, x), x, subject.draw(2, subject.length, generator).to(x))
    free = subject.changed(x, int(present.nonzero()[0]), generator)  # the control: a token that exists
    before, after, control = (subject.at(subject.run(y, both)[:1], present) for y in (x, other, free))
    moved, may = float((after - before).abs().max()), float((control - before).abs().max())
    name = f"padding content ({side})"
    if not bool(before.isfinite().all()):
        hint = "a softmax over −∞ alone is NaN, and 0 · NaN is NaN in the next layer: give such rows weights of 0"
        return Finding(name, "fail", None, "outputs of tokens that exist are NaN or infinite", hint)
    if not may > 0:
        return Finding(name, "inconclusive", None, "changing a token that exists moved nothing either")
    score = moved / may
    evidence = f"other padding moved outputs by {moved:.2g} (control {may:.2g})"
    if score <= subject.tolerance:
        return Finding(name, "pass", score, evidence)
    hint = "the padding mask does not reach the scores of every key: check its polarity, its axis and its broadcasting"
    return Finding(name, "fail" if contract.padding is not False else "described", score, evidence, hint, "padding")


def _removed(subject: Subject, contract: Contract, side: str, present: Tensor) -> Finding:
    """The tokens that exist give the same outputs without any padding."""
    x = subject.draw(2, subject.length, torch.Generator().manual_seed(10))
    padded = subject.at(subject.run(x, torch.stack((present, torch.ones_like(present))))[:1], present)
    alone = subject.run(x[:1, present])
    score = float((padded - alone).abs().nan_to_num(nan=float("inf")).max()) / (float(alone.abs().max()) or 1.0)
    name, evidence = f"padding removed ({side})", f"without its padding a text's outputs differ by {score:.2g}"
    if score <= 10 * subject.tolerance:
        return Finding(name, "pass", score, evidence)
    if side == "left" and contract.relative:
        hint = (
            "where the text stands matters, so positions are not relative: a rotation of queries only, of values, "
            "or by another amount for queries than for keys"
        )
        return Finding(name, "fail", score, evidence, hint, "positions")
    if side != "right":  # a declared contract in most libraries: positions are counted over padding too
        hint = "positions count padding; give position ids, or count over what is present"
        return Finding(name, "fail" if contract.padding else "warn", score, evidence, hint, "padding")
    verdict = "fail" if contract.padding is not False else "described"
    return Finding(name, verdict, score, evidence, "padding on the right changes tokens before it", "padding")


def _empty_row(subject: Subject) -> Finding:
    """A row of the batch that is all padding gives finite numbers, and leaves the other rows alone."""
    x = subject.draw(2, subject.length, torch.Generator().manual_seed(17))
    there = torch.ones(2, subject.length, dtype=torch.bool)
    full = subject.run(x, there)
    there[1] = False
    out = subject.run(x, there)
    if not bool(out.isfinite().all()):
        rows = [row for row in range(2) if not bool(out[row].isfinite().all())]
        evidence = f"row 1 is all padding; the outputs of rows {rows} are NaN or infinite"
        hint = "a softmax over −∞ alone is NaN: give such rows weights of 0"
        share = float((~out.isfinite()).float().mean())
        return Finding("fully padded row", "fail", share, evidence, hint, "fully masked row")
    score = float((out[0] - full[0]).abs().max()) / (float(full[0].abs().max()) or 1.0)
    verdict = "pass" if score <= 10 * subject.tolerance else "fail"
    return Finding("fully padded row", verdict, score, f"its outputs are finite; the other row differs by {score:.2g}")


def _like(present: Tensor, x: Tensor) -> Tensor:
    return present if x.ndim == 2 else present[:, None]
