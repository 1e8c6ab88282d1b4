"""Runs as their directories record them, read without torch: what `qkv runs` lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv._config import RECIPE_FILE, read_toml
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
    def seconds(self) -> float:
        return float(self.status.get("seconds", 0.0))

    @property
    def result(self) -> Mapping[str, Any]:
        return self.status.get("result", {})

    @property
    def finished(self) -> bool:
        return bool(self.status.get("finished"))

    @property
    def state(self) -> RunState:
        """Read the present state of the run from its directory."""
        names = [name for name in self.tables if name not in NO_STAGES]
        folders = [self.folder if len(names) == 1 else self.folder / name for name in names]
        return find_state(self.folder, folders)


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
