"""Run code of a target: within a time limit, with its prints off stdout, with sys.exit as an ordinary error, and with
random numbers of a known seed."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

SECONDS = 60.0  # that loading a target, or one call of it, may take
SECONDS_AFTER_ONE = 5.0  # for each further call, after one that did not end
WAITING = 10.0  # times the limit, by the clock
SHOWN_LINES = 20  # of what a target prints


@dataclass
class _Limit:
    seconds: float


_limit: ContextVar[_Limit | None] = ContextVar("qkv_check_time_limit", default=None)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Another limit for the code inside."""
    if not seconds > 0:
        raise ValueError(f"--time-limit must be above 0 seconds; got {seconds:g}")
    token = _limit.set(_Limit(seconds))
    try:
        yield
    finally:
        _limit.reset(token)


class TargetExitError(Exception):
    """The target called sys.exit."""


class _ExpiredError(BaseException):
    """Raised inside the target; not an Exception, which the target may catch."""


@contextmanager
def limited(what: str) -> Iterator[None]:
    """Raise TimeoutError if the code inside takes longer than the time limit, and TargetExitError if it calls sys.exit.

    The limit is one of processor time, so that a busy machine does not break it, and ten times as much of time by the
    clock, for code that waits. It works in the main thread, for code that returns to Python now and then. Limits do not
    nest: the outer one counts.
    """
    limit = _limit.get()
    seconds = SECONDS if limit is None else limit.seconds
    active = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGPROF) is not _expire
    timers = (
        ((signal.ITIMER_PROF, signal.SIGPROF, 1.0), (signal.ITIMER_REAL, signal.SIGALRM, WAITING)) if active else ()
    )
    before = [(signal.signal(number, _expire), signal.getitimer(timer)[0]) for timer, number, _ in timers]
    start = time.monotonic()
    for timer, _, factor in timers:
        signal.setitimer(timer, factor * seconds, 1.0)  # again each second, if the target catches it
    try:
        yield
    except _ExpiredError:
        if not active:
            raise
        raise TimeoutError(f"{what} did not end within {seconds:g} s") from None
    except SystemExit as error:
        raise TargetExitError(f"{what} called sys.exit({'' if error.code is None else error.code!r})") from error
    finally:
        for (timer, number, _), (handler, left) in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)
            if left:
                signal.setitimer(timer, max(left - (time.monotonic() - start), 0.01))


def _expire(number: int, frame: Any) -> None:
    raise _ExpiredError


_changed: ContextVar[dict[str, float] | None] = ContextVar("qkv_check_changed_arguments", default=None)


@contextmanager
def watch_arguments() -> Iterator[dict[str, float]]:
    """The names of the arguments that calls of the target inside change, and by how much."""
    changed: dict[str, float] = {}
    token = _changed.set(changed)
    try:
        yield changed
    finally:
        _changed.reset(token)


def call_target(function: Callable[..., Any], *positional: Any, **named: Any) -> Any:
    """One call of the target. After a call that did not end, the next ones get less time."""
    changed = _changed.get()
    given = {} if changed is None else {**{f"argument {i + 1}": x for i, x in enumerate(positional)}, **named}
    before = {name: x.detach().clone() for name, x in given.items() if isinstance(x, Tensor)}
    try:
        with limited("the call"):
            result = function(*positional, **named)
        for name, x in before.items():
            if changed is not None and not torch.equal(x, given[name].detach()):
                changed[name] = max(changed.get(name, 0.0), float((given[name].double() - x.double()).abs().max()))
        return result
    except TimeoutError:
        if (limit := _limit.get()) is not None:
            limit.seconds = min(limit.seconds, SECONDS_AFTER_ONE)
        raise


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers from a seed, those of PyTorch, NumPy and Python; the caller's go on as they were afterwards."""
    python, array = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(array)


def raised_by_target(error: BaseException) -> bool:
    """Whether an error came out of a call of the target."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is call_target.__code__:
            return True
        trace = trace.tb_next
    return False


class _FirstLines:
    """A text stream that passes on the first lines."""

    def __init__(self, stream: Any):
        self._stream, self._lines = stream, 0

    def write(self, text: str) -> int:
        if self._lines <= SHOWN_LINES:
            self._lines += text.count("\n")
            self._stream.write(
                text if self._lines <= SHOWN_LINES else "\n… further prints of the target are left out\n"
            )
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def stdout_to_stderr(*, with_c_code: bool = False) -> Iterator[None]:
    """Send what the target prints to stderr, so that stdout has the report alone; long output is cut.

    with_c_code: also what compiled code prints, by redirecting the file descriptor.
    """
    copy = None
    if with_c_code:
        with suppress(OSError, ValueError):  # a stdout that is no file, as in tests
            sys.stdout.flush()
            copy = os.dup(1)
            os.dup2(2, 1)
    try:
        with redirect_stdout(_FirstLines(sys.stderr)):  # type: ignore[type-var]
            yield
    finally:
        if copy is not None:
            _flush_c_buffers()
            os.dup2(copy, 1)
            os.close(copy)


def _flush_c_buffers() -> None:
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)
