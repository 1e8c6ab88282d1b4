"""metrics.jsonl: a line for each thing measured, only ever added to; resuming cuts off what a checkpoint has not seen.

So the file of a run that was killed and resumed equals that of one never interrupted, but for `timing`.
"""

import errno
import json
import math
import os
from pathlib import Path
from typing import Any

NAME = "metrics.jsonl"
FULL = (errno.ENOSPC, errno.EDQUOT)


class Journal:
    """The metrics of one run, open for adding. `end` is where a checkpoint says that its lines end."""

    def __init__(self, folder: Path, end: int = 0) -> None:
        self.path = folder / NAME
        folder.mkdir(parents=True, exist_ok=True)
        self.file = self.path.open("ab", buffering=0)
        self.missing = max(end - self.file.tell(), 0)  # bytes that somebody has taken away
        if self.file.tell() > end:
            self.file.truncate(end)
            self.file.seek(end)

    def add(self, line: dict[str, Any]) -> None:
        left = json.dumps(line, ensure_ascii=False).encode() + b"\n"
        try:
            while left:  # a disk that is nearly full takes a part first
                left = left[self.file.write(left) :]
        except OSError as error:
            why = "the disk is full" if error.errno in FULL else error.strerror
            said = f"a line could not be written: {why}. The newest checkpoint is whole; make room and start again"
            raise OSError(error.errno, said, str(self.path)) from error

    def settle(self) -> int:
        """Bring every line to the disk; return where they end."""
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        self.file.close()


def plain(value: float) -> float | None:
    """A number as JSON has it: what is not finite is nothing."""
    return value if math.isfinite(value) else None


def read(folder: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics; a last one that is being written is left out."""
    path = Path(folder) / NAME
    if not path.is_file():
        raise ValueError(f"{folder} has no {NAME}: it is not the folder of a run, or the run has not begun")
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
