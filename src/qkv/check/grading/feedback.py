"""Feedback: one page for each student, as Markdown and HTML, and a summary of the class.

Mistakes come first, each with the place in the student's file, what was measured and the usual fix; then the points.
"""

from __future__ import annotations

import html
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qkv import _html
from qkv._files import write_atomic
from qkv.check.grading.client import clean
from qkv.check.grading.exercises.common import EXPLAINED, FIX
from qkv.check.grading.grade import Grade, Mistake
from qkv.check.grading.rubric import Rubric

SUMMARY = "class-summary"


@dataclass(frozen=True)
class CommonMistake:
    """A property that several students lost points for: who, and one of them in detail."""

    property: str
    check: str
    students: tuple[str, ...]
    example: Mistake


def write_feedback(folder: Path, grades: Sequence[Grade], rubric: Rubric) -> list[Path]:
    """Write NAME.md and NAME.html for each student and the summary of the class; returns the files."""
    folder.mkdir(exist_ok=True)
    written = []
    for grade, name in zip(grades, file_names(grades), strict=True):
        written += _write_both(folder, name, feedback_markdown(grade, rubric), feedback_html(grade, rubric))
    written += _write_both(folder, SUMMARY, summary_markdown(grades, rubric), summary_html(grades, rubric))
    return written


def _write_both(folder: Path, name: str, markdown: str, page: str) -> list[Path]:
    paths = [folder / f"{name}.md", folder / f"{name}.html"]
    for path, text in zip(paths, (markdown, page), strict=True):
        write_atomic(path, text.encode("utf-8", "replace"))
    return paths


def file_names(grades: Sequence[Grade]) -> list[str]:
    """A file name for each student: letters, digits, dots and dashes, all different.

    >>> file_names([Grade("a/b c", "", (), None, 0), Grade("a-b-c", "", (), None, 0)])
    ['a-b-c', 'a-b-c-2']
    """
    names: list[str] = []
    for grade in grades:
        stem = re.sub(r"[^\w.-]+", "-", grade.student).strip(".-")[:100] or "student"
        stem = f"{stem}-1" if stem == SUMMARY else stem
        name, number = stem, 2
        while name.lower() in {other.lower() for other in names}:
            name, number = f"{stem}-{number}", number + 1
        names.append(name)
    return names


def feedback_markdown(grade: Grade, rubric: Rubric) -> str:
    """The feedback of one student as Markdown."""
    lines = [f"# {_md(grade.student)}: {grade.total:g} of {grade.possible:g} points", "", _md(rubric.title), ""]
    if grade.refused:
        lines += ["## This file could not be graded", "", f"{_md(grade.refused)}.", ""]
    elif grade.mistakes:
        lines += ["## Where you lost points", ""]
        for number, mistake in enumerate(grade.mistakes, 1):
            lines += [f"### {number}. {_md(mistake.property)} (−{mistake.points:g})", ""]
            if mistake.where is not None:
                lines += [f"**{_capital(str(mistake.where))}:**", "", *_md_code(mistake.where.text), ""]
            for label, text in _explanation(mistake):
                lines += [f"**{label}:** {_md(text)}.", ""]
    else:
        lines += ["Nothing cost points.", ""]
    lines += ["## Points", "", "| property | points | of |", "|---|---:|---:|"]
    lines += [f"| {_md(part.name)} | {part.points:g} | {part.possible:g} |" for part in grade.properties]
    lines += [f"| **total** | **{grade.total:g}** | **{grade.possible:g}** |", ""]
    if grade.notes:
        lines += ["## Notes", "", *(f"- {_md(note)}" for note in grade.notes), ""]
    return "\n".join(lines)


def feedback_html(grade: Grade, rubric: Rubric) -> str:
    """The feedback of one student as an HTML page."""
    parts = [f'<p class="soft">{html.escape(rubric.title)}</p>']
    if grade.refused:
        parts += ["<h2>This file could not be graded</h2>", f"<p>{html.escape(grade.refused)}.</p>"]
    elif grade.mistakes:
        parts.append("<h2>Where you lost points</h2>")
        for number, mistake in enumerate(grade.mistakes, 1):
            parts.append(f"<h3>{number}. {html.escape(mistake.property)} (−{mistake.points:g})</h3>")
            if mistake.where is not None:
                code = html.escape(_printable(mistake.where.text))
                parts.append(f"<p><b>{html.escape(_capital(str(mistake.where)))}</b></p><pre>{code}</pre>")
            parts += [f"<p><b>{label}:</b> {html.escape(text)}.</p>" for label, text in _explanation(mistake)]
    else:
        parts.append("<p>Nothing cost points.</p>")
    rows: list[list[object]] = [[part.name, f"{part.points:g}", f"{part.possible:g}"] for part in grade.properties]
    rows.append(["total", f"{grade.total:g}", f"{grade.possible:g}"])
    parts += ["<h2>Points</h2>", _html.table(["property", "points", "of"], rows)]
    if grade.notes:
        items = "".join(f"<li>{html.escape(note)}</li>" for note in grade.notes)
        parts.append(f"<h2>Notes</h2><ul>{items}</ul>")
    return _html.page(f"{clean(grade.student)}: {grade.total:g} of {grade.possible:g} points", *parts)


def _explanation(mistake: Mistake) -> list[tuple[str, str]]:
    """What a student reads: the cause, where a formula with that mistake gives the same numbers, evidence and fix."""
    cause, fix = _cause_and_fix(mistake.fix)
    evidence = ("What happened" if mistake.check == "submission" else "Measured", mistake.evidence.rstrip("."))
    entries = [("Exact cause", cause), evidence, ("Fix", fix)]
    return [(label, text) for label, text in entries if text]


