"""The verdict on every step and a remark for every mistake, from the shortest explanation of a sheet."""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Any, Literal

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.cell_slips import NOT_IDENTIFIED, NameCell, Place
from qkv.byhand.expressions import Array
from qkv.byhand.formulas import StepFormulas, symbol
from qkv.byhand.hypotheses import BETWEEN, CONTINUED, CUT, LAST, Finding, Hypothesis
from qkv.byhand.numbers import format_decimal, format_digits, to_text
from qkv.byhand.parsing import Rows
from qkv.byhand.search import Search
from qkv.byhand.sheet import WrittenStep
from qkv.byhand.slips import describe_rounding

TRANSPOSED = "rows for columns: the matrix is transposed"
EQUALLY_LIKELY = 1.9  # bits: explanations that differ by less are all named
MAX_ALTERNATIVES = 3
MAX_POSSIBLE = 2  # slips that may fit by chance
Status = Literal["right", "slip", "follows", "rounded", "blank"]


@dataclass(frozen=True)
class Remark:
    """One number that differs from exact arithmetic; row and column count from 1, as the person wrote them."""

    step: str
    row: int
    column: int
    expected: str
    got: str
    kind: Literal["slip", "rounding"]
    mistake: str
    accepted: bool
    alternatives: tuple[str, ...] = ()  # other mistakes that give the same numbers
    note: str = ""

    @property
    def sentence(self) -> str:
        cell = f"{self.step}[{self.row},{self.column}]" if self.row else self.step
        mistake = f": {self.mistake}" if self.mistake else ""
        if self.alternatives:
            mistake += f" (or: {'; or: '.join(self.alternatives)})"
        if self.note:
            mistake += f"; {self.note}"
        return f"{cell}: expected {self.expected}, got {self.got}{mistake}"


@dataclass(frozen=True)
class StepCheck:
    """The verdict on one step, and how many of its numbers are right, follow from earlier slips, are rounded, …"""

    step: str
    verdict: Literal["right", "wrong", "follows", "rounded"]
    right: int
    follows: int
    rounded: int
    wrong: int
    remarks: tuple[Remark, ...]
    blank: int = 0  # numbers that were not filled in


