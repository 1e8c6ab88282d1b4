"""A submission at arm's length: the grader sends inputs, a process behind walls computes, tensors come back.

The grader never imports a submission. Every call is answered by a new process that knows neither the seed, nor the
rubric, nor the other calls, and that has lost every right but to compute.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.check.grading.inside import wire

START = "import sys; sys.path.insert(0, sys.argv[1]); from inside import zygote; zygote.main(int(sys.argv[2]))"


class RefusedError(OSError):
    """This system does not let us build the walls."""


class UnansweredError(RuntimeError):
    """A call that gave no tensors: what happened, in words. stage: import, name, build, call, or time."""

    def __init__(self, words: str, stage: str = "call") -> None:
        super().__init__(words)
        self.stage = stage


@dataclass(frozen=True)
class Limits:
    """What one call may use: processor seconds, memory beyond torch itself, what it may hand back, write or print.

    patience: after so many calls without an answer in time, no more are made.
    """

    seconds: int = 5
    memory: int = 1 << 30
    handed_back: int = 16 << 20
    patience: int = 2

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is a whole number from 1; got {value!r}")

    @property
    def wall(self) -> float:
        """Seconds by the clock: a busy machine is not a submission's fault."""
        return 4.0 * self.seconds


@dataclass(frozen=True)
class Call:
    """One call of the submission's object: tensors by name, numbers and texts as they are."""

    places: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)
    slopes: Tensor | None = None


