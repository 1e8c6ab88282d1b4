"""One submission and one rubric: what is found, and the points."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qkv.check.finding import Finding
from qkv.check.grading.exercises import EXERCISES
from qkv.check.grading.exercises.exercise import Producer
from qkv.check.grading.remote import Remote, UnansweredError, clean
from qkv.check.grading.rubric import Property, Rubric
from qkv.check.grading.secret import Salted

LONGEST_FILE = 1_000_000
STAGES = {
    "import": "the file does not run",
    "name": "the interface is not met",
    "build": "it could not be built",
    "time": "it was stopped",
}


@dataclass(frozen=True)
class Earned:
    """The points of one property, and what its checks found."""

    name: str
    points: float
    possible: float
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Grade:
    """One submission's points. remark: the first thing that cost points, in a sentence; None if nothing did."""

    student: str
    path: str
    earned: tuple[Earned, ...]
    remark: str | None
    seed: int

    @property
    def total(self) -> float:
        return sum(part.points for part in self.earned)

    @property
    def possible(self) -> float:
        return sum(part.possible for part in self.earned)

    def as_dict(self) -> dict[str, Any]:
        return {"total": self.total, "possible": self.possible, **asdict(self)}


def grade(
    rubric: Rubric,
    path: Path,
    student: str,
    seed: int,
    *,
    walls: bool = True,
    hidden: Sequence[Path] = (),
    live: set[Remote] | None = None,
) -> Grade:
    """Judge one file. It is read here and run elsewhere; whatever it does, there is a grade.

    live: where its sandbox is kept while it runs, so that another thread can stop it.
    """
    try:
        source = read_submission(path)
    except (OSError, ValueError) as error:
        return _nothing(rubric, path, student, seed, _words_of(error))
    remote = Remote(
        source=source,
        name=rubric.interface.name,
        build=rubric.interface.build,
        seed=seed,
        limits=rubric.limits,
        walls=walls,
        hidden=tuple(hidden),
    )
    live = set() if live is None else live
    live.add(remote)
    try:
        with remote, Salted(seed):
            findings = judged(remote, rubric)
    except UnansweredError as error:
        return _nothing(rubric, path, student, seed, f"{STAGES.get(error.stage, 'the call failed')}: {error}")
    finally:
        live.discard(remote)
    earned = tuple(_points(part, findings) for part in rubric.properties)
    return Grade(student, str(path), earned, _remark(earned), seed)


def judged(remote: Remote, rubric: Rubric) -> dict[str, Finding]:
    """The findings that the rubric asks for, by name."""
    exercise = EXERCISES[rubric.exercise]
    prepared = exercise.prepare(remote, rubric)
    findings: dict[str, Finding] = {}
    for producer in exercise.producers:
        wanted = [check for check in producer.checks if check in rubric.checks]
        if wanted:
            found = {finding.check: finding for finding in _guarded(producer, prepared, wanted)}
            findings |= {check: found.get(check) or _missing(check, found) for check in wanted}
    return findings


def _guarded(producer: Producer, prepared: Any, wanted: list[str]) -> list[Finding]:
    """What fails for the submission's sake is a finding, never the end of the grading."""
    try:
        return producer.find(prepared)
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError, ArithmeticError, MemoryError) as error:
        words = clean(str(error)) or type(error).__name__
        return [Finding(check, "fail", None, f"the call failed: {words}") for check in wanted]


def _missing(check: str, found: dict[str, Finding]) -> Finding:
    """A check that came to nothing says why: another of its family did not."""
    other = next(iter(found.values()), None)
    return Finding(check, "inconclusive", None, other.evidence if other else "nothing could be measured")


def _points(part: Property, findings: dict[str, Finding]) -> Earned:
    """All or nothing: every check of the property passes."""
    found = tuple(findings[check] for check in part.checks)
    fine = all(finding.verdict == "pass" for finding in found)
    return Earned(part.name, part.points if fine else 0.0, part.points, found)


def _remark(earned: Sequence[Earned]) -> str | None:
    for part in earned:
        for finding in part.findings:
            if finding.verdict != "pass":
                hint = f" ({finding.hint})" if finding.hint else ""
                return clean(f"{part.name}: {finding.evidence}{hint}", 600)
    return None


def _nothing(rubric: Rubric, path: Path, student: str, seed: int, why: str) -> Grade:
    finding = Finding("submission", "fail", None, why)
    earned = tuple(Earned(part.name, 0.0, part.points, (finding,)) for part in rubric.properties)
    return Grade(student, str(path), earned, clean(why, 600), seed)


def read_submission(path: Path) -> str:
    """The text of a plain file; a link could lead to a neighbour's, and a pipe nowhere."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(number, "rb") as file:
        about = os.fstat(number)
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("it is no plain file")
        if about.st_size > LONGEST_FILE:
            raise ValueError(f"it has {about.st_size} bytes; {LONGEST_FILE} are allowed")
        try:
            return file.read(LONGEST_FILE).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ValueError("it is no text in UTF-8") from None


def _words_of(error: Exception) -> str:
    if isinstance(error, OSError):
        if error.errno == 40:  # ELOOP: O_NOFOLLOW met a link
            return "it is a symbolic link, which is not followed"
        return f"it cannot be read: {error.strerror}"
    return str(error)
