"""Slips in one entry of a matrix that a formula reads: a lost sign, a neighbor copied, another number; solved for."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.cell_slips import EXTRA_SIGN, LOST_SIGN, NameCell, Place, misreadings
from qkv.byhand.chance import Trials
from qkv.byhand.expressions import Array, Expression
from qkv.byhand.formulas import GIVEN, Formulas, symbol
from qkv.byhand.hypotheses import WRONG, Hypothesis, Predictor
from qkv.byhand.slips import Slip, substitute

MAX_ENTRIES = 64  # of one matrix
MAX_STEP = 8.0  # of one iteration
STRANGE = 4.0  # bits for a number that is much larger than all others of its matrix
SIGN = 4.0  # bits for the wrong sign of an entry, the simplest of its slips


def entry_slips(
    predictor: Predictor, hypothesis: Hypothesis, step: str, cone: list[str], trials: Trials
) -> Iterator[Slip]:
    """Slips in single entries of the matrices that the formulas of a cone read; they are counted in `trials`."""
    wrong = hypothesis.matches[step] == WRONG
    if not wrong.any():
        return
    with_unrounded, with_written = (hypothesis.predictions[step][world][wrong] for world in (0, 1))
    near = np.abs(with_unrounded - with_written) <= predictor.written[step].unit[wrong] / 10
    worlds = (1,) if near.all() else (1, 0)
    for name in reversed(cone):
        for operand in _operands(hypothesis.formulas[name], name in predictor.problem.steps):
            shape = ex.evaluate(operand, hypothesis.values).shape[1:]
            if math.prod(shape) <= MAX_ENTRIES:
                for head, row, column in np.ndindex(*shape):
                    for world in worlds:
                        entry = _Entry(predictor, hypothesis, step, name, operand, (head, row, column), world)
                        moved = entry.moved()
                        if moved is None:
                            break
                        trials.entries += 2.0 ** -(SIGN + math.log2(math.prod(shape))) / len(worlds)
                        trials.places += world == worlds[0]
                        slip = entry.find_slip(moved)
                        if slip is not None:
                            yield slip
                            break


@dataclass(frozen=True)
class _Entry:
    """One entry of an operand in the formula `name`, changed to explain the wrong numbers of `step`."""

    predictor: Predictor
    hypothesis: Hypothesis
    step: str
    name: str
    operand: Expression
    place: Place
    world: int  # see `hypotheses`

    @cached_property
    def array(self) -> Array:
        return ex.evaluate(self.operand, self.hypothesis.values)[0]

    @property
    def old(self) -> float:
        return float(self.array[self.place])

    def formula(self, value: float) -> Expression:
        patched = ex.patched(self.operand, self.place, value)
        return substitute(self.hypothesis.formulas[self.name], self.operand, patched)

    def predict(self, value: float) -> Array | None:
        """The step, computed from the person's own numbers and this value."""
        slip = Slip("", 0, {self.name: self.formula(value)})
        found = self.predictor.with_slip(self.hypothesis, slip, self.step, self.step)
        return None if found is None else found.predictions[self.step][self.world]

    def slope(self, moved: Array) -> Array:
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(moved - self.hypothesis.predictions[self.step][self.world])

    def moved(self) -> Array | None:
        """The step with 1 added to the entry; None if a wrong number does not depend on it."""
        wrong = self.hypothesis.matches[self.step] == WRONG
        moved = self.predict(self.old + 1) if math.isfinite(self.old) else None
        return None if moved is None or (np.abs(self.slope(moved)[wrong]) < 1e-12).any() else moved

    def find_slip(self, moved: Array) -> Slip | None:
        sheet = self.predictor.written[self.step]
        wrong, slope = self.hypothesis.matches[self.step] == WRONG, self.slope(moved)
        for usual in self.usual_values():
            guess = self.predict(usual)
            if guess is not None and (np.abs(guess - sheet.values)[wrong] <= sheet.unit[wrong] / 2 + 1e-9).all():
                return self.name_slip(usual, 1e-9) if self.operand.op == "ref" else self.name_intermediate(usual, 1e-9)
        targets = wrong & self.linear(moved) if self.name != self.step else wrong
        targets = targets if targets.any() else wrong
        head, row, column = np.unravel_index(int(np.argmax(np.where(targets, np.abs(slope), -1))), slope.shape)
        return self.solve((int(head), int(row), int(column)), moved)

    def linear(self, moved: Array) -> Array:
        """The numbers that have one solution: a score of a token with itself is quadratic in an entry of X."""
        twice = self.predict(self.old + 2)
        if twice is None:
            return np.ones(moved.shape, bool)
        first = self.slope(moved)
        return np.abs(self.slope(twice) - 2 * first) <= 1e-9 * np.maximum(1.0, np.abs(first))

    def solve(self, target: Place, moved: Array) -> Slip | None:
        """The value that gives one wrong number, by secants."""
        sheet = self.predictor.written[self.step]
        wanted = float(sheet.values[target])
        low, at_low = self.old, float(self.hypothesis.predictions[self.step][self.world][target])
        value, at_value = self.old + 1, float(moved[target])
        slope = at_value - at_low
        for _ in range(8):
            if abs(at_value - wanted) <= 1e-10 or at_value == at_low or not math.isfinite(wanted):
                break
            slope = (at_value - at_low) / (value - low)
            following = value + max(-MAX_STEP, min(MAX_STEP, (wanted - at_value) / slope))
            prediction = self.predict(following)
            if prediction is None or not math.isfinite(float(prediction[target])) or following == value:
                return None
            low, at_low, value, at_value = value, at_value, following, float(prediction[target])
        slack = float(sheet.unit[target]) / 2 / max(abs(slope), 1e-9) + 1e-7
        return self.name_slip(value, slack) if self.operand.op == "ref" else self.name_intermediate(value, slack)

    def usual_values(self) -> list[float]:
        """Values to try first."""
        if self.operand.op == "ref":
            return sorted({-self.old, *self.neighbors()} - {self.old}, key=lambda value: value != -self.old)
        if self.operand.op == "apply":
            return [value for value in (0.0, 1 / self.old if self.old else 0.0, 1.0, -self.old) if value != self.old]
        return []

    def name_intermediate(self, value: float, slack: float) -> Slip | None:
        """An exponential or a sum that is wrong: any value, if it explains more numbers than one."""
        head, row, column = self.place
        query = row + 1 + head * self.array.shape[1]
        line = "column" if self.predictor.problem.problem.convention == "columns" else "row"
        changes = {self.name: self.formula(value)}
        where = math.log2(self.array.size)
        wrong = int((self.hypothesis.matches[self.step] == WRONG).sum())
        taken = f"was taken as {short_text(value, slack)} instead of {short_text(self.old, slack)}"
        if self.operand.op == "total":
            what = "exponentials" if self.name in ("weights", "probabilities") else "terms"
            name = f"the sum of the {what} of {line} {query} {taken}"
            return Slip(name, 11 + where, changes) if value > 0 and wrong > 1 else None
        exponential = f"the exponential of key {column + 1} in {line} {query}"
        if abs(value) <= slack:
            return Slip(f"{exponential} was left out", 6 + where, changes)
        if abs(value * self.old - 1) <= slack * self.old:
            return Slip(f"a wrong sign in the exponent of key {column + 1} in {line} {query}", 5.5 + where, changes)
        return Slip(f"{exponential} {taken}", 11 + where, changes) if value > 0 and wrong > 2 else None

    def name_slip(self, value: float, slack: float) -> Slip | None:
        """The slip if the value is the negative one, a neighbor or a short number, up to a slack."""
        old, problem = self.old, self.predictor.problem
        candidates = [(-old, SIGN), *((neighbor, 5.5) for neighbor in self.neighbors())]
        known = sorted(misreadings(old), key=lambda misreading: -misreading[2])
        misread = {read: (note, cost) for read, note, cost in known if read and note}
        candidates += [(read, cost) for read, (_, cost) in misread.items()]
        short = short_number(value, slack)
        if short is not None:
            near = abs(abs(short - old) - 1) < 1e-9 or not short
            strange = STRANGE if abs(short) > 2 * self.largest else 0.0
            candidates.append((short, 5.5 if near else max(6.5, SIGN + self.value_bits(short) + strange)))
        likely = [pair for pair in candidates if abs(pair[0] - value) <= slack and pair[0] != old]
        if not likely:
            return None
        value, cost = likely[0]
        source = self.operand.param.removeprefix(GIVEN)
        if source == "scaled" and float(problem.problem.scale.decimal) == 1:
            source = "scores"  # people do not write them twice
        cell = NameCell(source, self.array.shape[1], problem.problem.convention == "columns")(self.place)
        local = self.name in problem.steps
        hidden = source in problem.steps and source not in self.predictor.written
        name = "output" if _is_output(self.name, self.hypothesis.formulas) else self.name
        where = f" when computing {symbol(name)}" if local and not hidden else ""
        copied = local and source in self.predictor.written
        if value == -old:
            place = f"when {cell} was copied for {symbol(name)}" if copied else f"in {cell}{where}"
            text = f"{LOST_SIGN if old < 0 else EXTRA_SIGN} {place}"
        else:
            verb = "taken" if hidden else "read"
            note = f" ({misread[value][0].removeprefix(': ')})" if value in misread else ""
            text = f"{cell} was {verb} as {_text(value)} instead of {_text(old)}{note}{where}"
            if not value:
                text = f"{cell} was left out: it was {verb} as 0{where}"
        bits = cost + math.log2(self.array.size) + (1.0 if local else 0.0)
        return Slip(text, bits, {self.name: self.formula(value)}, solved=True)

    def value_bits(self, value: float) -> float:
        """log2 of how many numbers are as short as this one, and as large as the numbers of the matrix."""
        denominator = Fraction(value).limit_denominator(100).denominator
        return math.log2(2 * max(abs(value), self.largest) * denominator)

    @property
    def largest(self) -> float:
        """The size of the largest number of the matrix, at least 1."""
        return max(1.0, float(np.abs(self.array[np.isfinite(self.array)]).max(initial=0.0)))

    def neighbors(self) -> set[float]:
        """The numbers in the same row and column."""
        head, row, column = self.place
        return {float(v) for v in (*self.array[head, row], *self.array[head, :, column]) if math.isfinite(v)}


