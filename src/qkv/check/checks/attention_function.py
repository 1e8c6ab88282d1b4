"""Checks of functions of q, k, v: rows sum to one, scale, head independence, alignment, GQA layout, masks.

With unit vectors as values, the output of a function is its weights.

Axes: b batch · h heads · g key heads · t queries · s keys · d head dim.
"""

from dataclasses import replace

import torch
from torch import Tensor

from qkv.check.calling.functions import HEAD_DIM, HEADS
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation
from qkv.check.report import Finding, judge
from qkv.check.tracing.scores import STRAIGHT, fit_slope, fit_softcap

POLARITY_WORDS = {
    "true-attends": "True = may attend",
    "true-masks": "True = may not attend",
    "added": "the mask is added to the scores",
}


# -- weights -----------------------------------------------------------------------------------------------------------


def check_weights(impl: Implementation, contract: Contract) -> list[Finding]:
    """Rows sum to one over the keys; the scale of the scores; heads do not mix."""
    assert impl.attention is not None
    generator = torch.Generator().manual_seed(14)
    n = impl.nearest_length(HEAD_DIM)  # as many tokens as features, so that unit vectors fit
    q, k = (torch.randn(2, HEADS, n, n, generator=generator, dtype=torch.float64) for _ in range(2))
    v = torch.eye(n, dtype=torch.float64).expand(2, HEADS, -1, -1)
    weights = impl.attention(q, k, v)
    scale = _check_scale(weights, q, k, contract)
    if scale.verdict != "fail":
        other = _check_scale_by_keys(impl, n, contract)
        scale = other if other is not None and other.verdict == "fail" else scale
    return [_check_row_sums(impl, weights, contract), scale, _check_head_independence(impl, q, k)]


def _check_scale_by_keys(impl: Implementation, n: int, contract: Contract) -> Finding | None:
    """The scale with fewer keys than features: it must not depend on their number; None if such sizes do not run."""
    assert impl.attention is not None
    fewer = n - 3
    if contract.scale is None or not impl.takes_length(fewer) or fewer < 3:
        return None
    generator = torch.Generator().manual_seed(16)
    q, k = (torch.randn(2, HEADS, fewer, n, generator=generator, dtype=torch.float64) for _ in range(2))
    v = torch.eye(fewer, n, dtype=torch.float64).expand(2, HEADS, -1, -1)
    try:
        weights = impl.attention(q, k, v)[..., :fewer]
    except Exception:  # it takes as many tokens as features only
        return None
    finding = _check_scale(weights, q, k, contract)
    if finding.verdict != "fail" or finding.hint is None:
        return finding
    return replace(
        finding, evidence=f"with {fewer} keys, {finding.evidence}", condition="where keys and features differ"
    )


def _check_row_sums(impl: Implementation, weights: Tensor, contract: Contract) -> Finding:
    """The weights of a query sum to one."""
    rows, columns = (float((weights.sum(axis) - 1).abs().max()) for axis in (-1, -2))
    heads = float((weights.sum(1) - 1).abs().max())
    sums = f"sums differ from 1 by at most {rows:.2g} (rows), {columns:.2g} (columns)"
    evidence = f"{impl.without_mask}{sums}"
    limit = 1e-9 if weights.dtype == torch.float64 else 1e-5
    if rows <= limit:
        return Finding("rows sum to one", "pass", rows, evidence)
    family = "softmax replaced"
    if rows < 0.02 and contract.softmax == "keys":
        hint, low = "weights are rounded: part of the computation has lower precision than the inputs", "low precision"
        return Finding("rows sum to one", "fail", rows, evidence, hint, low)
    if columns <= limit:
        hint, family = "the softmax is over the queries: take it over the keys, the last axis of q·kᵀ", "softmax axis"
    elif heads <= limit:
        hint, family = "the softmax is over the heads: take it over the keys, the last axis of q·kᵀ", "softmax axis"
    elif bool(((weights >= 0) & (weights <= 1)).all()):
        hint = "rows do not sum to 1: a sigmoid, or weights dropped or masked after the softmax"
    else:
        hint = "weights are not a distribution: the softmax is missing, or something is added after it"
    verdict = "fail" if contract.softmax == "keys" else "described"
    return Finding("rows sum to one", verdict, rows, evidence, hint, family)


