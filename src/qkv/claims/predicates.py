"""What was measured against what was said, and the verdict that follows.

A predicate plays one of three parts:

- claim: the statement itself, under its conditions. One that is false makes the statement fail.
- beyond: the same statement with a condition dropped. One that breaks turns "holds" into "holds-if".
- control: the instrument. The attention under test is attention, a known wrong answer is told from the right one. If a
  control is off, nothing is decided.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["holds", "holds-if", "fails", "undecided"]
Part = Literal["claim", "beyond", "control"]
Real = float | int

EQUAL = 1e-12  # what "equal" means in float64: summation order differs


@dataclass(frozen=True)
class Predicate:
    """One comparison of a measured value with a bound; `ok` is None where the scale of the run cannot tell."""

    name: str
    value: Real
    bound: str
    ok: bool | None
    part: Part = "claim"

    @property
    def as_expected(self) -> bool:
        """Whether it came out as it must for the statement to hold within its conditions and only there."""
        return self.ok is (self.part != "beyond")

    def __str__(self) -> str:
        return f"{self.name}: {self.value:.4g} {self.bound}"


def at_most(name: str, value: Real, bound: Real, part: Part = "claim") -> Predicate:
    """value ≤ bound; a value that is not a number is not."""
    return Predicate(name, float(value), f"≤ {bound:.3g}", bool(value <= bound), part)


def at_least(name: str, value: Real, bound: Real, part: Part = "claim") -> Predicate:
    """value ≥ bound."""
    return Predicate(name, float(value), f"≥ {bound:.3g}", bool(value >= bound), part)


def near(name: str, value: Real, target: Real, tolerance: Real, part: Part = "claim") -> Predicate:
    """|value − target| ≤ tolerance.

    >>> near("a third", 0.33, 1 / 3, 0.01).ok
    True
    """
    ok = bool(abs(value - target) <= tolerance)
    return Predicate(name, float(value), f"within {tolerance:.2g} of {target:.4g}", ok, part)


def equal(name: str, difference: Real, part: Part = "claim") -> Predicate:
    """The largest difference of two results that must be equal in float64."""
    return at_most(name, difference, EQUAL, part)


def true(name: str, ok: bool | None, part: Part = "claim") -> Predicate:
    """Something that is so or is not, without a number."""
    value = math.nan if ok is None else float(ok)
    return Predicate(name, value, "= 1", ok, part)


def verdict(predicates: Sequence[Predicate]) -> Verdict:
    """The verdict that the predicates leave room for.

    >>> verdict([at_most("error", 0.0, 1e-12)])
    'holds'
    >>> verdict([at_most("error", 0.0, 1e-12), at_most("error without a mask", 3.0, 1e-12, "beyond")])
    'holds-if'
    >>> verdict([at_most("error", 0.5, 1e-12)])
    'fails'
    """
    outcomes = {part: [p.ok for p in predicates if p.part == part] for part in ("claim", "beyond", "control")}
    if not all(outcomes["control"]) or not outcomes["claim"]:
        return "undecided"
    if False in outcomes["claim"]:
        return "fails"
    if None in outcomes["claim"]:
        return "undecided"
    return "holds-if" if False in outcomes["beyond"] else "holds"


def reason(predicates: Sequence[Predicate]) -> str:
    """The predicates that decided against the statement, in words; empty where none did."""
    off = [p for p in predicates if p.part == "control" and not p.ok]
    off = off or [p for p in predicates if p.part == "claim" and not p.ok]
    return "; ".join(f"{p.name}: measured {p.value:.4g}, asked {p.bound}" for p in off)
