"""Logging: metrics.jsonl, progress callbacks (TrainCallback), speed and memory.

metrics.jsonl is append-only; resuming cuts off the lines after the checkpoint. So the file of a run that was killed and
resumed equals that of an uninterrupted run, except for `timing`.
"""

import errno
import json
import math
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.training.run_progress import METRICS_FILE
from qkv.training.state import TrainState

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Progress:
    """Where a run is. loss and metrics are means over the steps since the last report; memory is in bytes."""

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
class TrainResult:
    """How training ended.

    finished: whether all steps were made. stopped: the signal that stopped the run, or that came during its last step.
    checkpoint: the last checkpoint. best, best_value, best_step: the best checkpoint, its metric
    and its step, if the config names one.
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
    best_step: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data for JSON."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}


class TrainCallback:
    """Receives the events of a run and does nothing; override the methods of the events you need."""

    def on_start(self, step: int, steps: int) -> None:
        """Training starts, or resumes after `step` steps."""

    def on_log(self, progress: Progress) -> None:
        """A log line was written (every checkpoint.log_every steps)."""

    def on_evaluate(self, step: int, metrics: dict[str, float]) -> None:
        """The model was evaluated."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """A checkpoint was saved."""

    def on_note(self, text: str) -> None:
        """There is something the user should know."""

    def on_end(self, result: TrainResult) -> None:
        """Training ended without an error."""

    def close(self) -> None:
        """No more events follow, with or without an error."""


class MetricsFile:
    """The metrics.jsonl of a run, open for appending. end: where the lines end that the resumed checkpoint has seen."""

    def __init__(self, folder: Path, end: int = 0) -> None:
        self.path = folder / METRICS_FILE
        folder.mkdir(parents=True, exist_ok=True)
        self.file = self.path.open("ab", buffering=0)
        self.missing = max(end - self.file.tell(), 0)  # bytes that were removed from the file
        if self.file.tell() > end:
            self.file.truncate(end)
            self.file.seek(end)

    def append(self, line: dict[str, Any]) -> None:
        """Write a line."""
        left = json.dumps(line, ensure_ascii=False).encode() + b"\n"
        try:
            while left:  # a disk that is nearly full takes a part first
                left = left[self.file.write(left) :]
        except OSError as error:
            reason = "the disk is full" if error.errno in DISK_FULL else error.strerror
            message = f"could not write a line: {reason}. The newest checkpoint is complete; free space and start again"
            raise OSError(error.errno, message, str(self.path)) from error

    def sync(self) -> int:
        """Flush all lines to the disk and return where they end."""
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        self.file.close()


class MetricsLogger:
    """Measures time, writes metrics.jsonl (`file`, in rank zero only) and reports to the callback."""

    def __init__(
        self, state: TrainState, steps: int, device: torch.device, file: MetricsFile | None, callback: TrainCallback
    ) -> None:
        self.state, self.steps, self.device, self.file, self.callback = state, steps, device, file, callback
        self.origin = time.perf_counter() - state.seconds
        self.restart_timer()

    def restart_timer(self) -> None:
        """Measure speed from now on; what happened in between was not training."""
        self.since = time.perf_counter()
        self.items_before = self.state.logged_items()

    def log(self) -> None:
        """Write a line with the means since the last one."""
        state, now = self.state, time.perf_counter()
        state.seconds = now - self.origin
        items = state.logged_items() - self.items_before
        speed = items / max(now - self.since, 1e-9)
        means = {name: finite_or_none(value) for name, value in state.pop_means().items()}
        memory = peak_memory(self.device)
        self._append(
            {
                "step": state.step,
                "epoch": state.epoch,
                **means,
                "rate": state.lr,
                "gradient_norm": state.grad_norm,
                "timing": {
                    "seconds": round(state.seconds, 3),
                    "items": items,
                    "items_per_second": round(speed, 1),
                    "memory": memory,
                },
            }
        )
        numbers = {name: math.nan if value is None else value for name, value in means.items()}
        self.callback.on_log(
            Progress(
                step=state.step,
                steps=self.steps,
                epoch=state.epoch,
                loss=numbers.pop("loss"),
                metrics=numbers,
                rate=state.lr,
                gradient_norm=state.grad_norm,
                items_per_second=speed,
                seconds=state.seconds,
                seconds_left=state.seconds / state.step * (self.steps - state.step),
                memory=memory,
            )
        )
        self.restart_timer()

    def log_evaluation(self, metrics: dict[str, float]) -> None:
        """Write a line with the metrics of an evaluation."""
        values = {name: finite_or_none(value) for name, value in metrics.items()}
        self._append({"step": self.state.step, "evaluation": values})
        self.callback.on_evaluate(self.state.step, metrics)
        self.restart_timer()

    def sync(self) -> int:
        """Flush metrics.jsonl to the disk and return where it ends."""
        self.state.seconds = time.perf_counter() - self.origin
        return 0 if self.file is None else self.file.sync()

    def _append(self, line: dict[str, Any]) -> None:
        if self.file is not None:
            self.file.append(line)


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """Read the lines of a run's metrics.jsonl, without a last one that is still being written."""
    path = Path(folder) / METRICS_FILE
    if not path.is_file():
        raise ValueError(f"{folder} has no {METRICS_FILE}: it is not a run directory, or the run has not started")
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def finite_or_none(value: float) -> float | None:
    """Return None for a number that JSON does not have (NaN, infinity)."""
    return value if math.isfinite(value) else None


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes, of the GPU or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
