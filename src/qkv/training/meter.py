"""What was measured since the last line: written to the journal, and told to whoever listens."""

import math
import resource
import sys
import time
from typing import Any

import torch

from qkv.training.callbacks import Progress, Report
from qkv.training.metrics_log import Journal, plain
from qkv.training.state import Run


class Meter:
    """Keeps the time, and turns sums into lines."""

    def __init__(self, run: Run, journal: Journal | None, report: Report) -> None:
        self.run, self.journal, self.report = run, journal, report
        self.origin = time.perf_counter() - run.seconds
        self.restart()

    def restart(self) -> None:
        """Measure speed from here: what was done meanwhile was not training."""
        self.since = time.perf_counter()
        self.counted = self._items()

    def log(self) -> None:
        """A line of the means since the last one."""
        run, steps = self.run, self.run.settings.steps
        now = time.perf_counter()
        run.seconds = now - self.origin
        items = self._items() - self.counted
        speed = items / max(now - self.since, 1e-9)
        means = {name: plain(value) for name, value in run.means().items()}
        line = {"step": run.step, "epoch": run.last.epoch, **means, "rate": run.rate, "gradient_norm": run.norm}
        memory = memory_used(run.computer.device)
        timing = {"seconds": round(run.seconds, 3), "items": items, "items_per_second": round(speed, 1)}
        timing["memory"] = memory
        self._add({**line, "timing": timing})
        loss = means.pop("loss")
        self.report.progress(
            Progress(
                step=run.step,
                steps=steps,
                epoch=run.last.epoch,
                loss=math.nan if loss is None else loss,
                metrics={name: math.nan if value is None else value for name, value in means.items()},
                rate=run.rate,
                gradient_norm=run.norm,
                items_per_second=speed,
                seconds=run.seconds,
                seconds_left=run.seconds / run.step * (steps - run.step),
                memory=memory,
            )
        )
        self.restart()

    def evaluated(self, numbers: dict[str, float]) -> None:
        """A line of what evaluation found."""
        self._add({"step": self.run.step, "evaluation": {name: plain(value) for name, value in numbers.items()}})
        self.report.evaluated(self.run.step, numbers)
        self.restart()

    def end(self) -> int:
        """Where the journal ends, with every line on the disk."""
        self.run.seconds = time.perf_counter() - self.origin
        return 0 if self.journal is None else self.journal.settle()

    def _add(self, line: dict[str, Any]) -> None:
        if self.journal is not None:
            self.journal.add(line)

    def _items(self) -> float:
        return self.run.sums["loss"][1] if "loss" in self.run.sums else 0.0


def memory_used(device: torch.device) -> int:
    """The most bytes that were in use at a time: of the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
