"""Rotary angles that depend on the length of the sequence: the base, or the step of positions, fitted at each one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from qkv.check.hypotheses.formula import Design, Formula, Observation, rotate
from qkv.check.hypotheses.hypothesis import fit_number
from qkv.check.hypotheses.observe import Case
from qkv.check.hypotheses.observed import Identified, Observed

FITTED = 3  # lengths
LONGEST = 150
RATIOS = tuple(0.1 * step for step in range(-20, 41))  # of bases, as logarithms
STEPS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.3, 1.6, 2.0, 4.0)


def search_angles(observed: Observed, design: Design, wrong: Sequence[Case], condition: str) -> Identified | None:
    """A base of RoPE, or a step from one position to the next, that is another one at each wrong length."""
    if design.rotary == "none":
        return None
    cases = [case for case in wrong if 2 < case.length <= LONGEST and case.dtype == torch.float64]
    cases = list({case.length: case for case in cases}.values())
    seen = observed.all([*cases[: FITTED - 1], *cases[FITTED - 1 :][-1:]])
    if len(seen) < 2:
        return None
    for what, usual, fit in (("step of positions", 1.0, _fit_step), ("base of RoPE", design.base, _fit_base)):
        found = [(case.length, fit(one, design)) for case, one in seen]
        numbers = {length: number for length, number in found if number is not None}
        if len(numbers) < len(found):
            continue
        values = ", ".join(f"{number:.4g} at {length} tokens" for length, number in numbers.items())
        same = max(numbers.values()) - min(numbers.values()) < 1e-4 * max(numbers.values())
        depends = "is another one in such sequences" if same else "depends on the sequence length"
        words = f"the {what} {depends}, so the angles of the same tokens change: {values}, else {usual:g}"
        return Identified("positions", words, condition, cases=len(found))
    return None


def _fit_base(seen: Observation, design: Design) -> float | None:
    """The base that gives the outputs."""

    def make(ratio: float) -> Formula:
        base = design.base * math.exp(ratio)
        return design.formula.but(rotate=partial(rotate, pairing=design.rotary, base=base, dims=design.rotary_dim))

    found = _fit(seen, design, make, RATIOS)
    return None if found is None else design.base * math.exp(found)


def _fit_step(seen: Observation, design: Design) -> float | None:
    """The factor on positions that gives the outputs."""
    whole = partial(rotate, pairing=design.rotary, base=design.base, dims=design.rotary_dim)
    return _fit(
        seen, design, lambda step: design.formula.but(rotate=lambda x, p, role: whole(x, p * step, role)), STEPS
    )


def _fit(seen: Observation, design: Design, make: Callable[[float], Formula], grid: Sequence[float]) -> float | None:
    """The number for which the formula gives the outputs; it is looked for in one row of the batch."""
    row = replace(seen, q=seen.q[:1], k=seen.k[:1], v=seen.v[:1], out=seen.out[:1], sizes=replace(seen.sizes, batch=1))
    number = fit_number(row, design.formula, make, grid)
    return number if number is not None and seen.fits(make(number)(seen)) else None