def _check_scale(weights: Tensor, q: Tensor, k: Tensor, contract: Contract) -> Finding:
    """The slope of log-weights against q·k is the scale, whatever the softmax subtracts; biases cancel between rows."""
    if not bool((weights >= 0).all()):
        return Finding("scale", "described", None, "some weights are negative: they have no logarithm")
    logs = weights.clamp(min=1e-300).log().masked_fill(weights <= 1e-12, float("-inf"))
    found = fit_slope(logs, q @ k.mT, centered=True)
    if found is not None and found[1] > STRAIGHT:
        found = fit_softcap(logs, q @ k.mT, found[0], centered=True) or found
    if found is None:
        return Finding("scale", "n/a", None, "too few weights are above 0: their logarithms say nothing")
    slope, bend = found
    if bend > STRAIGHT:
        evidence = f"log-weights are not a straight line of q·k (off by {bend:.2g})"
        return Finding("scale", "described", bend, evidence)
    d = q.shape[-1]
    names = {
        d**-0.5: "1/√d",
        1.0: "1: the scale is missing",
        1.0 / d: "1/d: the square root is missing, or the scale is applied twice",
        d**0.5: "√d: the scale is inverted",
        (HEADS * d) ** -0.5: "1/√(model dim) instead of 1/√(head dim)",
    }
    name = next((words for value, words in names.items() if abs(slope - value) < 0.01 * value), f"{slope:.4g}")
    evidence = f"q·k is multiplied by {slope:.4f}, which is {name} (d = {d})"
    promised = contract.scale_for(d)
    if promised is None:
        return Finding("scale", "described", None, evidence)
    score = abs(slope / promised - 1)
    hint = f"multiply q·k by {promised:.4g}, once, before the softmax"
    return judge("scale", score, 0.01, evidence, hint, "scale")


def _check_head_independence(impl: Implementation, q: Tensor, k: Tensor) -> Finding:
    """Changing q, k and v of one head changes the output of that head only."""
    assert impl.attention is not None
    v = torch.randn(q.shape, generator=torch.Generator().manual_seed(15), dtype=q.dtype)
    before = impl.attention(q, k, v)
    changed = [part.clone() for part in (q, k, v)]
    for part in changed:
        part[:, 1] = part[:, 1].flip(-1) + 0.5
    effects = (impl.attention(*changed) - before).abs().amax((0, 2, 3))
    own, others = float(effects[1]), float(torch.cat((effects[:1], effects[2:])).max())
    evidence = f"when head 1 changes, its output changes by {own:.2g}, that of other heads by {others:.2g}"
    if own <= 0:
        return Finding("head independence", "inconclusive", None, evidence)
    hint = "heads mix: a view or reshape without the transpose, a sum over heads, or weights averaged over them"
    return judge("head independence", others / own, impl.tolerance, evidence, hint, "heads mixed")


# -- alignment, grouped-query attention --------------------------------------------------------------------------------


def check_layout(impl: Implementation, contract: Contract) -> list[Finding]:
    """Alignment with more keys than queries; which query heads share a key head."""
    return [_check_alignment(impl, contract), _check_grouped(impl, contract)]


def _check_alignment(impl: Implementation, contract: Contract) -> Finding:
    """With more keys than queries: which keys the first query sees; a single query must be aligned like several."""
    try:
        found, visible = measure_alignment(impl)
    except Exception as error:
        return Finding("alignment", "n/a", None, f"unequal lengths raise {type(error).__name__}")
    if impl.causal_flag is None and found == "irregular":
        return Finding("alignment", "n/a", None, "it has no causal mask of its own")
    flag = f"with {impl.causal_flag}=True, " if impl.causal_flag else ""
    evidence = (
        f"{flag}3 queries on 6 keys: {found} (the first query sees {visible} {'key' if visible == 1 else 'keys'})"
    )
    alone = _measure_one_query(impl)
    if alone == "top-left" and found == "bottom-right" and contract.alignment != "top-left":
        evidence = f"{evidence}; 1 query on 6 keys sees the first key only"
        hint = "one query is aligned at the start, several at the end: a single query must see every key"
        return Finding("alignment", "fail", 1.0, evidence, hint, "alignment", condition="for one query on more keys")
    if contract.alignment is None:
        return Finding("alignment", "described", None, evidence)
    if found == contract.alignment:
        return Finding("alignment", "pass", 0.0, evidence)
    hint = {
        "bottom-right": "with a KV cache the mask must be aligned at the end: allow key ≤ query + (keys − queries)",
        "top-left": "the mask must be aligned at the start: allow key ≤ query",
    }[contract.alignment]
    return Finding("alignment", "fail", 1.0, f"{evidence}; required: {contract.alignment}", hint, "alignment")


