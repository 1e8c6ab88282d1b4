"""Grade submissions against a rubric: one file or many, as data, CSV and a terminal table."""

from __future__ import annotations

import csv
import errno
import io
import os
import secrets
import stat
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from qkv.check.grading.client import Sandbox, SandboxUnavailableError, SubmissionError, clean
from qkv.check.grading.exercises import EXERCISES
from qkv.check.grading.exercises.common import GradedCheck, SecretDraws
from qkv.check.grading.rubric import Property, Rubric
from qkv.check.report import Finding

MAX_FILE_BYTES = 1_000_000
ENOUGH_FAILURES = 3  # if the first sandboxes all fail, this many of them, the system allows none
STAGES = {
    "import": "the file does not run",
    "name": "the interface is not met",
    "build": "it could not be built",
    "time": "it was stopped",
}
Progress = Callable[["Grade", int, int], None]


@dataclass(frozen=True)
class PropertyGrade:
    """The points of one property, and what its checks found."""

    name: str
    points: float
    possible: float
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Grade:
    """The points of one submission. remark: the first thing that cost points, in a sentence; None if nothing did."""

    student: str
    path: str
    properties: tuple[PropertyGrade, ...]
    remark: str | None
    seed: int

    @property
    def total(self) -> float:
        return sum(part.points for part in self.properties)

    @property
    def possible(self) -> float:
        return sum(part.possible for part in self.properties)

    def to_dict(self) -> dict[str, Any]:
        return {"total": self.total, "possible": self.possible, **asdict(self)}


def grade_files(
    rubric: Rubric,
    paths: Sequence[Path],
    *,
    seed: int | None = None,
    jobs: int = 2,
    isolated: bool = True,
    hidden: Sequence[Path] = (),
    progress: Progress | None = None,
) -> list[Grade]:
    """Grade many submissions at once; one that fails never affects another, and each gets a grade.

    Raises ValueError if this system allows no sandbox at all. If only some sandboxes fail, the remarks of those grades
    say so.

    Args:
        seed: draws the inputs; a fresh one by default. Every grade records it.
        jobs: how many submissions run at the same time.
        isolated: run them in the sandbox; without, only time, memory and file sizes are limited.
        hidden: directories that no submission may see, besides those of the submissions themselves.
        progress: called with each grade, the number done and the number of files.
    Returns:
        Grades in the order of the files.
    """
    seed = secrets.randbits(62) if seed is None else seed
    students = student_names(paths)
    folders = tuple({path.absolute().parent for path in paths} | set(hidden))
    stop, running = threading.Event(), set[Sandbox]()

    def grade_one(index: int) -> Grade | None:
        if stop.is_set():
            return None
        return grade_file(
            rubric, paths[index], students[index], seed, isolated=isolated, hidden=folders, running=running
        )

    pool = ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix="grade")
    try:
        indices: dict[Future[Grade | None], int] = {pool.submit(grade_one, i): i for i in range(len(paths))}
        grades: dict[int, Grade] = {}
        num_without_sandbox = 0
        for future in as_completed(indices):
            index = indices[future]
            try:
                grade = future.result()
                assert grade is not None
            except SandboxUnavailableError as error:
                num_without_sandbox += 1
                none_worked = num_without_sandbox == len(grades) + 1
                if none_worked and num_without_sandbox >= min(len(paths), ENOUGH_FAILURES):
                    raise sandbox_required(error) from None
                reason = f"not graded: its sandbox failed ({clean(str(error))})"
                grade = _zero_grade(rubric, paths[index], students[index], seed, reason)
            grades[index] = grade
            if progress is not None:
                progress(grade, len(grades), len(paths))
        return [grades[index] for index in range(len(paths))]
    finally:
        stop.set()
        for sandbox in list(running):
            sandbox.stop()
        pool.shutdown(wait=True, cancel_futures=True)


def sandbox_required(error: SandboxUnavailableError) -> ValueError:
    """The error to raise where the system allows no sandbox."""
    return ValueError(
        f"this system allows no sandbox ({error}): grading needs Linux with namespaces, as root or as a user who may "
        "create them. With --unsafe submissions run with your privileges, limited only in time and memory"
    )


def student_names(paths: Sequence[Path]) -> list[str]:
    """A name for each file: its stem, with as many parent directories as it takes to tell the files apart.

    >>> student_names([Path("in/ada/attention.py"), Path("in/alan/attention.py")])
    ['ada/attention', 'alan/attention']
    >>> student_names([Path("in/ada.py"), Path("in/alan.py")])
    ['ada', 'alan']
    """
    parts = [path.absolute().with_suffix("").parts for path in paths]
    for depth in range(1, max(map(len, parts), default=1)):
        found = ["/".join(part[-depth:]) for part in parts]
        if len(set(found)) == len(found):
            return found
    return [str(path) for path in paths]


def grade_file(
    rubric: Rubric,
    path: Path,
    student: str,
    seed: int,
    *,
    isolated: bool = True,
    hidden: Sequence[Path] = (),
    running: set[Sandbox] | None = None,
) -> Grade:
    """Grade one file. It is read here and runs in the sandbox; whatever it does, there is a grade.

    running: its sandbox is kept here while it runs, so that another thread can stop it.
    """
    try:
        source = read_submission(path)
    except (OSError, ValueError) as error:
        return _zero_grade(rubric, path, student, seed, _reading_error(error))
    sandbox = Sandbox(
        source=source,
        name=rubric.interface.name,
        build=rubric.interface.build,
        seed=seed,
        limits=rubric.limits,
        isolated=isolated,
        hidden=tuple(hidden),
    )
    running = set() if running is None else running
    running.add(sandbox)
    try:
        with sandbox, SecretDraws(seed):
            findings = run_checks(sandbox, rubric)
    except SubmissionError as error:
        return _zero_grade(rubric, path, student, seed, f"{STAGES.get(error.stage, 'the call failed')}: {error}")
    except SandboxUnavailableError:
        raise
    except Exception as error:  # whatever a submission causes is its own grade
        return _zero_grade(rubric, path, student, seed, f"it cannot be graded: {_describe_error(error)}")
    finally:
        running.discard(sandbox)
    parts = tuple(_grade_property(part, findings) for part in rubric.properties)
    return Grade(student, str(path), parts, _first_remark(parts), seed)


