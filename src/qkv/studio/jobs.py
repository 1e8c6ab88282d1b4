"""Background jobs: started by a request, followed as server-sent events, cancelled by another request."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from qkv._workers import CancelledError

MAX_FINISHED = 64  # finished jobs that are remembered
MAX_RUNNING = 32  # jobs that may run or wait for their turn
MAX_EVENTS = 5000  # events of one job that are remembered
HEARTBEAT_SECONDS = 15.0  # between two signs of life of a stream without events
POLL_SECONDS = 0.05  # between two looks at a job


@dataclass
class Job:
    """One background job.

    state: running, done, failed or cancelled.
    events: the last events; `num_dropped` older ones are forgotten.
    server_stopped: set when the server stops.
    """

    id: str
    kind: str
    state: str = "running"
    events: list[dict[str, Any]] = field(default_factory=list)
    num_dropped: int = 0
    result: Any = None
    error: str = ""
    cancel: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)
    server_stopped: threading.Event = field(default_factory=threading.Event)

    def report(self, **event: Any) -> None:
        """Publish an event; raises `CancelledError` if the job was cancelled."""
        if self.cancel.is_set():
            raise CancelledError
        with self.changed:
            self._add(event)
            self.changed.notify_all()

    def finish(self, state: str, result: Any = None, error: str = "") -> None:
        """Set the final state and publish it."""
        with self.changed:
            self.result, self.error = result, error
            self._add({"state": state, "error": error})
            self.state = state  # after its event: a stream that sees the state has sent the event
            self.changed.notify_all()

    def events_after(self, number: int) -> tuple[int, list[dict[str, Any]]]:
        """The number of the last event, and the events after `number` that are remembered."""
        with self.changed:
            return self.num_dropped + len(self.events), self.events[max(number - self.num_dropped, 0) :]

    def _add(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if len(self.events) > MAX_EVENTS:
            half = MAX_EVENTS // 2
            del self.events[:half]
            self.num_dropped += half

    def to_json(self) -> dict[str, Any]:
        """The job as the page reads it."""
        return {"id": self.id, "kind": self.kind, "state": self.state, "error": self.error, "result": self.result}


class Jobs:
    """All jobs of a server. Each runs in a thread; jobs in the same lane run one after another."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._numbers = itertools.count(1)
        self._lanes: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def start(self, kind: str, work: Callable[[Job], Any], *, lane: str = "") -> Job:
        """Start a job. `work(job)` reports progress with `job.report` and returns JSON data. lane: default the kind."""
        with self._lock:
            if sum(job.state == "running" for job in self._jobs.values()) >= MAX_RUNNING:
                raise ValueError(f"{MAX_RUNNING} jobs are running already; wait for one or cancel it")
            job = Job(str(next(self._numbers)), kind, server_stopped=self._stopped)
            self._jobs[job.id] = job
            finished = [name for name, each in self._jobs.items() if each.state != "running"]
            for name in finished[: max(len(self._jobs) - MAX_FINISHED, 0)]:
                del self._jobs[name]
            turn = self._lanes.setdefault(lane or kind, threading.Lock())
        threading.Thread(target=self._run, args=(job, work, turn), daemon=True, name=f"job-{job.id}").start()
        return job

    def _run(self, job: Job, work: Callable[[Job], Any], turn: threading.Lock) -> None:
        try:
            if not turn.acquire(blocking=False):
                job.report(state="waiting")
                while not turn.acquire(timeout=POLL_SECONDS):
                    if job.cancel.is_set():
                        raise CancelledError
            try:
                job.report(state="running")
                result = work(job)
            finally:
                turn.release()
            job.finish("done", result)
        except CancelledError:
            job.finish("cancelled")
        except Exception as problem:
            job.finish("failed", error=str(problem) or type(problem).__name__)

    def get(self, name: str) -> Job | None:
        """A job by its id."""
        return self._jobs.get(name)

    def stop(self) -> None:
        """Cancel all jobs and end their event streams."""
        self._stopped.set()
        for job in list(self._jobs.values()):
            job.cancel.set()


async def stream_events(job: Job, after: int = 0) -> AsyncIterator[bytes]:
    """The events of a job as server-sent events, from a number on, until the job ends or the server stops."""
    sent, silent_seconds = after, 0.0
    while not job.server_stopped.is_set():
        ended = job.state != "running"
        last, events = job.events_after(sent)
        for number, event in enumerate(events, start=last - len(events) + 1):
            yield f"id: {number}\ndata: {json.dumps(event)}\n\n".encode()
        sent = max(last, sent)
        if ended:
            return
        if events:
            silent_seconds = 0.0
            continue
        await asyncio.sleep(POLL_SECONDS)
        silent_seconds += POLL_SECONDS
        if silent_seconds >= HEARTBEAT_SECONDS:
            silent_seconds = 0.0
            yield b": alive\n\n"