def _operands(formula: Expression, step: bool) -> Iterator[Expression]:
    """The matrices that a formula reads, its exponentials and its sums, each occurrence once."""
    if formula.op == "ref":
        if not formula.param.startswith(GIVEN) or not step:
            yield formula
        return
    if formula.op == "total" or (formula.op == "apply" and formula.param == "exp"):
        yield formula
    seen: set[int] = set()
    for arg in formula.args:
        for part in _operands(arg, step):
            if id(part) not in seen:
                seen.add(id(part))
                yield part


def _is_output(step: str, formulas: Formulas) -> bool:
    """Whether a step is the output under another name, as the heads' outputs without W_O are."""
    output = formulas["output"]
    return step == "concatenated" and output.op == "ref" and output.param == step


def short_number(value: float, slack: float) -> float | None:
    """The shortest number near a value, an integer or a short fraction or decimal; None if the slack is too large."""
    for denominator in (1, 2, 4, 10, 3, 100):
        if 8 * slack * denominator > 1:
            continue  # some such number is always near
        candidate = round(value * denominator) / denominator
        if abs(candidate - value) <= slack:
            return candidate
    return None


def short_text(value: float, slack: float) -> str:
    """A number with the digits that are known."""
    places = min(4, max(0, math.floor(-math.log10(2 * slack)))) if slack else 4
    return f"{value:.{places}f}"


def _text(value: float) -> str:
    fraction = Fraction(value).limit_denominator(12)
    return str(fraction) if abs(float(fraction) - value) < 1e-9 else f"{value:.4g}"
