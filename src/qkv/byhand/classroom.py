"""A class: write individual sheets with their keys, and grade a folder of answers with points and feedback.

    class/sheets/sheet-01.toml .tex .html   the problem, to fill in
    class/keys/sheet-01.toml .tex .html     the solution, step by step

Points: every step that a sheet asks for is worth the same. A step gets the share of its numbers that are right, follow
from an earlier slip, or are rounded within the tolerance; so one slip costs points once. A step that is not written
down counts as right if a later step that is computed from it is written and not wrong.
"""

import csv
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from qkv._files import write_atomic
from qkv._html import page, table
from qkv.byhand.files import read_answer, read_file, split_answer
from qkv.byhand.generate import asked_steps, generate_problems
from qkv.byhand.graph import SOFTMAX_PARTS, StepGraph
from qkv.byhand.html import html_page, html_sheet
from qkv.byhand.latex import latex_document, latex_sheet, standalone
from qkv.byhand.numbers import Number, format_decimal, to_text
from qkv.byhand.problem import Problem, make_problem
from qkv.byhand.report import StepCheck, Verification
from qkv.byhand.solution import solve_problem
from qkv.byhand.verification import TOLERANCE, verify

ANSWER_FILES = (".toml", ".json", ".csv")
SHEETS, KEYS, FEEDBACK = "sheets", "keys", "feedback"
MAX_ANSWERS = 2000
HOW_TO = (
    "Write a number in place of every ?, such as 3, -1/2, 0.25, √2/2 or e^(3/2).",
    "Leave a step that you did not write down as it is. Set student to your name.",
)


