"""Worker processes: run a function in a process of its own, with cancel, a time limit and an output limit.

A `Worker` starts `python -m qkv._workers` with the name of a function. Requests and replies are JSON lines over a
socket. The function prints to a pipe that the parent reads, so prints never mix with replies.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

MAX_REPLY = 16 << 20  # bytes of one reply
MEMORY_LIMIT = 8 << 30  # bytes of address space of the process
PRINTED_TAIL = 4000  # bytes of printed output that are kept
POLL_SECONDS = 0.1  # between two looks at whether the request was cancelled


class WorkerError(ValueError):
    """A request that failed; the message is a sentence for the user."""


class WorkerTimeoutError(WorkerError):
    """The request took longer than its time limit; the process was killed."""


class WorkerDiedError(WorkerError):
    """The process ended before the request did. exit_code: its exit code, negative for a signal."""

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class CancelledError(Exception):
    """The request was cancelled; the process was killed."""


class Worker:
    """One process that runs one function. It starts on the first request and restarts after it was killed.

    Args:
        task: "package.module:function". The function is called as `function(request, send)`: `request` is the JSON
            value that was passed to `Worker.request`, `send(**message)` yields a message to the caller.
        env: environment variables in addition to this process's.
        memory_limit: bytes of address space that the process may use.

    Example:
        worker = Worker("qkv.studio.tasks:run_claim")
        for message in worker.request({"name": "copy"}, time_limit=60):
            print(message)
        worker.close()
    """

    def __init__(self, task: str, *, env: Mapping[str, str] | None = None, memory_limit: int = MEMORY_LIMIT) -> None:
        self.task = task
        self._env = dict(env or {})
        self._memory_limit = memory_limit
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._printed = _PrintedTail()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def printed(self) -> str:
        """The last lines that the process printed, to stdout or stderr."""
        return self._printed.text()

    def start(self) -> None:
        """Start the process now, so that it has imported the task before the first request."""
        with self._lock:
            if self._closed:
                raise CancelledError
            if self._process is not None and self._process.poll() is None:
                return
            self._kill()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket, self._printed = ours, _PrintedTail()
            arguments = [str(theirs.fileno()), self.task, str(self._memory_limit)]
            with theirs, self._printed.open() as printed:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "qkv._workers", *arguments],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=printed,
                    env={**_environment(), **self._env},
                    start_new_session=True,
                )

    def request(
        self, request: Any, *, cancelled: Callable[[], bool] = lambda: False, time_limit: float | None = None
    ) -> Iterator[dict[str, Any]]:
        """Run the task once and yield its messages; the first is {"started": True}.

        Args:
            request: any JSON value.
            cancelled: asked ten times a second; True kills the process and raises `CancelledError`.
            time_limit: seconds that the task may take, not counting its imports.

        Raises:
            WorkerError: the task raised, took too long, sent too much, or its process ended.
        """
        self.start()
        connection = self._socket
        assert connection is not None
        done = False
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
            for message in self._messages(connection, cancelled, time_limit):
                if "error" in message:
                    done = True
                    raise WorkerError(str(message["error"]))
                if message.get("finished") is True:
                    done = True
                    return
                yield message
        except OSError:
            raise self._died() from None
        finally:
            if not done:
                self.stop()

    def stop(self) -> None:
        """Kill the process and its children; the next request starts another."""
        with self._lock:
            self._kill()

    def pause(self) -> None:
        """Stop the process and its children, so that they use no processor time; `resume` lets them run again."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process run; nothing happens if there is none."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill the process; later requests raise `CancelledError`."""
        with self._lock:
            self._closed = True
            self._kill()

    def _messages(
        self, connection: socket.socket, cancelled: Callable[[], bool], time_limit: float | None
    ) -> Iterator[dict[str, Any]]:
        buffer, deadline = bytearray(), None
        connection.settimeout(POLL_SECONDS)
        while True:
            if cancelled():
                raise CancelledError
            if deadline is not None and time.monotonic() > deadline:
                raise WorkerTimeoutError(f"stopped after {time_limit:g} seconds, its time limit")
            try:
                received = connection.recv(1 << 16)
            except TimeoutError:
                if self._process is None or self._process.poll() is not None:
                    raise self._died() from None
                continue
            if not received:
                raise self._died()
            buffer += received
            if len(buffer) > MAX_REPLY:
                raise WorkerError(f"the reply is larger than {MAX_REPLY >> 20} MB")
            if b"\n" not in received:
                continue
            *lines, rest = bytes(buffer).split(b"\n")
            buffer = bytearray(rest)
            for line in lines:
                message = _parse(line)
                if message.get("started") is True and time_limit is not None:
                    deadline = time.monotonic() + time_limit
                yield message

    def _died(self) -> WorkerDiedError:
        process = self._process
        if process is None:
            return WorkerDiedError("the process was stopped")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2.0)
        code = process.poll()
        if code is None:
            return WorkerDiedError("the process stopped answering")
        if code < 0:
            return WorkerDiedError(f"the process was killed by signal {-code} ({_signal_name(-code)})", code)
        return WorkerDiedError(f"the process ended with exit code {code} before the work was done", code)

    def _signal(self, number: int) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._process is not None:
                os.killpg(self._process.pid, number)

    def _kill(self) -> None:
        process, self._process = self._process, None
        connection, self._socket = self._socket, None
        if process is not None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if connection is not None:
            connection.close()


class _PrintedTail:
    """The end of what a process prints. A thread reads all of it, so that the process never blocks."""

    def __init__(self) -> None:
        self._tail = b""
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def open(self) -> Iterator[int]:
        """The file descriptor to write to; closed here afterwards, the process keeps its copy."""
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
                self._tail = (self._tail + more)[-PRINTED_TAIL:]

    def text(self) -> str:
        if self._thread is not None:
            self._thread.join(0.2)  # the last lines may still be in the pipe
        text = self._tail.decode("utf-8", "replace")
        return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text).strip()


def _parse(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise WorkerError("the process sent a line that is not a JSON object")
    return message


def _environment() -> dict[str, str]:
    """This process's environment, with PYTHONPATH set so that the child imports the same qkv."""
    root = str(Path(__file__).resolve().parents[1])
    if root.endswith("-packages"):
        return dict(os.environ)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


# The process side.


def main() -> None:
    """Answer requests until the parent closes the socket: _workers FD module:function MEMORY."""
    descriptor, task_name, memory_limit = sys.argv[1:]
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    _limit_memory(int(memory_limit))
    module, _, function = task_name.partition(":")
    task = getattr(importlib.import_module(module), function)
    lock = threading.Lock()

    def send(**message: Any) -> None:
        with lock:
            connection.sendall(json.dumps(message).encode() + b"\n")

    with connection, connection.makefile("r", encoding="utf-8") as requests:
        for request in requests:
            send(started=True)
            send(**_run_task(task, json.loads(request), send))


def _run_task(task: Callable[[Any, Any], None], request: Any, send: Any) -> dict[str, Any]:
    """The last message of a request; any exception, SystemExit included, becomes {"error": sentence}."""
    try:
        task(request, send)
    except ValueError as problem:
        return {"error": str(problem)}
    except SystemExit as problem:
        return {"error": f"the code asked to end its process: sys.exit({problem.code!r})"}
    except BaseException as problem:
        text = " ".join(str(problem).split())[:300]
        return {"error": f"{type(problem).__name__}: {text}" if text else type(problem).__name__}
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the task may have replaced them
                stream.flush()
    return {"finished": True}


def _limit_memory(memory_limit: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _exit_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    main()
