"""Unequal lengths and grouped heads: where a causal mask stands, and who shares whose keys; equality with the formula.

Axes: b batch · h heads · g key heads · t queries · s keys · d head width.
"""

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.finding import Finding
from qkv.check.functions import HEADS, WIDTH
from qkv.check.subject import Subject


def check_layout(subject: Subject, contract: Contract) -> list[Finding]:
    if subject.attend is None:
        return []
    return [_alignment(subject, contract), _grouped(subject, contract), _formula(subject, contract)]


def _alignment(subject: Subject, contract: Contract) -> Finding:
    """With more keys than queries: which keys the first query sees."""
    if subject.attend is None or subject.flag is None:
        return Finding("alignment", "n/a", None, "it has no causal flag of its own")
    try:
        found, seen = alignment_of(subject)
    except Exception as error:
        return Finding("alignment", "n/a", None, f"unequal lengths are refused: {type(error).__name__}")
    evidence = f"3 queries on 6 keys: {found} (the first query sees {seen} keys)"
    if contract.alignment is None:
        return Finding("alignment", "described", None, evidence)
    if found == contract.alignment:
        return Finding("alignment", "pass", 0.0, evidence)
    hint = {
        "bottom-right": "with a cache the mask must stand at the end: allow key ≤ query + (keys − queries)",
        "top-left": "the mask must stand at the beginning: allow key ≤ query",
    }[contract.alignment]
    return Finding("alignment", "fail", 1.0, f"{evidence}; promised {contract.alignment}", hint, "alignment")


def alignment_of(subject: Subject) -> tuple[str, int]:
    """Where its causal mask stands if there are more keys than queries, and how many keys the first query sees."""
    assert subject.attend is not None
    q, k, v = _draw(3), _draw(6), _draw(6)
    before = subject.attend(q, k, v, causal=True)
    seen = []
    for key in range(6):
        other = v.clone()
        other[:, :, key] += 1.0
        moved = (subject.attend(q, k, other, causal=True) - before).abs().amax((0, 1, 3))
        seen.append(moved > 1e-9)
    felt = torch.stack(seen, dim=1)
    ones = torch.ones(3, 6, dtype=torch.bool)
    patterns = {"bottom-right": ones.tril(3), "top-left": ones.tril()}
    found = next((name for name, pattern in patterns.items() if torch.equal(felt, pattern)), "irregular")
    return found, int(felt[0].sum())


def _grouped(subject: Subject, contract: Contract) -> Finding:
    """With half as many heads of keys: which heads of queries a head of keys, and of values, serves."""
    assert subject.attend is not None
    q, k, v = _draw(5), _draw(5, HEADS // 2), _draw(5, HEADS // 2)
    try:
        before = subject.attend(q, k, v)
        served = []
        for place in (1, 2):
            parts = [q, k.clone(), v.clone()]
            parts[place][:, 0] = parts[place][:, 0].flip(-1) + 0.5
            served.append(((subject.attend(*parts) - before).abs().amax((0, 2, 3)) > 1e-9).tolist())
    except Exception as error:
        said = f"fewer heads of keys than of queries are refused: {type(error).__name__}"
        return Finding("grouped heads", "n/a", None, said)
    layouts = {"repeated": [True, True, False, False], "tiled": [True, False, True, False]}
    names = [next((name for name, heads in layouts.items() if heads == seen), "irregular") for seen in served]
    if names[0] != names[1] and "irregular" not in names:
        hint = "keys and values must be shared alike"
        evidence = f"keys are {names[0]}, values are {names[1]}"
        return Finding("grouped heads", "fail", 1.0, evidence, hint, "head layout")
    evidence = f"each head of keys serves queries' heads {[h for h, on in enumerate(served[0]) if on]}, …: {names[0]}"
    if contract.grouped is None:
        return Finding("grouped heads", "described", None, evidence)
    if names[0] == contract.grouped:
        return Finding("grouped heads", "pass", 0.0, evidence)
    hint = {"repeated": "use repeat_interleave, not repeat", "tiled": "use repeat, not repeat_interleave"}
    said = f"{evidence}; promised {contract.grouped}"
    return Finding("grouped heads", "fail", 1.0, said, hint[contract.grouped], "head layout")


def _formula(subject: Subject, contract: Contract) -> Finding:
    """Where scale and softmax are promised, the output is known: it must equal the written formula."""
    assert subject.attend is not None
    if contract.scale is None or contract.softmax is None:
        return Finding("formula", "n/a", None, "scale and softmax are not both promised")
    scale = WIDTH**-0.5 if contract.scale == "head" else float(contract.scale)
    q, k, v = _draw(6, seed=1), _draw(6, seed=2), _draw(6, seed=3)
    expected = (scale * q @ k.mT).softmax(-1) @ v
    score = float((subject.attend(q, k, v) - expected).abs().max() / expected.abs().max())
    evidence = f"differs from softmax(q·kᵀ·{scale:.4g}) v by {score:.2g}"
    if score <= 1e-9:
        return Finding("formula", "pass", score, evidence)
    return Finding("formula", "fail", score, evidence)


def _draw(length: int, heads: int = HEADS, *, seed: int = 18) -> Tensor:
    generator = torch.Generator().manual_seed(seed + length)
    return torch.randn(2, heads, length, WIDTH, generator=generator, dtype=torch.float64)
