"""A hypothesis: the formula of attention with one bug; and numbers of a bug that are fitted to an observation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from qkv.check.hypotheses.formula import Formula, Observation

LONGEST_FITTED = 150  # longer sequences take seconds
BLOCKS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 100, 128, 256)


@dataclass(frozen=True)
class Hypothesis:
    """A bug family, what is wrong in words, the formula that has this bug, and the family of a second bug in it."""

    family: str
    words: str
    formula: Formula
    also: str = ""


class Bugs:
    """Makes hypotheses by changing steps of a formula."""

    def __init__(self, right: Formula, seen: Observation) -> None:
        self.right, self.seen = right, seen

    def but(self, family: str, words: str, **steps: Any) -> Hypothesis:
        return Hypothesis(family, words, self.right.but(**steps))

    def fitted(
        self, family: str, words: str, change: Callable[[float], dict[str, Any]], grid: Sequence[float]
    ) -> Iterator[Hypothesis]:
        """The hypothesis whose number gives the observed output, if there is one; words: with {} for the number.

        Args:
            change: from the number to the steps that it changes.
            grid: where to begin.
        """
        if self.seen.sizes.keys > LONGEST_FITTED:
            return
        number = fit_number(self.seen, self.right, lambda x: self.right.but(**change(x)), grid)
        if number is not None:
            shown = f"{number:.4g}".replace("-", "−")
            yield Hypothesis(family, words.format(shown), self.right.but(**change(number)))


def fit_number(
    seen: Observation, right: Formula, make: Callable[[float], Formula], grid: Sequence[float]
) -> float | None:
    """The number for which a formula gives the observed output: the best of a grid, then Gauss–Newton steps."""

    def run(number: float) -> Tensor | None:
        try:
            out = make(number)(seen)
        except (RuntimeError, ValueError, IndexError):  # a step that this shape does not allow
            return None
        return out if out.shape == seen.out.shape and bool(out.isfinite().all()) else None

    def error(out: Tensor | None) -> float:
        return math.inf if out is None else float((out - seen.out).pow(2).sum())

    errors = [error(run(number)) for number in grid]
    best = min(range(len(grid)), key=lambda place: errors[place])
    if not errors[best] < 0.5 * max(errors[0], errors[-1], error(right(seen)) if len(grid) == 1 else 0.0):
        return None
    number, low, high = grid[best], grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    for _ in range(12):
        out = run(number)
        if out is None:
            return None
        if seen.fits(out):
            for short in (0.0, float(f"{number:.4g}")):
                again = run(short)
                if again is not None and seen.fits(again):
                    return short
            return number
        step = 1e-6 * (abs(number) + 1e-3)
        more = run(number + step)
        if more is None:
            return None
        slope = (more - out) / step
        change = float((slope * (seen.out - out)).sum() / slope.pow(2).sum().clamp(min=1e-300))
        number = min(max(number + change, low), high)
    return None
