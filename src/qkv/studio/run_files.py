"""Files of a run while it trains: metric series since a mark, the newest checkpoint, samples, file stamps."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any, BinaryIO

from qkv._files import open_regular, read_limited
from qkv.training.run_progress import METRICS_FILE, checkpoint_steps, is_number, line_seconds, parse_lines
from qkv.training.runs import SAMPLES_FILE

CHUNK = 4 * 2**20  # bytes that are read at a time
MARK_BYTES = 512  # bytes before a mark by which the file is recognized
PLAIN_SERIES = ("rate", "gradient_norm")  # series that are not losses or metrics of training
MAX_SAMPLES, MAX_CELL, MAX_IMAGE = 60, 4000, 200_000  # rows; characters of a cell, and of an image
MAX_SAMPLES_FILE = 8 * 2**20  # bytes
IMAGE = "data:image/png;base64,"

Series = dict[str, dict[str, list[int | float]]]
Rows = list[dict[str, Any]]
FileStamp = tuple[tuple[int, int], ...]


def printable_name(folder: Path) -> str:
    """The name of a folder for the page; bytes that are not UTF-8 are escaped, because addresses cannot contain them.

    >>> printable_name(Path("runs/bad\\udcff"))
    'bad\\\\udcff'
    """
    return folder.name.encode("utf-8", "backslashreplace").decode("utf-8")


def file_stamp(*files: Path) -> FileStamp:
    """Modification time and inode of each file (zeros if it does not exist), to notice that a file was replaced."""
    stamps = []
    for path in files:
        try:
            status = path.stat()
        except OSError:
            stamps.append((0, 0))
        else:
            stamps.append((status.st_mtime_ns, status.st_ino))
    return tuple(stamps)


def read_series(folder: Path, mark: str = "") -> dict[str, Any]:
    """The metric series of a stage after a mark, which an earlier call returned.

    A mark is an offset in metrics.jsonl with a digest of the bytes before it. If these changed (the run went back to a
    checkpoint), `reset` is True and the series are complete. `more` says that another call returns more at once. An
    incomplete last line is left for the next call.
    """
    path = folder / METRICS_FILE
    if not path.is_file():
        return {"mark": "", "reset": True, "more": False, "series": {}}
    with open_regular(path, follow_link=False) as file:
        start = _find_mark(file, mark)
        file.seek(start)
        chunk = file.read(CHUNK)
        size = file.seek(0, 2)
        lines = chunk[: chunk.rfind(b"\n") + 1]
        series, seconds = _to_series(lines, _mark_seconds(mark) if start else 0.0)
        end = start + len(lines)
        return {
            "mark": _make_mark(file, end, f"{seconds:g}"),
            "reset": start == 0,
            "more": end < size and len(chunk) == CHUNK and bool(lines),
            "series": series,
        }


def newest_checkpoint(stages: dict[str, Path]) -> str:
    """Stage and step of the newest checkpoint, such as "train 300"; "" if there is none. stages: their folders."""
    for stage, folder in reversed(stages.items()):
        if steps := checkpoint_steps(folder):
            return f"{stage} {steps[-1]}"
    return ""


def read_samples(folder: Path) -> Rows:
    """The samples of a finished run: rows with named columns; images are data URLs."""
    path = folder / SAMPLES_FILE
    if not path.is_file() or path.stat().st_size > MAX_SAMPLES_FILE:
        return []
    try:
        rows = json.loads(read_limited(path, MAX_SAMPLES_FILE, follow_link=False))
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None
    return limit_rows(rows if isinstance(rows, list) else [])


def limit_rows(rows: list[Any]) -> Rows:
    """At most 60 rows, with cells of limited length."""
    kept = [row for row in rows if isinstance(row, dict)][:MAX_SAMPLES]
    return [{str(name): limit_cell(value) for name, value in row.items()} for row in kept]


def limit_cell(value: Any) -> Any:
    """A finite number unchanged, anything else as text of limited length."""
    if isinstance(value, int | float | bool) and math.isfinite(value):
        return value
    text = str(value)
    return text[: MAX_IMAGE if text.startswith(IMAGE) else MAX_CELL]


def _to_series(text: bytes, seconds: float) -> tuple[Series, float]:
    """Values by name with their steps and seconds of training; and the last of these seconds."""
    found: Series = {}

    def add(name: str, step: int, value: Any) -> None:
        if is_number(value):
            series = found.setdefault(name, {"step": [], "seconds": [], "value": []})
            series["step"].append(step)
            series["seconds"].append(seconds)
            series["value"].append(value)

    for line in parse_lines(text):
        step = line["step"]
        seconds = line_seconds(line, seconds)
        for name, value in line.get("evaluation", {}).items():
            add(f"validation {name}", step, value)
        for name, value in line.items():
            if name in PLAIN_SERIES:
                add(name, step, value)
            elif name not in ("step", "epoch", "timing", "evaluation"):
                add(f"training {name}", step, value)
        add("items_per_second", step, line.get("timing", {}).get("items_per_second"))
    return found, seconds


def _make_mark(file: BinaryIO, offset: int, seconds: str) -> str:
    """offset:seconds:digest of the bytes before the offset."""
    start = max(offset - MARK_BYTES, 0)
    file.seek(start)
    before = file.read(offset - start)
    digest = hashlib.sha256(before).hexdigest()[:16] if len(before) == offset - start else "short"
    return f"{offset}:{seconds}:{digest}"


def _find_mark(file: BinaryIO, mark: str) -> int:
    """The offset of a mark; 0 if it does not belong to this file."""
    offset, _, rest = mark.partition(":")
    if not (offset.isascii() and offset.isdigit() and len(offset) < 16):
        return 0
    return int(offset) if _make_mark(file, int(offset), rest.partition(":")[0]) == mark else 0


def _mark_seconds(mark: str) -> float:
    try:
        return float(mark.split(":")[1])
    except (ValueError, IndexError):
        return 0.0
