"""A person's working checked step by step: the first wrong number, what follows from it, the likely mistake.

Each number is compared with the exact one at the rounding at which it was written. One that differs but follows
from the person's own earlier numbers is no new mistake: it follows from an earlier slip, or from rounding early.
"""

from collections.abc import Mapping
from decimal import Decimal, localcontext
from typing import Any, Literal

from qkv.byhand.answer import Given, is_forbidden, read_given
from qkv.byhand.chain import NEEDS, Numbers, State, follow, product_terms
from qkv.byhand.matrices import transpose
from qkv.byhand.mistakes import LOST_SIGN, TURNED, Guess, early, guesses
from qkv.byhand.number import DIGITS, Number
from qkv.byhand.problem import Problem
from qkv.byhand.reading import Rows
from qkv.byhand.verdict import Remark, StepCheck, Verification
from qkv.byhand.working import Worked, work_problem
from qkv.byhand.writing import digits, fixed, plain

TOLERANCE = 0.02  # how far early rounding may move a number and be accepted
HAIR = Decimal("1e-12")
Status = Literal["right", "slip", "follows", "rounded"]


def verify(problem: Problem, answer: Mapping[str, Any], tolerance: float = TOLERANCE) -> Verification:
    """Compare a person's steps with the exact ones.

    >>> from qkv.byhand import make_problem
    >>> problem = make_problem({"q": "1 0", "k": "1 0; 0 1", "v": "4; 8"})
    >>> verify(problem, {"scores": "1 0", "scaled": "1 0"}).first.sentence
    'scaled[1,1]: expected √2/2 ≈ 0.7071, got 1: forgotten 1/√d: the scores were not scaled'
    """
    return _Verifier(problem, answer, tolerance).run()


