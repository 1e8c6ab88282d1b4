"""A bug that acts under a condition: the design is right at some sizes and wrong at others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch

from qkv.check.contract import Contract
from qkv.check.hypotheses.angles import search_angles, search_places
from qkv.check.hypotheses.formula import Design
from qkv.check.hypotheses.hypothesis import BLOCKS
from qkv.check.hypotheses.known_bugs import known_bugs
from qkv.check.hypotheses.observe import Case
from qkv.check.hypotheses.observed import SMALL, Identified, Observed, Work, fits_all
from qkv.check.hypotheses.score_bugs import fit_scale
from qkv.check.hypotheses.search import describe_mask, known_masks, search_residual, solve_mask
from qkv.check.implementation import Implementation
from qkv.check.shapes import PROBES, describe_condition


def find_condition(
    observed: Observed, design: Design, impl: Implementation, contract: Contract, failed: Sequence[str]
) -> Identified | None:
    """The design is right at some sizes: where it is wrong, and why."""

    def is_right(case: Case) -> bool | None:
        seen = observed(case)
        return None if seen is None else seen.fits(design.formula(seen))

    for words, cases in _axes(impl, contract, failed):
        judged = [(case, right) for case in cases if (right := is_right(case)) is not None]
        wrong = [case for case, right in judged if not right]
        one_alone = words.startswith("for one query") and not _fits_top_left(observed, design, [Case(3, keys=6)])
        if contract.alignment is None and not one_alone and _fits_top_left(observed, design, wrong):
            continue  # nothing was promised about more keys than queries
        if not wrong or (wrong[0].training and observed.is_random(wrong[0])):
            continue
        fine = [case for case, right in judged if right]
        condition = describe_condition(lambda length: is_right(Case(length))) if words == "length" else words
        if words == LONG_PADDED:
            condition = describe_condition(
                lambda n, case=wrong[0]: is_right(replace(case, length=n)) if n > 8 else None
            )
            condition = f"with padding, {condition or 'in long sequences'}"
        if words in MODES and all(case.length > 12 for case in wrong):
            when = describe_condition(lambda n, case=wrong[0]: is_right(replace(case, length=n)))
            condition = f"{words}, {when or 'in long sequences'}"
            wrong = [wrong[0], replace(wrong[0], length=wrong[0].length + 5)]
        if words == "for more than one row" and (least := min(case.batch for case in wrong)) > 2:
            condition = f"for {least} rows, not for fewer"
        if wrong[0].dtype != torch.float64:
            low = [dtype for dtype in DTYPES if any(is_right(replace(case, dtype=dtype)) is False for case in wrong)]
            condition = _in_dtypes(low)
        return _explain_condition(observed, design, wrong, fine, condition, contract)
    return None


def _fits_top_left(observed: Observed, design: Design, cases: Sequence[Case]) -> bool:
    """Whether calls with more keys than queries follow a causal mask that is aligned at the start."""
    if not design.causal or not cases or any(case.keys is None for case in cases):
        return False
    formula = design.formula.but(mask=lambda sizes: torch.ones(sizes.queries, sizes.keys, dtype=torch.bool).tril())
    return all(seen is not None and seen.fits(formula(seen)) for seen in map(observed, cases))


LONG_PADDED = "with padding in long sequences"
MODES = ("in training", "without gradients", "with gradients")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _in_dtypes(dtypes: Sequence[torch.dtype]) -> str:
    return f"in {' and '.join(str(dtype).removeprefix('torch.') for dtype in dtypes)}"


def _axes(impl: Implementation, contract: Contract, failed: Sequence[str]) -> Iterator[tuple[str, list[Case]]]:
    """Series of cases in which one thing varies, with the condition in words."""
    yield "length", [Case(length) for length in PROBES]
    yield "for more than one row", [Case(length, batch=batch) for length in (7, 12) for batch in (2, 3, 5)]
    yield "for a single row", [Case(length, batch=1) for length in (7, 12, 33)]
    if impl.attention is not None:
        unequal = ((3, 6), (4, 9), (5, 17), (2, 33), (40, 70))
        yield "with more keys than queries", [Case(length, keys=keys) for length, keys in unequal]
        yield "for one query on more keys", [Case(1, keys=keys) for keys in (2, 7, 12, 33)]
        for h in (1, 2, 3, 6, 8):
            yield f"with {h} head{'s' if h > 1 else ''}", [Case(length, heads=h) for length in (7, 12)]
        for d in (4, 16, 32, 40, 64, 128):
            yield f"with a head dim of {d}", [Case(length, head_dim=d) for length in (7, 12)]
        yield "for grouped-query attention", [Case(length, kv_heads=2) for length in (7, 12)]
        yield "for multi-query attention", [Case(length, kv_heads=1) for length in (7, 12)]
    if impl.takes_padding and any("padding" in name or "padded" in name for name in failed):
        sides = ("holes", "left", "right")
        yield "with padding", [Case(length, padding=side) for length in (12, 13) for side in sides]
        yield LONG_PADDED, [Case(length, padding=side) for length in (12, 33, 65, 129) for side in sides]
    if "mask in rows" in failed or "mask in rows (heads)" in failed:
        cases = [Case(length, batch=batch, padding="pairs") for length in (7, 12) for batch in (2, 3)]
        yield "with another mask in each row", cases
    for dtype in DTYPES:
        yield _in_dtypes([dtype]), [Case(length, dtype=dtype) for length in (7, 12, 33)]
    if impl.attention is not None:
        yield "with gradients", [Case(length, gradients=True) for length in (7, 12, 65)]
    else:
        yield "in training", [Case(length, training=True) for length in (7, 12, 65)]
        yield "without gradients", [Case(length, no_grad=True) for length in (7, 12, 65)]


def _explain_condition(
    observed: Observed, design: Design, wrong: list[Case], fine: list[Case], condition: str, contract: Contract
) -> Identified:
    """The bug of the wrong cases; one that fits the others too needs no condition."""
    probes = _spread([case for case in wrong if case.length > 1] or wrong)
    if any(case.padding for case in wrong):
        probes = wrong + [case for case in fine if case.length in {other.length for other in wrong}]
    if len(probes) < 2:
        probes = [*probes, *(replace(case, seed=case.seed + 1) for case in probes)]
    seen = observed(probes[-1])
    assert seen is not None
    others = [case for case in SMALL if case not in fine and case not in wrong]
    solved = solve_mask(observed, design.formula, [case for case in wrong if case.length > 1], Work(2000))
    blocks = _block_sizes(condition)
    conditional: Identified | None = None
    described = describe_mask(design, solved, condition)
    others_too = described is None or described.family == "scores changed"
    shortest = observed(
        min((case for case in wrong if case.length > 2), key=lambda case: case.length, default=probes[0])
    )
    for all_rows in (True, False) if seen.tokens is not None else (False,):
        known = known_bugs(design, seen, blocks=blocks, shortest=shortest, elsewhere=True) if others_too else ()
        for bug in chain(known_masks(design, solved, seen), known):
            if not fits_all(observed, bug.formula, probes, all_rows=all_rows):
                continue
            if len(wrong) > len(probes) and not fits_all(observed, bug.formula, wrong, all_rows=all_rows):
                continue
            if fine and fits_all(observed, bug.formula, [*wrong, *fine, *others]):
                return Identified(bug.family, bug.words, cases=len(wrong) + len(fine))
            says_when = bug.family == "alignment" and not condition.startswith("for one query")
            when = "" if says_when else condition
            if bug.family == "block" and "multiples" in when:
                when = when.partition(" from ")[2] and f"from {when.partition(' from ')[2]}"
            conditional = conditional or Identified(bug.family, bug.words, when, cases=len(probes))
        if conditional is not None:
            return conditional
    added = search_residual(observed, [design], probes)
    if added is not None:
        return replace(added, condition=condition)
    if described is not None:
        return described
    return (
        _search_scales(observed, design, probes, condition, contract)
        or search_angles(observed, design, wrong, condition)
        or search_places(observed, design, wrong, condition)
        or Identified(None, "", condition)
    )


def _search_scales(
    observed: Observed, design: Design, cases: Sequence[Case], condition: str, contract: Contract
) -> Identified | None:
    """A scale that depends on the length, or on the position of a query; the latter is a design (log-n scaling)."""
    seen = observed.all([case for case in cases if case.length > 2 and case.dtype == torch.float64])
    if len(seen) < 2:
        return None
    fitted = [(case, fit_scale(observation, design.formula)) for case, observation in seen]
    known = {case.length: float(scale[0]) for case, scale in fitted if scale is not None}
    if len(known) == len({case.length for case, _ in fitted}) and all(scale is not None for _, scale in fitted):
        values = ", ".join(f"{scale:.4g} at {length} tokens" for length, scale in sorted(known.items())[:3])
        return Identified("scale", f"the scale depends on the sequence length: {values}", condition, cases=len(seen))
    by_query = [fit_scale(observation, design.formula, by_query=True) for _, observation in seen]
    if any(scale is None for scale in by_query):
        return None
    last = by_query[-1]
    assert last is not None
    first, end = float(last[len(last) // 2]), float(last[-1])
    if abs(end - first) < 0.01 * abs(first):  # the same scale at both: something else is wrong
        return None
    words = (
        f"the scale of a query depends on its position: {first:.4g} at {len(last) // 2}, {end:.4g} at {len(last) - 1}"
    )
    if contract.scale is None:
        return Identified(None, words, right=True)
    return Identified("scale", words, condition, cases=len(seen))


def _spread(cases: list[Case]) -> list[Case]:
    """A few cases: the first, the last, and some between."""
    if len(cases) <= 4:
        return cases
    return [cases[0], cases[len(cases) // 3], cases[2 * len(cases) // 3], cases[-1]]


def _block_sizes(condition: str) -> Sequence[int]:
    """Sizes of blocks and tables; a bug from 41 tokens on may come from one of 40."""
    found = re.search(r"from (\d+) tokens on", condition)
    return tuple(sorted({*BLOCKS, int(found.group(1)) - 1})) if found and int(found.group(1)) > 2 else BLOCKS
