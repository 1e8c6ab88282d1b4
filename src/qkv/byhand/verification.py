"""Verify a person's calculation step by step: the first wrong number, what follows from it, the likely mistake.

Each number is compared with the exact one at the precision at which it was written: 0.06 stands for everything that
rounds to it, 3/2 for itself. A number that differs but follows from the person's own earlier numbers is no new
mistake: it follows from an earlier slip, or from rounding early.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal, localcontext
from typing import Any, Literal

from qkv.byhand.error_bounds import INPUTS, BoundedTable, Steps, Table, compute_step, dot_product_terms
from qkv.byhand.matrices import transpose
from qkv.byhand.mistakes import LOST_SIGN, TRANSPOSED, Mistake, describe_rounding, possible_mistakes
from qkv.byhand.numbers import CONTEXT, format_decimal, format_digits, to_text
from qkv.byhand.parsing import MAX_SIZE, MatrixLike, Rows, cell_text, parse_number, split_cells
from qkv.byhand.problem import Problem
from qkv.byhand.solution import Solution, solve_problem

TOLERANCE = 0.02  # how far early rounding may move a number and still be accepted
EPSILON = Decimal("1e-12")
Status = Literal["right", "slip", "follows", "rounded"]

_DECIMAL = re.compile(r"[+-]?\d*\.(\d*)(?:[eE]([+-]?\d+))?|[+-]?\d+[eE]([+-]?\d+)")
_MINUS_INFINITY = re.compile(r"-(inf|infinity|∞|oo)", re.IGNORECASE)


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

    @property
    def sentence(self) -> str:
        cell = f"{self.step}[{self.row},{self.column}]" if self.row else self.step
        mistake = f": {self.mistake}" if self.mistake else ""
        return f"{cell}: expected {self.expected}, got {self.got}{mistake}"


@dataclass(frozen=True)
class StepCheck:
    """The verdict on one step: how many numbers are right, follow from earlier slips, are rounded, or are wrong."""

    step: str
    verdict: Literal["right", "wrong", "follows", "rounded"]
    right: int
    follows: int
    rounded: int
    wrong: int
    remarks: tuple[Remark, ...]


@dataclass(frozen=True)
class Verification:
    """The verdict on an answer. first: the first wrong number."""

    ok: bool
    tolerance: float
    first: Remark | None
    steps: tuple[StepCheck, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def verify(problem: Problem, answer: Mapping[str, Any], tolerance: float = TOLERANCE) -> Verification:
    """Compare a person's steps with the exact ones.

    answer: matrices by step: queries, keys, values, scores, scaled, weights, concatenated, output; any of them.
    tolerance: how far early rounding may move a number and still be accepted.

    >>> from qkv.byhand import make_problem
    >>> problem = make_problem({"q": "1 0", "k": "1 0; 0 1", "v": "4; 8"})
    >>> verify(problem, {"scores": "1 0", "scaled": "1 0"}).first.sentence
    'scaled[1,1]: expected √2/2 ≈ 0.7071, got 1: forgotten 1/√d: the scores were not scaled'
    """
    return _Verifier(problem, answer, tolerance).run()


@dataclass(frozen=True)
class AnswerStep:
    """One step of an answer, one token a row."""

    step: str
    texts: Sequence[Sequence[str]]
    values: Table
    error: Table  # half a unit of the last digit written
    transposed: bool = False  # it was given with rows for columns

    @property
    def places(self) -> int:
        """Digits after the point of the coarsest number; 0 if none is a decimal."""
        coarsest = max(error for row in self.error for error in row)
        return -coarsest.adjusted() - 1 if coarsest else 0


def read_step(step: str, matrix: MatrixLike, shape: tuple[int, int], columns: bool) -> AnswerStep:
    """Read a step of an answer whose table must have this shape (one token a row)."""
    cells = split_cells(matrix, step, MAX_SIZE * MAX_SIZE)
    texts = [[cell_text(cell).removeprefix("≈").strip() for cell in row] for row in cells]
    if columns:
        texts = [list(row) for row in transpose(texts)]
    got = (len(texts), len(texts[0]))
    transposed = got != shape and got == (shape[1], shape[0])
    if got != shape and not transposed:
        (a, b), (c, d) = ((x, y) if not columns else (y, x) for x, y in (shape, got))
        raise ValueError(f"{step}: expected {a}×{b} numbers, got {c}×{d}; give the whole matrix")
    if transposed:
        texts = [list(row) for row in transpose(texts)]
    values = [[_value(text, f"{step}[{i},{j}]") for j, text in enumerate(row, 1)] for i, row in enumerate(texts, 1)]
    errors = [[_rounding_error(text) for text in row] for row in texts]
    coarsest = max((error for row in errors for error in row if error is not None), default=Decimal(0))
    error = [
        [coarsest if _is_integer(text) else error or Decimal(0) for error, text in zip(*pair, strict=True)]
        for pair in zip(errors, texts, strict=True)
    ]
    return AnswerStep(step, texts, values, error, transposed)


def _stands_for_minus_infinity(text: str) -> bool:
    if _MINUS_INFINITY.fullmatch(text):
        return True
    return not text.startswith("≈") and parse_number(text).decimal <= -10_000


def _value(text: str, where: str) -> Decimal:
    return Decimal("-1e9") if _MINUS_INFINITY.fullmatch(text) else parse_number(text, where).decimal


def _rounding_error(text: str) -> Decimal | None:
    """Half a unit of the last digit of a decimal; None for other numbers."""
    found = _DECIMAL.fullmatch(text)
    if not found:
        return None
    places, exponent, integer_exponent = found.groups()
    power = int(exponent or integer_exponent or 0) - len(places or "")
    return Decimal(5).scaleb(power - 1)


def _is_integer(text: str) -> bool:
    """An integer among decimals, such as 0 for 0.00, is read at the precision of its neighbors."""
    return re.fullmatch(r"[+-]?\d+", text) is not None


class _Verifier:
    def __init__(self, problem: Problem, answer: Mapping[str, Any], tolerance: float) -> None:
        self.problem = problem
        self.columns = problem.convention == "columns"
        self.tolerance = Decimal(repr(tolerance))
        self.solution = _solution_steps(solve_problem(problem))
        self.answer = {
            step: read_step(step, answer[step], (len(rows), len(rows[0])), self.columns)
            for step, rows in self.solution.items()
            if step in answer
        }
        self.own: dict[str, BoundedTable] = {}  # the person's numbers, and what follows from them
        self.exact: dict[str, BoundedTable] = {}
        self.slipped = False

    def run(self) -> Verification:
        checks = []
        for step in INPUTS:
            self.exact[step] = compute_step(self.problem, step, self.exact)
            self.own[step] = carried = compute_step(self.problem, step, self.own)
            if step in self.answer:
                checks.append(self.check_step(self.answer[step], carried))
                self.own[step] = self.own_numbers(self.answer[step])
        remarks = [remark for check in checks for remark in check.remarks]
        wrong = [remark for remark in remarks if not remark.accepted]
        return Verification(not wrong, float(self.tolerance), wrong[0] if wrong else None, tuple(checks))

    def own_numbers(self, answer: AnswerStep) -> BoundedTable:
        """The person's numbers to continue with; −∞ of a masked score is replaced by the score."""
        exact = self.exact[answer.step].values
        values = [
            [exact[i][j] if self.is_masked(answer, i, j) else value for j, value in enumerate(row)]
            for i, row in enumerate(answer.values)
        ]
        return BoundedTable(values, answer.error)

    def is_masked(self, answer: AnswerStep, i: int, j: int) -> bool:
        mask = self.problem.mask
        if answer.step not in ("scores", "scaled") or mask is None or mask[i % len(mask)][j]:
            return False
        return _stands_for_minus_infinity(answer.texts[i][j])

    def check_step(self, answer: AnswerStep, carried: BoundedTable) -> StepCheck:
        """Judge one step against the exact numbers and against `carried`, what follows from the person's own."""
        statuses: dict[tuple[int, int], Status] = {
            (i, j): self.status(answer, carried, i, j) for i, row in enumerate(answer.values) for j in range(len(row))
        }
        remarks = self.remarks(answer, carried, statuses)
        if answer.transposed:
            a, b = len(answer.values), len(answer.values[0])
            shapes = (f"{b}×{a}", f"{a}×{b}") if self.columns else (f"{a}×{b}", f"{b}×{a}")
            remarks = [Remark(answer.step, 0, 0, *shapes, "slip", TRANSPOSED, False), *remarks]
        wrong = any(not remark.accepted for remark in remarks)
        self.slipped = self.slipped or wrong
        found = list(statuses.values())
        right, follows = found.count("right"), found.count("follows")
        rounded, slips = found.count("rounded"), found.count("slip")
        if not any(remark.kind == "slip" for remark in remarks):  # rounding explains everything that differs
            rounded, slips = rounded + slips, 0
        verdict: Literal["right", "wrong", "follows", "rounded"] = "right"
        if wrong:
            verdict = "wrong"
        elif rounded:
            verdict = "rounded"
        elif follows:
            verdict = "follows"
        return StepCheck(answer.step, verdict, right, follows, rounded, slips, tuple(remarks))

    def status(self, answer: AnswerStep, carried: BoundedTable, i: int, j: int) -> Status:
        value, error = answer.values[i][j], answer.error[i][j]
        if self.is_masked(answer, i, j) or _is_close(value, self.exact[answer.step].values[i][j], error):
            return "right"
        if _is_close(value, carried.values[i][j], error + carried.error[i][j]):
            return "follows" if self.slipped else "rounded"
        return "slip"

    def remarks(
        self, answer: AnswerStep, carried: BoundedTable, statuses: Mapping[tuple[int, int], Status]
    ) -> list[Remark]:
        """One remark for a mistake that explains the whole table, else one for each wrong number."""
        slips = [cell for cell, status in statuses.items() if status == "slip"]
        rounded = [cell for cell, status in statuses.items() if status == "rounded"]
        remarks = []
        if rounded:
            worst = max(rounded, key=lambda cell: self.difference(answer, *cell))
            remarks.append(self.rounding_remark(answer, *worst, self.name_rounding(answer)))
        if not slips:
            return remarks
        single = self.cell_mistake(answer, carried, *slips[0]) if len(slips) == 1 else ""
        mistake = None if single else self.table_mistake(answer, carried, slips)
        if mistake is None:
            names = {cell: self.cell_mistake(answer, carried, *cell) for cell in slips}
            return [*remarks, *(self.slip_remark(answer, carried, *cell, name) for cell, name in names.items())]
        if mistake.rounding:
            worst = max(slips, key=lambda cell: self.difference(answer, *cell))
            return [*remarks, self.rounding_remark(answer, *worst, mistake.name)]
        return [*remarks, self.slip_remark(answer, carried, *slips[0], mistake.name)]

    def table_mistake(self, answer: AnswerStep, carried: BoundedTable, slips: list[tuple[int, int]]) -> Mistake | None:
        """The first known mistake that explains every wrong number and contradicts none of the others."""
        steps: Steps = {**self.exact, **self.own, answer.step: carried}
        for mistake in possible_mistakes(self.problem, answer.step, steps, self.answer):
            if (len(mistake.values), len(mistake.values[0])) != (len(answer.values), len(answer.values[0])):
                continue
            if all(self.explains(mistake, answer, i, j) for i, j in slips) and all(
                self.explains(mistake, answer, i, j)
                or _is_close(value, carried.values[i][j], answer.error[i][j] + carried.error[i][j])
                for i, row in enumerate(answer.values)
                for j, value in enumerate(row)
            ):
                return mistake
        return None

    def explains(self, mistake: Mistake, answer: AnswerStep, i: int, j: int) -> bool:
        """A whole unit of the last digit is allowed: the person may also have truncated instead of rounded."""
        error = answer.error[i][j] * (1 if mistake.rounding else 2)
        return _is_close(answer.values[i][j], mistake.values[i][j], error)

    def cell_mistake(self, answer: AnswerStep, carried: BoundedTable, i: int, j: int) -> str:
        """The likely mistake in one number alone; "" if none is known."""
        value, error, right = answer.values[i][j], answer.error[i][j], carried.values[i][j]
        if answer.step != "weights" and _is_close(value, -right, error) and right:
            return LOST_SIGN if right < 0 else "a minus sign too many"
        with localcontext(CONTEXT):
            for a, b in dot_product_terms(self.problem, answer.step, {**self.exact, **self.own}, i, j):
                product = f"{_factor(b)}·{_factor(a)}" if self.columns else f"{_factor(a)}·{_factor(b)}"
                if a * b and _is_close(value, right - 2 * a * b, error):
                    if min(a, b) < 0:
                        return f"{LOST_SIGN} in the product {product}"
                    return f"the product {product} has the wrong sign"
                if a * b and _is_close(value, right - a * b, error):
                    return f"the product {product} was left out"
        if error and abs(value) < abs(self.exact[answer.step].values[i][j]) and _is_close(value, right, 2 * error):
            return "cut off instead of rounded in the last digit"
        return ""

    def name_rounding(self, answer: AnswerStep) -> str:
        """Which of the person's own numbers were rounded, and how coarsely."""
        earlier = [self.answer[step] for step in INPUTS if step in self.answer and step in _earlier_steps(answer.step)]
        rounded = [table for table in earlier if any(error for row in table.error for error in row)]
        if not rounded:
            return describe_rounding("numbers", answer.places, "this step")
        last = rounded[-1]
        return describe_rounding(last.step, last.places, _describe_next_step(last.step))

    def difference(self, answer: AnswerStep, i: int, j: int) -> Decimal:
        return abs(answer.values[i][j] - self.exact[answer.step].values[i][j])

    def rounding_remark(self, answer: AnswerStep, i: int, j: int, name: str) -> Remark:
        difference = self.difference(answer, i, j)
        accepted = difference <= self.tolerance + answer.error[i][j]
        verdict = "accepted" if accepted else "too far"
        name = f"{name} (off by {format_digits(difference, 2)}; {verdict}: up to {format_digits(self.tolerance, 3)} is)"
        expected, got = self.expected(answer.step, i, j), answer.texts[i][j]
        return Remark(answer.step, *self.place(i, j), expected, got, "rounding", name, accepted)

    def slip_remark(self, answer: AnswerStep, carried: BoundedTable, i: int, j: int, name: str) -> Remark:
        expected = self.expected(answer.step, i, j)
        if not _is_close(carried.values[i][j], self.exact[answer.step].values[i][j], carried.error[i][j]):
            expected = f"{format_decimal(carried.values[i][j])} (from your own numbers before it)"
        accepted = name.startswith("cut off") and self.difference(answer, i, j) <= self.tolerance
        return Remark(answer.step, *self.place(i, j), expected, answer.texts[i][j], "slip", name, accepted)

    def expected(self, step: str, i: int, j: int) -> str:
        number = self.solution[step][i][j]
        text, decimal = to_text(number), format_decimal(number.decimal)
        if number.fraction is not None:
            return text
        return f"{text} ≈ {decimal}" if len(text) <= 16 and not text.startswith("≈") else decimal

    def place(self, i: int, j: int) -> tuple[int, int]:
        return (j + 1, i + 1) if self.columns else (i + 1, j + 1)


def _solution_steps(solution: Solution) -> dict[str, Rows]:
    """The steps that can be checked, one token a row, heads one after another."""
    names = ("queries", "keys", "values", "scores", "scaled", "weights")
    shown = {name: getattr(solution, name).numbers for name in names}
    if solution.problem.convention == "columns":
        shown = {name: transpose(numbers) for name, numbers in shown.items()}
    return {**shown, "concatenated": solution.concatenated, "output": solution.result}


def _is_close(value: Decimal, other: Decimal, error: Decimal) -> bool:
    with localcontext(CONTEXT):
        return abs(value - other) <= error * (1 + EPSILON) + EPSILON * max(1, abs(other))


def _earlier_steps(step: str) -> set[str]:
    found = set(INPUTS[step])
    return found.union(*(_earlier_steps(earlier) for earlier in found)) if found else found


def _describe_next_step(step: str) -> str:
    if step in ("weights", "values"):
        return "the last product"
    return {"scaled": "the softmax", "concatenated": "W_O"}.get(step, "the next step")


def _factor(value: Decimal) -> str:
    return f"({format_decimal(value)})" if value < 0 else format_decimal(value)
