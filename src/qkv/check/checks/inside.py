"""The second tier: where in a module it happens. What the contract promises is judged, the rest described.

Axes: b batch · h heads · t queries · s keys · d head width.
"""

from qkv.check.contract import Contract
from qkv.check.diagnosis import FAMILIES, Diagnosis
from qkv.check.finding import Finding, Verdict
from qkv.check.inside.heads import layout_of, merge_mistake, split_mistake
from qkv.check.inside.read import Reading
from qkv.check.inside.scores import ahead, pattern_of, rows_off, scale_words, softmax_mistake
from qkv.check.inside.turns import described, turn_mistakes
from qkv.check.subject import Subject


def check_inside(
    subject: Subject, contract: Contract, found: list[Reading], refused: str | None, *, leaks: bool = False
) -> list[Finding]:
    """Scale, softmax, heads and rotations of every attention that was recorded in a module.

    leaks: whether the influence map shows a leak, so that it is worth saying in which layer.
    """
    if subject.module is None:
        return []
    if not found:
        why = refused or "no attention was seen among its operators (fused, compiled or opaque code)"
        findings = [Finding("inside", "n/a", None, f"judged from outside only: {why}")]
        if contract.textbook:
            findings.append(Finding("scale", "inconclusive", None, f"the scale was not seen: {why}"))
        return findings
    return [
        _inside(found),
        _where(found, contract, leaks),
        _scale(found, contract),
        _softmax(found, contract),
        _heads(found, contract),
        _shared(found, contract),
        _turned(found, contract),
    ]


def _inside(found: list[Reading]) -> Finding:
    first = found[0].seen
    kernels = sorted({reading.seen.kernel for reading in found if reading.seen.kernel})
    by = f", by {', '.join(kernels)}" if kernels else ", written out"
    names = ", ".join(dict.fromkeys(reading.seen.name or "the module itself" for reading in found[:3]))
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    said = f"{len(found)} attention(s) recorded: {names}{more}; {first.heads} head(s) of {first.width}{by}"
    return Finding("inside", "described", None, said)


def _where(found: list[Reading], contract: Contract, leaky: bool) -> Finding:
    """Which layer sees what it should not."""
    square = [reading.seen for reading in found if reading.seen.weights.shape[-1] == reading.seen.weights.shape[-2]]
    named = {seen.name or "the attention": pattern_of(seen) for seen in square}
    if not named:
        return Finding("layers", "n/a", None, "no attention of a sequence to itself was recorded")
    kinds = sorted(set(named.values()))
    said = f"all are {kinds[0]}" if len(kinds) == 1 else ", ".join(f"{name}: {kind}" for name, kind in named.items())
    if contract.kind != "causal":
        return Finding("layers", "described", None, f"by their weights {said}")
    leaks = {seen.name or "the attention": ahead(seen) for seen in square if ahead(seen) > 1e-6}
    if not leaks:
        return Finding("layers", "pass", 0.0, f"no layer puts weight on a later key; by their weights {said}")
    worst = max(leaks, key=lambda name: leaks[name])
    evidence = (
        f"{worst} puts {leaks[worst]:.2%} of its weight on later keys ({len(leaks)} of {len(square)} layers leak)"
    )
    return Finding("layers", "fail" if leaky else "described", leaks[worst], evidence)


def _scale(found: list[Reading], contract: Contract) -> Finding:
    """The scale that the projections' q·k is multiplied by in all, layer by layer."""
    known = [(reading, reading.scale) for reading in found if reading.scale is not None]
    if not known:
        bent = any(reading.slope is not None and reading.slope[1] > 1e-5 for reading in found)
        why = (
            "scores are no straight line of q·k (a softcap, a clip)"
            if bent
            else "something (a norm, a convolution) stands between the projections and q·k"
        )
        verdict: Verdict = "described" if contract.scale is None else "inconclusive"
        return Finding("scale", verdict, None, f"the scale was not measured: {why}")

    def off(reading: Reading, scale: float) -> float:
        if contract.scale is None or contract.scale == "head":
            return abs(scale * reading.seen.width**0.5 - 1)
        return abs(scale / float(contract.scale) - 1)

    reading, scale = max(known, key=lambda pair: off(*pair))
    seen = reading.seen
    words = scale_words(scale, seen.width, all_heads(reading))
    place = f"{seen.name}: " if seen.name else ""
    evidence = f"{place}scores grow with q·k by {scale:.4f}, which is {words} (d = {seen.width})"
    if contract.scale is None:
        return Finding("scale", "described", None, evidence)
    if off(reading, scale) <= 0.01:
        return Finding("scale", "pass", off(reading, scale), evidence)
    hint = Diagnosis("scale", f"the scale of q·k is {words}", seen.name).hint
    return Finding("scale", "fail", off(reading, scale), evidence, hint, "scale")