def measure_alignment(impl: Implementation) -> tuple[str, int]:
    """Where the causal mask is with more keys than queries, and how many keys the first query sees."""
    visible = _visible_keys(impl, 3)
    ones = torch.ones(3, 6, dtype=torch.bool)
    patterns = {"bottom-right": ones.tril(3), "top-left": ones.tril()}
    found = next((name for name, pattern in patterns.items() if torch.equal(visible, pattern)), "irregular")
    return found, int(visible[0].sum())


def _measure_one_query(impl: Implementation) -> str:
    """Where a single query on six keys is aligned; "refused" if it does not run."""
    try:
        visible = _visible_keys(impl, 1)[0].tolist()
    except Exception:  # it takes as many queries as keys, or several queries, only
        return "refused"
    return {(True,) * 6: "bottom-right", (True,) + (False,) * 5: "top-left"}.get(tuple(visible), "irregular")


def _visible_keys(impl: Implementation, queries: int) -> Tensor:
    """(t, 6): which of six keys each query sees."""
    assert impl.attention is not None
    q, k, v = _random(queries), _random(6), _random(6)
    causal = impl.causal_flag is not None
    before = impl.attention(q, k, v, causal=causal)
    columns = []
    for key in range(6):
        other = v.clone()
        other[:, :, key] += 1.0
        columns.append((impl.attention(q, k, other, causal=causal) - before).abs().amax((0, 1, 3)) > 1e-9)
    return torch.stack(columns, dim=1)


