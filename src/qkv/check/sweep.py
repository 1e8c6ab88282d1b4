"""Every architecture of the installed transformers, in parallel processes; an interrupted sweep goes on."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["sound", "alarm", "not built", "not called", "too slow", "died"]


@dataclass(frozen=True)
class Row:
    """What was found about one architecture.

    findings: by verdict (fail, warn, inconclusive), the check and its evidence. said: why it could not be judged.
    """

    name: str
    family: str
    outcome: Outcome
    kind: str = ""
    how: str = ""
    passed: int = 0
    findings: dict[str, list[str]] = field(default_factory=dict)
    said: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Sweep:
    """All rows, by name; `versions` are those of what was judged and what judged it."""

    versions: dict[str, str]
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        return all(row.outcome != "alarm" for row in self.rows)

    def count(self, outcome: Outcome) -> int:
        return sum(row.outcome == outcome for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "versions": self.versions, "rows": [asdict(row) for row in self.rows]}


def sweep(
    names: dict[str, str],
    folder: Path,
    *,
    workers: int = 2,
    seconds: float = 60.0,
    told: Callable[[Row, int, int], None] = lambda row, done, of: None,
) -> Sweep:
    """Judge the architectures `names` (name: family) and keep each result in `folder` as it comes.

    workers: processes. seconds: the most that one architecture may take. told: hears of every result.
    """
    if workers < 1:
        raise ValueError(f"a sweep needs a worker at least; got {workers}")
    versions = _versions()
    file = folder / f"transformers-{versions['transformers']}.jsonl"
    rows = {name: row for name, row in kept(file, versions).items() if name in names}
    waiting: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    for name, family in names.items():
        if name not in rows:
            waiting.put((name, family))
    folder.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        if file.stat().st_size == 0:
            lines.write(json.dumps(versions) + "\n")
        for row in _results(waiting, workers, seconds):
            lines.write(json.dumps(asdict(row)) + "\n")
            lines.flush()
            rows[row.name] = row
            told(row, len(rows), len(names))
    return Sweep(versions, tuple(rows[name] for name in sorted(rows)))


def kept(file: Path, versions: dict[str, str]) -> dict[str, Row]:
    """The results of an earlier sweep of the same versions; a file of other versions is put aside."""
    if not file.is_file():
        return {}
    known = {part.name for part in fields(Row)}
    rows: dict[str, Row] = {}
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    if not lines or _parsed(lines[0]) != versions:
        file.replace(file.with_suffix(".old.jsonl"))
        return {}
    whole = [line for line in lines if line.endswith("\n") and _parsed(line) is not None]
    if len(whole) < len(lines):  # a line that was cut off when the sweep was stopped
        scratch = file.with_suffix(".part")
        scratch.write_text("".join(whole), encoding="utf-8")
        scratch.replace(file)
    for line in whole[1:]:
        row = Row(**{name: value for name, value in json.loads(line).items() if name in known})
        rows[row.name] = row
    return rows


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


def _versions() -> dict[str, str]:
    import torch
    import transformers

    from qkv import __version__

    return {"transformers": transformers.__version__, "torch": torch.__version__, "qkv": __version__}


def _results(waiting: queue.SimpleQueue[tuple[str, str]], workers: int, seconds: float) -> Iterator[Row]:
    """Results as they come, from processes that are replaced when they hang or die."""
    done: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
    posts = [_Post(seconds) for _ in range(workers)]
    threads = [threading.Thread(target=post.serve, args=(waiting, done), daemon=True) for post in posts]
    for thread in threads:
        thread.start()
    try:
        yield from _until_all_end(done, workers)
    finally:
        for post in posts:
            post.over = True
            post.end()


def _until_all_end(done: queue.SimpleQueue[Row | None], workers: int) -> Iterable[Row]:
    ended = 0
    while ended < workers:
        row = done.get()
        if row is None:
            ended += 1
        else:
            yield row


class _Post:
    """A worker process and who talks to it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.process: subprocess.Popen[str] | None = None
        self.over = False

    def serve(self, waiting: queue.SimpleQueue[tuple[str, str]], done: queue.SimpleQueue[Row | None]) -> None:
        try:
            while not self.over:
                try:
                    name, family = waiting.get_nowait()
                except queue.Empty:
                    break
                done.put(self.ask(name, family))
        finally:
            self.end()
            done.put(None)

    def ask(self, name: str, family: str) -> Row:
        if self.process is None or self.process.poll() is not None:
            self.process = _started()
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps([name, family]) + "\n")
            self.process.stdin.flush()
            ready, _, _ = select.select([self.process.stdout], [], [], self.seconds)
            answer = self.process.stdout.readline() if ready else None
        except BrokenPipeError:
            answer = ""
        if answer is None:
            self.end()
            return Row(name, family, "too slow", said=f"no answer within {self.seconds:g} s", seconds=self.seconds)
        if not answer:
            code = self.process.wait()
            self.end()
            return Row(name, family, "died", said=f"its process ended with code {code}")
        return Row(**json.loads(answer))

    def end(self) -> None:
        """End the process, which is its own group."""
        process, self.process = self.process, None
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not read any more
                    pipe.close()


def _started() -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "qkv.check.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,
    )
