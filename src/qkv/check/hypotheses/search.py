"""Search for a bug that acts at every size: a mask that is solved, then every known bug of every design."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.hypotheses.formula import Design, Formula, Observation, Sizes, average, uniform_average
from qkv.check.hypotheses.given_bugs import given_bugs
from qkv.check.hypotheses.hypothesis import Hypothesis
from qkv.check.hypotheses.known_bugs import known_bugs
from qkv.check.hypotheses.mask_patterns import match_pattern, simple_patterns
from qkv.check.hypotheses.observe import Case
from qkv.check.hypotheses.observed import LONGEST, Identified, Observed, Work, fits_all
from qkv.check.hypotheses.position_bugs import find_residual
from qkv.check.hypotheses.score_bugs import scale_bugs
from qkv.check.hypotheses.visibility import SMALL, describe_visibility, solve_visibility

LONGEST_SOLVED = 140
FAINT = 1e-4  # a factor below it may be rounding, where parts are computed in float32
EXACT = 1e-6  # a tolerance above it is too coarse to solve for a mask
NAMED_MASKS = ("causal", "window", "bidirectional")  # kinds that say which keys a query may see
MANY_ROWS = 8  # of a batch: enough equations to solve for a mask


def search(
    observed: Observed,
    designs: Sequence[Design],
    cases: Sequence[Case],
    work: Work,
    contract: Contract,
    padded: Sequence[Case] = (),
) -> Identified | None:
    """The first hypothesis that fits in all cases, over all designs; designs without positions go first.

    padded: cases with padding, where that fails, too: a bug of the padding mask may explain all of them.
    """
    bug = _search_padding(observed, designs, cases, padded, work) if padded else None
    if bug is not None:
        return bug
    first = observed(cases[0])
    if first is None:
        return None
    added = search_residual(observed, designs, cases)
    if added is not None:
        return _with_gradients(observed, designs, added)
    unpadded: Identified | None = None
    for design in designs:
        solved = solve_mask(observed, design.formula, cases, work) if contract.kind in NAMED_MASKS else None
        described = describe_mask(design, solved)
        other = described is None or described.family == "scores changed"  # a bias may be a design
        for bug in chain(known_masks(design, solved, first), known_bugs(design, first) if other else ()):
            if work.spend(first):
                return unpadded
            if fits_all(observed, bug.formula, cases):
                if padded and not fits_all(observed, bug.formula, padded):  # it contradicts what is seen with padding
                    unpadded = unpadded or Identified(bug.family, bug.words, "without padding", cases=len(cases))
                    continue
                if bug.family == "low precision" and bug.words.endswith("float32"):
                    return None  # enough for any model, whatever the dtype of its weights
                return _after_longer_call(observed, design, bug, len(observed.all(cases)))
        if not other:
            return described
    if unpadded is not None:
        return unpadded
    for design in designs[:2]:
        for bug in _pairs(observed, design, first, cases, work):
            if work.spend(first):
                return None
            if fits_all(observed, bug.formula, cases):
                return Identified(bug.family, bug.words, cases=len(observed.all(cases)), also=bug.also)
    return None


def _search_padding(
    observed: Observed, designs: Sequence[Design], cases: Sequence[Case], padded: Sequence[Case], work: Work
) -> Identified | None:
    """A wrong use of the padding mask that gives the outputs with padding and without, where it hides nothing."""

    def observe(case: Case) -> Observation | None:
        seen = observed(case)
        if seen is None or seen.given is not None:
            return seen
        sizes = seen.sizes
        return replace(seen, given=torch.ones(sizes.batch, sizes.queries, sizes.keys, dtype=torch.bool))

    first = observe(padded[0])
    if first is None or first.given is None:
        return None
    both = Observed(observe)
    for design in designs:
        for core in (average, uniform_average):
            for bug in given_bugs(design.formula.but(core=core), first):
                if work.spend(first):
                    return None
                if fits_all(both, bug.formula, [*padded, *cases]):
                    return Identified(bug.family, bug.words, cases=len(both.all([*padded, *cases])))
    return None


def _pairs(
    observed: Observed, design: Design, seen: Observation, cases: Sequence[Case], work: Work
) -> Iterator[Hypothesis]:
    """Two bugs at once: a wrong scale beside another bug."""
    right = design.formula
    scales = list(scale_bugs(right, seen))
    bugs = [bug for bug in known_bugs(design, seen, blocks=()) if bug.formula.scale is right.scale]
    for scale in scales:
        solved = solve_mask(observed, scale.formula, cases, work)
        for bug in chain(known_masks(design, solved, seen), bugs):
            formula = bug.formula.but(scale=scale.formula.scale)
            yield Hypothesis(bug.family, f"{bug.words}; and {scale.words}", formula, also=scale.family)


# -- masks that are solved ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SolvedMask:
    """What queries see at several sizes: factors (t, s) of the exponentials; in some heads, or in all alike."""

    factors: tuple[tuple[Sizes, Tensor], ...]
    heads: tuple[int, ...] = ()
    count: int = 0

    @property
    def where(self) -> str:
        """The heads, in words."""
        if not self.heads:
            return ""
        *first, last = map(str, self.heads)
        return f"in heads {', '.join(first)} and {last} of {self.count}, " if first else f"in head {last}, "


def solve_mask(observed: Observed, formula: Formula, cases: Sequence[Case], work: Work) -> SolvedMask | None:
    """What queries see under a formula; None if no mask gives the outputs, or the formula's own does."""
    few = [replace(case, batch=max(case.batch, MANY_ROWS)) for case in cases if _is_solvable(case)]
    few = list(dict.fromkeys(few))
    short = [case for case in few if (case.keys or case.length) <= 70]  # long ones take seconds
    few = short if len(short) > 1 else few[:2]
    few = [few[0], few[len(few) // 2], few[-1]] if len(few) > 3 else few
    seen = observed(few[0]) if few else None
    heads = _heads(seen)
    for head in (None, *range(heads if heads > 1 else 0)):
        if seen is None or work.spend(seen):
            return None
        tried = few if head is None else [case for case in few if _heads(observed(case)) == heads]
        solved = _solve_at(observed, formula, tried, head)
        if solved is None:
            continue
        if any(not _is_mask(factors, formula.mask(sizes)) for sizes, factors in solved):
            if head is None:
                return SolvedMask(solved)
            return _with_others_alike(observed, formula, tried, solved, head, heads)
        if head is None:  # it is right
            return None
    return None


def _heads(seen: Observation | None) -> int:
    return 0 if seen is None else seen.sizes.heads


def _with_others_alike(
    observed: Observed,
    formula: Formula,
    cases: Sequence[Case],
    solved: tuple[tuple[Sizes, Tensor], ...],
    head: int,
    count: int,
) -> SolvedMask:
    """What is seen in a head, and the other heads that see the same."""
    alike = [head]
    for other in range(head + 1, count):
        found = _solve_at(observed, formula, cases, other) or ()
        pairs = zip(found, solved, strict=False)
        if len(found) == len(solved) and all(_is_mask(one, factors) for (_, one), (_, factors) in pairs):
            alike.append(other)
    return SolvedMask(solved, tuple(alike), count)


def _is_mask(factors: Tensor, mask: Tensor) -> bool:
    return factors.shape == mask.shape and torch.allclose(factors, mask.to(factors), atol=1e-3)


def _is_solvable(case: Case) -> bool:
    return 2 < (case.keys or case.length) <= LONGEST_SOLVED and case.padding is None


def _solve_at(
    observed: Observed, formula: Formula, cases: Sequence[Case], head: int | None
) -> tuple[tuple[Sizes, Tensor], ...] | None:
    solved = []
    for case in cases:
        seen = observed(case)
        if seen is None:
            continue
        try:
            factors = solve_visibility(seen, formula, head=head)
        except (RuntimeError, ValueError, IndexError):  # a step that this shape does not allow
            return None
        if factors is None:
            return None
        if seen.tolerance > EXACT:  # what float32 inside leaves of hidden keys
            factors = factors.masked_fill(factors < FAINT, 0.0)
        solved.append((seen.sizes, factors))
    return tuple(solved) if len(solved) >= 2 or (solved and len(cases) == 1) else None


def known_masks(design: Design, solved: SolvedMask | None, seen: Observation) -> Iterator[Hypothesis]:
    """The known wrong masks that are what was solved, for all heads; as formulas, to be tried at all sizes.

    seen: where outputs are too coarse or too long to be solved for, every mask without a size of its own is tried.
    """
    if solved is None and (seen.tolerance > EXACT or seen.sizes.keys > LONGEST_SOLVED):
        for pattern in simple_patterns(design):
            yield Hypothesis(pattern.family, pattern.words, design.formula.but(mask=pattern.mask))
    if solved is None or solved.heads:
        return
    seen_at = [(sizes, factors > SMALL) for sizes, factors in solved.factors]
    hard = all(torch.equal(factors > SMALL, factors > 0.999) for _, factors in solved.factors)
    for pattern in match_pattern(design, seen_at) if hard else ():
        for core in (average, uniform_average):
            formula = design.formula.but(mask=pattern.mask, core=core)
            yield Hypothesis(pattern.family, pattern.words, formula)


def describe_mask(design: Design, solved: SolvedMask | None, condition: str = "") -> Identified | None:
    """What was solved, in words."""
    if solved is None:
        return None
    allowed = [(factors, design.formula.mask(sizes)) for sizes, factors in solved.factors]
    described = describe_visibility(allowed, design.window)
    if described is None:
        return None
    family, words = described
    if solved.heads and family == "no mask":  # the other heads have one
        family, words = "leak", "there is no causal mask"
    return Identified(family, f"{solved.where}{words}", condition, cases=len(solved.factors))


# -- when it acts ------------------------------------------------------------------------------------------------------


def _after_longer_call(observed: Observed, design: Design, bug: Hypothesis, cases: int) -> Identified:
    """The bug, unless a call that is longer than all before is right: then earlier calls cause it."""
    seen = observed(Case(LONGEST))
    if seen is not None and not seen.fits(bug.formula(seen)) and seen.fits(design.formula(seen)):
        words = f"after a longer call, {bug.words}: something that the longer call left behind is used again"
        return Identified("state", words, cases=cases)
    return _with_gradients(observed, [design], Identified(bug.family, bug.words, cases=cases))


def _with_gradients(observed: Observed, designs: Sequence[Design], found: Identified) -> Identified:
    """The bug with its condition, if the same call is right without gradients."""
    seen = observed.all([Case(7, no_grad=True), Case(12, no_grad=True)])
    right = any(all(one.fits(design.formula(one)) for _, one in seen) for design in designs)
    if seen and right:
        return replace(found, condition="with gradients")
    seen = observed.all([Case(7, training=True), Case(12, training=True)])
    right = any(all(one.fits(design.formula(one)) for _, one in seen) for design in designs)
    return replace(found, condition="in eval mode") if seen and right else found


def search_residual(observed: Observed, designs: Sequence[Design], cases: Sequence[Case]) -> Identified | None:
    """Something is added to the right output, by the same factor in all cases."""
    seen = observed.all([case for case in cases if case.length > 1])
    for design in designs[:6]:
        found = [find_residual(design, observation) for _, observation in seen]
        if len(found) < 2 or any(part is None for part in found):
            continue
        (family, words, factor), *others = [part for part in found if part is not None]
        if all(other[:2] == (family, words) and abs(other[2] - factor) < 1e-5 for other in others):
            by = f"by {1 + factor:.4g}" if words.endswith("scaled") else f"times {factor:.4g}"
            return Identified(family, f"{words} {by}", cases=len(found))
    return None
