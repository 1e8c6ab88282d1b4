"""KV cache: pieces run through the cache (steps, prefill, chunks) must give the outputs of the whole sequence.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.implementation import Implementation
from qkv.check.report import Diagnosis, Finding, Verdict, describe_error
from qkv.check.shapes import Sweep
from qkv.check.tracing.heads import is_close
from qkv.check.tracing.readings import record_run
from qkv.check.tracing.recorder import AttentionRecord, Recording, record_attention

FAMILIES = {"steps": "cache order", "prefill": "positions with cache", "chunks": "mask with cache"}
HINTS = {
    "steps": "a step differs: positions without the cache's offset, or keys dropped or in another order",
    "prefill": "a step after a prefill differs: positions without the cache's offset, or a mask not aligned at the end",
    "chunks": "a chunk differs: its mask is skipped or aligned at the start, or keys are in another order",
}


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
    for way in HINTS:
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
    return Finding(f"cache ({way})", "fail", score, evidence, HINTS[way], FAMILIES[way])


def failing_pieces(impl: Implementation, way: str) -> list[int]:
    """The sizes of the first pieces for which the cache differs from the whole: the usual ones, or longer ones."""
    for sizes in (piece_sizes(way, impl.length), *map(list, LONG_PIECES[way])):
        if impl.takes_length(sum(sizes)) and _run_pieces(impl, way, sizes, seed=22).verdict == "fail":
            return sizes
    return piece_sizes(way, impl.length)


# -- the bug behind a difference: the operands of each piece compared with those of the whole --------------------------


def find_cache_bug(impl: Implementation, sizes: Sequence[int]) -> Diagnosis | None:
    """Why pieces of these sizes differ from the whole when they run through the cache."""
    if impl.run_cached is None:
        return None
    x = impl.random_input(2, sum(sizes), torch.Generator().manual_seed(22))
    whole = record_run(impl, x)
    alone = record_run(impl, x[:, sizes[0] : sizes[0] + sizes[1]])
    try:
        with torch.enable_grad(), record_attention(impl.module, 2) as found:
            impl.run_cached(x.split(list(sizes), dim=1))
    except Exception:  # what cannot be recorded is judged as a black box
        return None
    for name in dict.fromkeys(attention.name for attention in whole.attentions):
        bug = _find_bug_in_layer(name, whole, found[0], alone, sizes)
        if bug is not None:
            return bug
    return None


def _find_bug_in_layer(
    name: str, whole: Recording, pieces: Recording, alone: Recording, sizes: Sequence[int]
) -> Diagnosis | None:
    all_of, steps, fresh = (
        [attention for attention in part.attentions if attention.name == name] for part in (whole, pieces, alone)
    )
    if len(all_of) != 1 or len(steps) != len(sizes):
        return None
    end = 0
    for number, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        end += size
        restarted = fresh[0] if number == 1 and len(fresh) == 1 else None
        bug = _find_bug_in_piece(name, all_of[0], step, restarted, end - size, end)
        if bug is not None:
            return bug
    return None


def _find_bug_in_piece(
    name: str, whole: AttentionRecord, step: AttentionRecord, restarted: AttentionRecord | None, start: int, end: int
) -> Diagnosis | None:
    """Compares the piece [start, end) with the whole; `restarted`: the piece as a sequence of its own."""
    count = step.keys.shape[2]
    if count < end:
        return _find_bug_of_short_cache(name, whole, step, start, end)
    same_queries = is_close(step.queries, whole.queries[:, :, start:end])
    if restarted is not None and not same_queries:
        again = any(
            is_close(step.keys[:, :, part], restarted.keys) for part in (slice(start, end), slice(0, end - start))
        )
        if is_close(step.queries, restarted.queries) or again:
            words = "positions restart at 0 in each piece: the cache's length is not added"
            return Diagnosis("positions with cache", words, name)
    cached = start > 0 and is_close(step.keys[:, :, :start], whole.keys[:, :, :start])
    if cached and not same_queries and not is_close(step.keys[:, :, start:end], whole.keys[:, :, start:end]):
        words = f"after {start} tokens, new tokens get other positions than in the whole; cached keys are right"
        return Diagnosis("positions with cache", words, name)
    for words, own, other in (("keys", step.keys, whole.keys), ("values", step.values, whole.values)):
        bug = _find_order_bug(words, own[:, :, :end], other[:, :, :end], range(start, end), name)
        if bug is not None:
            return bug
    if not same_queries:
        return Diagnosis("positions with cache", "queries differ from those of the whole: their positions do", name)
    return _find_cached_mask_bug(name, whole, step, start, end)


def _find_bug_of_short_cache(
    name: str, whole: AttentionRecord, step: AttentionRecord, start: int, end: int
) -> Diagnosis | None:
    """The bug of a step with fewer keys than tokens, as in a sliding window; values say which tokens are left."""
    count = step.keys.shape[2]
    dropped = Diagnosis("cache order", f"there are {count} keys after {end} tokens: some are dropped", name)
    if step.values.shape[:2] != whole.values.shape[:2] or step.values.shape[-1] != whole.values.shape[-1]:
        return dropped
    wanted = whole.attended.any(0).any(0)[start:end, :end].any(0)
    values = whole.values[:, :, None, :end]
    near = (step.values[:, :, :, None] - values).abs().amax(-1) <= 1e-6 * (float(values.abs().max()) or 1.0)
    places = near.all(0).all(0)  # (keys of the step, tokens)
    missing = wanted & ~places.any(0)
    if bool(missing.any()):
        tokens = ", ".join(map(str, missing.nonzero()[:, 0].tolist()))
        words = f"after {end} tokens the cache has no key of token {tokens}, which the whole sequence sees"
        return Diagnosis("cache order", words, name)
    kept = places.any(1)
    order = places.to(torch.int8).argmax(1)
    shifted = not is_close(step.keys[:, :, kept], whole.keys[:, :, order[kept]])
    if shifted or not is_close(step.queries, whole.queries[:, :, start:end]):
        what = "keys" if shifted else "queries"
        words = (
            f"after {end} tokens, with {count} keys in the cache, {what} have other positions than in the whole: "
            "count all tokens, not the keys that are left"
        )
        return Diagnosis("positions with cache", words, name)
    found = step.attended.any(0).any(0) & kept
    expected = whole.attended.any(0).any(0)[start:end][:, order] & kept
    if torch.equal(found, expected):
        return None
    words = f"with the cache, a step sees {int(found.sum())} keys; without it, {int(expected.sum())}"
    return Diagnosis("window", words, name)


def _find_order_bug(what: str, own: Tensor, whole: Tensor, new: range, name: str) -> Diagnosis | None:
    if is_close(own, whole):
        return None
    near = (own[:, :, :, None] - whole[:, :, None]).abs().amax(-1) <= 1e-6 * (float(whole.abs().max()) or 1.0)
    places = near.all(0).all(0)  # (s, s): which key of the whole is where
    if bool(places.any(0).all()) and bool(places.any(1).all()):
        order = [int(row.to(torch.int8).argmax()) for row in places]
        return Diagnosis("cache order", f"{what} are in the order {order} in the cache", name)
    norms = own.norm(dim=-1), whole.norm(dim=-1)
    if float((norms[0] - norms[1]).abs().max()) <= 1e-6 * float(norms[1].max()):
        return Diagnosis("positions with cache", f"{what} are rotated by other positions than in the whole", name)
    if bool(places.any(1).any()):
        return Diagnosis("cache order", f"some cached {what} are missing, replaced or in another place", name)
    return Diagnosis("positions with cache", f"{what} of tokens {list(new)} differ from those of the whole", name)


def _find_cached_mask_bug(
    name: str, whole: AttentionRecord, step: AttentionRecord, start: int, end: int
) -> Diagnosis | None:
    found = step.attended.any(0).any(0)[:, :end]
    expected = whole.attended.any(0).any(0)[start:end, :end]
    if torch.equal(found, expected):
        return None
    seen, wanted = int(found.sum()), int(expected.sum())
    if end - start == 1 and not bool(expected.all()):  # a window
        words = f"with the cache, a step sees {seen} keys; without it, {wanted}: the cache keeps the wrong number"
        return Diagnosis("window", words, name)
    if bool(found.all()):
        words = "the mask is skipped when there is a cache: tokens of one piece see each other's future"
    elif torch.equal(found, torch.ones_like(found).tril()):
        words = "the mask is aligned at the start (top-left), so cached keys are hidden"
    else:
        words = "the mask of a piece is not the last rows of the whole mask"
    return Diagnosis("mask with cache", words, name)