@dataclass(eq=False)
class Remote:
    """The live sandbox of one submission; a context manager."""

    source: str
    name: str
    build: dict[str, Any] | None
    seed: int
    limits: Limits = Limits()
    walls: bool = True
    hidden: tuple[Path, ...] = ()
    dtype: str = "float64"
    calls: int = 0
    late: int = 0
    stopped: bool = False

    def stop(self) -> None:
        """End it from another thread, whatever it is doing."""
        self.stopped = True
        process = getattr(self, "_process", None)
        if process is not None and process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)

    def __enter__(self) -> Remote:
        self._folder = tempfile.TemporaryDirectory(prefix="qkv-grade-")
        base = Path(self._folder.name, "root")
        base.mkdir(mode=0o755)
        file = Path(self._folder.name, "submission.py")
        file.write_text(self.source, encoding="utf-8")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = ours
        here = Path(__file__).parent
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-B", "-c", START, str(here), str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                cwd="/",
                start_new_session=True,
            )
        package = here.parents[2]  # nothing of qkv is to be found inside
        settings = {
            "source": str(file),
            "base": str(base),
            "hidden": [str(package), *(str(path.resolve()) for path in self.hidden)],
            "walls": self.walls,
            "seconds": self.limits.seconds,
            "memory": self.limits.memory,
            "file_size": self.limits.handed_back,
        }
        try:
            if self.stopped:
                raise UnansweredError("stopped", "time")
            self._channel.send(json.dumps(settings).encode())
            told = self._heard(120.0)
        except OSError:
            self.__exit__()
            raise UnansweredError("its sandbox did not start", "time") from None
        except BaseException:
            self.__exit__()
            raise
        if "ready" not in told:
            self.__exit__()
            raise RefusedError(told.get("refused") or told.get("why") or "the sandbox did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()  # it ends by itself when nobody listens
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.0 if self.stopped else 1.0)
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()

    def describe(self) -> tuple[dict[str, Tensor], dict[str, bool]]:
        """Its parameters, with their first values, and which of them are trained."""
        tensors, words = self._ask("describe", {}, [], grad=False)
        about = words.get("parameters")
        if not isinstance(about, dict):
            raise UnansweredError("what it handed back is no description of its parameters")
        values = {name: tensors[f"w.{name}"] for name in about if f"w.{name}" in tensors}
        trained = {name: isinstance(about[name], dict) and about[name].get("trained") is True for name in values}
        return values, trained

    def call(
        self, calls: Sequence[Call], weights: dict[str, Tensor] | None = None, *, grad: bool = False
    ) -> tuple[list[Tensor | str], dict[str, Tensor]]:
        """Make the calls, all in one new process: what each gave, and the gradients that were asked for."""
        tensors = {f"w.{name}": value for name, value in (weights or {}).items()}
        sent = [_sent(call, number, tensors) for number, call in enumerate(calls)]
        outs, words = self._ask("call", tensors, sent, grad=grad)
        kinds = words.get("kinds")
        if (
            not isinstance(kinds, list)
            or len(kinds) != len(calls)
            or any(str(n) not in outs for n in range(len(calls)))
        ):
            raise UnansweredError("what it handed back is not what was asked for")
        try:
            results = [
                wire.tensor_text(outs[str(n)]) if kind == "text" else outs[str(n)] for n, kind in enumerate(kinds)
            ]
        except ValueError as error:
            raise UnansweredError(str(error)) from None
        return results, {name: tensor for name, tensor in outs.items() if "." in name}

    def _ask(
        self, task: str, tensors: dict[str, Tensor], calls: list[dict[str, Any]], *, grad: bool
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if self.late >= self.limits.patience:
            raise UnansweredError(f"given up after {self.late} calls that did not answer in time", "time")
        self.calls += 1
        words = {
            "task": task, "name": self.name, "build": self.build, "dtype": self.dtype, "grad": grad, "calls": calls,
            "seed": (self.seed * 1_000_003 + self.calls) % 2**31,
        }  # fmt: skip
        request, result, printed = (_file() for _ in range(3))
        try:
            with os.fdopen(request, "wb", closefd=False) as file:
                file.write(wire.encode(tensors, words))
            message = json.dumps({"wall": self.limits.wall}).encode()
            try:
                socket.send_fds(self._channel, [message], [request, result, printed])
            except OSError:
                raise UnansweredError("its sandbox has ended", "time") from None
            ended = self._heard(self.limits.wall + 30.0)
            self._judge_end(ended)
            return _understood(result, self.limits.handed_back)
        finally:
            for number in (request, result, printed):
                os.close(number)

    def _judge_end(self, ended: dict[str, Any]) -> None:
        how = ended.get("ended")
        if how == "broken":
            raise RefusedError(str(ended.get("why")))
        number = ended.get("signal")
        if how == "time" or number == signal.SIGXCPU or (number == signal.SIGKILL and how == "signal"):
            self.late += 1
            raise UnansweredError(f"it did not answer within {self.limits.seconds} seconds of computing", "time")
        if how == "signal":
            raise UnansweredError(f"its process was ended by signal {number} ({_signal_name(number)})")

    def _heard(self, seconds: float) -> dict[str, Any]:
        self._channel.settimeout(seconds)
        try:
            message = self._channel.recv(1 << 16)
        except TimeoutError:
            raise UnansweredError("its sandbox does not answer", "time") from None
        except OSError:
            raise UnansweredError("its sandbox has ended", "time") from None
        if not message:
            raise UnansweredError("its sandbox has ended", "time")
        return json.loads(message)


def _understood(result: int, most: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The reply in a file that a submission may have filled with anything."""
    size = os.fstat(result).st_size
    if size == 0:
        raise UnansweredError("its process ended without handing anything back (as sys.exit or os._exit do)")
    if size > most:
        raise UnansweredError(f"it handed back {size} bytes; {most} are allowed")
    try:
        tensors, words = wire.decode(os.pread(result, size, 0))
    except ValueError as error:
        raise UnansweredError(str(error)) from None
    if "error" in words:
        raise UnansweredError(clean(str(words["error"])), clean(str(words.get("stage", "call"))))
    return tensors, words


def clean(text: str, most: int = 300) -> str:
    """One line of printable letters, whatever was handed back.

    >>> clean("a\\x1b[31mred\\nline")
    'a [31mred line'
    """
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text[:most]).split())


def _sent(call: Call, number: int, tensors: dict[str, Tensor]) -> dict[str, Any]:
    def value(said: Any, key: str) -> Any:
        if isinstance(said, Tensor):
            tensors[key] = said
            return {"tensor": key}
        return said

    sent: dict[str, Any] = {
        "places": [value(said, f"{number}.{place}") for place, said in enumerate(call.places)],
        "named": {name: value(said, f"{number}.{name}") for name, said in call.named.items()},
    }
    if call.slopes is not None:
        tensors[f"{number}.slopes"] = call.slopes
        sent["slopes"] = f"{number}.slopes"
    return sent


def _file() -> int:
    """A file without a name, in memory where the system has such."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("qkv")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _environment() -> dict[str, str]:
    """Nothing of the grader's environment but what libraries need to be found; one thread."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "SYSTEMROOT") if name in os.environ}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    folders = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), "/scratch")
    return {
        "PATH": "/nowhere",
        "LANG": "C.UTF-8",
        "USER": "student",
        "PYTHONHASHSEED": "0",
        **kept,
        **threads,
        **folders,
    }


def _signal_name(number: Any) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