@dataclass(frozen=True)
class Verification:
    """The verdict on an answer. first: the first wrong number."""

    ok: bool
    tolerance: float
    first: Remark | None
    steps: tuple[StepCheck, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Report:
    """The verdicts and remarks that the best hypothesis gives."""

    def __init__(
        self,
        formulas: StepFormulas,
        written: Mapping[str, WrittenStep],
        solution: Mapping[str, Rows],
        exact: Mapping[str, Array],
        found: list[Hypothesis],
        search: Search,
        tolerance: float,
    ) -> None:
        self.written, self.solution, self.exact, self.tolerance = written, solution, exact, tolerance
        self.wrong, self.possible = search.wrong, search.possible
        self.said_rounded = False
        self.columns = formulas.problem.convention == "columns"
        self.best = found[0]
        self.alternatives = _find_alternatives(found)

    def build(self) -> Verification:
        checks = [self.check_step(sheet) for sheet in self.written.values()]
        wrong = [remark for check in checks for remark in check.remarks if not remark.accepted]
        wrong.sort(key=lambda remark: remark.kind == "rounding")
        return Verification(not wrong, self.tolerance, wrong[0] if wrong else None, tuple(checks))

    def check_step(self, sheet: WrittenStep) -> StepCheck:
        step = sheet.step
        findings = [found for found in self.best.findings if found.step == step]
        status: dict[Place, Status] = {
            (int(h), int(r), int(c)): self.status(sheet, findings, (h, r, c))
            for h, r, c in np.ndindex(*sheet.values.shape)
        }
        remarks = self.finding_remarks(sheet, findings, status)
        right = self.best.predictions[step][0]
        unknown = self.has_unknown(step)
        rounded = [
            place
            for place, kind in status.items()
            if (kind == "rounded" or (kind == "follows" and self.is_visibly_rounded(sheet, place, right)))
            and not (unknown and self.best.matches[step][place] == CONTINUED)
        ]
        if any(found.slip.name == NOT_IDENTIFIED for found in findings):
            rounded = []  # numbers near the right ones among unknown ones tell nothing about rounding
        if rounded and not any(found.slip.rounding for found in findings):
            unit = max((float(other.unit.max()) for other in (sheet, *self.rounded_before(sheet))), default=0.0)
            allowed = math.inf if unit <= self.tolerance else self.tolerance
            place = self.rounded_place(sheet, rounded, right, allowed)
            remark = self.rounding_remark(sheet, place, right, self.name_rounding(sheet, place), allowed)
            remarks += [remark] if not (remark.accepted and self.said_rounded) else []
            self.said_rounded |= remark.accepted  # then the verdict of a later step says enough
        remarks.sort(key=lambda remark: (remark.kind == "rounding", remark.row, remark.column))
        if sheet.transposed:
            rows, columns = len(sheet.texts), len(sheet.texts[0])
            rows, columns = (columns, rows) if self.columns else (rows, columns)
            shapes = f"{rows}×{columns}", f"{columns}×{rows}"
            remarks.insert(0, Remark(step, 0, 0, shapes[0], shapes[1], "slip", TRANSPOSED, False))
        counts = Counter(status.values())
        verdict: Literal["right", "wrong", "follows", "rounded"] = "right"
        if any(not remark.accepted for remark in remarks):
            verdict = "wrong"
        elif counts["rounded"]:
            verdict = "rounded"
        elif counts["follows"]:
            verdict = "follows"
        return StepCheck(
            step,
            verdict,
            counts["right"],
            counts["follows"],
            counts["rounded"],
            counts["slip"],
            tuple(remarks),
            counts["blank"],
        )

    def status(self, sheet: WrittenStep, findings: list[Finding], place: Place) -> Status:
        if math.isnan(sheet.values[place]):
            return "blank"
        if self.is_right(sheet, place):
            return "right"
        if any(place in found.cells and not found.slip.rounding for found in findings):
            return "slip"
        if any(place in found.cells for found in findings):
            return "rounded"
        if not self.wrong[sheet.step][place]:
            return "rounded"
        exact, expected = float(self.exact[sheet.step][place]), float(self.best.predictions[sheet.step][0][place])
        reached = not _is_near(exact, expected)
        slips = any(not found.slip.rounding for found in self.best.findings)
        return "follows" if reached and slips else "rounded"

    def has_unknown(self, step: str) -> bool:
        """Whether a step comes after numbers that are not identified: then the unrounded ones are not known."""
        before = _steps_before(step, self.best)
        return any(found.slip.name == NOT_IDENTIFIED and found.step in before for found in self.best.findings)

    def is_visibly_rounded(self, sheet: WrittenStep, place: Place, right: Array) -> bool:
        """Whether a number that follows from a slip also shows that the numbers before it were rounded."""
        rounded = self.best.matches[sheet.step][place] in (CONTINUED, BETWEEN)
        return rounded and self.difference(sheet, place, right) > float(sheet.unit[place])

    def is_right(self, sheet: WrittenStep, place: Place) -> bool:
        value, exact, unit = (float(a[place]) for a in (sheet.values, self.exact[sheet.step], sheet.unit))
        return _is_near(exact, value, unit / 2 * (1 + 1e-9))

    def differs(self, sheet: WrittenStep, place: Place, right: Array) -> bool:
        """Whether a number is not the one that stands in `right`, at the precision written."""
        value, expected, unit = (float(a[place]) for a in (sheet.values, right, sheet.unit))
        return not _is_near(expected, value, unit)

    def difference(self, sheet: WrittenStep, place: Place, right: Array) -> float:
        return abs(float(sheet.values[place] - right[place]))

    def finding_remarks(
        self, sheet: WrittenStep, findings: list[Finding], status: Mapping[Place, Status]
    ) -> list[Remark]:
        """A remark for each slip, and one for all numbers that no slip explains.

        A slip that leaves as many numbers of its step unexplained as it explains is only a guess, and so is a slip in a
        single number that leaves any.
        """
        unknown = [found for found in findings if found.slip.name == NOT_IDENTIFIED]
        named = [found for found in findings if found.slip.name != NOT_IDENTIFIED]
        guesses: list[Finding] = []
        if unknown:
            formulas = [found for found in named if not found.slip.single and not found.slip.rounding]
            few = [found for found in formulas if len(unknown) > 1 and len(found.cells) <= len(unknown)]
            guesses = formulas if len(formulas) > 1 else few
        remarks = [self.finding_remark(sheet, found, status) for found in named if found not in guesses]
        if unknown:  # slips in single numbers may be parts of a cause of all
            single = [found.slip.single for found in named if found not in guesses]
            pairs = zip(remarks, single, strict=True)
            remarks = [replace(r, mistake=f"perhaps {r.mistake}") if guess else r for r, guess in pairs]
            first = min(unknown, key=lambda found: self.place(sheet, min(found.cells)))
            more = sum(kind == "slip" for kind in status.values())
            more -= sum(len(found.cells) for found in named if found not in guesses)
            others = "1 more number of this step is" if more == 2 else f"{more - 1} more numbers of this step are"
            note = f"{others} wrong" if more > 1 else ""
            perhaps = "; ".join(f"perhaps {found.slip.name}" for found in guesses)
            if not named and not guesses:
                perhaps = self.possible_slips(sheet.step)
            note = "; ".join(part for part in (perhaps, note) if part)
            remarks.append(replace(self.finding_remark(sheet, first, status), note=note))
        return remarks

    def possible_slips(self, step: str) -> str:
        """The likeliest slips that give all numbers of a step, which are too few to tell."""
        names: list[str] = []
        for name, _ in sorted(self.possible.get(step, {}).items(), key=lambda pair: pair[1]):
            if not any(_same_slip(name, other) for other in names):
                names.append(name)
        return f"perhaps {' or '.join(names[:MAX_POSSIBLE])} (too few digits to tell)" if names else ""

    def finding_remark(self, sheet: WrittenStep, found: Finding, status: Mapping[Place, Status]) -> Remark:
        name, alternatives = found.slip.name, self.alternatives[id(found)]
        if found.slip.rounding:
            place = self.rounded_place(sheet, found.cells, found.before, self.tolerance)
            return self.rounding_remark(sheet, place, found.before, name, self.tolerance)
        shown = [place for place in found.cells if status[place] == "slip"] or found.cells
        shown = [place for place in shown if self.differs(sheet, place, found.before)] or shown
        place = min(shown, key=lambda place: self.place(sheet, place))
        note = "the numbers after it were computed with the right one" if self.is_corrected_later(found) else ""
        expected = self.expected(sheet, place, found.before)
        row, column = self.place(sheet, place)
        return Remark(
            sheet.step, row, column, expected, self.got(sheet, place), "slip", name, False, alternatives, note
        )

    def is_corrected_later(self, found: Finding) -> bool:
        """Whether the next written step that a wrong number reaches has the right numbers all the same."""
        if len(self.best.findings) > 1 or not found.slip.single:
            return False
        for step, sheet in self.written.items():
            if found.step not in _steps_before(step, self.best):
                continue
            expected, exact = self.best.predictions[step][0], self.exact[step]
            reached = [p for p in np.ndindex(*exact.shape) if abs(expected[p] - exact[p]) > float(sheet.unit[p])]
            if reached:
                return all(self.is_right(sheet, (h, r, c)) for h, r, c in reached)
        return False

    def rounded_place(self, sheet: WrittenStep, places: Collection[Place], right: Array, allowed: float) -> Place:
        """The number to show of those that are rounded: the first one that is too far off, else the farthest."""
        too_far = [p for p in places if self.difference(sheet, p, right) > allowed + float(sheet.unit[p]) / 2]
        if too_far:
            return min(too_far, key=lambda place: self.place(sheet, place))
        return max(places, key=lambda place: self.difference(sheet, place, right))

    def rounding_remark(self, sheet: WrittenStep, place: Place, right: Array, name: str, allowed: float) -> Remark:
        difference = self.difference(sheet, place, right)
        accepted = difference <= allowed + float(sheet.unit[place]) / 2
        verdict = "accepted" if accepted else f"at most {format_digits(Decimal(repr(allowed)), 3)} is allowed"
        name = f"{name} (off by {format_digits(Decimal(repr(difference)), 2)}; {verdict})"
        row, column = self.place(sheet, place)
        return Remark(
            sheet.step,
            row,
            column,
            self.expected(sheet, place, right),
            self.got(sheet, place),
            "rounding",
            name,
            accepted,
        )

    def name_rounding(self, sheet: WrittenStep, place: Place) -> str:
        """Which of the person's own numbers were rounded, and how coarsely."""
        match = self.best.matches[sheet.step][place]
        if match == CUT:
            return "the last digit was cut off, or a number in between was rounded"
        if match == LAST:
            return "written with fewer digits, or a number in between was rounded"
        rounded = self.rounded_before(sheet)
        if not rounded:
            return "early rounding"
        before = {"output": "the last product", "weights": "the softmax"}.get(sheet.step, "this step")
        return describe_rounding(symbol(rounded[-1].step), rounded[-1].places, before)

    def rounded_before(self, sheet: WrittenStep) -> list[WrittenStep]:
        """The steps before this one in which digits were dropped."""
        earlier = [self.written[step] for step in self.written if step in _steps_before(sheet.step, self.best)]
        return [
            other
            for other in earlier
            if other.unit.any() and not _agrees(other.values, self.best.predictions[other.step][0])
        ]

    def expected(self, sheet: WrittenStep, place: Place, right: Array) -> str:
        """The right number; if an earlier slip changes it, the one that follows from the person's own numbers."""
        head, row, column = place
        exact, value = float(self.exact[sheet.step][place]), float(right[place])
        if not _is_near(exact, value, float(sheet.unit[place]) / 2):
            return f"{_decimal(value)} (from your own numbers before it)"
        if np.isinf(self.exact[sheet.step][place]):
            return "-inf (masked)"
        if sheet.step not in self.solution:
            return _decimal(exact)
        number = self.solution[sheet.step][head * sheet.values.shape[1] + row][column]
        text, decimal = to_text(number), format_decimal(number.decimal)
        if number.fraction is not None:
            return text
        return f"{text} ≈ {decimal}" if len(text) <= 16 and not text.startswith("≈") else decimal

    def got(self, sheet: WrittenStep, place: Place) -> str:
        return sheet.text(*place)

    def place(self, sheet: WrittenStep, place: Place) -> tuple[int, int]:
        return NameCell(sheet.step, sheet.values.shape[1], self.columns).place(place)


def _find_alternatives(found: list[Hypothesis]) -> dict[int, tuple[str, ...]]:
    """For findings of the best hypothesis: the slip of an equally short one that differs in this slip only."""
    best = found[0]
    ours = {finding.slip.name: finding for finding in best.findings}
    alternatives = {id(finding): finding.slip.alternatives for finding in best.findings}
    for other in found[1:]:
        if other.bits - best.bits > EQUALLY_LIKELY:
            break
        theirs = {finding.slip.name: finding for finding in other.findings}
        only, instead = ours.keys() - theirs.keys(), theirs.keys() - ours.keys()
        if len(only) == len(instead) == 1 and NOT_IDENTIFIED not in only | instead:
            finding, replaced = ours[only.pop()], theirs[instead.pop()]
            named = alternatives[id(finding)]
            new = not any(_same_slip(replaced.slip.name, name) for name in (finding.slip.name, *named))
            if finding.step == replaced.step and new and len(named) < MAX_ALTERNATIVES:
                alternatives[id(finding)] = (*named, replaced.slip.name)
    return alternatives


def _same_slip(first: str, second: str) -> bool:
    """Whether one name only says more about where the slip is."""
    return first in second or second in first


def _steps_before(step: str, hypothesis: Hypothesis) -> set[str]:
    found: set[str] = set()
    pending = [step]
    while pending:
        for name in hypothesis.formulas.get(pending.pop(), ex.ref("")).names:
            if name and name not in found:
                found.add(name)
                pending.append(name)
    return found


def _agrees(values: Array, prediction: Array) -> bool:
    """Whether numbers are the predicted ones, where they were filled in."""
    return np.allclose(np.where(np.isnan(values), prediction, values), prediction, 1e-9, 1e-12)


def _is_near(right: float, value: float, distance: float = 0.0) -> bool:
    """Whether a number is the right one up to a distance and the precision of floats; −∞ is near nothing else."""
    if right == value or not math.isfinite(right):
        return right == value
    return abs(value - right) <= distance + 1e-9 * max(1.0, abs(right))


def _decimal(value: float) -> str:
    return format_decimal(Decimal(repr(round(value, 10))))