def all_heads(reading: Reading) -> int:
    """How many heads there are in all, where each is a module of its own too."""
    seen = reading.seen
    queries = reading.matches["queries"]
    if seen.heads > 1 or queries is None:
        return seen.heads
    given = reading.recording.projections[queries.projection].given
    return max(given.shape[-1] // seen.width, 1)


def _softmax(found: list[Reading], contract: Contract) -> Finding:
    """Over which axis, how exactly, and whether rows sum to one."""
    mistakes = [mistake for reading in found if (mistake := softmax_mistake(reading.seen)) is not None]
    dropped = next((reading.seen for reading in found if reading.seen.dropped), None)
    if dropped is not None:
        mistakes.append(Diagnosis("random in eval", "weights are dropped although it is in eval", dropped.name))
    sums = max(rows_off(reading.seen.weights) for reading in found)
    precisions = sorted({str(r.seen.precision).removeprefix("torch.") for r in found if r.seen.precision is not None})
    evidence = f"rows of weights sum to 1 within {sums:.2g}; softmax in {', '.join(precisions) or 'no operator'}"
    if not mistakes and sums > 1e-5:
        words = "weights are changed after the softmax: masked there, or a sink takes a share"
        mistakes.append(Diagnosis("mask after softmax" if contract.kind == "causal" else "softmax replaced", words))
    if not mistakes:
        return Finding("softmax", "pass" if contract.softmax else "described", sums, evidence)
    verdict: Verdict = "fail" if contract.softmax else "described"
    return Finding("softmax", verdict, sums, f"{evidence}; {mistakes[0].words}", mistakes[0].hint, mistakes[0].family)


def _heads(found: list[Reading], contract: Contract) -> Finding:
    """How projections become heads, and heads one output."""
    mistakes = []
    for reading in found:
        mistakes += [split_mistake(reading.seen, reading.matches), merge_mistake(reading.seen, reading.recording)]
    wrong = [mistake for mistake in mistakes if mistake is not None]
    if not wrong:
        known = sum(all(reading.matches.values()) for reading in found)
        said = f"the heads of {known} of {len(found)} attention(s) are runs of their projections' features"
        return Finding("heads", "described" if not (contract.textbook and known) else "pass", None, said)
    always = any(mistake.family == "head layout" for mistake in wrong)
    verdict: Verdict = "fail" if contract.textbook or always else "described"
    return Finding("heads", verdict, 1.0, wrong[0].words, wrong[0].hint, wrong[0].family)


def _shared(found: list[Reading], contract: Contract) -> Finding:
    """How heads of queries share heads of keys."""
    layouts = {layout for r in found if (layout := layout_of(r.matches["keys"])) is not None}
    if not layouts:
        return Finding("grouped heads", "n/a", None, "each head of queries has keys of its own")
    said = f"heads of keys are {', '.join(sorted(layouts))} over the heads of queries"
    if contract.grouped is None:
        return Finding("grouped heads", "described", None, said)
    if layouts == {contract.grouped}:
        return Finding("grouped heads", "pass", 0.0, said)
    hint = f"promised was {contract.grouped}: {FAMILIES['head layout']}"
    return Finding("grouped heads", "fail", 1.0, said, hint, "head layout")


def _turned(found: list[Reading], contract: Contract) -> Finding:
    """Rotary positions."""
    reading = found[0]
    known = {name: described(turn) for name, turn in reading.turns.items() if turn is not None}
    said = "; ".join(f"{name} {words}" for name, words in known.items()) or "the rotation could not be measured"
    promised = contract.position == "rotary"
    wrong = [w for r in found for w in turn_mistakes(r.turns, r.seen.name, promised=promised)]
    if not wrong:
        return Finding("rotary", "pass" if promised and known else "described", None, said)
    verdict: Verdict = "fail" if contract.relative else "described"
    return Finding("rotary", verdict, 1.0, said, wrong[0].hint, wrong[0].family)
