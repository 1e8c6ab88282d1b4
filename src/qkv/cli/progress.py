"""A run as one line that moves, as lines that stay, or as JSON lines: progress goes to stderr."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.live import Live
from rich.text import Text

from qkv._numbers import finite
from qkv.cli.console import err
from qkv.training import Progress, Report

WIDTH = 24


class Line(Report):
    """The live line of a stage: step, loss, what was measured last, speed, time left, memory."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.live = Live(Text(""), console=err(), refresh_per_second=8, transient=True)
        self.looked = ""

    def begin(self, step: int, steps: int) -> None:
        self.live.start()
        if step:
            self.note(f"{self.name}: going on after step {step:,} of {steps:,}")

    def progress(self, progress: Progress) -> None:
        self.live.update(Text(self._line(progress), no_wrap=True, overflow="ellipsis"))

    def evaluated(self, step: int, numbers: dict[str, float]) -> None:
        self.looked = "  ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in numbers.items())
        self.live.console.print(f"[dim]{self.name}, step {step:,}, validation:[/dim] {self.looked}", highlight=False)

    def note(self, text: str) -> None:
        self.live.console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        self.live.stop()

    def _line(self, p: Progress) -> str:
        done = round(WIDTH * p.step / p.steps)
        bar = "━" * done + "╌" * (WIDTH - done)
        metrics = "".join(f"  {name} {value:.3f}" for name, value in p.metrics.items())
        return (
            f"{self.name} {bar} {p.step:,}/{p.steps:,}  loss {p.loss:.4f}{metrics}  {p.items_per_second:,.0f} items/s  "
            f"{clock(p.seconds_left)} left  {p.memory / 2**20:,.0f} MB"
        )


class Lines(Line):
    """For a log, not a terminal: a line now and then."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.told = 0.0

    def begin(self, step: int, steps: int) -> None:
        if step:
            self.note(f"{self.name}: going on after step {step:,} of {steps:,}")

    def progress(self, progress: Progress) -> None:
        if progress.seconds - self.told > 30 or progress.step == progress.steps:
            self.told = progress.seconds
            self.note(self._line(progress))


class JsonLines(Report):
    """For programs: one JSON object a line, to stderr."""

    def __init__(self, name: str) -> None:
        self.name = name

    def progress(self, progress: Progress) -> None:
        self._tell({"stage": self.name, **vars(progress)})

    def evaluated(self, step: int, numbers: dict[str, float]) -> None:
        self._tell({"stage": self.name, "step": step, "evaluation": numbers})

    def saved(self, step: int, place: Path) -> None:
        self._tell({"stage": self.name, "step": step, "checkpoint": str(place)})

    def note(self, text: str) -> None:
        self._tell({"stage": self.name, "note": text})

    def _tell(self, line: dict[str, object]) -> None:
        sys.stderr.write(json.dumps(finite(line), allow_nan=False) + "\n")


def listener(name: str, *, quiet: bool, json_lines: bool) -> Report:
    """What hears of a stage: as asked for, or as what reads stderr can show."""
    if json_lines:
        return JsonLines(name)
    if quiet:
        return Report()
    return Line(name) if err().is_terminal else Lines(name)


def clock(seconds: float) -> str:
    """
    >>> clock(75.0), clock(3700.0), clock(8.0)
    ('1:15', '1:01:40', '0:08')
    """
    minutes, seconds = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
