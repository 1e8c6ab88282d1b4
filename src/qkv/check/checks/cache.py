"""KV cache: pieces run through the cache (steps, prefill, chunks) must give the outputs of the whole sequence.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.implementation import Implementation
from qkv.check.report import Finding, Verdict, describe_error
from qkv.check.shapes import Sweep

WAYS = ("steps", "prefill", "chunks")
HINT = "a piece reads other keys or values than the whole sequence does, sees others of them, or is at other positions"


def piece_sizes(way: str, n: int) -> list[int]:
    """The sizes of the pieces of a sequence of n tokens, for "steps", "prefill" and "chunks"."""
    return {"steps": [1] * n, "prefill": [n - 3, 1, 1, 1], "chunks": [3, 4, 2, n - 9]}[way]


# further pieces, across blocks and pages of 16, 32 and 64 tokens
LONG_PIECES: dict[str, tuple[tuple[int, ...], ...]] = {
    "steps": ((1,) * 70,),
    "prefill": ((17, 1, 1), (33, 1, 1, 1), (64, 1, 1)),
    "chunks": ((13, 7, 17, 1, 30), (16, 16, 16, 17), (20, 20, 20), (5, 12)),
}


def check_cache(impl: Implementation, contract: Contract, kind: str, sweep: Sweep) -> list[Finding]:
    """One token at a time, a prefill and then steps, and chunks all give the outputs of the whole sequence."""
    if impl.run_cached is None:
        verdict: Verdict = "inconclusive" if contract.cache else "n/a"
        return [Finding("cache", verdict, None, "it has no KV cache that could be recognized")]
    if kind == "bidirectional" and contract.kind != "causal":
        return [Finding("cache", "n/a", None, "it sees the whole sequence: pieces cannot give the same outputs")]
    findings = []
    for way in WAYS:
        found = _run_pieces(impl, way, piece_sizes(way, impl.length), seed=11)
        if found.verdict == "pass":
            found = _run_long_pieces(impl, way, found, sweep)
        findings.append(found)
    return findings


def _run_long_pieces(impl: Implementation, way: str, found: Finding, sweep: Sweep) -> Finding:
    """The same with longer sequences, each with another input: nothing of an earlier one may be left."""
    passed = [impl.length]
    for number, sizes in enumerate(LONG_PIECES[way]):
        if sum(sizes) > sweep.longest():
            continue
        other = _run_pieces(impl, way, list(sizes), seed=53 + number)
        if other.verdict == "fail":
            words = f"pieces of {', '.join(map(str, sizes))} tokens" if len(sizes) < 10 else f"{len(sizes)} steps"
            return replace(other, evidence=f"{words}: {other.evidence}")
        if other.verdict == "pass":
            passed.append(sum(sizes))
    return replace(found, evidence=f"{found.evidence}; the same up to {max(passed)} tokens")


def _run_pieces(impl: Implementation, way: str, sizes: list[int], seed: int) -> Finding:
    """Run pieces of these sizes through the cache, and compare with the whole sequence."""
    assert impl.run_cached is not None
    x = impl.random_input(2, sum(sizes), torch.Generator().manual_seed(seed))
    try:
        return _compare(impl, way, impl.run(x), impl.run_cached(x.split(sizes, dim=1)))
    except Exception as error:
        return Finding(f"cache ({way})", "inconclusive", None, f"the call failed: {describe_error(error)}")


def _compare(impl: Implementation, way: str, whole: Tensor, out: Tensor) -> Finding:
    off = (out - whole).abs().nan_to_num(nan=float("inf")).flatten(2).amax((0, 2)) / (float(whole.abs().max()) or 1.0)
    score, at = float(off.max()), int(off.argmax())
    evidence = f"with the cache, output {at} differs by {score:.2g} (relative) from the call without"
    if score <= 10 * impl.tolerance:
        return Finding(f"cache ({way})", "pass", score, evidence)
    first = int((off > 10 * impl.tolerance).nonzero()[0])
    evidence = f"{evidence}; output {first} is the first that differs"
    return Finding(f"cache ({way})", "fail", score, evidence, HINT)


def failing_pieces(impl: Implementation, way: str) -> list[int]:
    """The sizes of the first pieces for which the cache differs from the whole: the usual ones, or longer ones."""
    for sizes in (piece_sizes(way, impl.length), *map(list, LONG_PIECES[way])):
        if impl.takes_length(sum(sizes)) and _run_pieces(impl, way, sizes, seed=22).verdict == "fail":
            return sizes
    return piece_sizes(way, impl.length)