class _Verifier:
    def __init__(self, problem: Problem, answer: Mapping[str, Any], tolerance: float) -> None:
        self.problem = problem
        self.columns = problem.convention == "columns"
        self.tolerance = Decimal(repr(tolerance))
        self.exact = exact_steps(work_problem(problem))
        self.given = {
            step: read_given(step, answer[step], (len(rows), len(rows[0])), self.columns)
            for step, rows in self.exact.items()
            if step in answer
        }
        self.state: dict[str, Numbers] = {}
        self.sharp: dict[str, Numbers] = {}  # the exact chain
        self.slipped = False

    def run(self) -> Verification:
        checks = []
        for step in NEEDS:
            self.sharp[step] = follow(self.problem, step, self.sharp)
            carried = follow(self.problem, step, self.state)
            if step in self.given:
                checks.append(self.check(self.given[step], carried))
                self.state[step] = self.own_numbers(self.given[step])
            else:
                self.state[step] = carried
        remarks = [remark for check in checks for remark in check.remarks]
        wrong = [remark for remark in remarks if not remark.accepted]
        return Verification(not wrong, float(self.tolerance), wrong[0] if wrong else None, tuple(checks))

    def own_numbers(self, given: Given) -> Numbers:
        """The person's numbers to go on with; −∞ of a masked score is replaced by the score."""
        values = [
            [
                self.sharp[given.step].values[i][j] if self.is_masked(given, i, j) else value
                for j, value in enumerate(row)
            ]
            for i, row in enumerate(given.values)
        ]
        return Numbers(values, given.slack)

    def is_masked(self, given: Given, i: int, j: int) -> bool:
        allowed = self.problem.allowed
        if given.step not in ("scores", "scaled") or allowed is None or allowed[i % len(allowed)][j]:
            return False
        return is_forbidden(given.texts[i][j])

    def check(self, given: Given, carried: Numbers) -> StepCheck:
        statuses: list[list[Status]] = [
            [self.status(given, carried, i, j) for j in range(len(row))] for i, row in enumerate(given.values)
        ]
        flat = [status for row in statuses for status in row]
        remarks = self.remarks(given, carried, statuses)
        if given.turned:
            a, b = len(given.values), len(given.values[0])
            shapes = (f"{b}×{a}", f"{a}×{b}") if self.columns else (f"{a}×{b}", f"{b}×{a}")
            remarks = [Remark(given.step, 0, 0, *shapes, "slip", TURNED, False), *remarks]
        self.slipped = self.slipped or any(not remark.accepted for remark in remarks)
        counts = {name: flat.count(name) for name in ("right", "follows", "rounded", "slip")}
        if not any(remark.kind == "slip" for remark in remarks):  # rounding explains all that differs
            counts["rounded"] += counts.pop("slip")
            counts["slip"] = 0
        verdict = "right"
        if any(not remark.accepted for remark in remarks):
            verdict = "wrong"
        elif counts["rounded"]:
            verdict = "rounded"
        elif counts["follows"]:
            verdict = "follows"
        return StepCheck(
            given.step,
            verdict,
            counts["right"],
            counts["follows"],
            counts["rounded"],
            counts["slip"],
            tuple(remarks),
        )

    def status(self, given: Given, carried: Numbers, i: int, j: int) -> Status:
        value, slack = given.values[i][j], given.slack[i][j]
        if self.is_masked(given, i, j) or _near(value, self.sharp[given.step].values[i][j], slack):
            return "right"
        if _near(value, carried.values[i][j], slack + carried.slack[i][j]):
            return "follows" if self.slipped else "rounded"
        return "slip"

    def remarks(self, given: Given, carried: Numbers, statuses: list[list[Status]]) -> list[Remark]:
        """One remark for a mistake that explains the whole table, else one for each wrong number."""
        slips = [(i, j) for i, row in enumerate(statuses) for j, status in enumerate(row) if status == "slip"]
        rounded = [(i, j) for i, row in enumerate(statuses) for j, status in enumerate(row) if status == "rounded"]
        remarks = []
        if rounded:
            i, j = max(rounded, key=lambda cell: self.distance(given, *cell))
            remarks.append(self.rounding_remark(given, i, j, self.rounding_name(given)))
        if not slips:
            return remarks
        single = self.cell_mistake(given, carried, *slips[0]) if len(slips) == 1 else ""
        guess = None if single else self.explain(given, carried, slips)
        if guess is not None and guess.rounding:
            i, j = max(slips, key=lambda cell: self.distance(given, *cell))
            return [*remarks, self.rounding_remark(given, i, j, guess.name)]
        if guess is not None:
            return [*remarks, self.slip_remark(given, carried, *slips[0], guess.name)]
        return [
            *remarks,
            *(self.slip_remark(given, carried, i, j, self.cell_mistake(given, carried, i, j)) for i, j in slips),
        ]

    def explain(self, given: Given, carried: Numbers, slips: list[tuple[int, int]]) -> Guess | None:
        """The first known mistake that gives every wrong number, and no other number wrongly."""
        state: State = {**self.sharp, **self.state, given.step: carried}
        for guess in guesses(self.problem, given.step, state, self.given):
            if (len(guess.values), len(guess.values[0])) != (len(given.values), len(given.values[0])):
                continue
            if all(self.fits(given, guess, i, j) for i, j in slips) and all(
                self.fits(given, guess, i, j)
                or _near(value, carried.values[i][j], given.slack[i][j] + carried.slack[i][j])
                for i, row in enumerate(given.values)
                for j, value in enumerate(row)
            ):
                return guess
        return None

    def fits(self, given: Given, guess: Guess, i: int, j: int) -> bool:
        """A whole unit of the last digit is allowed: who made a mistake may also have cut off instead of rounded."""
        return _near(given.values[i][j], guess.values[i][j], given.slack[i][j] * (1 if guess.rounding else 2))

    def cell_mistake(self, given: Given, carried: Numbers, i: int, j: int) -> str:
        """What may have happened to one number alone."""
        value, slack, right = given.values[i][j], given.slack[i][j], carried.values[i][j]
        if given.step != "weights" and _near(value, -right, slack) and right:
            return LOST_SIGN if right < 0 else "a minus sign too many"
        with localcontext(DIGITS):
            for a, b in product_terms(self.problem, given.step, {**self.sharp, **self.state}, i, j):
                shown = f"{_factor(b)}·{_factor(a)}" if self.columns else f"{_factor(a)}·{_factor(b)}"
                if a * b and _near(value, right - 2 * a * b, slack):
                    return (
                        f"{LOST_SIGN} in the product {shown}"
                        if min(a, b) < 0
                        else f"the product {shown} has the wrong sign"
                    )
                if a * b and _near(value, right - a * b, slack):
                    return f"the product {shown} was left out"
        if slack and abs(value) < abs(self.sharp[given.step].values[i][j]) and _near(value, right, 2 * slack):
            return "cut off instead of rounded in the last digit"
        return ""

    def rounding_name(self, given: Given) -> str:
        """Which of the person's own numbers were rounded, and how coarsely."""
        earlier = [self.given[step] for step in NEEDS if step in self.given and step in _before(given.step)]
        coarse = [table for table in earlier if any(slack for row in table.slack for slack in row)]
        if not coarse:
            return early("numbers", given.places, "this step")
        last = coarse[-1]
        return early(last.step, last.places, _next(last.step))

    def distance(self, given: Given, i: int, j: int) -> Decimal:
        return abs(given.values[i][j] - self.sharp[given.step].values[i][j])

    def rounding_remark(self, given: Given, i: int, j: int, name: str) -> Remark:
        off = self.distance(given, i, j)
        accepted = off <= self.tolerance + given.slack[i][j]
        stands = "accepted" if accepted else "too far"
        name = f"{name} (off by {digits(off, 2)}; {stands}: up to {digits(self.tolerance, 3)} is)"
        return Remark(
            given.step,
            *self.place(i, j),
            self.expected(given.step, i, j),
            given.texts[i][j],
            "rounding",
            name,
            accepted,
        )

    def slip_remark(self, given: Given, carried: Numbers, i: int, j: int, name: str) -> Remark:
        expected = self.expected(given.step, i, j)
        if not _near(carried.values[i][j], self.sharp[given.step].values[i][j], carried.slack[i][j]):
            expected = f"{fixed(carried.values[i][j])} (from your own numbers before it)"
        accepted = name.startswith("cut off") and self.distance(given, i, j) <= self.tolerance
        return Remark(given.step, *self.place(i, j), expected, given.texts[i][j], "slip", name, accepted)

    def expected(self, step: str, i: int, j: int) -> str:
        number: Number = self.exact[step][i][j]
        text, decimal = plain(number), fixed(number.decimal)
        if number.fraction is not None:
            return text
        return f"{text} ≈ {decimal}" if len(text) <= 16 and not text.startswith("≈") else decimal

    def place(self, i: int, j: int) -> tuple[int, int]:
        return (j + 1, i + 1) if self.columns else (i + 1, j + 1)


def exact_steps(worked: Worked) -> dict[str, Rows]:
    """The steps that can be checked, one token a row, heads one after another."""
    turn = worked.problem.convention == "columns"
    names = ("queries", "keys", "values", "scores", "scaled", "weights")
    shown = {name: getattr(worked, name).numbers for name in names}
    rows = {name: transpose(numbers) if turn else numbers for name, numbers in shown.items()}
    return {**rows, "joined": worked.joined, "output": worked.result}


def _near(value: Decimal, other: Decimal, slack: Decimal) -> bool:
    with localcontext(DIGITS):
        return abs(value - other) <= slack * (1 + HAIR) + HAIR * max(1, abs(other))


def _before(step: str) -> set[str]:
    found = set(NEEDS[step])
    return found.union(*(_before(earlier) for earlier in found)) if found else found


def _next(step: str) -> str:
    if step in ("weights", "values"):
        return "the last product"
    return {"scaled": "the softmax", "joined": "W_O"}.get(step, "the next step")


def _factor(value: Decimal) -> str:
    return f"({fixed(value)})" if value < 0 else fixed(value)
