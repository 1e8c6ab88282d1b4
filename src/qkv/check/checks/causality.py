"""Which tokens each output may see: causal, past reachable, kind, truncation, and cross-attention.

Axes: t outputs · s inputs.
"""

from dataclasses import replace

import torch
from torch import Tensor

from qkv.check.checks.basics import check_batch_independence, check_finite, check_inputs_not_mutated
from qkv.check.checks.padding import check_padding
from qkv.check.checks.paths import check_grad_modes
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation
from qkv.check.influence import InfluenceMap, measure_influence, name_kind
from qkv.check.report import Finding, judge

HINTS = {
    "sees one token ahead": (
        "the mask is off by one: a query may see keys up to and including itself, no further",
        "mask off by one",
    ),
    "strictly causal: a token does not see itself": (
        "the mask is off by one: a query may see itself too",
        "mask off by one",
    ),
    "anti-causal: sees the future, not the past": ("the mask is transposed: allow key ≤ query", "mask transposed"),
}


def check_kind(influence: InfluenceMap, contract: Contract) -> list[Finding]:
    """Judge the influence map if a kind is promised, else describe it."""
    found = name_kind(influence)
    if influence.empty:
        return [Finding("kind", "inconclusive", None, "no output changes when any token changes")]
    if contract.kind is None or influence.effects.shape[0] != influence.effects.shape[1]:
        return [Finding("kind", "described", None, f"the influence map shows: {found}")]
    if contract.kind == "causal":
        return [_check_future(influence, found), _check_past(influence, found)]
    names = {"window": f"window of {contract.window}", "chunked": "chunks"}
    promised = names.get(contract.kind, contract.kind)
    evidence = f"promised {promised}; measured {found}"
    if found.startswith(promised):
        return [Finding("kind", "pass", None, evidence)]
    hint, family = _kind_hint(found, contract)
    return [Finding("kind", "fail", None, evidence, hint, family)]


def _check_future(influence: InfluenceMap, found: str) -> Finding:
    """No output changes when a later token changes."""
    n = influence.effects.shape[0]
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    worst, i, j = _largest(influence.effects, later)
    allowed = float(influence.effects[i, : i + 1].max())
    if allowed < influence.tolerance and worst < influence.tolerance:
        return Finding("causal", "inconclusive", None, f"output {i} changes for no token at all")
    score = worst / max(allowed, 1e-12) if allowed > influence.tolerance else worst
    numbers = f"effect {worst:.2g}; an allowed change has {allowed:.2g}"
    if score <= influence.tolerance:
        evidence = f"no output changes when a later token changes (largest {numbers})"
        return Finding("causal", "pass", score, evidence)
    hint, family = HINTS.get(found) or _leak_hint(influence)
    evidence = f"output {i} changes when token {j} changes ({numbers}): future tokens leak"
    return Finding("causal", "fail", score, evidence, hint, family)


def _check_past(influence: InfluenceMap, found: str) -> Finding:
    """Every output changes when an earlier token, or its own, changes."""
    n = influence.effects.shape[0]
    unseen = torch.ones(n, n, dtype=torch.bool).tril() & ~influence.visible
    if not bool(unseen.any()):
        return Finding("past reachable", "pass", 0.0, "every output changes when a token up to its own changes")
    i, j = (int(axis[0]) for axis in unseen.nonzero(as_tuple=True))
    evidence = f"output {i} does not change when token {j} changes ({int(unseen.sum())} such pairs)"
    verdict = "described" if found.startswith("window") else "fail"
    hint, family = HINTS.get(found) or ("a mask hides part of the past: a window, a wrong alignment, blocks", "window")
    return Finding("past reachable", verdict, float(unseen.float().mean()), evidence, hint, family)


def _leak_hint(influence: InfluenceMap) -> tuple[str, str]:
    """The likely cause of a leak, by the look of the map."""
    n = influence.effects.shape[0]
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    earlier = torch.ones(n, n, dtype=torch.bool).tril(-1)
    if not bool((influence.visible | ~later).all()):
        return "some later tokens come through: check how the mask is built and sliced", "leak"
    strength = float(influence.effects[later].mean() / influence.effects[earlier].mean().clamp(min=1e-12))
    if strength > 0.4:
        words = "every later token comes through as strongly as earlier ones: there is no causal mask on this path"
        return words, "no mask"
    words = (
        "every later token comes through, weakly: masked scores that are not −∞, a mask applied after the softmax, "
        "or a mean over the sequence"
    )
    return words, "leak"


def _kind_hint(found: str, contract: Contract) -> tuple[str | None, str]:
    if contract.kind == "window" and found.startswith("window of"):
        size = found.split()[-1]
        return f"the window has {size} tokens, promised were {contract.window}: an inequality is off by one", "window"
    if contract.kind == "bidirectional":
        return "a mask hides part of the sequence", "window"
    return None, "window" if contract.kind == "window" else "leak"


def _largest(effects: Tensor, where: Tensor) -> tuple[float, int, int]:
    index = int(effects.masked_fill(~where, -1.0).argmax())
    i, j = divmod(index, effects.shape[1])
    return float(effects[i, j]), i, j


def check_truncation(impl: Implementation, contract: Contract) -> list[Finding]:
    """f(x[:t]) = f(x)[:t] for a causal implementation; perturbation misses positions that depend on the length."""
    if contract.kind not in ("causal", "window"):
        return [Finding("truncation", "n/a", None, "only a causal implementation promises it")]
    x = impl.random_input(2, impl.length, torch.Generator().manual_seed(8))
    whole = impl.run(x)
    size, worst, at = float(whole.abs().max()) or 1.0, 0.0, 0
    for length in (1, 2, impl.length // 2, impl.length - 1):
        off = float((impl.run(x[:, :length]) - whole[:, :length]).abs().max()) / size
        if not off <= worst:
            worst, at = off, length
    cut = at or impl.length - 1
    evidence = f"a sequence cut to length {cut} gives outputs that differ by {worst:.2g} (relative)"
    hint = "outputs depend on the sequence length: positions counted from the end, a mean over the sequence, or a leak"
    return [judge("truncation", worst, 10 * impl.tolerance, evidence, hint, "positions")]


def check_source(impl: Implementation, contract: Contract) -> list[Finding]:
    """The source side of an encoder–decoder; its finding names begin with "source: "."""
    assert impl.source is not None
    source = impl.source
    findings = [
        check_inputs_not_mutated(source),
        *check_batch_independence(source),
        check_finite(source),
        check_grad_modes(source),
        *check_padding(source, replace(contract, position=None)),
    ]
    renamed = [replace(finding, check=f"source: {finding.check}") for finding in findings]
    return [_check_cross_attention(source, contract), *renamed]


def _check_cross_attention(source: Implementation, contract: Contract) -> Finding:
    """Every output changes with every source token: there is no order between source and target."""
    influence = measure_influence(source)
    if influence.empty:
        return Finding("cross attention", "inconclusive", None, "no output changes when any source token changes")
    outputs, inputs = influence.effects.shape
    unseen = ~influence.visible
    if not bool(unseen.any()):
        evidence = f"each of {outputs} outputs changes with each of {inputs} source tokens"
        return Finding("cross attention", "pass", 0.0, evidence)
    i, j = (int(axis[0]) for axis in unseen.nonzero(as_tuple=True))
    evidence = f"output {i} does not change when source token {j} changes ({int(unseen.sum())} such pairs)"
    hint = "cross-attention has a causal mask, or the mask of the wrong sequence: the whole source is known"
    verdict = "described" if contract.kind is None else "fail"
    return Finding("cross attention", verdict, float(unseen.float().mean()), evidence, hint)