def _check_grouped(impl: Implementation, contract: Contract) -> Finding:
    """With half as many key heads (GQA): which outputs use a key head and a value head, and which a query head."""
    n = impl.nearest_length(5)
    q, k, v = _random(n), _random(n, HEADS // 2), _random(n, HEADS // 2)
    try:
        users = _users_of_first_head(impl, q, k, v)
        outputs = [_outputs_of_query_head(impl, q, k, v, head) for head in range(HEADS)]
    except Exception as error:
        return Finding("grouped heads", "n/a", None, f"fewer key heads than query heads raise {type(error).__name__}")
    names = [_name_sharing(used, HEADS // 2) for used in users]
    if names[0] != names[1] and "irregular" not in names:
        evidence = f"keys are {names[0]}, values are {names[1]}"
        return Finding("grouped heads", "fail", 1.0, evidence, "share keys and values alike", "head layout")
    evidence = f"the first key head serves query heads {[h for h, used in enumerate(users[0]) if used]}: {names[0]}"
    if any(outputs) and outputs != [[head] for head in range(HEADS)]:
        moved = next(head for head in range(HEADS) if outputs[head] != [head])
        evidence = f"query head {moved} changes output heads {outputs[moved]}: heads change places"
        hint = "query heads are put into groups in one order and read out in another, so they meet other key heads"
        return Finding("grouped heads", "fail", 1.0, evidence, hint, "head layout", condition="with fewer key heads")
    hint = {"repeated": "use repeat_interleave, not repeat", "tiled": "use repeat, not repeat_interleave"}
    required = contract.grouped or names[0]
    if names[0] != required:
        evidence = f"{evidence}; required: {required}"
        return Finding("grouped heads", "fail", 1.0, evidence, hint[required], "head layout")
    if (other := _other_sharing(impl, names[0])) is not None:
        found, condition = other
        evidence = f"{evidence}; {condition}: {found}"
        words = f"heads are shared in another way {condition}: {hint[required]}"
        return Finding("grouped heads", "fail", 1.0, evidence, words, "head layout", condition=condition)
    if contract.grouped is None:
        return Finding("grouped heads", "described", None, evidence)
    return Finding("grouped heads", "pass", 0.0, evidence)


def _users_of_first_head(impl: Implementation, q: Tensor, k: Tensor, v: Tensor) -> list[list[bool]]:
    """Which outputs change with the first key head, and which with the first value head."""
    assert impl.attention is not None
    before = impl.attention(q, k, v)
    users = []
    for place in (1, 2):
        parts = [q, k.clone(), v.clone()]
        parts[place][:, 0] = parts[place][:, 0].flip(-1) + 0.5
        users.append(((impl.attention(*parts) - before).abs().amax((0, 2, 3)) > 1e-9).tolist())
    return users


def _name_sharing(used: list[bool], key_heads: int) -> str:
    """How query heads share key heads, by the query heads that use the first key head."""
    heads = len(used)
    layouts = {
        "repeated": [head < heads // key_heads for head in range(heads)],
        "tiled": [head % key_heads == 0 for head in range(heads)],
    }
    return next((name for name, expected in layouts.items() if expected == used), "irregular")


def _other_sharing(impl: Implementation, usual: str) -> tuple[str, str] | None:
    """Another layout than the usual one for one query on more keys or for other numbers of heads, and when it is used.

    Only regular layouts count: code made for some numbers of heads may do anything with others.
    """
    if usual == "irregular":
        return None
    n = impl.nearest_length(5)
    for queries, keys, when in ((1, 6, "for one query on more keys"), (1, 1, "for one query"), (n, n, "")):
        for heads, key_heads in ((HEADS, HEADS // 2), (6, 2), (8, 2)):
            q, k, v = _random(queries, heads), _random(keys, key_heads), _random(keys, key_heads)
            try:
                users = _users_of_first_head(impl, q, k, v)
            except Exception:  # it takes as many queries as keys, or some numbers of heads, only
                continue
            found = [_name_sharing(used, key_heads) for used in users]
            other = next((name for name in found if name not in (usual, "irregular")), None)
            if other is not None:
                return other, when or f"with {heads} query heads and {key_heads} key heads"
    return None


def _outputs_of_query_head(impl: Implementation, q: Tensor, k: Tensor, v: Tensor, head: int) -> list[int]:
    """The heads of the output that change when one query head changes."""
    assert impl.attention is not None
    other = q.clone()
    other[:, head] = other[:, head].flip(-1) + 0.5
    changed = (impl.attention(other, k, v) - impl.attention(q, k, v)).abs().amax((0, 2, 3)) > 1e-9
    return changed.nonzero()[:, 0].tolist()


def _random(length: int, heads: int = HEADS, *, seed: int = 18) -> Tensor:
    generator = torch.Generator().manual_seed(seed + length)
    return torch.randn(2, heads, length, HEAD_DIM, generator=generator, dtype=torch.float64)


# -- masks -------------------------------------------------------------------------------------------------------------


def check_masks(impl: Implementation, contract: Contract) -> list[Finding]:
    """What True means in a mask, a query that may attend to nothing, more keys than queries, and large scores."""
    if not impl.takes_mask or impl.mask_polarity is None:
        return _check_large_scores(impl, contract)
    return [
        _check_polarity(impl, contract),
        _check_fully_masked_row(impl),
        _check_mask_with_more_keys(impl),
        *_check_large_scores(impl, contract),
    ]


def check_module_mask(impl: Implementation, contract: Contract) -> list[Finding]:
    """What the values of a module's mask mean, where that is promised; without a promise it is not measured."""
    return [] if impl.mask_polarity is None or impl.attention is not None else [_check_polarity(impl, contract)]


def _check_polarity(impl: Implementation, contract: Contract) -> Finding:
    assert impl.mask_polarity is not None
    words = POLARITY_WORDS[impl.mask_polarity]
    if contract.mask is None:
        return Finding("mask polarity", "described", None, words)
    evidence = f"measured: {words}; required: {POLARITY_WORDS[contract.mask]}"
    if contract.mask == impl.mask_polarity:
        return Finding("mask polarity", "pass", None, evidence)
    hint = "the mask is inverted: invert it, or swap the branches of where or masked_fill"
    return Finding("mask polarity", "fail", None, evidence, hint, "mask polarity")


def _check_fully_masked_row(impl: Implementation) -> Finding:
    """A query that may attend to nothing gives finite outputs and gradients."""
    assert impl.attention is not None
    generator = torch.Generator().manual_seed(16)
    n = impl.nearest_length(5)
    q, k, v = (
        torch.randn(1, HEADS, n, HEAD_DIM, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)
    )
    mask = torch.ones(n, n, dtype=torch.bool)
    mask[2] = False
    out = impl.attention(q, k, v, mask)
    bad = ~out.isfinite()
    name = family = "fully masked row"
    if bool(bad.any()):
        rows = sorted({int(row) for row in bad.nonzero()[:, 2]})
        evidence = f"row 2 may attend to nothing; outputs {rows} are NaN or infinite"
        hint = "a softmax over −∞ alone is NaN: give such rows weights of 0"
        verdict = "described" if impl.mask_polarity == "added" and rows == [2] else "fail"  # the caller's own −∞
        return Finding(name, verdict, float(bad.float().mean()), evidence, hint, family)
    gradients = torch.autograd.grad(out.sum(), (q, k, v), allow_unused=True)
    if not all(gradient is None or bool(gradient.isfinite().all()) for gradient in gradients):
        hint = "overwriting NaN in the output leaves it in the gradient: mask so that no row is all −∞"
        return Finding(name, "fail", 1.0, "outputs are finite, gradients are not", hint, family)
    size = float(out[:, :, 2].detach().abs().max())
    value = "0" if size == 0 else f"{size:.2g} (an average of something)"
    return Finding(name, "pass", 0.0, f"its output is {value}; outputs and gradients are finite")


LARGE = 300.0  # the size of scores that training reaches; a mask of −10,000 still hides them


def _check_large_scores(impl: Implementation, contract: Contract) -> list[Finding]:
    """A hidden key has no effect on large scores either: what a mask writes must be far below them."""
    assert impl.attention is not None
    masked = impl.takes_mask and impl.mask_polarity is not None
    causal = impl.causal_flag is not None
    if not masked and not causal and contract.kind not in ("causal", "window"):
        return []
    n = impl.nearest_length(9)
    generator = torch.Generator().manual_seed(38)
    q, k, v = (torch.randn(2, HEADS, n, HEAD_DIM, generator=generator, dtype=torch.float64) for _ in range(3))
    mask = torch.ones(n, n, dtype=torch.bool).tril() if masked else None
    later = torch.zeros(n, 1, dtype=torch.float64)
    later[n // 2 :] = 1.0
    name, effects = "mask, large scores", []
    for size in (1.0, LARGE):
        try:
            before, hidden = (
                impl.attention(q * size, k, v + shift, mask, causal=causal and not masked) for shift in (0.0, later)
            )
        except Exception as error:
            return [Finding(name, "n/a", None, f"a causal mask raises {type(error).__name__}")]
        if not bool(before.isfinite().all() and hidden.isfinite().all()):
            return [Finding(name, "n/a", None, "the outputs are not finite")]
        effects.append(float((hidden - before)[:, :, : n // 2].abs().max()))
    small, large = effects
    evidence = f"hidden keys have effect {large:.2g} if scores are multiplied by {LARGE:g} ({small:.2g} if not)"
    if small > impl.tolerance:  # they are not hidden at all: other checks say so
        return [Finding(name, "described", large, evidence)]
    hint = "masked scores are finite and too close to the others: fill with −∞ or torch.finfo(scores.dtype).min"
    return [judge(name, large, impl.tolerance, evidence, hint, "mask not −∞", "for large scores")]


def _check_mask_with_more_keys(impl: Implementation) -> Finding:
    """A mask also works with more keys than queries, as in cross-attention."""
    assert impl.attention is not None
    generator = torch.Generator().manual_seed(37)
    q, k, v = (
        torch.randn(1, HEADS, length, HEAD_DIM, generator=generator, dtype=torch.float64) for length in (4, 7, 7)
    )
    mask = torch.ones(4, 7, dtype=torch.bool)
    mask[:, 5] = False
    unit = torch.eye(7, dtype=torch.float64)[:, :, None]
    name = "mask, more keys"
    try:
        before, without, control = (impl.attention(q, k, v + shift, mask) for shift in (0.0, unit[5], unit[1]))
    except Exception as error:
        return Finding(name, "n/a", None, f"4 queries on 7 keys with a mask raise {type(error).__name__}")
    hidden, visible = (float((after - before).abs().max()) for after in (without, control))
    evidence = f"4 queries on 7 keys: a masked key has effect {hidden:.2g} (a visible key {visible:.2g})"
    if not visible > 0:
        return Finding(name, "inconclusive", None, evidence)
    hint = "the mask is dropped when lengths differ: cross-attention sees padding"
    return judge(name, hidden / visible, impl.tolerance, evidence, hint, "mask dropped")
