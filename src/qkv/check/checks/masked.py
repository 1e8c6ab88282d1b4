"""Masks that are handed in: what True means, and a query that may attend to nothing.

Axes: b batch · h heads · t queries · s keys · d head width.
"""

import torch

from qkv.check.contract import Contract
from qkv.check.finding import Finding
from qkv.check.functions import HEADS, WIDTH
from qkv.check.subject import Subject

WORDS = {
    "true-attends": "True = may attend",
    "true-masks": "True = may not attend",
    "added": "the mask is added to the scores",
}


def check_masked(subject: Subject, contract: Contract) -> list[Finding]:
    if subject.attend is None or not subject.masked or subject.polarity is None:
        return []
    return [_polarity(subject, contract), _nothing(subject), _unequal(subject)]


def _polarity(subject: Subject, contract: Contract) -> Finding:
    assert subject.polarity is not None
    words = WORDS[subject.polarity]
    if contract.mask is None:
        return Finding("mask polarity", "described", None, words)
    ok = contract.mask == subject.polarity
    evidence = f"measured: {words}; promised: {WORDS[contract.mask]}"
    hint = None if ok else "the mask is used the other way round: invert it, or swap the branches of where/masked_fill"
    return Finding("mask polarity", "pass" if ok else "fail", None, evidence, hint, None if ok else "mask polarity")


def _unequal(subject: Subject) -> Finding:
    """A mask counts also where there are more keys than queries, as in cross-attention."""
    assert subject.attend is not None
    generator = torch.Generator().manual_seed(37)
    draw = lambda n: torch.randn(1, HEADS, n, WIDTH, generator=generator, dtype=torch.float64)  # noqa: E731
    q, k, v = draw(4), draw(7), draw(7)
    allowed = torch.ones(4, 7, dtype=torch.bool)
    allowed[:, 5] = False
    name = "mask, more keys"
    try:
        before, after, control = (
            subject.attend(q, k, v + shift, allowed)
            for shift in (
                0.0,
                torch.eye(7, dtype=torch.float64)[5, :, None],
                torch.eye(7, dtype=torch.float64)[1, :, None],
            )
        )
    except Exception as error:
        return Finding(name, "n/a", None, f"4 queries on 7 keys with a mask are refused: {type(error).__name__}")
    moved, may = float((after - before).abs().max()), float((control - before).abs().max())
    evidence = f"4 queries on 7 keys: a masked key moved outputs by {moved:.2g} (control {may:.2g})"
    if not may > 0:
        return Finding(name, "inconclusive", None, evidence)
    if moved / may <= subject.tolerance:
        return Finding(name, "pass", moved / may, evidence)
    hint = "the mask is dropped when lengths differ: cross-attention sees padding"
    return Finding(name, "fail", moved / may, evidence, hint, "mask dropped")


def _nothing(subject: Subject) -> Finding:
    """A query that may attend to nothing gives finite numbers, forwards and backwards."""
    assert subject.attend is not None
    generator = torch.Generator().manual_seed(16)
    q, k, v = (
        torch.randn(1, HEADS, 5, WIDTH, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)
    )
    allowed = torch.ones(5, 5, dtype=torch.bool)
    allowed[2] = False
    out = subject.attend(q, k, v, allowed)
    bad = ~out.isfinite()
    if bool(bad.any()):
        rows = sorted({int(place) for place in bad.nonzero()[:, 2]})
        evidence = f"row 2 may attend to nothing; outputs {rows} are NaN or infinite"
        hint = "a softmax over −∞ alone is NaN: give such rows weights of 0"
        return Finding("fully masked row", "fail", float(bad.float().mean()), evidence, hint, "fully masked row")
    slopes = torch.autograd.grad(out.sum(), (q, k, v), allow_unused=True)
    if not all(slope is None or bool(slope.isfinite().all()) for slope in slopes):
        hint = "overwriting NaN in the output leaves it in the gradient: mask so that no row is all −∞"
        return Finding(
            "fully masked row", "fail", 1.0, "outputs are finite, gradients are not", hint, "fully masked row"
        )
    empty = float(out[:, :, 2].detach().abs().max())
    said = "0" if empty == 0 else f"{empty:.2g} (an average of something)"
    return Finding("fully masked row", "pass", 0.0, f"its output is {said}; outputs and gradients are finite")
