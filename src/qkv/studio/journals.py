"""The metrics of runs that go on: what was added since the last look, as series; half a line is left for the next."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qkv.training.metrics_log import NAME

PIECE = 4 * 2**20  # bytes that are read at a time
TAIL = 16 * 2**10  # bytes in which the last whole lines are looked for
KNOWN = 512  # bytes before a mark by which a journal is known again
PLAIN = ("rate", "gradient_norm")  # of training, beside its losses; and how fast it goes

Series = dict[str, dict[str, list[int | float]]]


def since(folder: Path, mark: str = "") -> dict[str, Any]:
    """The series of a stage's journal after a mark.

    A mark is a place in the file and what stands before it: if that is not there any more (the run went back to a
    checkpoint), `anew` is true and the series are whole. `more` says that the next look finds more at once.
    """
    path, place = folder / NAME, 0
    if not path.is_file():
        return {"mark": "", "anew": True, "more": False, "series": {}}
    with path.open("rb") as file:
        told, _, seconds = mark.partition(":")
        if (
            told.isascii()
            and told.isdigit()
            and len(told) < 16
            and _mark(file, int(told), seconds.partition(":")[0]) == mark
        ):
            place = int(told)
        file.seek(place)
        piece = file.read(PIECE)
        size = file.seek(0, 2)
        whole = piece[: piece.rfind(b"\n") + 1]
        before = _seconds(mark) if place else 0.0
        series, latest = _series(whole, before)
        end = place + len(whole)
        return {
            "mark": _mark(file, end, f"{latest:g}"),
            "anew": place == 0,
            "more": end < size and len(piece) == PIECE and bool(whole),
            "series": series,
        }


def last_step(folder: Path) -> tuple[int, float]:
    """The last step that a stage's journal knows of, and the seconds it took; (0, 0.0) if it knows none."""
    path = folder / NAME
    if not path.is_file():
        return 0, 0.0
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - TAIL, 0))
        tail = file.read(TAIL)
    step, seconds = 0, 0.0
    for line in _lines(tail[: tail.rfind(b"\n") + 1]):
        step = max(step, line["step"])
        seconds = _later(line, seconds)
    return step, seconds


def _series(text: bytes, seconds: float) -> tuple[Series, float]:
    """Numbers by name, each with its step and the seconds of training by then; and the last of those seconds."""
    found: Series = {}

    def add(name: str, step: int, value: Any) -> None:
        if _is_number(value):
            held = found.setdefault(name, {"step": [], "seconds": [], "value": []})
            held["step"].append(step)
            held["seconds"].append(seconds)
            held["value"].append(value)

    for line in _lines(text):
        step = line["step"]
        seconds = _later(line, seconds)
        for name, value in line.get("evaluation", {}).items():
            add(f"validation {name}", step, value)
        for name, value in line.items():
            if name in PLAIN:
                add(name, step, value)
            elif name not in ("step", "epoch", "timing", "evaluation"):
                add(f"training {name}", step, value)
        add("items_per_second", step, line.get("timing", {}).get("items_per_second"))
    return found, seconds


def _lines(text: bytes) -> Iterator[dict[str, Any]]:
    """The lines that can be read: a first one may be cut, and a disk that was full may have left one in the middle."""
    for raw in text.splitlines():
        try:
            line = json.loads(raw)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            odd = [part for part in ("timing", "evaluation") if not isinstance(line.get(part, {}), dict)]
            yield {name: value for name, value in line.items() if name not in odd}


def _later(line: dict[str, Any], seconds: float) -> float:
    """The seconds of training that a line tells; those of the line before where it tells none."""
    told = line.get("timing", {}).get("seconds")
    return float(told) if _is_number(told) else seconds


def _is_number(value: Any) -> bool:
    """Whether a page can be told of it: what is not finite, or larger than any float, is left out."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _mark(file: Any, place: int, seconds: str) -> str:
    """place:seconds:digest of what stands before the place."""
    start = max(place - KNOWN, 0)
    file.seek(start)
    before = file.read(place - start)
    digest = hashlib.sha256(before).hexdigest()[:16] if len(before) == place - start else "short"
    return f"{place}:{seconds}:{digest}"


def _seconds(mark: str) -> float:
    try:
        return float(mark.split(":")[1])
    except (ValueError, IndexError):
        return 0.0
