"""What was measured of one training, as data: kept as JSON, one file for each row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from qkv._files import write_whole
from qkv.bench.reproduce.rows import Row

Point = tuple[int, float, float]  # step, minutes, value


@dataclass(frozen=True)
class Pace:
    """A stage's speed. share_of_peak: of the measured speed of matrix products; None if operations were not counted."""

    stage: str
    steps: int
    minutes: float
    items_per_second: float
    share_of_peak: float | None


@dataclass(frozen=True)
class Measured:
    """A trained and tested part of a row.

    command: how to get it again. commit: of qkv, when the run began. began: when that was.
    machine: processor, cores, versions. threads: that were used. peak_gigaflops: matrix products with these threads.
    minutes, steps: of training, with the evaluations on the way. test: numbers of the test.
    curve: the row's number of validation, as (step, minutes, value).
    differs: settings that are not those of the row, as NAME=VALUE.
    """

    label: str
    seed: int
    command: str
    commit: str
    began: str
    machine: dict[str, Any]
    threads: int
    peak_gigaflops: float
    parameters: int
    minutes: float
    steps: int
    items_per_second: float
    share_of_peak: float | None
    stages: tuple[Pace, ...]
    test: dict[str, Any]
    curve: tuple[Point, ...]
    differs: tuple[str, ...] = ()

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Measured:
        """From its JSON."""
        known = {field.name for field in fields(cls)}
        if missing := known - set(plain) - {"differs"}:
            raise ValueError(f"a measured part has {', '.join(sorted(known))}; {sorted(missing)[0]} is missing")
        told = {name: plain[name] for name in known if name in plain}
        told["stages"] = tuple(Pace(**stage) for stage in plain["stages"])
        told["curve"] = tuple((int(step), float(at), float(value)) for step, at, value in plain["curve"])
        return cls(**{**told, "differs": tuple(plain.get("differs", ()))})


def file_of(folder: Path, name: str) -> Path:
    """Where a row's measured parts are kept."""
    return folder / f"{name}.json"


def read(folder: Path, name: str) -> list[Measured]:
    """The measured parts of a row; none if there is no file."""
    path = file_of(folder, name)
    if not path.is_file():
        return []
    try:
        return [Measured.of(plain) for plain in json.loads(path.read_text(encoding="utf-8"))["parts"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not what `qkv reproduce` keeps: {error}") from None


def keep(folder: Path, row: Row, *measured: Measured) -> Path:
    """Add measured parts to a row's file; one of the same label and seed is replaced. The file appears whole."""
    folder.mkdir(parents=True, exist_ok=True)
    held = {(part.label, part.seed): part for part in (*read(folder, row.name), *measured)}
    parts = [asdict(rounded(part)) for part in ordered(row, held.values())]
    lines = ",\n".join(json.dumps(part, ensure_ascii=False, indent=1) for part in parts)
    path = file_of(folder, row.name)
    write_whole(path, f'{{"row": {json.dumps(row.name)}, "parts": [\n{_tight(lines)}\n]}}\n')
    return path


def ordered(row: Row, parts: Iterable[Measured]) -> list[Measured]:
    """In the row's order, then by seed; labels that the row no longer has come last."""
    labels = [part.label for part in row.parts]
    return sorted(parts, key=lambda p: (labels.index(p.label) if p.label in labels else len(labels), p.label, p.seed))


def by_label(parts: Sequence[Measured]) -> dict[str, list[Measured]]:
    """The seeds of each label, in the order given."""
    found: dict[str, list[Measured]] = {}
    for part in parts:
        found.setdefault(part.label, []).append(part)
    return found


def rounded(part: Measured) -> Measured:
    """With no more digits than were measured."""
    share = part.share_of_peak
    return replace(
        part,
        minutes=round(part.minutes, 2),
        items_per_second=round(part.items_per_second, 1),
        share_of_peak=None if share is None else round(share, 4),
        curve=tuple((step, round(at, 3), round(value, 6)) for step, at, value in part.curve),
    )


def _tight(text: str) -> str:
    """Points of a curve in a line each: three numbers in three lines are hard to read."""
    return re.sub(r"\[\s+(-?[\d.e+-]+),\s+(-?[\d.e+-]+),\s+(-?[\d.e+-]+)\s+\]", r"[\1, \2, \3]", text)
