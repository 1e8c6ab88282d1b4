"""Records of measured trainings, kept as one JSON file for each row of the results table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from qkv._files import write_atomic
from qkv.bench.reproduce.rows import ResultRow

Point = tuple[int, float, float]  # step, minutes, value


@dataclass(frozen=True)
class StageSpeed:
    """The speed of one training stage.

    share_of_peak: of the measured speed of matrix products; None if operations were not counted.
    flops: operations of all its steps; None if they were not counted, or in a record from before they were kept.
    """

    stage: str
    steps: int
    minutes: float
    items_per_second: float
    share_of_peak: float | None
    flops: float | None = None

    def operations(self, peak_gigaflops: float) -> float | None:
        """Operations of the stage; where they were not kept, its time at its share of the peak."""
        if self.flops is not None or self.share_of_peak is None:
            return self.flops
        return self.share_of_peak * peak_gigaflops * 1e9 * 60 * self.minutes


@dataclass(frozen=True)
class Record:
    """A trained and tested part of a row.

    command: reproduces it. commit: of qkv when the run began. machine: processor, cores, versions.
    threads: used in training. peak_gigaflops: of matrix products with these threads.
    minutes, steps: of training, including evaluations. test: metrics of the test.
    curve: the row's validation metric, as (step, minutes, value).
    differs: settings that differ from the row's, as NAME=VALUE.
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
    stages: tuple[StageSpeed, ...]
    test: dict[str, Any]
    curve: tuple[Point, ...]
    differs: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Record:
        """A record from its JSON."""
        known = {field.name for field in fields(cls)}
        if missing := known - set(content) - {"differs"}:
            raise ValueError(f"a record needs {', '.join(sorted(known))}; {sorted(missing)[0]} is missing")
        values = {name: content[name] for name in known if name in content}
        values["stages"] = tuple(StageSpeed(**stage) for stage in content["stages"])
        values["curve"] = tuple((int(step), float(at), float(value)) for step, at, value in content["curve"])
        values["differs"] = tuple(content.get("differs", ()))
        return cls(**values)

    def flops_at(self, step: int) -> float | None:
        """Operations of training up to a step; None if they are unknown."""
        total = 0.0
        for stage in self.stages:
            operations = stage.operations(self.peak_gigaflops)
            if operations is None:
                return None
            made = min(step, stage.steps)
            total += operations * made / max(stage.steps, 1)
            step -= made
        return total

    @property
    def flops(self) -> float | None:
        """Operations of the whole training."""
        return self.flops_at(self.steps)

    def round(self) -> Record:
        """The record with no more digits than were measured."""
        return replace(
            self,
            minutes=round(self.minutes, 2),
            items_per_second=round(self.items_per_second, 1),
            share_of_peak=None if self.share_of_peak is None else round(self.share_of_peak, 4),
            curve=tuple((step, round(at, 3), round(value, 6)) for step, at, value in self.curve),
        )


def record_file(folder: Path, row_name: str) -> Path:
    return folder / f"{row_name}.json"


def read_records(folder: Path, row_name: str) -> list[Record]:
    """The records of a row; empty if there is no file."""
    path = record_file(folder, row_name)
    if not path.is_file():
        return []
    try:
        return [Record.from_dict(content) for content in json.loads(path.read_text(encoding="utf-8"))["parts"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a file of `qkv reproduce`: {error}") from None


def write_records(folder: Path, row: ResultRow, *records: Record) -> Path:
    """Add records to a row's file; one with the same label and seed is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    by_key = {(record.label, record.seed): record for record in (*read_records(folder, row.name), *records)}
    parts = [asdict(record.round()) for record in sort_records(row, by_key.values())]
    lines = ",\n".join(json.dumps(part, ensure_ascii=False, indent=1) for part in parts)
    path = record_file(folder, row.name)
    write_atomic(path, f'{{"row": {json.dumps(row.name)}, "parts": [\n{_join_points(lines)}\n]}}\n')
    return path


def sort_records(row: ResultRow, records: Iterable[Record]) -> list[Record]:
    """In the row's order, then by seed; labels that the row no longer has come last."""
    order = {part.label: index for index, part in enumerate(row.parts)}
    return sorted(records, key=lambda record: (order.get(record.label, len(order)), record.label, record.seed))


def group_by_label(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each label, in the order given."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.label, []).append(record)
    return found


def _join_points(text: str) -> str:
    """Put each point of a curve on one line."""
    return re.sub(r"\[\s+(-?[\d.e+-]+),\s+(-?[\d.e+-]+),\s+(-?[\d.e+-]+)\s+\]", r"[\1, \2, \3]", text)
