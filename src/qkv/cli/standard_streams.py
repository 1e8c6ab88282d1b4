"""Standard streams and signals of the `qkv` process, so that a closed pipe, a full disk or SIGTERM ends it in order.

stdout whose reader has gone (`qkv … | head -1`): the command stops with exit code 0, without a message.
stdout that is closed or full: one sentence on stderr, exit code 2.
stderr that is closed or full: messages are lost; the command and its exit code stay the same.
SIGTERM and SIGHUP: everything is cleaned up, then exit code 143 (129).
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any


class OutputError(OSError):
    """stdout takes no more output. reader_gone: because whoever read it has stopped reading."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.errno, f"cannot write to standard output: {error.strerror}")
        self.reader_gone = isinstance(error, BrokenPipeError)


class SignalError(BaseException):
    """A signal asked the process to stop; raised so that everything is closed on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


class _Text(io.TextIOWrapper):
    """A text stream that remembers whether anything was written to it."""

    used = False

    def write(self, text: str) -> int:
        self.used = self.used or bool(text)
        return super().write(text)


def has_output() -> bool:
    """Whether anything was written to stdout or stderr since `guard_streams`."""
    return any(isinstance(stream, _Text) and stream.used for stream in (sys.stdout, sys.stderr))


class _Output(io.FileIO):
    """A descriptor that reports its first failing write as an OutputError, and is silent after it."""

    failed = False

    def write(self, data: Any) -> int | None:
        if self.failed:
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            self.failed = True
            raise OutputError(error) from None


class _Messages(io.FileIO):
    """A descriptor whose failing writes are ignored."""

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def guard_streams() -> None:
    """Replace sys.stdout and sys.stderr as this module promises, and open what is closed.

    A closed descriptor would be given to the next file that is opened, which would then receive what is printed.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)  # so writing to 1 still fails
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
    if sys.platform != "win32":  # a Windows console is no file
        sys.stdout = _wrap(_Output(1, "wb", closefd=False), sys.stdout)
        sys.stderr = _wrap(_Messages(2, "wb", closefd=False), sys.stderr, line_buffering=True)


def _wrap(raw: io.FileIO, before: Any, *, line_buffering: bool = False) -> _Text:
    if before is not None:
        before.flush()
    encoding, errors = getattr(before, "encoding", "utf-8"), getattr(before, "errors", "strict")
    if errors == "strict":  # a name that is no text, or a terminal without UTF-8, must not end a command half-way
        errors = "backslashreplace"
    buffer = io.BufferedWriter(raw)
    return _Text(buffer, encoding=encoding, errors=errors, line_buffering=line_buffering or raw.isatty())


@contextlib.contextmanager
def raise_on_signals() -> Iterator[None]:
    """Raise SignalError in the main thread on SIGTERM and SIGHUP, once, unless they are ignored (as by nohup)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]

    def stop(number: int, frame: Any) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
        raise SignalError(number)

    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
