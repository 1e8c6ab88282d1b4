"""A run as it is watched: a live line for a terminal, plain lines for a log, JSON for programs. All of it on stderr."""

import io
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from qkv.loop.report import Outcome, Progress, Report


class Line(Report):
    """One line that moves where there is a terminal; elsewhere one now and then. Evaluations and notes stay above."""

    def __init__(self, console: Console | None = None, *, every: float = 30.0) -> None:
        """every: how many seconds pass between lines where there is no terminal."""
        self.console = Console(stderr=True, highlight=False, soft_wrap=True) if console is None else console
        self.every, self.shown = every, -every
        self.live: Live | None = None

    def begin(self, step: int, steps: int) -> None:
        if step:
            self.console.print(f"going on after step {step:,} of {steps:,}")
        if self.console.is_terminal:
            self.live = Live(console=self.console, refresh_per_second=8, transient=True)
            self.live.start()

    def progress(self, progress: Progress) -> None:
        if self.live is not None:
            self.live.update(Text(described(progress), no_wrap=True, overflow="ellipsis"))
        elif progress.seconds - self.shown >= self.every or progress.step == progress.steps:
            self.shown = progress.seconds
            self.console.print(described(progress))

    def evaluated(self, step: int, numbers: dict[str, float]) -> None:
        found = "  ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        self.console.print(f"step {step:,} evaluated: {found}")

    def note(self, text: str) -> None:
        self.console.print(f"note: {text}", markup=False)

    def end(self, outcome: Outcome) -> None:
        self.close()
        done = "done" if outcome.finished else f"stopped by {outcome.stopped}"
        self.console.print(f"{done} after step {outcome.step:,} and {duration(outcome.seconds)}", markup=False)

    def close(self) -> None:
        """Take the live line away; also wanted when a run ends by an error."""
        if self.live is not None:
            self.live.stop()
            self.live = None


class JsonLines(Report):
    """An object a line, each with its `event`."""

    def __init__(self, file: io.TextIOBase | TextIO | None = None) -> None:
        self.file = sys.stderr if file is None else file

    def begin(self, step: int, steps: int) -> None:
        self._say("begin", step=step, steps=steps)

    def progress(self, progress: Progress) -> None:
        self._say("progress", **asdict(progress))

    def evaluated(self, step: int, numbers: dict[str, float]) -> None:
        self._say("evaluated", step=step, numbers=numbers)

    def saved(self, step: int, place: Path) -> None:
        self._say("saved", step=step, place=str(place))

    def note(self, text: str) -> None:
        self._say("note", text=text)

    def end(self, outcome: Outcome) -> None:
        self._say("end", **outcome.as_dict())

    def _say(self, event: str, **values: Any) -> None:
        self.file.write(json.dumps({"event": event, **values}, ensure_ascii=False) + "\n")
        self.file.flush()


def described(progress: Progress) -> str:
    """Where a run is, on one line.

    >>> described(Progress(20, 1000, 0, 2.5, {"accuracy": 0.25}, 1e-3, 0.7, 15_300.0, 61.0, 3723.0, 2**30))
    'step 20/1,000 (2 %)  loss 2.5000  accuracy 0.25  rate 0.001  15,300 items/s  1 h 02 min left  1.0 GiB'
    """
    parts = [
        f"step {progress.step:,}/{progress.steps:,} ({100 * progress.step // progress.steps} %)",
        f"loss {progress.loss:.4f}",
        *(f"{name} {value:.4g}" for name, value in progress.metrics.items()),
        f"rate {progress.rate:.3g}",
        f"{progress.items_per_second:,.0f} items/s",
        f"{duration(progress.seconds_left)} left",
        f"{progress.memory / 2**30:.1f} GiB",
    ]
    return "  ".join(parts)


def duration(seconds: float | int) -> str:
    """A time as people say it.

    >>> duration(5.2), duration(65), duration(7384)
    ('5 s', '1 min 05 s', '2 h 03 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
