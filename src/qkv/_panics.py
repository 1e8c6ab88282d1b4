"""Panics of libraries in Rust: a BaseException in Python, after lines on stderr that no handler in Python sees."""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

PANIC = "PanicException"  # pyo3_runtime.PanicException cannot be imported
MAX_REPLAYED = 2**20  # bytes of stderr that are written later

_lock = threading.Lock()
_held: list[tuple[int, BinaryIO]] = []  # descriptor of the real stderr, and the file that stands in for it
_depth = 0
_panicked = False  # in one of the nested blocks


@contextmanager
def panics_as_errors(what: str) -> Iterator[None]:
    """Turn a panic inside the block into a ValueError, "{what} cannot be used: …", without the panic's own lines.

    Descriptor 2 leads to a temporary file meanwhile; what others wrote to it is written to stderr at the end.
    """
    _hold_stderr()
    panicked = False
    try:
        yield
    except BaseException as error:
        panicked = type(error).__name__ == PANIC
        if not panicked:
            raise
        raise ValueError(f"{what} cannot be used: {' '.join(str(error).split())[:300]}") from None
    finally:
        _release_stderr(panicked)


def _hold_stderr() -> None:
    global _depth
    with _lock:
        _depth += 1
        if _depth > 1 or _held:
            return
        try:
            real = os.dup(2)
        except OSError:  # stderr is closed: there is nothing to hold back
            return
        try:
            file = tempfile.TemporaryFile()  # noqa: SIM115 (closed in _release_stderr)
        except OSError:  # nowhere to write to: the lines of a panic are shown
            os.close(real)
            return
        os.dup2(file.fileno(), 2)
        _held.append((real, file))


def _release_stderr(panicked: bool) -> None:
    global _depth, _panicked
    with _lock:
        _depth -= 1
        _panicked = _panicked or panicked
        if _depth:
            return
        if not _held:
            _panicked = False
            return
        real, file = _held.pop()
        replay, _panicked = not _panicked, False
        os.dup2(real, 2)
        os.close(real)
        with file:
            file.seek(0)
            if replay and (text := file.read(MAX_REPLAYED)):
                with suppress(OSError):
                    os.write(2, text)