def _cause_and_fix(fix: str | None) -> tuple[str, str]:
    if not fix or not fix.startswith(EXPLAINED):
        return "", fix or ""
    cause, _, remedy = fix.removeprefix(EXPLAINED).partition(FIX)
    return cause, remedy


def _advice(mistake: Mistake) -> str:
    """The cause and the fix on one line, for the table of the class."""
    return ". Fix: ".join(part for part in _cause_and_fix(mistake.fix) if part)


def common_mistakes(grades: Sequence[Grade]) -> list[CommonMistake]:
    """The mistakes of the class by property and cause, the most frequent first; files not graded are not counted."""
    found: dict[tuple[str, str, str], list[tuple[str, Mistake]]] = {}
    for grade in grades:
        for mistake in grade.mistakes if grade.refused is None else ():
            cause = mistake.fix if mistake.fix and mistake.fix.startswith(EXPLAINED) else _error_name(mistake)
            found.setdefault((mistake.property, mistake.check, cause), []).append((grade.student, mistake))
    entries = [
        CommonMistake(key[0], key[1], tuple(student for student, _ in who), who[0][1]) for key, who in found.items()
    ]
    return sorted(entries, key=lambda entry: -len(entry.students))


def _error_name(mistake: Mistake) -> str:
    """What ended a call, such as TypeError: calls that fail for different reasons are different mistakes."""
    failed = re.match(r"(?:the call failed|the file does not run|it was stopped)[^\w]+(\w+)", mistake.evidence)
    return failed[0] if failed else ""


def _figures(grades: Sequence[Grade]) -> str:
    totals = [grade.total for grade in grades if grade.refused is None]
    refused = len(grades) - len(totals)
    text = f"{len(grades)} submissions, {len(totals)} graded, {refused} that could not be graded."
    if totals:
        mean, middle = statistics.mean(totals), statistics.median(totals)
        full = sum(grade.total == grade.possible for grade in grades)
        text += f" Mean {mean:.3g}, median {middle:g} of {grades[0].possible:g} points; full marks: {full}."
    return text


def summary_markdown(grades: Sequence[Grade], rubric: Rubric) -> str:
    """Which mistakes the class made, how many made each, and which files could not be graded."""
    lines = [f"# {_md(rubric.title)}: the class", "", _figures(grades), "", "## Mistakes", ""]
    mistakes = common_mistakes(grades)
    if mistakes:
        lines += ["| property | students | who | for example | cause and fix |", "|---|---:|---|---|---|"]
        for each in mistakes:
            cells = (each.property, str(len(each.students)), ", ".join(each.students), each.example.evidence)
            lines.append(f"| {' | '.join(map(_md, cells))} | {_md(_advice(each.example))} |")
    else:
        lines.append("None.")
    refused = [grade for grade in grades if grade.refused]
    if refused:
        lines += ["", "## Not graded", "", "| student | file | reason |", "|---|---|---|"]
        lines += [f"| {_md(g.student)} | {_md(Path(g.path).name)} | {_md(g.refused or '')} |" for g in refused]
    lines += ["", "## Points", "", "| property | mean | of | full |", "|---|---:|---:|---:|"]
    lines += [
        f"| {_md(name)} | {mean:.3g} | {of:g} | {full} |" for name, mean, of, full in _by_property(grades, rubric)
    ]
    return "\n".join([*lines, ""])


def summary_html(grades: Sequence[Grade], rubric: Rubric) -> str:
    """The summary of the class as an HTML page."""
    rows: list[list[object]] = [
        [each.property, len(each.students), ", ".join(each.students), each.example.evidence, _advice(each.example)]
        for each in common_mistakes(grades)
    ]
    parts = [f"<p>{html.escape(_figures(grades))}</p>", "<h2>Mistakes</h2>"]
    parts.append(
        _html.table(["property", "students", "who", "for example", "cause and fix"], rows) if rows else "<p>None.</p>"
    )
    refused: list[list[object]] = [[g.student, Path(g.path).name, g.refused] for g in grades if g.refused]
    if refused:
        parts += ["<h2>Not graded</h2>", _html.table(["student", "file", "reason"], refused)]
    means: list[list[object]] = [
        [name, f"{mean:.3g}", f"{of:g}", full] for name, mean, of, full in _by_property(grades, rubric)
    ]
    parts += ["<h2>Points</h2>", _html.table(["property", "mean", "of", "full"], means)]
    return _html.page(f"{rubric.title}: the class", *parts)


def _by_property(grades: Sequence[Grade], rubric: Rubric) -> list[tuple[str, float, float, int]]:
    """Each property with its mean, its points, and how many got all of them."""
    graded = [grade for grade in grades if grade.refused is None]
    rows = []
    for index, part in enumerate(rubric.properties):
        points = [grade.properties[index].points for grade in graded]
        rows.append((part.name, statistics.mean(points) if points else 0.0, part.points, points.count(part.points)))
    return rows


def _md(text: str) -> str:
    """Text of a submission in Markdown: one line in which nothing is markup."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$])", r"\\\1", clean(text, 1000))


def _md_code(line: str) -> list[str]:
    fence = "`" * (max((len(run) for run in re.findall(r"`+", line)), default=0) + 3)
    return [f"{fence}python", _printable(line), fence]


def _printable(line: str) -> str:
    text = "".join(letter if letter.isprintable() else " " for letter in line.expandtabs(4)[:300])
    return text.rstrip()


def _capital(text: str) -> str:
    """A place with a capital letter, unless it begins with the name of a file."""
    if not text.startswith(("line", "cell")):
        return text
    return text[:1].upper() + text[1:]
