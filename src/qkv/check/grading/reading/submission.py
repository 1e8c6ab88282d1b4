"""A submission as data: its source files by name, with cells for notebooks. Nothing in it is parsed or executed here.

The grader reads bytes and lines only. Python's own parser runs in the sandbox, because a hostile file can crash it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

MAX_FILE_BYTES = 1_000_000  # of source text
MAX_HANDED_IN_BYTES = 50_000_000  # of a notebook with its outputs, or of an archive
MAX_LINES = 100_000  # of all files and cells
MAX_LINE = 300  # characters of a line that are kept for remarks: the patterns that search it may take cubic time
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # how such a file begins
KINDS = (".py", ".ipynb", ".zip")
# Patterns that search whole sources run in the grader: none may cross lines or match the same text in two ways, or a
# long file of line ends would take hours.
EXPORTED = re.compile(r"^(# In\[[ \d]*\]|# ?%%|[ \t]*get_ipython\(\)|[%!][ \t]*\w)", re.MULTILINE)
DECLARED = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")


class RefusedError(ValueError):
    """The file cannot be graded; the message says why, in one sentence."""


@dataclass(frozen=True)
class Cell:
    """A code cell: its number, counted over all cells as notebooks show them, and its Python lines."""

    number: int
    source: str


@dataclass(frozen=True)
class Line:
    """A place in a submission: file (empty if there is only one), cell (None outside notebooks), line and its text."""

    file: str
    cell: int | None
    number: int
    text: str

    def __str__(self) -> str:
        cell = f"cell {self.cell}, " if self.cell is not None else ""
        return f"{self.file + ', ' if self.file else ''}{cell}line {self.number}"


@dataclass(frozen=True)
class SourceFile:
    """A file of source text. lenient: only imports and definitions are executed, as for notebooks."""

    path: str
    cells: tuple[Cell, ...]
    is_notebook: bool = False
    lenient: bool = False

    @property
    def text(self) -> str:
        return "\n".join(cell.source for cell in self.cells)

    def defines(self, name: str) -> bool:
        """Whether a line of it begins the definition of a class, a function or a variable of this name."""
        typed = rf"{name}[ \t]*(?::[^=\n]+)?=[^=]"
        pattern = rf"^(?:class[ \t]+{name}\b|(?:async[ \t]+)?def[ \t]+{name}\b|{typed}|from .* as {name}\b)"
        return re.search(pattern, self.text, re.MULTILINE) is not None


@dataclass(frozen=True)
class Submission:
    """The source files of one student. notes: what was left out, for the feedback."""

    files: tuple[SourceFile, ...]
    notes: tuple[str, ...] = ()
    stubs: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of_text(text: str) -> Submission:
        return Submission((SourceFile("submission.py", (Cell(1, text),), lenient=bool(EXPORTED.search(text))),))

    @property
    def text(self) -> str:
        return "\n".join(file.text for file in self.files)

    def find_definition(self, names: Sequence[str]) -> tuple[SourceFile, str] | None:
        """The file that defines one of these names, the first name first; raises if several files claim it."""
        for name in names:
            found = [file for file in self.files if file.defines(name)]
            if not found:
                continue
            depth = min(file.path.count("/") for file in found)
            found = [file for file in found if file.path.count("/") == depth]
            if len({file.text for file in found}) > 1:
                listed = " and ".join(file.path for file in found[:3])
                raise RefusedError(f"{name} is defined in {listed}, and they differ: hand in one of them")
            return found[0], name
        return None

    def pack(self) -> str:
        """The submission as JSON, for the sandbox."""
        files: list[dict[str, Any]] = [
            {
                "path": file.path,
                "lenient": file.lenient,
                "cells": [[cell.number if file.is_notebook else 0, cell.source] for cell in file.cells],
            }
            for file in self.files
        ]
        return json.dumps({"files": files, "stubs": self.stubs})

    def find_line(self, name: str, patterns: Sequence[str]) -> Line | None:
        """The line that a remark is about: the first match in the definition of `name`, then in those that it uses.

        In a class, the method that computes (forward) comes first. Code outside of definitions is not searched: it
        is not graded. A pattern that begins with (?#last) means the last match in each. Without a match, the first
        line of the definition; None if nothing of that name is defined.
        """
        file = next((file for file in self.files if file.defines(name)), None)
        if file is None:
            return None
        lines = self._lines(file)
        inside = _block(lines, name)
        is_class = bool(inside) and inside[0].text.startswith("class")
        method = _method(inside) if is_class else []
        everything = [self._lines(each) for each in (file, *(other for other in self.files if other is not file))]
        code = {line: text for found in everything for line, text in _code_of(found).items()}
        others = _used_by(inside, everything, code)
        # a class may leave the work to helper classes, whose lines fit better than a vague match in itself
        regions = [[method, inside, others]] if is_class else [[inside], [others]]
        for region in regions:
            for pattern in patterns:
                expression = re.compile(pattern)
                for part in region:
                    found = [line for line in part if expression.search(code[line])]
                    if found:
                        return found[-1 if pattern.startswith("(?#last)") else 0]
        return next(iter(method or inside), None)

    def _lines(self, file: SourceFile) -> list[Line]:
        shown = file.path if len(self.files) > 1 else ""
        return [
            Line(shown, cell.number if file.is_notebook else None, number, text[:MAX_LINE])
            for cell in file.cells
            for number, text in enumerate(cell.source.split("\n"), 1)
        ]


def _block(lines: list[Line], name: str) -> list[Line]:
    """The lines of the last definition of this name: from its first line to the next one that is not indented."""
    starts = [i for i, line in enumerate(lines) if re.match(rf"(class|def|async def)\s+{name}\b", line.text)]
    if not starts:
        return [line for line in lines if re.match(rf"{name}\s*[:=]", line.text)][-1:]
    end = starts[-1] + 1
    while end < len(lines) and (not lines[end].text.strip() or lines[end].text[0] in " \t)#\"'"):
        if lines[end].cell != lines[starts[-1]].cell:
            break
        end += 1
    return lines[starts[-1] : end]


def _used_by(block: list[Line], everything: list[list[Line]], code: dict[Line, str]) -> list[Line]:
    """The lines of all definitions that a block names, and of those that they name."""
    definitions: dict[str, list[Line]] = {}
    for lines in everything:
        for line, defined, owner in zip(lines, _in_definitions(lines), _owners(lines), strict=True):
            if defined:
                definitions.setdefault(owner, []).append(line)
    found = list(block)
    for line in found:  # grows on the way
        for name in re.findall(r"\w+", code[line]):
            found += (each for each in definitions.pop(name, ()) if each not in block)
    return found[len(block) :]


def _owners(lines: list[Line]) -> list[str]:
    """The name that each line defines, or is part of the definition of."""
    owners, owner = [], ""
    for line in lines:
        started = re.match(r"(?:(?:class|def|async def)\s+)?(\w+)", line.text)
        owner = started[1] if started and line.text[:1] not in ("@", "") else owner
        owners.append(owner)
    return owners


def _method(block: list[Line]) -> list[Line]:
    """The lines of the method of a class that computes: forward, __getitem__ or __call__."""
    for number, line in enumerate(block):
        found = re.match(r"(\s+)(?:async )?def (forward|__getitem__|__call__)\b", line.text)
        if found is not None:
            end = number + 1
            while end < len(block) and _is_deeper(block[end].text, len(found[1])):
                end += 1
            return block[number:end]
    return []


def _is_deeper(text: str, indent: int) -> bool:
    stripped = text.lstrip()
    return not stripped or stripped[0] in ")]#" or len(text) - len(stripped) > indent


def _in_definitions(lines: list[Line]) -> list[bool]:
    """For each line, whether it belongs to a class or a function, or sets a variable of the file."""
    found, inside, cell = [], False, None
    for line in lines:
        if line.cell != cell:
            inside, cell = False, line.cell
        if line.text[:1].strip() and line.text[0] not in ")#]}\"'":
            inside = re.match(r"(class|def|async def|@)\b|@|[A-Za-z_]\w*\s*=[^=]", line.text) is not None
        found.append(inside)
    return found


def _code_of(lines: list[Line]) -> dict[Line, str]:
    """What is code on each line: without its comment, and nothing inside of a docstring."""
    found, quotes = {}, None
    for line in lines:
        text = line.text if quotes is None else ""
        for mark in re.findall(r"\"{3}|'{3}", line.text):
            if quotes is None:
                quotes, text = mark, text.split(mark)[0]
            elif quotes == mark:
                quotes = None
        found[line] = text.split("#")[0]
    return found


def read_submission(path: Path) -> Submission:
    """Read what a student handed in. Raises RefusedError with the reason where it cannot be graded.

    Links (which may lead to another submission), pipes and devices are not read.
    """
    submission = _read_sources(path)
    lines = sum(cell.source.count("\n") + 1 for file in submission.files for cell in file.cells)
    if lines > MAX_LINES:
        raise RefusedError(f"it has {lines} lines of code; {MAX_LINES} are allowed")
    return submission


def _read_sources(path: Path) -> Submission:
    """The source files of a .py, .ipynb or .zip file, whatever its name says."""
    from qkv.check.grading.reading.archive import read_archive
    from qkv.check.grading.reading.notebook import parse_notebook

    content = read_regular_file(path)
    if not content.strip():
        raise RefusedError("it is empty")
    if content.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return read_archive(content)
    if path.suffix.lower() == ".zip":
        raise RefusedError("it has the name of a zip archive but is none; hand in a .py, an .ipynb or a .zip file")
    looks_like_notebook = content.lstrip()[:1] == b"{" and b'"cells"' in content
    if path.suffix.lower() == ".ipynb" or (path.suffix.lower() != ".py" and looks_like_notebook):
        return parse_notebook(content, path.name)
    if path.suffix.lower() == ".py" and looks_like_notebook:
        submission = parse_notebook(content, f"{path.stem}.ipynb")
        return Submission(submission.files, (*submission.notes, "it is a notebook with the name of a Python file"))
    if len(content) > MAX_FILE_BYTES:
        raise RefusedError(f"it has {len(content)} bytes; {MAX_FILE_BYTES} are allowed")
    submission = Submission.of_text(decode_source(content))
    if content[:2] in UTF_16:
        note = "it is saved as UTF-16, which Python cannot run: save it as UTF-8"
        return Submission(submission.files, (note,))
    return submission


def read_regular_file(path: Path) -> bytes:
    """The bytes of a regular file that is not too large."""
    limit = MAX_FILE_BYTES if path.suffix.lower() not in (".ipynb", ".zip") else MAX_HANDED_IN_BYTES
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(number, "rb") as file:
            about = os.fstat(number)
            if not stat.S_ISREG(about.st_mode):
                raise RefusedError("it is not a regular file")
            if about.st_size > limit:
                raise RefusedError(f"it has {about.st_size} bytes; {limit} are allowed")
            return file.read(limit)
    except OSError as error:
        if error.errno == errno.ELOOP:  # O_NOFOLLOW met a link
            raise RefusedError("it is a symbolic link, which is not followed") from None
        raise RefusedError(f"it cannot be read: {error.strerror}") from None


def decode_source(content: bytes, path: str = "") -> str:
    """Source text in the encoding that it declares, UTF-8 by default, as Python reads it."""
    encoding = "utf-8-sig"
    if content[:2] in UTF_16:
        encoding = "utf-16"
    for line in content.split(b"\n", 2)[:2]:
        if (declared := DECLARED.match(line)) is not None:
            encoding = declared[1].decode("ascii")
    prefix = f"{path}: " if path else ""
    try:
        text = content.decode("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding)
    except LookupError:
        raise RefusedError(f"{prefix}it declares the unknown encoding {encoding[:30]!r}; save it as UTF-8") from None
    except (UnicodeDecodeError, ValueError):
        raise RefusedError(f"{prefix}it is not UTF-8 text") from None
    if "\0" in text:
        raise RefusedError(f"{prefix}it has null bytes: it is no source text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def module_stem(path: str) -> str:
    return PurePosixPath(path).stem
