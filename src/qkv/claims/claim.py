"""What a claim is: its statement, its knobs, the comparisons that decide it, and the result of a run.

A predicate compares a measured value with a bound and plays one of three parts:

- claim: the statement itself, under its conditions. If it is false, the statement fails.
- beyond: the statement with a condition dropped. If it is false, "holds" becomes "holds-if".
- control: the instrument, for example that a known wrong answer is recognized. If it is false, nothing is
  decided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from qkv._figures import FigurePanel, draw_svg

Real = float | int
Verdict = Literal["holds", "holds-if", "fails", "undecided"]
Part = Literal["claim", "beyond", "control"]
Number = Real | dict[str, float]  # a dict has value, low and high, where chance plays a part
Cost = Literal["instant", "seconds", "minutes"]

EQUAL = 1e-12  # what "equal" means in float64: summation order differs


@dataclass(frozen=True)
class Predicate:
    """One comparison of a measured value with a bound; `ok` is None where the scale of the run cannot decide it."""

    name: str
    value: Real
    bound: str
    ok: bool | None
    part: Part = "claim"

    @property
    def as_expected(self) -> bool:
        """Whether it is what it must be for the statement to hold under its conditions and only there."""
        return self.ok is (self.part != "beyond")

    def __str__(self) -> str:
        return f"{self.name}: {self.value:.4g} {self.bound}"


def at_most(name: str, value: Real, bound: Real, part: Part = "claim") -> Predicate:
    """value ≤ bound; false for NaN."""
    return Predicate(name, float(value), f"≤ {bound:.3g}", bool(value <= bound), part)


def at_least(name: str, value: Real, bound: Real, part: Part = "claim") -> Predicate:
    """value ≥ bound; false for NaN."""
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
    """A statement that is true or false, without a number."""
    value = math.nan if ok is None else float(ok)
    return Predicate(name, value, "= 1", ok, part)


def decide(predicates: Sequence[Predicate]) -> Verdict:
    """The verdict that follows from the predicates.

    >>> decide([at_most("error", 0.0, 1e-12)])
    'holds'
    >>> decide([at_most("error", 0.0, 1e-12), at_most("error without a mask", 3.0, 1e-12, "beyond")])
    'holds-if'
    >>> decide([at_most("error", 0.5, 1e-12)])
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


def explain(predicates: Sequence[Predicate]) -> str:
    """The predicates that decided against the statement, or limit it, in words; where none did, those beyond its
    conditions, which held as well."""
    failed = [p for p in predicates if p.part == "control" and not p.ok]
    failed = failed or [p for p in predicates if p.part == "claim" and not p.ok]
    failed = failed or [p for p in predicates if p.part == "beyond" and not p.ok]
    if not failed:
        beyond = [p for p in predicates if p.part == "beyond"]
        return "beyond its condition, too: " + "; ".join(str(p) for p in beyond) if beyond else ""
    return "; ".join(f"{p.name}: measured {p.value:.4g}, expected {p.bound}" for p in failed)


@dataclass(frozen=True)
class Knob:
    """A condition of an experiment that a person may change; an integer where its default is one.

    between: the lowest and the highest value; integers go up by `step`. long: its value for a longer run.
    """

    name: str
    default: Real
    help: str
    between: tuple[Real, Real]
    long: Real | None = None
    step: int = 1

    @property
    def is_integer(self) -> bool:
        return isinstance(self.default, int)

    def validate(self, value: Any, claim: str) -> Real:
        """Return the value as the experiment takes it; a ValueError says what would fit.

        >>> Knob("m", 10, "keys", (4, 256)).validate(2.5, "copy")
        Traceback (most recent call last):
        ValueError: copy: m (keys) must be an integer from 4 to 256, such as 10; got 2.5
        """
        least, most = self.between
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and least <= value <= most and not (self.is_integer and (value - least) % self.step):
            return int(value) if self.is_integer else float(value)
        kind = "an integer" if self.is_integer else "a number"
        steps = f" in steps of {self.step}" if self.step > 1 else ""
        shown = f"{value:g}" if isinstance(value, float) else repr(value)
        raise ValueError(
            f"{claim}: {self.name} ({self.help}) must be {kind} from {least:,g} to {most:,g}{steps}, such as "
            f"{self.default:g}; got {shown}"
        )


@dataclass(frozen=True)
class ExperimentResult:
    """What an experiment measured: numbers, predicates with their tolerances, and panels to draw.

    condition, caption: the claim's condition and the caption of its figure, with the figures of this run; "" where the
    claim's own texts are right for every value of its knobs.
    """

    numbers: Mapping[str, Number]
    predicates: tuple[Predicate, ...]
    panels: tuple[FigurePanel, ...] = ()
    condition: str = ""
    caption: str = ""


@dataclass(frozen=True)
class Claim:
    """A statement of the theory, the experiment that tests it, and what would overturn it.

    expected: the verdict for a correct attention. condition: under which the statement holds; for "fails" and
    "undecided", what is the case instead. mutants: names of the wrong implementations (see `qkv.claims.mutants`) that
    must change the outcome. overturn: knob values under which a mutant already does, for faster tests. takes_data: if
    it can run on other data than the bundled.
    """

    name: str
    family: str
    statement: str
    expected: Verdict
    condition: str
    experiment: Callable[..., ExperimentResult]
    knobs: tuple[Knob, ...] = ()
    mutants: tuple[str, ...] = ()
    figure: str = ""
    cost: Cost = "instant"
    overturn: Mapping[str, Any] = field(default_factory=dict)
    takes_data: bool = False


@dataclass(frozen=True)
class ClaimResult:
    """The result of running a claim; the first six fields are those of `--json`."""

    name: str
    statement: str
    verdict: Verdict
    condition: str
    numbers: dict[str, Number]
    seed: int
    predicates: tuple[Predicate, ...] = ()
    panels: tuple[FigurePanel, ...] = ()
    figure: str = ""
    expected: Verdict = "holds"
    seconds: float = 0.0
    knobs: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """The fields that other programs read."""
        return {
            "name": self.name,
            "statement": self.statement,
            "verdict": self.verdict,
            "condition": self.condition,
            "numbers": self.numbers,
            "seed": self.seed,
        }

    def svg(self) -> str:
        """The figure, as SVG."""
        return draw_svg(self.panels, name=self.name)
