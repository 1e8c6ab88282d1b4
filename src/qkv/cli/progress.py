"""Progress of training in the terminal: a live line, log lines, or JSON lines; all go to stderr."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.live import Live
from rich.text import Text

from qkv._files import json_safe
from qkv.cli.console import err
from qkv.training import Progress, TrainCallback

BAR_WIDTH = 24
LOG_SECONDS = 30  # between two log lines


class LiveProgress(TrainCallback):
    """A live line for a stage: step, loss, last validation, speed, time left, memory."""

    def __init__(self, name: str, evaluated_on: str = "validation") -> None:
        self.name, self.evaluated_on = name, evaluated_on
        self.live = Live(Text(""), console=err(), refresh_per_second=8, transient=True)

    def on_start(self, step: int, steps: int) -> None:
        self.live.start()
        if step:
            self.on_note(f"{self.name}: resuming after step {step:,} of {steps:,}")

    def on_log(self, progress: Progress) -> None:
        self.live.update(Text(format_progress(self.name, progress), no_wrap=True, overflow="ellipsis"))

    def on_evaluate(self, step: int, metrics: dict[str, float]) -> None:
        shown = "  ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in metrics.items())
        self.live.console.print(f"[dim]{self.name}, step {step:,}, {self.evaluated_on}:[/dim] {shown}", highlight=False)

    def on_note(self, text: str) -> None:
        self.live.console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        self.live.stop()


class LogProgress(LiveProgress):
    """A line now and then, for stderr that is not a terminal."""

    def __init__(self, name: str, evaluated_on: str = "validation") -> None:
        super().__init__(name, evaluated_on)
        self.last_seconds = 0.0

    def on_start(self, step: int, steps: int) -> None:
        if step:
            self.on_note(f"{self.name}: resuming after step {step:,} of {steps:,}")

    def on_log(self, progress: Progress) -> None:
        if progress.seconds - self.last_seconds > LOG_SECONDS or progress.step == progress.steps:
            self.last_seconds = progress.seconds
            self.on_note(format_progress(self.name, progress))


class JsonProgress(TrainCallback):
    """One JSON object per line, for programs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_log(self, progress: Progress) -> None:
        self._write({"stage": self.name, **vars(progress)})

    def on_evaluate(self, step: int, metrics: dict[str, float]) -> None:
        self._write({"stage": self.name, "step": step, "evaluation": metrics})

    def on_checkpoint(self, step: int, path: Path) -> None:
        self._write({"stage": self.name, "step": step, "checkpoint": str(path)})

    def on_note(self, text: str) -> None:
        self._write({"stage": self.name, "note": text})

    def _write(self, line: dict[str, object]) -> None:
        sys.stderr.write(json.dumps(json_safe(line), allow_nan=False) + "\n")


def make_callback(name: str, *, quiet: bool, json_lines: bool, evaluated_on: str = "validation") -> TrainCallback:
    """Return the callback that shows a stage as requested, or as stderr can show it."""
    if json_lines:
        return JsonProgress(name)
    if quiet:
        return TrainCallback()
    return (LiveProgress if err().is_terminal else LogProgress)(name, evaluated_on)


def format_progress(name: str, p: Progress) -> str:
    """Format the progress of a stage in one line."""
    done = round(BAR_WIDTH * p.step / p.steps)
    bar = "━" * done + "╌" * (BAR_WIDTH - done)
    metrics = "".join(f"  {metric} {value:.3f}" for metric, value in p.metrics.items())
    return (
        f"{name} {bar} {p.step:,}/{p.steps:,}  loss {p.loss:.4f}{metrics}  {p.items_per_second:,.0f} items/s  "
        f"{format_seconds(p.seconds_left)} left  {p.memory / 2**20:,.0f} MB"
    )


def format_seconds(seconds: float) -> str:
    """Format seconds as a clock does.

    >>> format_seconds(75.0), format_seconds(3700.0), format_seconds(8.0)
    ('1:15', '1:01:40', '0:08')
    """
    minutes, seconds = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
