"""Runs as their directories record them, read without torch: what `qkv runs` lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv._config import RECIPE_FILE, read_toml
from qkv.training.run_progress import RunProgress, read_progress
from qkv.training.run_state import RunState, find_state, read_status

NO_STAGES = ("recipe", "seed", "data", "model")  # the other tables of recipe.toml are the stages


@dataclass(frozen=True)
class RunRecord:
    """A run directory as data: the tables of its recipe.toml, and its run.json."""

    folder: Path
    tables: Mapping[str, Any]
    status: Mapping[str, Any]

    @property
    def recipe(self) -> str:
        return str(self.tables.get("recipe", ""))

    @property
    def seed(self) -> int:
        return int(self.tables.get("seed", 0))

    @property
    def model_kind(self) -> str:
        return str(self.tables.get("model", {}).get("kind", ""))

    @property
    def parameters(self) -> int:
        return int(self.status.get("parameters", 0))

    @property
    def stages(self) -> list[str]:
        return [name for name in self.tables if name not in NO_STAGES]

    @property
    def stage_folders(self) -> list[Path]:
        return [self.folder] if len(self.stages) == 1 else [self.folder / name for name in self.stages]

    @property
    def steps(self) -> int:
        """The steps of all stages."""
        return sum(int(self.tables[name].get("steps", 0)) for name in self.stages)

    @property
    def progress(self) -> RunProgress:
        """The last step that is recorded, and the seconds of training by then."""
        return read_progress(self.stage_folders)

    @property
    def seconds(self) -> float:
        """Seconds of training; of an unfinished run those until the last line of its metrics."""
        return float(self.status.get("seconds") or self.progress.seconds)

    @property
    def error(self) -> str:
        """What ended the run, if it failed."""
        return str(self.status.get("error", ""))

    @property
    def result(self) -> Mapping[str, Any]:
        return self.status.get("result", {})

    @property
    def finished(self) -> bool:
        return bool(self.status.get("finished"))

    @property
    def state(self) -> RunState:
        """Read the present state of the run from its directory."""
        return find_state(self.folder, self.stage_folders)


def read_record(run_folder: str | Path) -> RunRecord:
    """Read a run directory."""
    run_folder = Path(run_folder)
    if not (run_folder / RECIPE_FILE).is_file():
        raise ValueError(f"{run_folder} is not a run: it has no {RECIPE_FILE}. `qkv runs` lists the runs")
    tables = read_toml(run_folder / RECIPE_FILE, follow_link=False)
    for name, kind in (("seed", int), ("model", dict)):
        if not isinstance(tables.get(name), kind):
            raise ValueError(f"{run_folder / RECIPE_FILE} is damaged: {name} is {tables.get(name)!r}")
    return RunRecord(run_folder, tables, read_status(run_folder))


def format_metric(name: str, value: float) -> str:
    """Format a metric: shares as percentages.

    >>> format_metric("accuracy", 0.98333), format_metric("loss", 0.0712)
    ('98.33%', '0.071')
    """
    is_share = name in ("accuracy", "too_short") or name.startswith("word_error_rate")
    return f"{value:.2%}" if is_share else f"{value:,.3f}"