def write_class(folder: Path, count: int, seed: int, settings: Mapping[str, Any], tokens: int = 3) -> list[Path]:
    """Write sheets and keys into a new folder; returns the sheets. Nothing is left behind if something fails."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists already: name a new folder for the class")
    problems = generate_problems(count, seed, settings, tokens)
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for part in (SHEETS, KEYS):
            (scratch / part).mkdir()
        for number, drawn in enumerate(problems, 1):
            name = f"sheet-{number:0{max(2, len(str(count)))}}"
            for path, content in _sheet_files(name, {"title": f"Attention by hand, sheet {number}", **drawn}).items():
                (scratch / path).write_text(content, "utf-8")
        scratch.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return sorted((folder / SHEETS).glob("*.toml"))


def _sheet_files(name: str, settings: Mapping[str, Any]) -> dict[str, str]:
    solution = solve_problem(make_problem(settings))
    asked = asked_steps(solution.problem)
    blanks = {step: [["?"] * solution.matrix(step).shape[1]] * solution.matrix(step).shape[0] for step in asked}
    written = {step: [[_answer_text(n) for n in row] for row in solution.matrix(step).numbers] for step in asked}
    return {
        f"{SHEETS}/{name}.toml": _answer_toml(name, settings, blanks, student=""),
        f"{SHEETS}/{name}.tex": standalone(latex_sheet(solution, asked)),
        f"{SHEETS}/{name}.html": html_sheet(solution, asked),
        f"{KEYS}/{name}.toml": _answer_toml(name, settings, written, student="key"),
        f"{KEYS}/{name}.tex": standalone(latex_document(solution)),
        f"{KEYS}/{name}.html": html_page(solution),
    }


def _answer_text(number: Number) -> str:
    return to_text(number) if number.fraction is not None else format_decimal(number.decimal)


def _answer_toml(
    name: str, settings: Mapping[str, Any], answer: Mapping[str, Sequence[Sequence[str]]], student: str
) -> str:
    """A sheet to fill in, or with its answer: TOML that `qkv byhand --verify` reads."""
    head = [f"# {line}" for line in HOW_TO] if not student else [f"# Key of {name}"]
    given = {"student": student, "sheet": name, **settings}
    lines = [*head, "", *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in given.items())]
    lines += ["", "[answer]"]
    for step, rows in answer.items():
        text = json.dumps([" ".join(row) for row in rows], ensure_ascii=False)[1:-1].replace('", "', "; ")
        lines.append(f"{step} = {text}")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class StepPoints:
    """Points of one step that the sheet asks for."""

    step: str
    points: float
    possible: float
    note: str  # right, wrong, rounded …, or how a missing step was counted


@dataclass(frozen=True)
class AnswerGrade:
    """The grade of one answer; `problem` says why it could not be graded ("" if it was)."""

    file: str
    student: str
    sheet: str
    points: float
    possible: float
    steps: tuple[StepPoints, ...]
    verification: Verification | None
    problem: str = ""

    @property
    def remark(self) -> str:
        """One sentence: why it was not graded, or the first wrong number."""
        if self.problem or self.verification is None:
            return self.problem
        first = self.verification.first
        return "" if first is None else first.sentence

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "student": self.student,
            "sheet": self.sheet,
            "points": self.points,
            "possible": self.possible,
            "remark": self.remark,
            "steps": {part.step: {"points": part.points, "note": part.note} for part in self.steps},
            "verification": None if self.verification is None else self.verification.to_dict(),
        }


def answer_files(folder: Path) -> list[Path]:
    """The answers in a folder; files of other kinds and hidden files are left alone."""
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in ANSWER_FILES)
    found = [path for path in found if path.is_file() and not path.name.startswith(".")]
    if not found:
        raise ValueError(f"{folder} contains no answers: expected files ending in {', '.join(ANSWER_FILES)}")
    if len(found) > MAX_ANSWERS:
        raise ValueError(f"{folder} contains {len(found):,} answers: at most {MAX_ANSWERS:,} are graded at once")
    return found


def grade_answers(
    folder: Path,
    *,
    class_folder: Path | None = None,
    points: float = 10.0,
    tolerance: float = TOLERANCE,
    progress: Callable[[AnswerGrade, int, int], None] = lambda grade, done, count: None,
) -> list[AnswerGrade]:
    """Grade every answer of a folder. One that cannot be read gets no points and a sentence; the others are graded.

    class_folder: a folder of `write_class`; problems are then taken from it instead of from the answers.
    """
    if class_folder is not None and not (class_folder / KEYS).is_dir():
        raise ValueError(f"{class_folder} is not a class: expected a folder that qkv byhand --generate wrote")
    paths, grades = answer_files(folder), []
    for path in paths:
        try:
            grade = _grade_answer(path, class_folder, points, tolerance)
        except OSError as error:
            grade = _not_graded(path, points, f"{path.name} cannot be read: {error.strerror or error}")
        except ValueError as error:
            grade = _not_graded(path, points, str(error))
        except Exception as error:  # one answer must not stop the others
            grade = _not_graded(path, points, f"it could not be graded: {type(error).__name__}: {error}")
        grades.append(grade)
        progress(grade, len(grades), len(paths))
    return grades


def _not_graded(path: Path, points: float, reason: str) -> AnswerGrade:
    return AnswerGrade(path.name, path.stem, "", 0.0, points, (), None, " ".join(reason.split()))


def _grade_answer(path: Path, class_folder: Path | None, points: float, tolerance: float) -> AnswerGrade:
    settings, answer = read_answer(path)
    student, sheet = str(settings.get("student") or path.stem), str(settings.get("sheet") or "")
    if class_folder is not None:
        sheet = sheet or path.stem
        key = class_folder / KEYS / f"{Path(sheet).name}.toml"
        if not key.is_file():
            raise ValueError(f"{path.name}: there is no sheet {sheet!r} in {class_folder}; set sheet as on the sheet")
        settings = split_answer(read_file(key), key.name)[0]
    problem = make_problem(settings)
    graph = StepGraph(problem)
    graph.check_steps(answer)
    result = verify(problem, answer, tolerance)
    steps = _step_points(problem, graph, result, points)
    total = round(sum(part.points for part in steps), 2)
    return AnswerGrade(path.name, student, sheet, total, points, steps, result)


def _step_points(problem: Problem, graph: StepGraph, result: Verification, points: float) -> tuple[StepPoints, ...]:
    checks = {check.step: check for check in result.steps}
    asked = asked_steps(problem)
    credited = _implied_steps(graph, {step for step, check in checks.items() if check.verdict != "wrong"})
    parts: dict[str, list[StepCheck]] = {}  # steps that are not asked for, by the step that they are counted with
    for step, check in checks.items():
        if step not in asked:
            parts.setdefault(_next_asked(graph, step, asked), []).append(check)
    found = []
    for step in asked:
        possible = points / len(asked)
        counted = [*parts.get(step, ()), *([checks[step]] if step in checks else [])]
        if step in checks or any(check.verdict == "wrong" for check in counted):
            accepted = all(remark.accepted for check in counted for remark in check.remarks)
            good = sum(check.right + check.follows + check.rounded for check in counted)
            share = good / max(good + sum(check.wrong + check.blank for check in counted), 1)
            if not accepted and share == 1.0:  # the whole table is wrong in shape or rounded too far
                share = 0.0
            found.append(StepPoints(step, round(possible * share, 4), possible, _name_verdict(counted)))
        elif step in credited:
            found.append(StepPoints(step, possible, possible, "not written; a later step shows it"))
        else:
            found.append(StepPoints(step, 0.0, possible, "missing"))
    return tuple(found)


def _next_asked(graph: StepGraph, name: str, asked: Sequence[str]) -> str:
    """The first step asked for that is computed from this one; "" if there is none."""
    if name in SOFTMAX_PARTS:
        return "weights"
    reached = {name}
    for step, made in graph.steps.items():
        if not reached.isdisjoint(made.inputs):
            reached.add(step)
            if step in asked:
                return step
    return ""


def _name_verdict(counted: Sequence[StepCheck]) -> str:
    """The verdict of the step, with the steps that are counted with it if one of them is wrong."""
    wrong = [check.step for check in counted[:-1] if check.verdict == "wrong"]
    return f"{counted[-1].verdict}; wrong {' and '.join(wrong)}" if wrong else counted[-1].verdict


def _implied_steps(graph: StepGraph, good: set[str]) -> set[str]:
    """The steps that good ones are computed from, directly or not."""
    implied: set[str] = set() if good.isdisjoint(SOFTMAX_PARTS) else {"scaled"}
    for name in reversed(list(graph.steps)):
        if name in good or name in implied:
            implied.update(graph.steps[name].inputs)
    return implied


def grades_csv(grades: Sequence[AnswerGrade]) -> str:
    """Grades as CSV: a row for each answer, points by step, and the first wrong number."""
    steps = list(dict.fromkeys(part.step for grade in grades for part in grade.steps))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["student", "file", "sheet", "points", "possible", *steps, "remark"])
    for grade in grades:
        points = {part.step: f"{part.points:.4g}" for part in grade.steps}
        names = [_csv_cell(text) for text in (grade.student, grade.file, grade.sheet)]
        by_step = [points.get(step, "") for step in steps]
        writer.writerow([*names, f"{grade.points:g}", f"{grade.possible:g}", *by_step, _csv_cell(grade.remark)])
    return out.getvalue()


def _csv_cell(text: str) -> str:
    """One line that no spreadsheet takes for a formula."""
    line = " ".join(text.split())[:1000]
    return f"'{line}" if line[:1] in ("=", "+", "-", "@") else line


def write_feedback(grades: Sequence[AnswerGrade], folder: Path) -> None:
    """A Markdown and an HTML file for each answer, named as the answer."""
    folder.mkdir(parents=True, exist_ok=True)
    stems = [Path(grade.file).stem for grade in grades]
    for grade, stem in zip(grades, stems, strict=True):
        name = grade.file if stems.count(stem) > 1 else stem  # ada.toml and ada.json
        write_atomic(folder / f"{name}.md", feedback_markdown(grade))
        write_atomic(folder / f"{name}.html", feedback_html(grade))


def _headline(grade: AnswerGrade) -> str:
    return f"{grade.points:g} of {grade.possible:g} points"


def _remarks(grade: AnswerGrade) -> list[str]:
    if grade.verification is None:
        return []
    return [remark.sentence for check in grade.verification.steps for remark in check.remarks]


def _verdict(grade: AnswerGrade) -> str:
    if grade.problem:
        return f"Not graded: {grade.problem}"
    remarks = _remarks(grade)
    missing = any(part.note == "missing" for part in grade.steps)
    if grade.verification is not None and grade.verification.ok:
        if missing:
            return "Everything that you wrote is right; some steps are missing."
        return "All right, apart from early rounding." if remarks else "All right."
    return f"First wrong number: {grade.remark}"


def feedback_markdown(grade: AnswerGrade) -> str:
    """The feedback for one student as Markdown."""
    lines = [f"# {_markdown(grade.student)}: {_headline(grade)}", "", _markdown(_verdict(grade))]
    if grade.steps:
        lines += ["", "| step | points | of | |", "|---|---|---|---|"]
        lines += [f"| {p.step} | {p.points:.3g} | {p.possible:.3g} | {p.note} |" for p in grade.steps]
    if remarks := _remarks(grade):
        lines += ["", "What differs from the exact numbers:", "", *(f"- {_markdown(text)}" for text in remarks)]
    if grade.verification is not None and any(check.follows for check in grade.verification.steps):
        lines += ["", "Numbers that follow from an earlier mistake cost no points."]
    return "\n".join(lines) + "\n"


def _markdown(text: str) -> str:
    """Text in which nothing is markup."""
    text = " ".join(text.split())
    for symbol in "\\`*_[]<>|#":
        text = text.replace(symbol, f"\\{symbol}")
    return text


def feedback_html(grade: AnswerGrade) -> str:
    """The feedback for one student as an offline page."""
    parts = [f"<p>{escape(_verdict(grade))}</p>"]
    if grade.steps:
        rows: list[list[object]] = [[p.step, round(p.points, 2), round(p.possible, 2), p.note] for p in grade.steps]
        parts.append(table(["step", "points", "of", ""], rows))
    if remarks := _remarks(grade):
        items = "".join(f"<li>{escape(text)}</li>" for text in remarks)
        parts.append(f"<h2>What differs from the exact numbers</h2><ul>{items}</ul>")
    return page(f"{grade.student}: {_headline(grade)}", *parts)
