"""A journal of finished grades, so that a second call grades only what is new or changed.

It stands next to the CSV file: one JSON line for each grade, written as soon as the grade is made. A line counts if the
file, the rubric, the seed and the version of the grader are the same.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qkv._files import check_writable, json_safe, open_regular
from qkv.check.grading.grade import NOT_GRADED, Grade, student_names
from qkv.check.grading.reading import RefusedError
from qkv.check.grading.reading.submission import read_regular_file
from qkv.check.grading.rubric import Rubric

VERSION = 1  # of the checks: raise it when they judge differently


def journal_path(csv: Path) -> Path:
    """grades.csv → grades.journal.jsonl"""
    return csv.with_name(f"{csv.stem}.journal.jsonl")


class Journal:
    """The grades of earlier calls. fresh: begin a new journal."""

    def __init__(self, path: Path, rubric: Rubric, *, isolated: bool, fresh: bool = False) -> None:
        self.path = check_writable(path)
        self.key = f"{VERSION} {rubric.digest} {rubric.limits} {isolated}"
        self.lines = [] if fresh else self._read()
        self.started = False

    def _read(self) -> list[dict[str, Any]]:
        """The lines of this rubric; a line that a kill cut short, or that is none, is left out."""
        if not self.path.exists():
            return []
        lines = []
        with open_regular(self.path) as file:
            for line in file:
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if isinstance(entry, dict) and entry.get("key") == self.key:
                    lines.append(entry)
        return lines

    @property
    def seed(self) -> int | None:
        """The seed of the last call, so that all grades of a class come from the same inputs."""
        seeds = [line["seed"] for line in self.lines if isinstance(line.get("seed"), int)]
        return seeds[-1] if seeds else None

    def finished(self, paths: Sequence[Path], seed: int) -> dict[int, Grade]:
        """Grades that still hold, by index of the file."""
        known = {line.get("file"): line for line in self.lines if line.get("seed") == seed}
        grades: dict[int, Grade] = {}
        for index, (path, student) in enumerate(zip(paths, student_names(paths), strict=True)):
            line = known.get(_digest(path))
            try:
                if line is not None:
                    grades[index] = Grade.from_dict({**line["grade"], "student": student, "path": str(path)})
            except (TypeError, KeyError, AttributeError):
                continue
        return grades

    def add(self, grade: Grade) -> None:
        """Append a grade. One whose sandbox failed is not kept: it will be tried again."""
        if grade.refused is not None and grade.refused.startswith(NOT_GRADED):
            return
        entry = {"key": self.key, "file": _digest(Path(grade.path)), "seed": grade.seed, "grade": grade.to_dict()}
        mode = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        mode |= 0 if self.started or self.lines else os.O_TRUNC
        with os.fdopen(os.open(self.path, mode, 0o600), "a", encoding="utf-8") as file:
            file.write(("" if self.started else "\n") + json.dumps(json_safe(entry)) + "\n")
        self.started = True


def _digest(path: Path) -> str:
    """What tells whether a file changed: its name and its content, or why it cannot be read."""
    try:
        content = read_regular_file(path)
    except RefusedError as error:
        content = str(error).encode()
    return hashlib.sha256(path.name.encode("utf-8", "surrogateescape") + b"\0" + content).hexdigest()
