"""Its own cache must agree with itself: one token at a time, a beginning and then steps, and chunks."""

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.finding import Finding, told
from qkv.check.subject import Subject

FAMILY = {"steps": "cache order", "prefill": "positions with cache", "chunks": "mask with cache"}


def check_cache(subject: Subject, contract: Contract, kind: str = "causal") -> list[Finding]:
    if subject.cached is None:
        verdict = "fail" if contract.cache else "n/a"
        return [Finding("cache", verdict, None, "it has no cache that could be recognised")]
    if kind == "bidirectional" and contract.kind != "causal":
        return [Finding("cache", "n/a", None, "it sees the whole sequence: pieces of it cannot give the same")]
    n = subject.length
    x = subject.draw(2, n, torch.Generator().manual_seed(11))
    whole = subject.run(x)
    ways = {
        "steps": [1] * n,
        "prefill": [n - 3, 1, 1, 1],
        "chunks": [3, 4, 2, n - 9],
    }
    findings = []
    for name, sizes in ways.items():
        try:
            out = subject.cached(x.split(sizes, dim=1), [None] * len(sizes))
        except Exception as error:
            findings.append(Finding(f"cache ({name})", "inconclusive", None, f"the call failed: {told(error)}"))
            continue
        findings.append(_judged(subject, name, whole, out))
    return findings


def _judged(subject: Subject, name: str, whole: Tensor, out: Tensor) -> Finding:
    off = (out - whole).abs().flatten(2).amax((0, 2)) / (float(whole.abs().max()) or 1.0)
    score, at = float(off.max()), int(off.argmax())
    evidence = f"with the cache output {at} differs by {score:.2g} from the call without"
    if score <= 10 * subject.tolerance:
        return Finding(f"cache ({name})", "pass", score, evidence)
    first = int((off > 10 * subject.tolerance).nonzero()[0])
    hint = {
        "steps": "a step differs: positions without the cache's offset, keys dropped or in another order",
        "prefill": "a step after a beginning differs: positions without the cache's offset, or a mask not at the end",
        "chunks": "a chunk differs: its mask is skipped or aligned at the start, or keys are in another order",
    }[name]
    return Finding(
        f"cache ({name})", "fail", score, f"{evidence}; the first that differs is {first}", hint, FAMILY[name]
    )
