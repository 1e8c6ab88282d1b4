"""Identify a bug: the simplest hypothesis that gives the observed outputs exactly at several shapes, and when it acts.

First the design is found that is right at some sizes. If it is right at all of them, the bug is elsewhere. If it is
right at some, the bug has a condition, found by bisection ("from 65 tokens on"). Otherwise every design is combined
with every bug.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, product

import torch

from qkv.check.contract import Contract
from qkv.check.hypotheses.conditions import find_condition
from qkv.check.hypotheses.designs import Clues, find_clues, find_designs, measure_mask, rare_designs
from qkv.check.hypotheses.formula import Design, Observation
from qkv.check.hypotheses.observe import Case, Observer, observe_function, observe_module
from qkv.check.hypotheses.observed import (
    CONFIRM,
    FLOAT32_INSIDE,
    RIGHT,
    ROUNDING,
    SMALL,
    Identified,
    Observed,
    Work,
)  # fmt: skip
from qkv.check.hypotheses.search import MANY_ROWS, search
from qkv.check.hypotheses.visibility import solve_visibility
from qkv.check.implementation import Implementation


def identify(
    impl: Implementation, contract: Contract, failed: Sequence[str] = (), budget: int = 9000
) -> Identified | None:
    """The bug of an implementation, or that every attention in it is right; None if it cannot be read.

    Args:
        failed: the names of the checks that failed.
        budget: how many formulas are tried at most; a count, not a time, so that every machine names the same bug.
    """
    unread: Identified | None = None
    right: list[Identified] = []
    groups = list(_observers(impl, contract))
    work = Work(budget)
    with torch.random.fork_rng():
        for group in groups:
            observers = [(where, Observed(observer)) for where, observer in group]
            some_right = False  # then a bug has a condition, and none acts at every size
            for searches, (where, observed) in product((False, True), observers):
                if work.done:
                    return unread
                if searches and some_right:
                    break
                find = _search_bug if searches else _find_right
                found = find(observed, impl, contract, failed, work)
                if found is None:
                    continue
                some_right = some_right or not searches
                if found.right:
                    right.append(found)
                    break
                found = replace(found, where=where)
                if found.family is not None:
                    return found
                unread = unread or found
    if unread is None and right and len(right) == len(groups):
        return replace(max(right, key=lambda found: len(found.words)), cases=len(right))
    return unread


def _observers(impl: Implementation, contract: Contract) -> Iterator[list[tuple[str, Observer]]]:
    """For each attention: the ways to observe it."""
    if impl.attention is not None:
        yield [("", observe_function(impl, contract))]
    elif impl.module is not None and impl.source is None and impl.aligned:
        for group in observe_module(impl):
            yield [(layout.name, observer) for layout, observer in group]


def _find_right(
    observed: Observed, impl: Implementation, contract: Contract, failed: Sequence[str], work: Work
) -> Identified | None:
    """That a design is right at all sizes, or what is wrong at some; None if none is right at any."""
    design = find_design(observed, impl, contract)
    if design is None:
        return None
    found = find_condition(observed, design, impl, contract, failed)
    return RIGHT if found is None else found


def find_design(observed: Observed, impl: Implementation, contract: Contract) -> Design | None:
    """The first design that gives the outputs of some short sequence."""
    small = observed.all(SMALL)
    if not small:
        return None
    clues = _find_clues(impl, contract, small[0][1])
    if clues is None:
        return None
    for design in chain(find_designs(contract, small[0][1], clues), rare_designs(contract, small[0][1], clues)):
        off = min(seen.off(design.formula(seen)) for _, seen in small)
        if off <= small[0][1].tolerance:
            if off > ROUNDING:  # rounding grows with the length
                observed.loosen(FLOAT32_INSIDE)
            return design
    return None


def _find_clues(impl: Implementation, contract: Contract, seen: Observation) -> Clues | None:
    """The clues, with the measured mask where the promise does not say which keys are seen; None if none is found."""
    clues = find_clues(impl, seen)
    if contract.kind not in ("prefix", "chunked"):
        return clues
    mask = measure_mask(impl)
    return None if mask is None else replace(clues, visible=mask)


def _search_bug(
    observed: Observed, impl: Implementation, contract: Contract, failed: Sequence[str], work: Work
) -> Identified | None:
    """A bug at every size."""
    small = observed.all(SMALL)
    if len(small) < 2:
        return None
    clues = _find_clues(impl, contract, small[0][1])
    if clues is None:
        return None
    designs = list(find_designs(contract, small[0][1], clues))
    with_padding = impl.takes_padding and any("padding" in name or "padded" in name for name in failed)
    padded = [Case(n, padding=side) for n in (12, 13) for side in impl.padding_sides] if with_padding else []
    return search(observed, designs, CONFIRM, work, contract, padded)


def prove_scale(impl: Implementation, contract: Contract) -> bool:
    """Whether every attention has the promised scale under some mask: only then a mask can be solved for."""
    groups = list(_observers(impl, contract))
    for group in groups:
        observers = [Observed(observer) for _, observer in group]
        if not any(_has_scale(observed, impl, contract) for observed in observers):
            return False
    return bool(groups)


def _has_scale(observed: Observed, impl: Implementation, contract: Contract) -> bool:
    cases = [Case(7, batch=MANY_ROWS), Case(12, batch=MANY_ROWS), Case(13, batch=MANY_ROWS)]
    seen = [one for _, one in observed.all(cases)]
    if len(seen) < 2:
        return False
    designs = chain(find_designs(contract, seen[0], find_clues(impl, seen[0])))
    return any(all(solve_visibility(one, design.formula) is not None for one in seen) for design in designs)
