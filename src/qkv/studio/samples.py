"""What runs' models do: when they are trained, as the run wrote it down; and on the way there, at their checkpoints."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from qkv.studio.jobs import Job
from qkv.studio.stamps import Stamp, stamp
from qkv.studio.state import Studio
from qkv.studio.work.post import Post
from qkv.training.checkpointing import Store
from qkv.training.runs import RECIPE, SAMPLES

MOST_SAMPLES, LONGEST_CELL, LONGEST_PICTURE = 60, 4000, 200_000
PICTURE = "data:image/png;base64,"
LARGEST_SAMPLES = 8 * 2**20  # bytes
KEPT = 24  # checkpoints of a run whose samples are remembered
RUNS = 8  # of which they are
Rows = list[dict[str, Any]]


class Sampled:
    """Samples of runs that go on. A process of its own reads a run's data once, and each checkpoint when asked."""

    def __init__(self, studio: Studio) -> None:
        self.jobs = studio.jobs
        self.post = Post("qkv.studio.work.samples")
        studio.ending.append(self.post.close)
        self._seen: dict[tuple[str, Stamp], dict[str, dict[str, Any]]] = {}  # by run, by checkpoint

    def seen(self, place: Path) -> list[dict[str, Any]]:
        """What was seen of a run's checkpoints, the oldest first."""
        return list(self._seen.get(_known(place), {}).values())

    def ask(self, place: Path) -> dict[str, str]:
        """The job that lets the model of the newest checkpoint do something."""
        run = _known(place)

        def work(job: Job) -> list[dict[str, Any]]:
            for said in self.post.ask({"place": str(place.resolve())}, job):
                if isinstance(said.get("samples"), list):
                    self._keep(run, str(said["stage"]), int(said["step"]), bounded(said["samples"]))
            return self.seen(place)

        return {"job": self.jobs.start("samples", work, lane="samples").id}

    def _keep(self, run: tuple[str, Stamp], stage: str, step: int, rows: Rows) -> None:
        seen = self._seen.setdefault(run, {})
        seen[f"{stage} {step}"] = {"checkpoint": f"{stage} {step}", "stage": stage, "step": step, "samples": rows}
        for old in list(seen)[:-KEPT]:
            del seen[old]
        for old in list(self._seen)[:-RUNS]:
            del self._seen[old]


def _known(place: Path) -> tuple[str, Stamp]:
    """A run, and not another that was given its name later."""
    return place.name, stamp(place / RECIPE)


def newest(stages: dict[str, Path]) -> str:
    """The newest checkpoint by stage and step, as `Sampled` calls it; "" if there is none. stages: their folders."""
    for stage, folder in reversed(stages.items()):
        if steps := Store(folder).steps():
            return f"{stage} {steps[-1]}"
    return ""


def written(place: Path) -> Rows:
    """What a finished run's model does: rows with named columns; pictures are data of their own."""
    path = place / SAMPLES
    if not path.is_file() or path.stat().st_size > LARGEST_SAMPLES:
        return []
    rows = json.loads(path.read_text(encoding="utf-8"))
    return bounded(rows if isinstance(rows, list) else [])


def bounded(rows: list[Any]) -> Rows:
    """As many rows as are shown, of cells that are not too long."""
    shown = [row for row in rows if isinstance(row, dict)][:MOST_SAMPLES]
    return [{str(name): cell(value) for name, value in row.items()} for row in shown]


def cell(value: Any) -> Any:
    """A number as it is, anything else as text that is not too long."""
    if isinstance(value, int | float | bool) and math.isfinite(value):
        return value
    text = str(value)
    return text[: LONGEST_PICTURE if text.startswith(PICTURE) else LONGEST_CELL]
