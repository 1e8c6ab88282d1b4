"""Find the shortest description of a person's numbers: the fewest and most common slips that explain every cell.

A hypothesis is a set of slips. It predicts every step in several worlds (see `worlds`): the person may have continued
with the numbers as written, with the unrounded ones, or with some of each. The length of a description in bits is

    the cost of each slip (see `slips`; restricted to rows, heads, columns or cells: the bits to say which)
  + 0 for a number that the hypothesis predicts at the precision written, CORRECT for one that is right in spite of it
  + ROUNDED for one that follows from the rounded numbers of earlier steps; if from some of them only, or if rounding
    can move it as far, the bits to say where it lies between the worlds, at least IN_BETWEEN
  + CUT_OFF or LAST_DIGIT for one whose last digit was cut off, or is one off although digits were dropped
  + the digits themselves (at least 8 bits) for a number that no slip explains

The shortest one wins. The search takes the first step with unexplained numbers, tries every slip in the formulas that
lead to it, then pairs of common slips, then slips in single numbers, keeps the best few hypotheses, and repeats.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.cell_slips import NOT_IDENTIFIED, NameCell, Place
from qkv.byhand.chance import information
from qkv.byhand.expressions import Array
from qkv.byhand.formulas import Formulas, StepFormulas
from qkv.byhand.sheet import WrittenStep
from qkv.byhand.slips import Slip
from qkv.byhand.worlds import MIXED, WORLDS, continue_from, reach, round_hidden

SECOND_SLIP = 8.0  # bits for each slip after the first in the formulas of one step
SECOND_NUMBER = 2.5  # bits for each single number after the first that is wrong by a slip of its own
CONTRADICTION = 30.0  # bits for a number that a slip changes but does not explain
ROUNDED, IN_BETWEEN, CUT_OFF, LAST_DIGIT, CORRECT = 0.3, 1.5, 0.8, 3.0, 0.5
SMALL_UNIT = 0.00101  # of three digits after the point
MATCHED, CONTINUED, CORRECTED, BETWEEN, CUT, LAST, WRONG = range(7)  # how a number is explained
quiet = np.errstate(all="ignore")  # wrong formulas divide by 0
COSTS = np.array([0.0, ROUNDED, CORRECT, IN_BETWEEN, CUT_OFF, LAST_DIGIT, 0.0])


@dataclass(frozen=True)
class Finding:
    """A slip at the first written step that shows it, and the numbers it changes there."""

    slip: Slip
    step: str
    cells: frozenset[Place]
    before: Array  # the step without the slip, from the person's own numbers


@dataclass
class Hypothesis:
    """Formulas with slips, what they predict, and how well the sheet agrees."""

    formulas: Formulas
    findings: tuple[Finding, ...]
    values: dict[str, Array]  # every matrix as the person went on with it, in every world
    predictions: dict[str, Array] = field(default_factory=dict)  # of written steps, before they were read
    matches: dict[str, Array] = field(default_factory=dict)  # of written steps: MATCHED … WRONG
    costs: dict[str, float] = field(default_factory=dict)
    settled: frozenset[str] = frozenset()  # steps for which nothing better was found
    strict: Mapping[str, Array] = field(default_factory=dict)  # numbers that a slip must not spoil
    claimed: Mapping[str, Array] = field(default_factory=dict)  # wrong numbers that a slip must give, digit by digit

    @property
    def bits(self) -> float | int:
        slips = sum(found.slip.cost for found in self.findings)
        return slips + sum(self.costs.values()) + sum(self.far_fetched(step) for step in self.matches)

    def copy(self) -> "Hypothesis":
        """A copy whose mappings can be changed."""
        own = {name: dict(getattr(self, name)) for name in ("formulas", "values", "predictions", "matches", "costs")}
        return replace(self, **own)

    def far_fetched(self, step: str) -> float | int:
        """More bits for several slips in the formulas of one step, and for numbers they change but do not explain."""
        formulas = [found for found in self.findings if found.step == step and not found.slip.single]
        single = [f for f in self.findings if f.step == step and f.slip.single and f.slip.name != NOT_IDENTIFIED]
        numbers = SECOND_NUMBER * max(0, len(single) - 1)
        if not formulas:
            return numbers
        wrong = self.matches[step] == WRONG
        open_cells = sum(bool(wrong[place]) for place in frozenset().union(*(found.cells for found in formulas)))
        bits = numbers + SECOND_SLIP * max(0, len(formulas) - 1 + open_cells)
        if any(found.slip.rounding for found in formulas) and len(single) < sum(
            found.step == step and found.slip.single for found in self.findings
        ):
            bits += CONTRADICTION  # rounding explains the last digits, not some numbers among unknown ones
        for found in self.findings:
            if found.step == step and found.slip.single and any(found.cells & other.cells for other in formulas):
                bits += CONTRADICTION if found.slip.name == NOT_IDENTIFIED else SECOND_SLIP
        return bits

    def open_step(self) -> str | None:
        """The first step with something to explain."""
        for step, match in self.matches.items():
            rounding = ROUNDED * float((match == CONTINUED).sum())
            if (match == WRONG).any() or (self.costs[step] - rounding > 3.5 and step not in self.settled):
                return step
        return None


class Predictor:
    """Evaluates hypotheses about one sheet."""

    def __init__(
        self,
        problem: StepFormulas,
        written: Mapping[str, WrittenStep],
        exact: Mapping[str, Array],
        tolerance: float,
    ) -> None:
        self.problem, self.written, self.exact, self.tolerance = problem, written, exact, tolerance
        self.order = list(problem.formulas)
        self.evaluations = 0
        self.bits = {step: bits_of_digits(sheet) for step, sheet in written.items()}
        self.information = {step: information(sheet, exact[step]) for step, sheet in written.items()}
        self.near = {step: precision(sheet) for step, sheet in written.items()}
        self.wrong = {step: ~is_right(sheet, exact[step]) for step, sheet in written.items()}
        self.places = problem.places
        same = {formula.param for formula in problem.formulas.values() if formula.op == "ref"}  # as a later step
        irrational = self.order[self.order.index("scaled") :] if self.places else []
        self.roundable = [name for name in irrational if name not in same]
        self.excuse_right_numbers()

    @quiet
    def excuse_right_numbers(self) -> None:
        """Take numbers as right that follow from right ones which were rounded, whatever is wrong before them."""
        values = dict(self.problem.given)
        for name in self.order:
            prediction = ex.evaluate(self.problem.formulas[name], values)
            if name not in self.written:
                hidden = name in self.roundable
                values[name] = round_hidden(prediction, self.places, name) if hidden else prediction
                continue
            sheet = self.written[name]
            prediction = np.broadcast_to(prediction, (WORLDS, *sheet.values.shape))
            match = compare(sheet, prediction, self.near[name], ~self.wrong[name], self.tolerance)
            self.wrong[name] &= match > CONTINUED
            certain = np.zeros(match.shape, bool)
            read = continue_from(sheet.values, sheet.unit, prediction, certain, name)
            values[name] = np.where(match > CONTINUED, prediction, read)

    @quiet
    def predict(self, hypothesis: Hypothesis, order: Iterable[str]) -> None:
        """Evaluate formulas in this order and compare written steps with the sheet."""
        for name in order:
            prediction = ex.evaluate(hypothesis.formulas[name], hypothesis.values)
            self.evaluations += 1
            if name not in self.written:
                hidden = name in self.roundable
                if hidden and hypothesis.formulas[name].op == "divide":
                    prediction = np.repeat(prediction, WORLDS, 0) if len(prediction) == 1 else prediction.copy()
                    parts = ex.round_parts(hypothesis.formulas[name], self.places)
                    prediction[MIXED:] = ex.evaluate(parts, hypothesis.values, {})[MIXED:]
                hypothesis.values[name] = round_hidden(prediction, self.places, name) if hidden else prediction
                continue
            sheet = self.written[name]
            if prediction.shape[2:] != sheet.values.shape[1:] or prediction.shape[1] not in (1, len(sheet.values)):
                raise ValueError("shapes do not fit")
            prediction = np.broadcast_to(prediction, (WORLDS, *sheet.values.shape))
            strict = hypothesis.strict.get(name)
            right = ~self.wrong[name] if strict is None else ~(self.wrong[name] | strict)
            tolerance = np.where(hypothesis.claimed.get(name, False), 0.0, self.tolerance)
            match = compare(sheet, prediction, self.near[name], right, tolerance)
            if self.places and match.max() > CONTINUED and hypothesis.formulas[name].op == "divide":
                prediction, match = self.round_softmax(hypothesis, sheet, prediction, match, right, tolerance)
            hypothesis.predictions[name] = prediction
            hypothesis.matches[name] = match
            hypothesis.costs[name] = float(self.cell_costs(name, match, prediction, tolerance).sum())
            certain = (match == WRONG) | (match == CORRECTED)
            hypothesis.values[name] = continue_from(sheet.values, sheet.unit, prediction, certain, name)

    def round_softmax(
        self, hypothesis: Hypothesis, sheet: WrittenStep, plain: Array, match: Array, right: Array, tolerance: Array
    ) -> tuple[Array, Array]:
        """The prediction and the match of weights whose exponentials and sums, not on the sheet, were rounded as it is.

        Small exponentials lose most of their digits. Weights that are not those of exactly these rounded numbers, or
        whose exponentials were all rounded to 0, may be off by no more than the tolerance.
        """
        formula = ex.round_parts(hypothesis.formulas[sheet.step], self.places)
        prediction = np.broadcast_to(ex.evaluate(formula, hypothesis.values, {}), plain.shape)
        rounded = compare(sheet, prediction, self.near[sheet.step], right, tolerance)
        off = np.abs(sheet.values - plain[1])
        follows = (rounded == CONTINUED) & (prediction[2].sum(-1, keepdims=True) > 0)
        better = (rounded < match) & (follows | (off <= self.tolerance + sheet.unit / 2))
        return np.where(better, prediction, plain), np.where(better, rounded, match)

    def cell_costs(self, step: str, match: Array, prediction: Array, tolerance: Array) -> Array:
        """The bits to write each number of a step, given its prediction."""
        costs = np.where(match == WRONG, self.bits[step], COSTS[match])
        if (match == BETWEEN).any():
            sheet, mixed = self.written[step], prediction[:MIXED]
            fine, coarse = reach(prediction, tolerance)
            off = np.abs(sheet.values - mixed[:3]).min(0)
            spread = np.where(off <= np.maximum(mixed.max(0) - mixed.min(0), fine) + sheet.unit, fine, coarse)
            spread = np.maximum(spread, mixed.max(0) - mixed.min(0)) / np.maximum(sheet.unit, 1e-6)
            between = np.clip(np.log2(np.maximum(spread, 1e-9)), IN_BETWEEN, self.bits[step])
            costs = np.where(match == BETWEEN, between, costs)
        return costs

    def with_slip(self, old: Hypothesis, slip: Slip, step: str, until: str | None = None) -> Hypothesis | None:
        """The hypothesis with one more slip, evaluated up to a step; None if shapes do not fit."""
        new = replace(old.copy(), strict={**old.strict, **self.strict_until(old, step)})
        new.formulas.update(slip.changes)
        changed = set(slip.changes)
        order = []
        for name in self.order:
            if name in changed or not changed.isdisjoint(new.formulas[name].names):
                changed.add(name)
                order.append(name)
            if name == until:
                break
        try:
            self.predict(new, order)
        except (ValueError, IndexError):
            return None
        if self.spoils_earlier(old, new, step):
            return None
        before, after = old.predictions[step][:MIXED], new.predictions[step][:MIXED]
        with np.errstate(invalid="ignore"):
            near = np.abs(before - after) <= 1e-9 * np.abs(before) + 1e-12
        close = (before == after) | (near & np.isfinite(before))  # −∞ is near nothing else
        changed = ~close.all(0)
        if not (changed & self.wrong[step]).any():
            changed = np.zeros_like(changed)  # a slip that shows only in right numbers is none
        elif not slip.rounding:
            self.claim(new, step, changed & self.wrong[step])
        cells = frozenset(zip(*(index.tolist() for index in np.nonzero(changed)), strict=True))
        new.findings = (*old.findings, Finding(slip, step, cells, before[0]))
        return new

    def claim(self, hypothesis: Hypothesis, step: str, cells: Array) -> None:
        """Demand that wrong numbers agree with a slip within the rounding that the sheet shows, not by tolerance."""
        hypothesis.claimed = {**hypothesis.claimed, step: hypothesis.claimed.get(step, False) | cells}
        if (cells & (hypothesis.matches[step] == BETWEEN)).any():
            self.predict(hypothesis, [step])

    def spoils_earlier(self, old: Hypothesis, new: Hypothesis, step: str) -> bool:
        """Whether numbers of earlier steps that were explained no longer are."""
        for name, match in old.matches.items():
            if name == step:
                return False
            if ((new.matches[name] == WRONG) & (match != WRONG)).any():
                return True
        return False

    def strict_until(self, hypothesis: Hypothesis, step: str) -> dict[str, Array]:
        """The numbers up to a step that are explained: another slip must predict them as well."""
        strict = {}
        for name, match in hypothesis.matches.items():
            strict[name] = match < CORRECTED
            if name == step:
                break
        return strict

    def finish(self, new: Hypothesis) -> Hypothesis | None:
        """Evaluate the steps after the one that was explained; None if shapes do not fit there."""
        try:
            self.predict(new, self.order)
        except (ValueError, IndexError):
            return None
        return new

    def naming(self, step: str) -> NameCell:
        return NameCell(step, self.written[step].values.shape[1], self.problem.problem.convention == "columns")


def compare(sheet: WrittenStep, prediction: Array, near: Array, right: Array, tolerance: float | Array) -> Array:
    """How each number of a sheet is explained by a prediction in several worlds.

    near: how far a number may be from the one written for it; right: the numbers that are right and may be so in spite
    of a slip; tolerance: how far rounding more coarsely than the sheet shows may move one.
    """
    values, unit = sheet.values, sheet.unit
    difference = np.abs(prediction[:3] - values)
    follows = difference <= near
    follows |= (prediction[:3] == values) | np.isnan(values)  # −∞, or not filled in
    match = np.where(follows[0], MATCHED, np.where(follows[1] | follows[2], CONTINUED, WRONG))
    if match.max() < WRONG:
        return match
    difference = np.where(follows, 0.0, difference)
    difference = np.where(np.isnan(difference), np.inf, difference)
    low, high = prediction[:MIXED].min(0), prediction[:MIXED].max(0)
    spread = np.where(np.isfinite(high - low), high - low, 0.0) * 0.75
    spread = np.maximum(spread, np.maximum(*reach(prediction, tolerance)))
    inside = (values >= low - spread - near) & (values <= high + spread + near) & (spread > 0)
    smallest = np.minimum(difference[0], difference[1])
    ratio = np.where(unit > 0, prediction[0] / np.where(unit > 0, unit, 1), 0.0)
    dropped = (unit > 0) & (np.abs(ratio - np.round(ratio)) > 1e-9)
    units = np.where(unit <= SMALL_UNIT, 2 * unit, unit)  # products may have been rounded before they were added
    last = dropped & ((smallest <= units * (1 + 1e-9)) | (smallest <= sheet.generous_unit / 2 * (1 + 1e-9)))
    cut = last & (np.abs(values) < np.abs(prediction[0]))
    poor = np.full(values.shape, WRONG)
    for flag, kind in ((last, LAST), (cut, CUT), (inside, BETWEEN), (right, CORRECTED)):
        poor = np.where(flag, kind, poor)
    return np.where(match == WRONG, poor, match)


def precision(sheet: WrittenStep) -> Array:
    """How far a number may be from the one that was written for it."""
    finite = np.where(np.isfinite(sheet.values), np.abs(sheet.values), 1.0)
    return sheet.unit / 2 * (1 + 1e-9) + 1e-9 * np.maximum(1.0, finite)


def is_right(sheet: WrittenStep, exact: Array) -> Array:
    """Which numbers are right at the precision written."""
    with np.errstate(invalid="ignore"):
        near = np.abs(exact - sheet.values) <= precision(sheet)
    return near | (exact == sheet.values) | np.isnan(sheet.values)


def bits_of_digits(sheet: WrittenStep) -> Array:
    """The bits to write a number down as it is."""
    finite = np.where(np.isfinite(sheet.values), np.abs(sheet.values), 0.0)
    largest = max(1.0, float(finite.max()))
    bits = np.empty(sheet.values.shape)
    for place in np.ndindex(*sheet.values.shape):
        unit = float(sheet.unit[place])
        if not unit:
            unit = 1 / Fraction(float(finite[place])).limit_denominator(100).denominator
        bits[place] = math.log2(largest / unit) + 4
    return np.clip(bits, 8, 16)
