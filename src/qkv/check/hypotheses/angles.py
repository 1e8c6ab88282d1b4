"""Rotary angles that depend on the length of the sequence: the base, or the step of positions, fitted at each one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from qkv.check.hypotheses.formula import Design, Formula, Observation, rotate, split_heads
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


def search_places(observed: Observed, design: Design, wrong: Sequence[Case], condition: str) -> Identified | None:
    """Whole positions, one for each token, with which queries and keys are rotated at each wrong length.

    A causal query sees earlier keys only, so positions are found one after the other.
    """
    if design.rotary == "none" or not design.causal:
        return None
    cases = [case for case in wrong if 2 < case.length <= LONGEST and case.dtype == torch.float64 and not case.padding]
    seen = observed.all(list({case.length: case for case in cases}.values())[:FITTED])
    found = [(one, _solve_places(one, design)) for _, one in seen]
    starts: dict[int, int] = {}
    for one, places in found:
        if places is None:
            return None
        whole = partial(rotate, pairing=design.rotary, base=design.base, dims=design.rotary_dim)
        formula = design.formula.but(rotate=lambda x, p, role, m=places, w=whole: w(x, m[p], role))
        if not one.fits(formula(one)):
            return None
        for i in range(1, len(places)):
            if places[i] != places[i - 1] + 1:
                starts[i] = int(places[i])
    if not starts:
        return None
    tokens = sorted(starts)
    if all(place == 0 for place in starts.values()):
        words = f"positions start again at 0 at token{'s' if len(tokens) > 1 else ''} {', '.join(map(str, tokens[:4]))}"
    else:
        moved = ", ".join(f"token {i} as if it were at position {starts[i]}" for i in tokens[:3])
        words = f"tokens are rotated by the angles of other positions: {moved}"
    return Identified("rotary", words, condition, cases=len(found))


def _solve_places(seen: Observation, design: Design) -> Tensor | None:
    """The positions (t) that give the outputs of one row of the batch; None if whole numbers do not."""
    formula, sizes, t = design.formula, seen.sizes, seen.sizes.queries
    if sizes.keys != t or seen.given is not None:
        return None
    turn = partial(rotate, pairing=design.rotary, base=design.base, dims=design.rotary_dim)
    q = formula.split(seen.q[:1], sizes.heads, "q")
    k, v = formula.split(seen.k[:1], sizes.kv_heads, "k"), formula.split(seen.v[:1], sizes.kv_heads, "v")
    q, k, v = formula.inputs(q, k, v)
    k, v = formula.share(k, q.shape[1], "k"), formula.share(v, q.shape[1], "v")
    out, scale = split_heads(seen.out[:1], sizes.heads), formula.scale(sizes)
    off = (formula(seen)[:1] - seen.out[:1]).abs().amax((0, 2)) > seen.tolerance * float(seen.out.abs().max())
    if not bool(off.any()):
        return None
    first, places = int(off.nonzero()[0]), torch.arange(t)
    for i in range(first, t):
        likely = torch.arange(2 * t).roll(-int(places[i - 1]) - 1)  # the next position first
        queries = turn(q[:, :, i : i + 1].expand(-1, -1, len(likely), -1), likely, "q")
        scores = formula.scores(queries, turn(k[:, :, :i], places[:i], "k"), scale)
        own = formula.scores(q[:, :, i : i + 1], k[:, :, i : i + 1], scale).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, own), -1)
        tried = formula.core(scores, torch.ones(scores.shape[-2:], dtype=torch.bool), v[:, :, : i + 1])
        error = (tried - out[:, :, i : i + 1]).abs().amax((0, 1, 3))
        fits = (error <= seen.tolerance * float(seen.out.abs().max())).nonzero()
        if not len(fits):
            return None
        places[i] = likely[int(fits[0])]
    return places


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
