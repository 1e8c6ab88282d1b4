"""TrainState: step, position in the data, running sums and best metric of a run; saved in every checkpoint."""

import math
from dataclasses import dataclass, field
from typing import Any

from qkv.training.data_loader import Position


@dataclass
class TrainState:
    """What a run has done so far, besides model and optimizer.

    position: of the next batch. sums: [sum, count] of each metric since the last log line.
    evaluation: metrics of the last evaluation. best: step and value of the best one.
    seconds: training time, before and after interruptions. epoch, lr, grad_norm: of the last step; not saved.
    """

    step: int = 0
    position: Position = Position()  # noqa: RUF009  (immutable)
    sums: dict[str, list[float]] = field(default_factory=dict)
    best: tuple[int, float] | None = None
    evaluation: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    epoch: int = 0
    lr: float = 0.0
    grad_norm: float = 0.0

    def add_sums(self, names: list[str], packed: list[float]) -> None:
        """Add the sums and counts of a step; `packed` has two numbers for each name."""
        for name, total, count in zip(names, packed[::2], packed[1::2], strict=True):
            entry = self.sums.setdefault(name, [0.0, 0.0])
            entry[0] += total
            entry[1] += count

    def logged_items(self) -> float:
        """Number of scored items since the last log line."""
        return self.sums["loss"][1] if "loss" in self.sums else 0.0

    def pop_means(self) -> dict[str, float]:
        """Return the means since the last call and start new sums."""
        means = {name: total / count if count else 0.0 for name, (total, count) in self.sums.items()}
        self.sums = {}
        return means

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data for state.json."""
        evaluation = {name: value if math.isfinite(value) else None for name, value in self.evaluation.items()}
        return {
            "step": self.step,
            "position": list(self.position),
            "sums": self.sums,
            "best": self.best,
            "evaluation": evaluation,
            "seconds": self.seconds,
        }

    def update_from(self, saved: dict[str, Any]) -> None:
        """Take the values that `to_dict` saved."""
        self.step, self.position, self.sums = saved["step"], Position(*saved["position"]), saved["sums"]
        self.best = None if saved["best"] is None else tuple(saved["best"])
        self.evaluation = {name: math.nan if value is None else value for name, value in saved["evaluation"].items()}
        self.seconds = saved["seconds"]
