"""How far a run is: steps and seconds, from metrics.jsonl and the checkpoints, read without torch."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from qkv._files import open_regular

METRICS_FILE = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
CHECKPOINT_NAME = re.compile(r"step-(\d{8,})")
TAIL = 16 * 2**10  # bytes in which the last complete lines are searched


class RunProgress(NamedTuple):
    """The last step that is recorded, and the seconds of training by then."""

    step: int
    seconds: float


def read_progress(stage_folders: Iterable[Path]) -> RunProgress:
    """How far the stages of a run are together.

    A checkpoint may be newer than the last line of metrics: a run that is asked to stop saves one at once.
    """
    step, seconds = 0, 0.0
    for folder in stage_folders:
        last = last_line(folder)
        step += max([last.step, *checkpoint_steps(folder)[-1:]])
        seconds += last.seconds
    return RunProgress(step, seconds)


def last_line(folder: Path) -> RunProgress:
    """The last step in a stage's metrics and its seconds; (0, 0.0) if there is none."""
    path = folder / METRICS_FILE
    if not path.is_file():
        return RunProgress(0, 0.0)
    with open_regular(path, follow_link=False) as file:
        size = file.seek(0, 2)
        file.seek(max(size - TAIL, 0))
        tail = file.read(TAIL)
    step, seconds = 0, 0.0
    for line in parse_lines(tail[: tail.rfind(b"\n") + 1]):
        step = max(step, line["step"])
        seconds = line_seconds(line, seconds)
    return RunProgress(step, seconds)


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps of a stage that have a checkpoint, complete or not, in order."""
    home = folder / CHECKPOINTS
    if not home.is_dir():
        return []
    return sorted(int(found[1]) for path in home.iterdir() if (found := CHECKPOINT_NAME.fullmatch(path.name)))


def parse_lines(text: bytes) -> Iterator[dict[str, Any]]:
    """The lines that parse. The first may be cut off, and a full disk may have left a broken one in the middle."""
    for raw in text.splitlines():
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            broken = [part for part in ("timing", "evaluation") if not isinstance(line.get(part, {}), dict)]
            yield {name: value for name, value in line.items() if name not in broken}


def line_seconds(line: dict[str, Any], before: float) -> float:
    """The seconds of training in a line; those before it if it has none."""
    seconds = line.get("timing", {}).get("seconds")
    return float(seconds) if is_number(seconds) else before


def is_number(value: Any) -> bool:
    """Whether JSON can carry it: not NaN, infinite or beyond float64."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
