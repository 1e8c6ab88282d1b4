"""Read text, TSV and .npz files safely, and report bad items: every error names the file and the place in it."""

import struct
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.lib import format as npy

from qkv._files import open_regular

BadItems = Literal["error", "skip"]  # what to do about items that cannot be read
SHOWN = 3  # bad items listed in a message
MAX_NPZ_BYTES = 4 << 30  # that an archive may unpack to
BOMB_BYTES, BOMB_RATIO = 64 << 20, 100  # from this size on, a compression ratio that no real data has is a zip bomb


@dataclass
class BadItemLog:
    """Collects items that cannot be used. `finish` raises if there are any, or says which were skipped.

    >>> log = BadItemLog("images", "skip")
    >>> log.add("cats/3.png", "not an image")
    >>> log.finish(total=10)
    ('skipped 1 of 10 images: cats/3.png: not an image',)
    """

    what: str
    policy: BadItems = "error"
    found: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.policy not in ("error", "skip"):
            raise ValueError(f"bad_items must be 'error' or 'skip', got {self.policy!r}")

    def add(self, where: object, problem: object) -> None:
        self.found.append(f"{where}: {problem}")

    def finish(self, total: int) -> tuple[str, ...]:
        """Notes about skipped items; a ValueError if none may be skipped, or if none is left."""
        if not self.found:
            return ()
        more = len(self.found) - SHOWN
        listed = "; ".join(self.found[:SHOWN]) + (f"; and {more:,} more" if more > 0 else "")
        if self.policy == "skip" and len(self.found) < total:
            return (f"skipped {len(self.found):,} of {total:,} {self.what}: {listed}",)
        advice = "" if self.policy == "skip" else ". Repair or remove them, or ask to skip bad items"
        raise ValueError(f"{len(self.found):,} of {total:,} {self.what} cannot be used: {listed}{advice}")


def describe_error(error: BaseException) -> str:
    """An error message on one line, cut to 200 characters."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def read_text(path: str | Path) -> str:
    """Read a UTF-8 file; an empty file or bytes that are not UTF-8 raise a ValueError that says where."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"there is no file {path}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected a text file")
    with open_regular(path) as file:
        content = file.read()
    if not content.strip():
        raise ValueError(f"{path} is empty; expected text in UTF-8")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}, line {line}: byte {error.start} (0x{content[error.start]:02x}) is not UTF-8; save the file as "
            f"UTF-8, or convert it: iconv -f latin1 -t utf-8"
        ) from None


def read_lines(path: str | Path) -> list[str]:
    """Read the lines of a UTF-8 file. Only \\n ends a line, so that line numbers are those of an editor."""
    text = read_text(path)
    return (text[:-1] if text.endswith("\n") else text).split("\n")


def read_table(path: str | Path, columns: int) -> list[tuple[str, ...]]:
    """Read a file of tab-separated columns; a row with another number of columns raises a ValueError that names it."""
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        cells = tuple(cell.strip() for cell in line.split("\t"))
        if len(cells) != columns:
            shown = repr(line if len(line) <= 60 else line[:57] + "…")
            raise ValueError(
                f"{path}, line {number}: expected {columns} columns separated by tabs, got {len(cells)}: {shown}"
            )
        if not all(cells):
            raise ValueError(f"{path}, line {number}: column {cells.index('') + 1} of {columns} is empty")
        rows.append(cells)
    return rows


def read_npz(path: str | Path) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file by name. Pickles are refused, and sizes are checked before unpacking."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            _check_unpacked_size(path, entries)
            return {entry.filename.removesuffix(".npy"): _read_array(path, archive, entry) for entry in entries}
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged or not an .npz file: {describe_error(error)}") from None


def _check_unpacked_size(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    unpacked, stored = sum(e.file_size for e in entries), sum(e.compress_size for e in entries)
    if not entries:
        raise ValueError(f"{path} holds no arrays")
    if unpacked > MAX_NPZ_BYTES:
        raise ValueError(f"{path} would unpack to {unpacked:,} bytes; at most {MAX_NPZ_BYTES:,} are read into memory")
    if unpacked > BOMB_BYTES and unpacked > BOMB_RATIO * stored:
        raise ValueError(
            f"{path} would unpack {stored:,} bytes to {unpacked:,}, {unpacked // max(stored, 1)} times as many: "
            "refused as a zip bomb; save it with np.savez if it is real"
        )


def _read_array(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """One array. The size in its header must agree with the archive before anything is unpacked."""
    where = f"{path}, array {entry.filename.removesuffix('.npy')}"
    with archive.open(entry) as file:
        try:
            version = npy.read_magic(file)
            read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read_header(file)
        except (ValueError, OverflowError, SyntaxError) as error:
            raise ValueError(f"{where} is not an array: {describe_error(error)}") from None
        if dtype.hasobject:
            raise ValueError(f"{where} holds Python objects, that is, a pickle: refused; save it as numbers or text")
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if size > entry.file_size or min(shape, default=0) < 0:
            raise ValueError(f"{where} is cut short: {shape} of {dtype} is {size:,} bytes, got {entry.file_size:,}")
        content = file.read(size)
    if len(content) != size:
        raise ValueError(f"{where} is cut short: {shape} of {dtype} is {size:,} bytes, got {len(content):,}")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")
