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
RUNNING = 32  # jobs that may be under way, or wait for their turn
EVENTS = 5000  # events of a job that are remembered
BEAT = 15.0  # seconds after which a quiet stream says that it is alive
LOOK = 0.05  # seconds between two looks at a job


class CancelledError(Exception):
    """Raised inside work that was cancelled, at its next word of progress."""


@dataclass
class Job:
    """One piece of work. state: running, done, failed or cancelled.

    events: the last of them; `forgotten` were before. left: set when the server ends.
    """

    id: str
    kind: str
    state: str = "running"
    events: list[dict[str, Any]] = field(default_factory=list)
    forgotten: int = 0
    result: Any = None
    error: str = ""
    cancel: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)
    left: threading.Event = field(default_factory=threading.Event)

    def say(self, **event: Any) -> None:
        """A word of progress; raises `CancelledError` when nobody wants to know any more."""
        if self.cancel.is_set():
            raise CancelledError
        with self.changed:
            self._add(event)
            self.changed.notify_all()

    def end(self, state: str, result: Any, error: str) -> None:
        """The last word."""
        with self.changed:
            self.result, self.error = result, error
            self._add({"state": state, "error": error})
            self.state = state  # after its event, so that a stream that sees the state has sent the event
            self.changed.notify_all()

    def since(self, place: int) -> tuple[int, list[dict[str, Any]]]:
        """The events after a place that are still known, and the place after them."""
        with self.changed:
            return self.forgotten + len(self.events), self.events[max(place - self.forgotten, 0) :]

    def _add(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if len(self.events) > EVENTS:
            half = EVENTS // 2
            del self.events[:half]
            self.forgotten += half

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
        self._left = threading.Event()

    def start(self, kind: str, work: Work, *, lane: str = "") -> Job:
        """Begin; `work` gets its job, says progress with it, and returns plain data."""
        with self._lock:
            if sum(each.state == "running" for each in self._jobs.values()) >= RUNNING:
                raise ValueError(f"{RUNNING} pieces of work are under way already; wait for one, or cancel it")
            job = Job(str(next(self._numbers)), kind, left=self._left)
            self._jobs[job.id] = job
            ended = [name for name, each in self._jobs.items() if each.state != "running"]
            for name in ended[: max(len(self._jobs) - KEPT, 0)]:
                del self._jobs[name]
            gate = self._lanes.setdefault(lane or kind, threading.Lock())
        threading.Thread(target=self._run, args=(job, work, gate), daemon=True, name=f"job-{job.id}").start()
        return job

    def _run(self, job: Job, work: Work, gate: threading.Lock) -> None:
        try:
            if not gate.acquire(blocking=False):
                job.say(state="waiting")
                while not gate.acquire(timeout=LOOK):
                    if job.cancel.is_set():  # before its turn came
                        raise CancelledError
            try:
                job.say(state="running")
                result = work(job)
            finally:
                gate.release()
            job.end("done", result, "")
        except CancelledError:
            job.end("cancelled", None, "")
        except Exception as problem:
            job.end("failed", None, str(problem) or type(problem).__name__)

    def get(self, name: str) -> Job | None:
        """A job by its id."""
        return self._jobs.get(name)

    def stop(self) -> None:
        """Everything is cancelled, and nobody is told any more."""
        self._left.set()
        for job in list(self._jobs.values()):
            job.cancel.set()


async def stream(job: Job, after: int = 0) -> AsyncIterator[bytes]:
    """The events of a job as they come (server-sent), from a place on, until it ends or the server does."""
    place, quiet = after, 0.0
    while not job.left.is_set():
        ended = job.state != "running"
        new, events = job.since(place)
        for number, event in enumerate(events, start=new - len(events) + 1):
            yield f"id: {number}\ndata: {json.dumps(event)}\n\n".encode()
        place = max(new, place)
        if ended:
            return
        if events:
            quiet = 0.0
            continue
        await asyncio.sleep(LOOK)
        quiet += LOOK
        if quiet >= BEAT:
            quiet = 0.0
            yield b": alive\n\n"
