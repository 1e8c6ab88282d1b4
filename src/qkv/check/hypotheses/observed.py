"""The observations of one attention, and what was identified from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qkv.check.hypotheses.formula import Formula, Observation
from qkv.check.hypotheses.observe import Case, Observer

SMALL = (Case(7), Case(12), Case(8, batch=1), Case(5, batch=3, seed=1))
CONFIRM = (
    Case(7), Case(12, seed=1), Case(13, batch=3), Case(33), Case(1), Case(6, batch=1, seed=2),
    Case(9, heads=3, head_dim=20),
)  # fmt: skip
LONGEST = 300  # longer than the calls of any check
ROUNDING = 1e-11  # a larger difference between float64 outputs is not their rounding
FLOAT32_INSIDE = 3e-5  # how far float64 outputs may be off if angles or a softmax are computed in float32


@dataclass(frozen=True)
class Identified:
    """A bug that explains the outputs exactly, or only the condition under which they are wrong.

    Args:
        family: the bug family; None if no hypothesis fits.
        condition: when it acts, such as "from 65 tokens on"; empty if always.
        where: the module that it is in.
        cases: how many observed calls the hypothesis explains.
        right: there is no bug in what was observed: the formula holds at all sizes, or `words` say by which design.
        also: the family of a second bug.
    """

    family: str | None
    words: str
    condition: str = ""
    where: str = ""
    cases: int = 0
    right: bool = False
    also: str = ""


RIGHT = Identified(None, "", right=True)


class Work:
    """How many formulas may still be tried."""

    def __init__(self, budget: int) -> None:
        self._left = budget

    @property
    def done(self) -> bool:
        return self._left <= 0

    def spend(self, seen: Observation) -> bool:
        """Count one formula, or several for a long sequence; whether the budget is used up."""
        sizes = seen.sizes
        self._left -= 1 + sizes.batch * sizes.heads * sizes.queries * sizes.keys // 4000
        return self.done


class Observed:
    """The observations of one attention, each made once."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._seen: dict[Case, Observation | None] = {}
        self._least = 0.0

    def __call__(self, case: Case) -> Observation | None:
        if case not in self._seen:
            try:
                self._seen[case] = self._loosened(self._observer(case))
            except Exception:  # these sizes are not supported
                self._seen[case] = None
        return self._seen[case]

    @property
    def least(self) -> float:
        """The tolerance that is allowed at least."""
        return self._least

    def loosen(self, tolerance: float) -> None:
        """Allow this much at least between outputs and a formula."""
        self._least = tolerance
        self._seen = {case: self._loosened(seen) for case, seen in self._seen.items()}

    def _loosened(self, seen: Observation | None) -> Observation | None:
        return None if seen is None else replace(seen, tolerance=max(seen.tolerance, self._least))

    def is_random(self, case: Case) -> bool:
        """Whether the same call gives another output each time, as with dropout in training."""
        one, other = self(case), self._observer(case)
        return one is None or other is None or not one.fits(other.out)

    def all(self, cases: Sequence[Case]) -> list[tuple[Case, Observation]]:
        return [(case, seen) for case in cases if (seen := self(case)) is not None]


def fits_all(observed: Observed, formula: Formula, cases: Sequence[Case], *, all_rows: bool = False) -> bool:
    """Whether a formula gives the output in all cases that can be observed, at least two of them."""
    seen = 0
    for case in cases:
        observation = observed(case)
        if observation is None:
            continue
        try:
            if not observation.fits(formula(observation), all_rows=all_rows):
                return False
        except (RuntimeError, ValueError, IndexError):  # a step that this shape does not allow
            return False
        seen += 1
    return seen >= 2
