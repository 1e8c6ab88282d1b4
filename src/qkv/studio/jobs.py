"""Long work: begun by a request, watched as events, cancelled by another; its result stays until the server ends."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

KEPT = 64  # finished jobs that are remembered
BEAT = 15.0  # seconds after which a quiet stream says that it is alive


class CancelledError(Exception):
    """Raised inside work that was cancelled, at its next word of progress."""


@dataclass
class Job:
    """One piece of work. state: running, done, failed or cancelled."""

    id: str
    kind: str
    state: str = "running"
    events: list[dict[str, Any]] = field(default_factory=list)
    result: Any = None
    error: str = ""
    cancel: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def say(self, **event: Any) -> None:
        """A word of progress; raises `CancelledError` when nobody wants to know any more."""
        if self.cancel.is_set():
            raise CancelledError
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def as_plain(self) -> dict[str, Any]:
        """For the page."""
        return {"id": self.id, "kind": self.kind, "state": self.state, "error": self.error, "result": self.result}


Work = Callable[[Job], Any]


class Jobs:
    """All work of a server. Work runs in threads; heavy work of one lane waits for the one before."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._numbers = itertools.count(1)
        self._lanes: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def start(self, kind: str, work: Work, *, lane: str = "") -> Job:
        """Begin; `work` gets its job, says progress with it, and returns plain data."""
        with self._lock:
            job = Job(str(next(self._numbers)), kind)
            self._jobs[job.id] = job
            ended = [name for name, each in self._jobs.items() if each.state != "running"]
            for name in ended[: max(len(self._jobs) - KEPT, 0)]:
                del self._jobs[name]
            gate = self._lanes.setdefault(lane or kind, threading.Lock())
        threading.Thread(target=self._run, args=(job, work, gate), daemon=True, name=f"job-{job.id}").start()
        return job

    def _run(self, job: Job, work: Work, gate: threading.Lock) -> None:
        try:
            with gate:
                job.say(state="running")
                result = work(job)
            state, error = "done", ""
        except CancelledError:
            result, state, error = None, "cancelled", ""
        except Exception as problem:
            result, state, error = None, "failed", str(problem) or type(problem).__name__
        with job.changed:
            job.result, job.state, job.error = result, state, error
            job.events.append({"state": state, "error": error})
            job.changed.notify_all()

    def get(self, name: str) -> Job | None:
        """A job by its id."""
        return self._jobs.get(name)

    def stop(self) -> None:
        """Everything is cancelled."""
        for job in list(self._jobs.values()):
            job.cancel.set()


async def stream(job: Job, after: int = 0) -> AsyncIterator[bytes]:
    """The events of a job as they come (server-sent), from a place on, until it ends."""
    place, quiet = after, 0.0
    while True:
        events = job.events[place:]
        for event in events:
            place += 1
            yield f"id: {place}\ndata: {json.dumps(event)}\n\n".encode()
        if not events:
            if job.state != "running":
                return
            await asyncio.sleep(0.05)
            quiet += 0.05
            if quiet >= BEAT:
                quiet = 0.0
                yield b": alive\n\n"
