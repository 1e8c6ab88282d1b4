"""What no contract can excuse: randomness in eval, changed inputs, dependence on the batch, NaN on finite input."""

import torch
from torch import Tensor

from qkv.check.finding import Finding
from qkv.check.subject import Subject


def check_always(subject: Subject) -> list[Finding]:
    return [determinism(subject), inputs_kept(subject), *batch_independence(subject), finite(subject)]


def determinism(subject: Subject) -> Finding:
    """The same input twice gives the same output."""
    x = subject.draw(2, subject.length, torch.Generator().manual_seed(4))
    first, second = subject.run(x), subject.run(x)
    score = _difference(first, second)
    evidence = f"the same input twice differs by {score:.2g} of the output's size"
    if score <= 1e-9:
        return Finding("deterministic in eval", "pass", score, evidence)
    hint = "dropout (or another draw) is active in eval: pass dropout only if self.training"
    return Finding("deterministic in eval", "fail", score, evidence, hint)


def inputs_kept(subject: Subject) -> Finding:
    """The input is the same after the call."""
    x = subject.draw(2, subject.length, torch.Generator().manual_seed(5))
    before = x.clone()
    subject.run(x)
    if torch.equal(x, before):
        return Finding("inputs not mutated", "pass", 0.0, "the input is bit-equal after the call")
    moved = float((x - before).abs().max())
    hint = "an operation with a trailing underscore, or an assignment to a slice, works on the caller's tensor"
    return Finding("inputs not mutated", "fail", moved, f"the call changed its input by up to {moved:.2g}", hint)


def batch_independence(subject: Subject) -> list[Finding]:
    """A row's output does not depend on the other rows, on how many there are, or on their order."""
    generator = torch.Generator().manual_seed(6)
    x, others = subject.draw(3, subject.length, generator), subject.draw(2, subject.length, generator)
    whole = subject.run(x)
    cases = {
        "alone": subject.run(x[:1]),
        "with other rows": subject.run(torch.cat((x[:1], others)))[:1],
        "in another order": subject.run(x.flip(0))[-1:],
    }
    limit = 1e-9 if subject.dtype == torch.float64 else 1e-4
    findings = []
    for how, row in cases.items():
        score = _difference(whole[:1], row)
        verdict = "pass" if score <= limit else "fail"
        hint = None if verdict == "pass" else "something mixes rows: a norm, a mean or a view over the batch axis"
        evidence = f"the first row {how} differs by {score:.2g} of the output's size"
        findings.append(Finding(f"batch independence ({how})", verdict, score, evidence, hint))
    return findings


def finite(subject: Subject) -> Finding:
    """Finite inputs, also large ones, give finite outputs."""
    x = subject.draw(2, subject.length, torch.Generator().manual_seed(7))
    sizes = (1.0,) if subject.vocab is not None else (1.0, 30.0, 1000.0)
    for size in sizes:
        out = subject.run(x if size == 1.0 else x * size)
        if not bool(out.isfinite().all()):
            bad = float((~out.isfinite()).float().mean())
            hint = "the softmax overflows: subtract the row's maximum first, or use torch.softmax"
            evidence = f"inputs × {size:g} give {bad:.0%} NaN or infinite outputs"
            return Finding("finite", "fail", bad, evidence, hint)
    return Finding("finite", "pass", 0.0, f"outputs are finite for inputs × {', '.join(f'{s:g}' for s in sizes)}")


def _difference(a: Tensor, b: Tensor) -> float:
    """The largest difference, as a share of the largest output; NaN counts as infinite."""
    size = float(a.nan_to_num().abs().max()) or 1.0
    return float((a - b).abs().nan_to_num(nan=float("inf")).max()) / size
