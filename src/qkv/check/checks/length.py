"""What comes after must not matter: a text cut short gives the same outputs as far as it goes."""

import torch

from qkv.check.contract import Contract
from qkv.check.finding import Finding
from qkv.check.subject import Subject


def check_truncation(subject: Subject, contract: Contract) -> list[Finding]:
    """f(x[:t]) = f(x)[:t] for a causal subject; perturbation does not see positions that depend on the length."""
    if contract.kind not in ("causal", "window"):
        return [Finding("truncation", "n/a", None, "only a causal implementation promises it")]
    x = subject.draw(2, subject.length, torch.Generator().manual_seed(8))
    whole = subject.run(x)
    size, worst, at = float(whole.abs().max()) or 1.0, 0.0, 0
    for length in (1, 2, subject.length // 2, subject.length - 1):
        off = float((subject.run(x[:, :length]) - whole[:, :length]).abs().max()) / size
        if not off <= worst:
            worst, at = off, length
    evidence = f"cut after token {(at or subject.length - 1) - 1}, a text gives outputs that differ by {worst:.2g}"
    if worst <= 10 * subject.tolerance:
        return [Finding("truncation", "pass", worst, evidence)]
    hint = "outputs depend on the total length: positions counted from the end, a mean over the sequence, or a leak"
    return [Finding("truncation", "fail", worst, evidence, hint, "positions")]
