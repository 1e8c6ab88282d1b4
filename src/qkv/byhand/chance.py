"""Whether an explanation may fit by chance: the bits that numbers tell, against the number of explanations tried.

Numbers that tell b bits agree with one of n tried explanations by chance with probability n · 2^−b. A slip is stated
only if this is at most 2^−CONFIDENCE. Those count that are at most as costly as the slip, that change all the numbers
which it explains, and that differ there. A slip in one entry has a free number, so each entry counts as many as it may
have values; a slip restricted to some rows or numbers counts as one of all that can be restricted to these.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from qkv.byhand.expressions import Array
from qkv.byhand.sheet import SHARES, WrittenStep

CONFIDENCE = 3.0  # bits: at most one in 8 arbitrary results gets a false cause, far fewer if it has more digits
POSSIBLE = 3.0  # missing bits of a slip that is worth mentioning as possible
POSSIBLE_COST = 8.0  # bits: costlier slips are not worth it
EACH_MORE = 4.0  # bits for each slip after the first
FIRST = 1.0  # bits: about 2^(cost − 1) slips are at most as costly as one, if they were not counted
RESTRICTED = 4.0  # bits to restrict a slip to some rows or numbers
ZERO, REPEATED = 3.0, 2.5  # bits that a number tells which is 0, or equal to another one
CROWDED = 0.5  # bits that a share tells less: most shares are neither near 0 nor near 1
ROW_SUMS = {"weights": 1.0, "probabilities": 1.0, "dZ": 0.0, "dS": 0.0}  # their last number follows from the others


@dataclass
class Trials:
    """The slips that were tried for one step: cost, the numbers that it changes, its prediction."""

    slips: list[tuple[float | int, Array, Array]] = field(default_factory=list)
    entries: float = 0.0  # 2^cost of it values of single entries are at most as costly
    places: int = 0  # entries that could explain all wrong numbers

    def add(self, cost: float | int, before: Array, after: Array, spoiled: Array) -> None:
        """Record a slip; spoiled: the right numbers that it changes."""
        with np.errstate(invalid="ignore"):
            changed = np.abs(after - before) > 1e-9 * np.maximum(1.0, np.abs(before))
        self.slips.append((cost + (RESTRICTED if spoiled.any() else 0.0), changed, after))

    def bits(self, cost: float | int, explained: Array, free: float = math.inf) -> float:
        """log2 of how many slips up to a cost were tried for these numbers.

        free: the bits of one of these numbers, which some value of an entry gives, whatever it costs.
        """
        different = {
            tuple(np.round(after[explained], 6).tolist())
            for other, changed, after in self.slips
            if other <= cost + 1e-9 and changed[explained].all()
        }
        values = min(self.entries * 2.0**cost, self.places * 2.0 ** min(free, 64.0))
        return math.log2(max(1.0, len(different) + values))


def bits_of_pair(costs: Sequence[float | int]) -> float:
    """log2 of how many slips, or pairs of slips, up to these costs there are."""
    return sum(cost - FIRST for cost in costs) + EACH_MORE * (len(costs) - 1)


def evidence(sheet: WrittenStep, cells: Array, told: Array) -> float:
    """The bits that some numbers of a step tell together.

    A number that is 0 or equal to another one tells little more, one that follows from its row's sum nothing.
    told: the bits of each number on its own.
    """
    counted = cells & ~_follows_from_sum(sheet, cells, told)
    bits: dict[float, float] = {0.0: ZERO}
    repeated = 0
    for value, information in zip(sheet.values[counted].tolist(), told[counted].tolist(), strict=True):
        repeated += value in bits
        bits.setdefault(value, max(information, 0.0))
    zero = ZERO if (sheet.values[counted] == 0).any() else 0.0
    return sum(bits.values()) - ZERO + zero + REPEATED * (repeated - bool(zero))


def rows_that_add_up(sheet: WrittenStep) -> Array:
    """Which rows (heads, rows) of a step have the sum that such rows have."""
    if sheet.step not in ROW_SUMS:
        return np.zeros(sheet.values.shape[:2], bool)
    return np.abs(sheet.values.sum(-1) - ROW_SUMS[sheet.step]) <= sheet.unit.sum(-1) + 1e-9


def _follows_from_sum(sheet: WrittenStep, cells: Array, told: Array) -> Array:
    """The most telling number of each row with the sum that such rows have."""
    dropped = np.zeros(cells.shape, bool)
    adds_up = rows_that_add_up(sheet)
    for head, row in np.ndindex(*cells.shape[:2]):
        if cells[head, row].any() and adds_up[head, row]:
            dropped[head, row, int(np.argmax(np.where(cells[head, row], told[head, row], -1.0)))] = True
    return dropped


def information(sheet: WrittenStep, exact: Array) -> Array:
    """How many bits each number tells: log2 of how many numbers of its precision are as large as those of its step."""
    finite = np.where(np.isfinite(sheet.values), np.abs(sheet.values), 0.0)
    finest = _finest(finite)
    unit = np.where(sheet.unit > 0, sheet.unit, 1 / finest)
    if finest <= 4:  # whole numbers, halves and quarters, however they were written
        right = _finest(np.where(np.isfinite(exact), exact, 0.0))
        unit = np.maximum(unit, 1 / (max(finest, right) if right <= 4 else finest))
    signs = 2 if (sheet.values < 0).any() else 1
    return np.log2(signs * max(float(finite.max()), 1.0) / unit + 1) - (CROWDED if sheet.step in SHARES else 0.0)


def _finest(values: Array) -> int:
    """The largest denominator of numbers, up to 100."""
    return max(Fraction(value).limit_denominator(100).denominator for value in values.ravel().tolist())
