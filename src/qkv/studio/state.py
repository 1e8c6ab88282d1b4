"""What a studio knows: where runs are, which models may be opened, what work goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.studio.jobs import Jobs


@dataclass
class Studio:
    """The state that all rooms share.

    runs: the folder of a person's runs. models: checkpoint folders that were named on the command line.
    allow_code: whether the Check room may import a person's own modules.
    ending: what else is done when the studio closes, such as ending the processes that work for a room.
    """

    runs: Path = Path("runs")
    models: tuple[Path, ...] = ()
    allow_code: bool = False
    jobs: Jobs = field(default_factory=Jobs)
    ending: list[Callable[[], None]] = field(default_factory=list)

    def about(self) -> dict[str, Any]:
        """What the page asks first."""
        from importlib.metadata import version

        return {"version": version("qkv"), "runs": str(self.runs), "allow_code": self.allow_code}

    def stop(self) -> None:
        """Work ends."""
        self.jobs.stop()
        for end in self.ending:
            end()