def run_checks(sandbox: Sandbox, rubric: Rubric) -> dict[str, Finding]:
    """Run the checks that the rubric asks for; findings by check name."""
    exercise = EXERCISES[rubric.exercise]
    prepared = exercise.prepare(sandbox, rubric)
    exercise.require_response(prepared)
    findings: dict[str, Finding] = {}
    for check in exercise.checks:
        wanted = [name for name in check.names if name in rubric.checks]
        if wanted:
            found = {finding.check: finding for finding in _run_check(check, prepared, wanted)}
            findings |= {name: found.get(name) or _inconclusive(name, found) for name in wanted}
    return findings


def _run_check(check: GradedCheck, prepared: Any, wanted: list[str]) -> list[Finding]:
    """Run one check. An error of the submission is a failing finding, never the end of the grading."""
    try:
        return check.find(prepared)
    except SandboxUnavailableError:
        raise
    except Exception as error:
        return [Finding(name, "fail", None, f"the call failed: {_describe_error(error)}") for name in wanted]


def _describe_error(error: Exception) -> str:
    return clean(str(error)) or type(error).__name__


def _inconclusive(name: str, found: dict[str, Finding]) -> Finding:
    """A check without a finding gives the reason that another finding of the same function gives."""
    other = next(iter(found.values()), None)
    return Finding(name, "inconclusive", None, other.evidence if other else "nothing could be measured")


def _grade_property(part: Property, findings: dict[str, Finding]) -> PropertyGrade:
    """All or nothing: every check of the property must pass."""
    found = tuple(findings[check] for check in part.checks)
    passed = all(finding.verdict == "pass" for finding in found)
    return PropertyGrade(part.name, part.points if passed else 0.0, part.points, found)


def _first_remark(parts: Sequence[PropertyGrade]) -> str | None:
    for part in parts:
        for finding in part.findings:
            if finding.verdict != "pass":
                hint = f" ({finding.hint})" if finding.hint else ""
                return clean(f"{part.name}: {finding.evidence}{hint}", 600)
    return None


def _zero_grade(rubric: Rubric, path: Path, student: str, seed: int, reason: str) -> Grade:
    finding = Finding("submission", "fail", None, reason)
    parts = tuple(PropertyGrade(part.name, 0.0, part.points, (finding,)) for part in rubric.properties)
    return Grade(student, str(path), parts, clean(reason, 600), seed)


def read_submission(path: Path) -> str:
    """Read the text of a regular file. Links (which may lead to another submission) and pipes are refused."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(number, "rb") as file:
        about = os.fstat(number)
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("it is not a regular file")
        if about.st_size > MAX_FILE_BYTES:
            raise ValueError(f"it has {about.st_size} bytes; {MAX_FILE_BYTES} are allowed")
        try:
            return file.read(MAX_FILE_BYTES).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ValueError("it is not UTF-8 text") from None


def _reading_error(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    if error.errno == errno.ELOOP:  # O_NOFOLLOW met a link
        return "it is a symbolic link, which is not followed"
    return f"it cannot be read: {error.strerror}"


def grades_csv(grades: Sequence[Grade], rubric: Rubric) -> str:
    """Grades as CSV, a row for each student: points by property, total, remark, seed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["student", *(csv_cell(part.name) for part in rubric.properties), "total", "remark", "seed"])
    for grade in grades:
        points = [f"{part.points:g}" for part in grade.properties]
        writer.writerow(
            [csv_cell(grade.student), *points, f"{grade.total:g}", csv_cell(grade.remark or ""), grade.seed]
        )
    return out.getvalue()


def csv_cell(text: str) -> str:
    """One line that no spreadsheet takes for a formula.

    >>> csv_cell("=1+1"), csv_cell("ada")
    ("'=1+1", 'ada')
    """
    line = clean(text, 1000)
    return f"'{line}" if line[:1] in ("=", "+", "-", "@") else line


def grades_table(grades: Sequence[Grade], rubric: Rubric) -> Group:
    """Grades for the terminal: a row for each student, a column for each property, and below what cost points."""
    grid = Table(box=None, padding=(0, 1), show_header=True, header_style="dim")
    grid.add_column("student", overflow="fold")
    for number, _ in enumerate(rubric.properties, 1):
        grid.add_column(str(number), justify="right", no_wrap=True)
    grid.add_column("total", justify="right", no_wrap=True, style="bold")
    remarks = Table.grid(padding=(0, 2))
    for grade in grades:
        cells = [
            Text(f"{part.points:g}", style="" if part.points == part.possible else "red") for part in grade.properties
        ]
        grid.add_row(Text(clean(grade.student)), *cells, f"{grade.total:g} of {grade.possible:g}")
        if grade.remark:
            remarks.add_row(Text(clean(grade.student), style="bold"), Text(grade.remark))
    key = Text("\n".join(f"{n} {p.name} ({p.points:g})" for n, p in enumerate(rubric.properties, 1)), style="dim")
    return Group(Text(rubric.title, style="bold"), key, Text(""), grid, Text(""), remarks)
