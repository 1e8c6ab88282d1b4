"""What no contract can excuse: randomness in eval, changed inputs, dependence on the batch, NaN on finite input."""

import torch
from torch import Tensor

from qkv.check.finding import Finding
from qkv.check.functions import HEADS, WIDTH
from qkv.check.subject import Subject


def check_always(subject: Subject) -> list[Finding]:
    return [inputs_kept(subject), *batch_independence(subject), finite(subject), paths(subject)]


def paths(subject: Subject) -> Finding:
    """With gradients and without, where libraries take different paths, the numbers are the same; with padding too."""
    x = subject.draw(2, subject.length, torch.Generator().manual_seed(20))
    flags: list[Tensor | None] = [None]
    if subject.pads:
        left = torch.arange(subject.length) >= 3
        flags.append(torch.stack((left, torch.ones_like(left))))
    worst = 0.0
    for present in flags:
        with torch.no_grad():
            fast = subject.run(x, present)
        with torch.enable_grad():
            slow = subject.run(x, present).detach()
        if present is not None:
            fast, slow = subject.at(fast, present), subject.at(slow, present)
            both = fast.isnan() & slow.isnan()  # what is NaN on both paths is said elsewhere
            fast, slow = fast.masked_fill(both, 0.0), slow.masked_fill(both, 0.0)
        worst = max(worst, _difference(slow, fast))
    evidence = f"with and without gradients outputs differ by {worst:.2g} of their size"
    if worst <= 10 * subject.tolerance:
        return Finding("paths agree", "pass", worst, evidence)
    return Finding(
        "paths agree", "fail", worst, evidence, "a fast path without gradients computes something else", "paths differ"
    )


def determinism(subject: Subject) -> Finding:
    """The same input twice gives the same output."""
    x = subject.draw(2, subject.length, torch.Generator().manual_seed(4))
    first, second = subject.run(x), subject.run(x)
    score = _difference(first, second)
    evidence = f"the same input twice differs by {score:.2g} of the output's size"
    if score <= 1e-9:
        return Finding("steady in eval", "pass", score, evidence)
    hint = "dropout (or another draw) is active in eval: pass dropout only if self.training"
    return Finding("steady in eval", "fail", score, evidence, hint, "random in eval")


def inputs_kept(subject: Subject) -> Finding:
    """The input is the same after the call."""
    generator = torch.Generator().manual_seed(5)
    if subject.attend is None:
        inputs = [subject.draw(2, subject.length, generator)]
    else:
        inputs = [torch.randn(2, HEADS, 6, WIDTH, generator=generator, dtype=torch.float64) for _ in range(3)]
    before = [x.clone() for x in inputs]
    (subject.attend or subject.run)(*inputs)
    moved = max(float((x - y).abs().max()) for x, y in zip(inputs, before, strict=True))
    if moved == 0:
        return Finding("inputs not mutated", "pass", 0.0, "the input is bit-equal after the call")
    hint = "an operation with a trailing underscore, or an assignment to a slice, works on the caller's tensor"
    return Finding(
        "inputs not mutated", "fail", moved, f"the call changed its input by up to {moved:.2g}", hint, "input changed"
    )


def batch_independence(subject: Subject) -> list[Finding]:
    """A row's output does not depend on the other rows, on how many there are, or on their order."""
    generator = torch.Generator().manual_seed(6)
    x, others = subject.draw(3, subject.length, generator), subject.draw(2, subject.length, generator)
    whole = subject.run(x)
    cases = {
        "alone": subject.run(x[:1]),
        "with others": subject.run(torch.cat((x[:1], others)))[:1],
        "reordered": subject.run(x.flip(0))[-1:],
    }
    limit = 1e-9 if subject.dtype == torch.float64 else 1e-4
    findings = []
    for how, row in cases.items():
        score = _difference(whole[:1], row)
        verdict = "pass" if score <= limit else "fail"
        hint = None if verdict == "pass" else "something mixes rows: a norm, a mean or a view over the batch axis"
        evidence = f"a row {how} differs by {score:.2g} of the output's size"
        findings.append(Finding(f"batch ({how})", verdict, score, evidence, hint, "batch mixed"))
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
            return Finding("finite", "fail", bad, evidence, hint, "overflow")
    return Finding("finite", "pass", 0.0, f"outputs are finite for inputs × {', '.join(f'{s:g}' for s in sizes)}")


def _difference(a: Tensor, b: Tensor) -> float:
    """The largest difference, as a share of the largest output; NaN counts as infinite."""
    size = float(a.nan_to_num().abs().max()) or 1.0
    return float((a - b).abs().nan_to_num(nan=float("inf")).max()) / size
