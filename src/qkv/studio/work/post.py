"""Who talks to a working process: asks, listens, ends it when it is cancelled, late, gone or too talkative."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qkv.studio.jobs import CancelledError, Job

LONGEST = 16 << 20  # bytes of one message
TAIL = 4000  # bytes of what was printed last that are kept
TICK = 0.1  # seconds between looks at whether the work is still wanted


class EndedError(ValueError):
    """Work that came to no end: why, in a sentence."""


class Post:
    """One process for one kind of work; it is started when it is first needed, and replaced after it ended.

    task: the module whose `work(request, say)` does it, such as qkv.studio.work.claim.
    """

    def __init__(self, task: str) -> None:
        self.task = task
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._printed = _Tail()
        self._lock = threading.Lock()
        self._over = False

    @property
    def printed(self) -> str:
        """What the process printed last."""
        return self._printed.text()

    def start(self) -> None:
        """Begin to import, so that the first question is answered soon."""
        with self._lock:
            if self._over:
                raise CancelledError
            if self._process is not None and self._process.poll() is None:
                return
            self._drop()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            self._line, self._printed = ours, _Tail()
            with theirs, self._printed.opened() as printed:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "qkv.studio.work.worker", str(theirs.fileno()), self.task],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=printed,
                    env=_environment(),
                    start_new_session=True,
                )

    def ask(self, request: dict[str, Any], job: Job, *, seconds: float | None = None) -> Iterator[dict[str, Any]]:
        """What the process says, up to the end of the work; raises an `EndedError` where it comes to none.

        seconds: the most that the work may take, once everything it needs is imported.
        """
        self.start()
        line = self._line
        assert line is not None
        done = False
        try:
            line.sendall(json.dumps(request).encode() + b"\n")
            for message in self._messages(line, job, seconds):
                if "error" in message:
                    done = True
                    raise EndedError(str(message["error"]))
                if message.get("end") is True:
                    done = True
                    return
                yield message
        except OSError:
            raise EndedError(self._why()) from None
        finally:
            if not done:
                self.end()

    def _messages(self, line: socket.socket, job: Job, seconds: float | None) -> Iterator[dict[str, Any]]:
        came, until = bytearray(), None
        line.settimeout(TICK)
        while True:
            if job.cancel.is_set():
                raise CancelledError
            if until is not None and time.monotonic() > until:
                raise EndedError(f"it was ended after {seconds:g} seconds, the time it had")
            try:
                more = line.recv(1 << 16)
            except TimeoutError:
                if self._process is None or self._process.poll() is not None:
                    raise EndedError(self._why()) from None
                continue
            if not more:
                raise EndedError(self._why())
            came += more
            if len(came) > LONGEST:
                raise EndedError(f"its answer is larger than {LONGEST >> 20} MB")
            if b"\n" not in more:
                continue
            *whole, rest = bytes(came).split(b"\n")
            came = bytearray(rest)
            for text in whole:
                message = _read(text)
                if message.get("begun") is True and seconds is not None:
                    until = time.monotonic() + seconds
                yield message

    def _why(self) -> str:
        process = self._process
        if process is None:
            return "its process was ended"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2.0)
        code = process.poll()
        if code is None:
            return "its process stopped answering"
        if code < 0:
            return f"its process was ended by signal {-code} ({_signal_name(-code)})"
        return f"its process ended by itself with exit code {code} before the work was done"

    def end(self) -> None:
        """End the process, which is its own group; the next question starts another."""
        with self._lock:
            self._drop()

    def close(self) -> None:
        """End it for good."""
        with self._lock:
            self._over = True
            self._drop()

    def _drop(self) -> None:
        process, self._process = self._process, None
        line, self._line = self._line, None
        if process is not None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if line is not None:
            line.close()


class _Tail:
    """The end of what a process prints: all of it is read, so that it never waits, and little is kept."""

    def __init__(self) -> None:
        self._kept = b""
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """The end to write to, which the process has after this."""
        reading, writing = os.pipe()
        self._thread = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._thread.start()
        try:
            yield writing
        finally:
            os.close(writing)

    def _read(self, reading: int) -> None:
        with contextlib.closing(os.fdopen(reading, "rb", buffering=0)) as pipe:
            while more := pipe.read(1 << 16):
                self._kept = (self._kept + more)[-TAIL:]

    def text(self) -> str:
        if self._thread is not None:
            self._thread.join(0.2)  # what was just printed may be on its way
        text = self._kept.decode("utf-8", "replace")
        return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text).strip()


def _read(text: bytes) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise EndedError("its process said something that is no answer")
    return message


def _environment() -> dict[str, str]:
    """This process's own, in which the same qkv is found."""
    root = str(Path(__file__).resolve().parents[3])
    if root.endswith("-packages"):
        return dict(os.environ)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
