"""What a run tells while it goes on: a small protocol, so that a terminal, a page and a test can listen alike."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Progress:
    """Where a run is. loss and metrics: means over the steps since the last report."""

    step: int
    steps: int
    epoch: int
    loss: float
    metrics: dict[str, float]
    rate: float
    gradient_norm: float
    items_per_second: float
    seconds: float
    seconds_left: float
    memory: int


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    finished: whether every step was made. stopped: the signal that ended it before that, or that came with the last.
    checkpoint: the last one. best: the best one, and its value, if the settings name what is best.
    """

    folder: Path
    step: int
    steps: int
    finished: bool
    stopped: str | None
    seconds: float
    checkpoint: Path | None
    best: Path | None
    best_value: float | None
    evaluation: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}


class Report:
    """Hears of a run and does nothing; others override what they want to know."""

    def begin(self, step: int, steps: int) -> None:
        """The run begins, or goes on, after `step` updates."""

    def progress(self, progress: Progress) -> None:
        """Some steps were made (saving.log_every)."""

    def evaluated(self, step: int, numbers: dict[str, float]) -> None:
        """The model was evaluated."""

    def saved(self, step: int, place: Path) -> None:
        """A checkpoint was written."""

    def note(self, text: str) -> None:
        """Something that a person should know."""

    def end(self, outcome: Outcome) -> None:
        """The run has ended without an error."""

    def close(self) -> None:
        """Nothing more comes, with or without an error."""
