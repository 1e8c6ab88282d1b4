"""Which tokens each output may see: causal, past reachable, kind, truncation, and cross-attention.

Axes: t outputs · s inputs.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from qkv.check.calling.guard import seeded
from qkv.check.checks.basics import check_batch_independence, check_finite, check_inputs_not_mutated
from qkv.check.checks.padding import check_padding
from qkv.check.checks.paths import check_grad_modes
from qkv.check.checks.state import dropout_rates, find_kept_source
from qkv.check.contract import NO_PROMISES, Contract
from qkv.check.implementation import Implementation, relative_difference
from qkv.check.influence import (
    InfluenceMap,
    columns_of,
    measure_influence,
    name_kind,
    name_prefix_bug,
    sample_influence,
)
from qkv.check.report import Finding, judge
from qkv.check.shapes import Sweep, describe_condition, run_lengths
from qkv.check.tracing.readings import record_run

CAUSAL_KINDS = ("causal", "window of", "strictly causal")

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


def check_kind(
    influence: InfluenceMap, contract: Contract, samples: Sequence[InfluenceMap] = (), *, crosses: bool = False
) -> list[Finding]:
    """Judge the influence map if a kind is promised, else describe it.

    Args:
        samples: columns of the maps of longer sequences.
        crosses: it attends to another sequence, which the check of cross-attention judges.
    """
    found = name_kind(influence)
    alone = influence.visible.shape[0] == influence.visible.shape[1] and not bool(
        (influence.visible & ~torch.eye(len(influence.visible), dtype=torch.bool)).any()
    )
    if crosses and alone and contract.kind == "bidirectional":
        evidence = "queries do not see each other; what they see of the other sequence is judged as cross-attention"
        return [Finding("kind", "described", None, evidence)]
    if influence.empty:
        return [Finding("kind", "inconclusive", None, "no output changes when any token changes")]
    if influence.effects.shape[0] != influence.effects.shape[1]:
        evidence = f"the influence map shows: {found}"
        if contract.kind != "bidirectional":
            return [Finding("kind", "described", None, evidence)]
        hint = "a mask hides part of the sequence"
        return [judge("kind", float((~influence.reached).float().mean()), 0.0, evidence, hint, "window")]
    long = [
        _check_sample(sample, found, contract, influence.sparse or influence.chosen)
        for sample in samples
        if not sample.empty
    ]
    worst = next((finding for finding in long if finding.verdict == "fail"), None)
    if contract.kind is None:
        findings = [Finding("kind", "described", None, f"the influence map shows: {found}")]
        changed = next((finding.evidence for finding in long if finding.score), None)
        if changed is not None and worst is None:
            findings = [Finding("kind", "described", None, f"the influence map shows: {found}; {changed}")]
        return [*findings, worst] if worst is not None else findings
    if contract.kind == "causal":
        future = _check_future(influence, found)
        if future.verdict != "fail" and worst is not None and worst.check == "causal":
            future = worst
        past = _check_past(influence, found, contract)
        if past.verdict == "pass" and worst is not None and worst.check == "past reachable":
            past = worst
        return [future, past]
    if contract.kind == "chunked" and found == "causal":  # chunks longer than the map
        found = _name_long_chunks(samples) or found
    return [_check_promised_kind(influence, found, contract, long)]


def _name_long_chunks(samples: Sequence[InfluenceMap]) -> str:
    """The chunks in the columns of longer maps, if each token reaches the rest of its chunk and no more; else ""."""
    ends: set[int] = set()
    for sample in samples:
        for place in range(len(sample.columns or ())):
            rows = sample.reached[:, place].nonzero()
            if len(rows) and int(rows[-1]) + 1 < len(sample.reached):
                ends.add(int(rows[-1]) + 1)
    size = math.gcd(*ends)
    if not size:
        return ""
    for sample in samples:
        rows, columns = torch.arange(len(sample.reached))[:, None], torch.tensor(sample.columns or ())
        if not torch.equal(sample.reached, (rows >= columns) & (rows // size == columns // size)):
            return "causal in short sequences, irregular in longer ones"
    return f"chunks of {size}"


def _check_promised_kind(influence: InfluenceMap, found: str, contract: Contract, long: list[Finding]) -> Finding:
    """Judge a promised kind other than causal."""
    names = {"window": f"window of {contract.window}", "chunked": "chunks"}
    promised = names.get(str(contract.kind), str(contract.kind))
    evidence = f"required: {promised}; measured: {found}"
    worst = next((finding for finding in long if finding.verdict == "fail"), None)
    holds = found.startswith(promised)
    if contract.window is not None:
        holds = torch.equal(influence.visible, _allowed(influence, contract))
        if holds and worst is None and contract.window >= influence.effects.shape[0] and not long:
            needed = f"only sequences longer than {contract.window} tokens show the window, and none could be run"
            return Finding("kind", "inconclusive", None, f"{evidence}: {needed}")
    if not holds:
        hint, family = _kind_hint(found, contract, influence)
        return Finding("kind", "fail", None, evidence, hint, family)
    return worst or Finding("kind", "pass", None, evidence)


def _allowed(influence: InfluenceMap, contract: Contract) -> Tensor:
    """Which outputs may see which tokens: by a promised window, or else causally."""
    distances = influence.distances
    return (distances >= 0) & (distances < (contract.window or 1 << 30))


def _check_sample(sample: InfluenceMap, found: str, contract: Contract, sparse: bool) -> Finding:
    """Judge some columns of the map of a longer sequence: by the promise, or by what a short sequence showed.

    The score is 1 if the map is of another kind than that of a short sequence.
    """
    length, columns = sample.effects.shape[0], sample.columns or ()
    at = f"at {length} tokens"
    causal = contract.kind in ("causal", "window") or (contract.kind is None and found.startswith(CAUSAL_KINDS))
    allowed = _allowed(sample, contract)
    if causal:
        leaks = sample.effects.masked_fill(allowed, 0.0)
        control = sample.effects.masked_fill(~allowed, 0.0).amax(0)
        ratio = leaks / control.clamp(min=1e-12)
        ratio = torch.where(leaks > 1e-12, ratio, 0.0)  # rounding, in a column where nothing is visible
        worst = float(ratio.max())
        if worst > sample.tolerance:
            i, column = divmod(int(ratio.argmax()), len(columns))
            j = columns[column]
            evidence = (
                f"{at} output {i} changes when token {j} changes (effect {float(leaks[i, column]):.2g}; an allowed "
                f"change has {float(control[column]):.2g})"
            )
            return _long_leak(sample, evidence, contract, i, j)
    elif not found.startswith("bidirectional"):
        return Finding("kind", "described", 0.0, f"{at}: not compared")
    else:
        allowed = torch.ones_like(allowed)
    unseen = allowed & ~sample.reached
    if sample.tolerance > 1e-5 or sparse or not bool(unseen.any()):  # in low precision small effects drown
        return Finding("kind", "pass", 0.0, f"{at} the map is of the same kind")
    i, column = (int(axis[0]) for axis in unseen.nonzero(as_tuple=True))
    name = "past reachable" if contract.kind == "causal" else "kind"
    evidence = f"{at} output {i} does not change when token {columns[column]} changes"
    width = int(sample.distances[sample.reached].max()) + 1
    if contract.kind in (None, "causal") and causal:
        if torch.equal(sample.reached, allowed & (sample.distances < width)):
            return Finding(name, "described", 1.0, f"{evidence}: a window of {width}")
        if _fades(sample, unseen):
            return Finding(name, "described", 0.0, f"{evidence}: the influence of a token fades with distance")
        if contract.softmax is None and (
            _is_sparse(sample.reached, allowed, sample.distances) or _sees_near_blocks(sample)
        ):
            return Finding(name, "described", 1.0, f"{evidence}: the pattern is sparse")
    verdict = "described" if contract.kind is None else "fail"
    hint = "beyond this length a mask or a block hides part of the sequence"
    return Finding(name, verdict, 1.0, evidence, hint, "window")


def _is_sparse(seen: Tensor, allowed: Tensor, distances: Tensor) -> bool:
    """Whether a pattern of blocks or strides hides part of the past: every token sees itself, and most see tokens that
    are older than the hidden ones. Only a promised softmax over all keys rules such a design out."""
    hidden, seen = allowed & ~seen, allowed & seen
    rows = hidden.any(1)
    columns = torch.arange(hidden.shape[1])
    oldest_seen = torch.where(seen, columns, hidden.shape[1]).amin(1)
    newest_hidden = torch.where(hidden, columns, -1).amax(1)
    sees_older = bool(rows.any()) and float((oldest_seen < newest_hidden)[rows].double().mean()) > 0.7
    return sees_older and bool(seen[distances == 0].all()) and int(hidden.sum()) > 0.03 * int(allowed.sum())


def _sees_near_blocks(sample: InfluenceMap) -> bool:
    """Whether every token sees all of its own block up to itself and some blocks before it, and nothing older."""
    rows, columns = torch.arange(len(sample.reached))[:, None], torch.tensor(sample.columns or ())
    for size in range(2, len(rows) // 2 + 1):
        for before in range(4):
            near = (columns <= rows) & (columns // size >= rows // size - before)
            if torch.equal(sample.reached & (columns <= rows), near):
                return True
    return False


def _fades(sample: InfluenceMap, unseen: Tensor) -> bool:
    """Whether effects become small before they vanish, as in recurrent layers: a mask ends them at once."""
    sizes = sample.effects / sample.effects.amax(0, keepdim=True).clamp(min=1e-300)
    edge = unseen[1:] & ~unseen[:-1] & (sample.distances[:-1] >= 0)
    return not bool((sizes[:-1][edge] > 1e-6).any()) and bool(edge.any())


def _long_leak(sample: InfluenceMap, evidence: str, contract: Contract, i: int, j: int) -> Finding:
    """A leak that only a longer sequence shows."""
    if contract.kind == "window" and i >= j:
        size = int(sample.distances[sample.reached].max()) + 1
        hint = f"the window has {size} tokens, required: {contract.window}: an inequality is off by one"
        return Finding("kind", "fail", 1.0, evidence, hint, "window")
    name = {"causal": "causal", "window": "kind"}.get(str(contract.kind), "kind (lengths)")
    words = "future tokens leak" if contract.kind else "future tokens leak, which they do not in a short sequence"
    hint, family = "sequences of other lengths leak: look for blocks, halves, cached masks and paths by length", "leak"
    later = sample.effects.masked_fill(sample.distances >= 0, 0.0)
    if _wraps(later > sample.tolerance, sample.distances):
        hint = WRAPPED
    ahead = {int(-sample.distances[place[0], place[1]]) for place in (later > sample.tolerance).nonzero().tolist()}
    if ahead == {1} and int((later > sample.tolerance).sum()) >= len(sample.columns or ()) - 1:
        hint, family = HINTS["sees one token ahead"]
    return Finding(name, "fail", 1.0, f"{evidence}: {words}", hint, family)


WRAPPED = "the first tokens see the last ones: a roll, or a negative index, wraps around"


def _wraps(leaks: Tensor, distances: Tensor) -> bool:
    """Whether only tokens at the end come through, at outputs of the beginning."""
    return bool(leaks.any()) and bool((-distances[leaks] > leaks.shape[0] // 2).all())


def sample_maps(impl: Implementation, sweep: Sweep, contract: Contract, seed: int = 0) -> list[InfluenceMap]:
    """Columns of the influence map at the longer lengths of a sweep."""
    maps = []
    for length in sweep.lengths:
        if length <= impl.length:
            continue
        columns = columns_of(length, 24 if length <= 40 else 14 if length <= 140 else 9 if length <= 300 else 3)
        if contract.kind == "chunked" and length <= 70:  # only tokens at the ends of chunks show keys of the next chunk
            columns = list(range(length))
        if contract.window is not None and contract.window < length:
            edge = length - 1 - contract.window
            columns = sorted({*columns, edge, edge + 1, 0})
        maps.append(sample_influence(impl, length, columns, seed))
    return maps


def _check_future(influence: InfluenceMap, found: str) -> Finding:
    """No output changes when a later token changes."""
    n = influence.effects.shape[0]
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    worst, i, j = _largest(influence.effects, later)
    allowed = float(influence.effects[i, : i + 1].max())
    if allowed < influence.tolerance and worst < influence.tolerance:
        return Finding("causal", "inconclusive", None, f"output {i} changes for no token at all")
    score = worst / max(allowed, 1e-12) if allowed > influence.tolerance else worst
    numbers = f"effect {worst:.2g}; an allowed change has an effect of {allowed:.2g}"
    if score <= influence.tolerance:
        evidence = f"no output changes when a later token changes (largest {numbers})"
        return Finding("causal", "pass", score, evidence)
    hint, family = HINTS.get(found) or _leak_hint(influence)
    evidence = f"output {i} changes when token {j} changes ({numbers}): future tokens leak"
    return Finding("causal", "fail", score, evidence, hint, family)


def _check_past(influence: InfluenceMap, found: str, contract: Contract) -> Finding:
    """Every output changes when an earlier token, or its own, changes."""
    n = influence.effects.shape[0]
    seen = influence.visible if influence.tolerance > 1e-5 else influence.reached
    unseen = torch.ones(n, n, dtype=torch.bool).tril() & ~seen
    if not bool(unseen.any()):
        return Finding("past reachable", "pass", 0.0, "every output changes when a token up to its own changes")
    i, j = (int(axis[0]) for axis in unseen.nonzero(as_tuple=True))
    evidence = f"output {i} does not change when token {j} changes ({int(unseen.sum())} such pairs)"
    sparse = influence.chosen or (
        contract.softmax is None and _is_sparse(seen, unseen | seen.tril(), influence.distances)
    )
    verdict = "described" if sparse or found.startswith("window") else "fail"
    hint, family = HINTS.get(found) or ("a mask hides part of the past: a window, a wrong alignment, blocks", "window")
    return Finding("past reachable", verdict, float(unseen.float().mean()), evidence, hint, family)


def _leak_hint(influence: InfluenceMap) -> tuple[str, str]:
    """The likely cause of a leak, by the look of the map."""
    n = influence.effects.shape[0]
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    earlier = torch.ones(n, n, dtype=torch.bool).tril(-1)
    if _wraps(influence.visible & later, influence.distances):
        return WRAPPED, "leak"
    if not bool((influence.visible | ~later).all()):
        return "some later tokens come through: check how the mask is built and sliced", "leak"
    strength = float(influence.effects[later].mean() / influence.effects[earlier].mean().clamp(min=1e-12))
    if strength > 0.4:
        words = "every later token has as strong an effect as earlier ones: there is no causal mask on this path"
        return words, "no mask"
    words = (
        "every later token has a weak effect: masked scores that are not −∞, a mask applied after the softmax, "
        "or a mean over the sequence"
    )
    return words, "leak"


def _kind_hint(found: str, contract: Contract, influence: InfluenceMap) -> tuple[str | None, str]:
    if contract.kind == "prefix" and influence.visible.shape[0] == influence.visible.shape[1]:
        words = name_prefix_bug(influence.visible)
        if words:
            return words, "window" if "do not see" in words or "masked causally too" in words else "leak"
    if contract.kind == "window" and found.startswith("window of"):
        size = found.split()[-1]
        return f"the window has {size} tokens, required: {contract.window}: an inequality is off by one", "window"
    if contract.kind == "bidirectional":
        return "a mask hides part of the sequence", "window"
    return None, "window" if contract.kind == "window" else "leak"


def _largest(effects: Tensor, where: Tensor) -> tuple[float, int, int]:
    index = int(effects.masked_fill(~where, -1.0).argmax())
    i, j = divmod(index, effects.shape[1])
    return float(effects[i, j]), i, j


def check_truncation(impl: Implementation, contract: Contract, sweep: Sweep, kind: str) -> list[Finding]:
    """f(x[:t]) = f(x)[:t] for a causal implementation; perturbation misses positions that depend on the length."""
    promised = contract.kind in ("causal", "window")
    if not promised and not (contract.kind is None and kind.startswith(CAUSAL_KINDS)):
        return [Finding("truncation", "n/a", None, "it applies to causal implementations only")]
    if not impl.aligned or any(out.shape[1] != length for length, out in sweep.outs.items()):
        return [Finding("truncation", "n/a", None, "outputs do not belong to single tokens")]
    x = sweep.x[:, : impl.length]
    outs = {length: impl.run(x[:, :length]) for length in (impl.length // 2, impl.length - 1)} | sweep.outs
    longest = sweep.longest()
    whole = sweep.outs[longest]
    worst, at, failing = 0.0, 0, []
    for length in sorted(outs):
        beginning = whole[: len(outs[length]), :length]
        off = float((outs[length][: len(whole)] - beginning).abs().nan_to_num(nan=float("inf")).max())
        off /= float(beginning.abs().max()) or 1.0
        if off > 10 * impl.tolerance:
            failing.append(length)
        if not off <= worst:
            worst, at = off, length
    evidence = f"a sequence cut to length {at or longest} gives outputs that differ by {worst:.2g} (relative)"
    hint, condition = "outputs of the same tokens change with the length of the sequence", ""
    if failing:
        same = [length for length in outs if length not in failing and length < longest]
        evidence += f" from those of {longest} tokens"
        if same and max(same) > max(failing):
            evidence += f"; from {min(length for length in same if length > max(failing))} tokens on they are the same"
            hint = f"something changes between {max(failing)} and {longest} tokens: a path, a table or a block"
        condition = _condition_of_beginnings(impl, sweep)
    return [judge("truncation", worst, 10 * impl.tolerance, evidence, hint, "positions", condition)]


def _condition_of_beginnings(impl: Implementation, sweep: Sweep, count: int = 5) -> str:
    """From which length on the first outputs are no longer those of the first tokens alone; empty if that varies."""
    count = impl.nearest_length(count)
    alone = impl.run(sweep.x[:, :count])

    def is_right(length: int) -> bool | None:
        if length <= count or not impl.takes_length(length):
            return None
        return relative_difference(alone, impl.run(sweep.x[:, :length])[:, :count]) <= 10 * impl.tolerance

    condition = describe_condition(is_right, sweep.longest())
    return condition if condition.startswith("from") else ""


def describe_sample(sample: InfluenceMap, kind: str) -> Finding:
    """A longer map compared with the kind of a short one; the score is 1 if it is another."""
    return _check_sample(sample, kind, NO_PROMISES, sparse=False)


def check_training_leak(impl: Implementation, contract: Contract, kind: str) -> list[Finding]:
    """In training mode, with dropout, later tokens have no effect either; both calls drop the same elements."""
    module = impl.module
    causal = contract.kind in ("causal", "window") or (contract.kind is None and kind.startswith(CAUSAL_KINDS))
    if module is None or not causal or not impl.aligned:
        return []
    generator = torch.Generator().manual_seed(50)
    x = impl.random_input(2, impl.length, generator)
    last = impl.length - 1
    inputs = (x, impl.change_token(x, last, generator), impl.change_token(x, 0, generator))
    outs = _run_in_training(impl, module, inputs, 0.5)
    if not outs:
        return []
    leak, control = (float((out - outs[0])[:, :last].abs().max()) for out in outs[1:])
    evidence = (
        f"in training, with dropout, the last token has effect {leak:.2g} on earlier outputs (the first {control:.2g})"
    )
    if not control > 0:
        return [Finding("causal (training)", "inconclusive", None, evidence)]
    hint, family = "dropout undoes the mask: drop weights after the softmax, not masked scores before it", "mask not −∞"
    if leak / control > impl.tolerance:
        without = _run_in_training(impl, module, inputs[:2], 0.0)
        if float((without[1] - without[0])[:, :last].abs().max()) / control > impl.tolerance:
            hint = "in training another path runs, also without dropout, and its mask shows later tokens"
            family = "leak"
    return [judge("causal (training)", leak / control, impl.tolerance, evidence, hint, family, "in training")]


def _run_in_training(impl: Implementation, module: nn.Module, inputs: Sequence[Tensor], rate: float) -> list[Tensor]:
    """The outputs in training mode with one dropout rate, which drops the same elements of all; [] without a rate."""
    with dropout_rates(module, rate) as count:
        if not count:
            return []
        module.train()
        outs = []
        try:
            for x in inputs:
                with seeded(51):
                    outs.append(impl.run(x))
        finally:
            module.eval()
    return outs


def check_source(impl: Implementation, contract: Contract) -> list[Finding]:
    """The source side of an encoder–decoder; its finding names begin with "source: "."""
    assert impl.source is not None
    source = impl.source
    sweep = run_lengths(source, NO_PROMISES)
    findings = [
        check_inputs_not_mutated(source),
        *check_batch_independence(source, sweep),
        check_finite(source, sweep),
        check_grad_modes(source, sweep),
        *check_padding(source, replace(contract, position=None), sweep),
    ]
    renamed = [replace(finding, check=f"source: {finding.check}") for finding in findings]
    return [_check_cross_attention(impl, contract), *renamed]


def _unseen_in_layer(source: Implementation, targets: int) -> tuple[str, Tensor]:
    """The cross-attention whose weights hide source tokens in all heads and rows, and which (t, s); else none."""
    length = next(n for n in (7, 11, 13) if n != targets)
    x = source.random_input(2, length, torch.Generator().manual_seed(87))
    for attention in record_run(source, x).attentions:
        unseen = ~attention.attended.any(0).any(0)
        if unseen.shape == (targets, length) and bool(unseen.any()):
            return attention.name, unseen
    return "", torch.zeros(targets, length, dtype=torch.bool)


def _find_unseen_far(source: Implementation) -> tuple[int, int, int] | None:
    """A longer source with an output and a source token that it ignores: (length, output, token)."""
    for length in (33, 129):
        if not source.takes_length(length):
            continue
        generator = torch.Generator().manual_seed(92)
        x = source.random_input(2, length, generator)
        try:
            before = source.run(x)
            for token in (0, length // 3, 2 * length // 3, length - 2, length - 1):
                change = (source.run(source.change_token(x, token, generator)) - before).abs().flatten(2).amax((0, 2))
                if float(change.min()) <= 1e-14 * float(before.abs().max()):
                    return length, int(change.argmin()), token
        except Exception:  # this length is refused
            return None
    return None


def _name_unread_source(impl: Implementation) -> tuple[str, str, str]:
    """Why the source has no effect, as far as it can be seen: the hint, the family and the condition.

    Keys and values of an earlier source may be used again, or only calls with gradients may read the source.
    """
    source = impl.source
    assert source is not None
    generator = torch.Generator().manual_seed(93)
    first, second = (source.random_input(2, source.length, generator) for _ in range(2))
    old = source.run(first)
    place = find_kept_source(impl, lambda: relative_difference(old, source.run(second)) > source.tolerance)
    with torch.enable_grad():
        reads = not measure_influence(source, draws=1).empty
    condition = "without gradients" if reads else ""
    if place:
        hint = f"keys and values of an earlier source are used again for another one: {place} keeps them"
        return hint, "state", condition
    if reads:
        hint = (
            "the source is not read by the path that runs without gradients: it uses what an earlier call left, or none"
        )
        return hint, "cross attention", condition
    return "the source is not read: cross-attention takes its keys and values from the target", "cross attention", ""


def _check_cross_attention(impl: Implementation, contract: Contract) -> Finding:
    """Every output changes with every source token: there is no order between source and target."""
    source = impl.source
    assert source is not None
    influence = measure_influence(source)
    if influence.empty:
        verdict = "inconclusive" if contract.kind is None else "fail"
        evidence = "no output changes when any source token changes"
        hint, family, condition = _name_unread_source(impl)
        return Finding("cross attention", verdict, None, evidence, hint, family, "", condition)
    outputs, inputs = influence.effects.shape
    unseen = ~influence.visible
    where, what = "", "output {} does not change when source token {} changes"
    if not bool(unseen.any()):  # tokens that are mixed before hide what the cross-attention itself sees
        where, unseen = _unseen_in_layer(source, outputs)
        what = f"in {where or 'the module'}, query {{}} puts no weight on source token {{}}"
    if not bool(unseen.any()):
        evidence = f"each of {outputs} outputs changes with each of {inputs} source tokens"
        far = _find_unseen_far(source)
        if far is None:
            return Finding("cross attention", "pass", 0.0, evidence)
        length, i, j = far
        evidence = f"with {length} source tokens, output {i} does not change when source token {j} changes"
        hint = f"a long source is cut, or a part of it is hidden; {inputs} tokens are all seen"
        verdict = "described" if contract.kind is None else "fail"
        return Finding("cross attention", verdict, 1.0, evidence, hint, "cross attention", "", "for long sources")
    i, j = (int(axis[0]) for axis in unseen.nonzero(as_tuple=True))
    evidence = f"{what.format(i, j)} ({int(unseen.sum())} such pairs)"
    hint = "cross-attention has a causal mask, or the mask of the wrong sequence: the whole source is known"
    verdict = "described" if contract.kind is None else "fail"
    return Finding("cross attention", verdict, float(unseen.float().mean()), evidence, hint, "cross attention")
