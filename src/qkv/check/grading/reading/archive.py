"""Zip archives: the Python files and notebooks in them, read in memory and never unpacked.

Bombs, paths out of the archive, links, encrypted and nested archives are refused by name. What computers add by
themselves (__MACOSX, .DS_Store, __pycache__, checkpoints, environments) is left out.
"""

from __future__ import annotations

import io
import re
import stat
import zipfile
import zlib
from pathlib import PurePosixPath

from qkv.check.grading.reading.notebook import parse_notebook
from qkv.check.grading.reading.submission import (
    MAX_FILE_BYTES,
    MAX_HANDED_IN_BYTES,
    Cell,
    RefusedError,
    SourceFile,
    Submission,
    decode_source,
)

MAX_ENTRIES = 2_000
MAX_SOURCES = 100
LEFT_OUT = {"__macosx", "__pycache__", ".ipynb_checkpoints", "site-packages", "venv", "env", "node_modules"}
BROKEN = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError)


def read_archive(content: bytes) -> Submission:
    """The sources of a zip archive; raises RefusedError with the reason."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return _read_entries(archive)
    except RefusedError:
        raise
    except BROKEN:
        raise RefusedError("the zip archive is damaged; make it again") from None


def _read_entries(archive: zipfile.ZipFile) -> Submission:
    entries = archive.infolist()
    if len(entries) > MAX_ENTRIES:
        raise RefusedError(f"the zip archive has {len(entries)} entries; {MAX_ENTRIES} are allowed")
    files: list[SourceFile] = []
    notes: list[str] = []
    others: list[str] = []
    nested = None
    budget = MAX_HANDED_IN_BYTES
    for entry in entries:
        name = entry.filename.replace("\\", "/")
        path = PurePosixPath(name)
        if entry.is_dir() or not path.name:
            continue
        if path.is_absolute() or ".." in path.parts or (len(name) > 1 and name[1] == ":"):
            raise RefusedError(f"the zip archive has an entry outside of itself: {_shorten(name)}")
        if _is_left_out(path):
            continue
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise RefusedError(f"the zip archive has a symbolic link: {_shorten(name)}")
        if path.suffix.lower() in (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar"):
            nested = nested or name
            continue
        if path.suffix.lower() not in (".py", ".ipynb"):
            others.append(name)
            continue
        if entry.flag_bits & 1:
            raise RefusedError(f"{_shorten(name)} in the zip archive is encrypted; hand it in without a password")
        if len(files) == MAX_SOURCES:
            raise RefusedError(f"the zip archive has more than {MAX_SOURCES} Python files and notebooks")
        source = _read_entry(archive, entry, name, budget)
        budget -= len(source)
        _add(files, notes, name, source)
    if not files:
        raise RefusedError(_why_nothing(entries, others, nested))
    if nested is not None:
        notes.append(f"{_shorten(nested)}, an archive in the archive, was not opened")
    return Submission(tuple(_without_common_folder(files)), tuple(notes))


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str, budget: int) -> bytes:
    """The bytes of an entry, read up to what is allowed, whatever size it declares."""
    limit = min(MAX_FILE_BYTES if name.lower().endswith(".py") else MAX_HANDED_IN_BYTES, budget)
    with archive.open(entry) as file:
        source = file.read(limit + 1)
    if len(source) > limit:
        raise RefusedError(f"{_shorten(name)} in the zip archive has more than {limit} bytes")
    return source


def _add(files: list[SourceFile], notes: list[str], name: str, source: bytes) -> None:
    """Add a source. One that cannot be read does not spoil the others: it becomes a note."""
    try:
        if name.lower().endswith(".ipynb"):
            files.extend(
                SourceFile(name if part.path == name else part.path, part.cells, True, True)
                for part in parse_notebook(source, name).files
            )
        elif source.strip():
            text = decode_source(source)
            files.append(SourceFile(name, (Cell(1, text),), lenient="get_ipython()" in text))
        else:
            files.append(SourceFile(name, (Cell(1, ""),)))
    except RefusedError as error:
        notes.append(f"{_shorten(name)} was not read: {error}")


def _why_nothing(entries: list[zipfile.ZipInfo], others: list[str], nested: str | None) -> str:
    if not entries:
        return "the zip archive is empty"
    if nested is not None:
        return f"the zip archive holds another archive, {_shorten(nested)}, and no Python file: hand in the files"
    held = ", ".join(_shorten(name) for name in others[:3]) or "nothing else"
    return f"the zip archive holds no Python file and no notebook; it holds {held}"


def _is_left_out(path: PurePosixPath) -> bool:
    """Whether a computer, not the student, put it there."""
    parts = [part.lower() for part in path.parts]
    return any(part in LEFT_OUT or part.startswith(".") for part in parts) or parts[-1].startswith("._")


def _without_common_folder(files: list[SourceFile]) -> list[SourceFile]:
    """The files with paths relative to the folder that holds them all; a folder that they import by name is kept."""
    parts = [PurePosixPath(file.path).parts[:-1] for file in files]
    text = "\n".join(cell.source for file in files for cell in file.cells)
    depth = 0
    while all(len(part) > depth for part in parts) and len({part[depth] for part in parts}) == 1:
        if re.search(rf"^[ \t]*(from|import)[ \t]+{re.escape(parts[0][depth])}[\s.]", text, re.MULTILINE):
            break
        depth += 1
    return [
        SourceFile("/".join(PurePosixPath(file.path).parts[depth:]), file.cells, file.is_notebook, file.lenient)
        for file in files
    ]


def _shorten(name: str) -> str:
    return name if len(name) <= 80 else f"…{name[-79:]}"
