"""Client of the sandbox: sends inputs to a submission that runs isolated, and receives tensors.

The grader never imports a submission. A new process answers every call. It knows neither the seed, nor the rubric, nor
the other calls, and it may do nothing but compute.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv._onednn import avoid_broken_amx
from qkv.check.grading.reading import Submission
from qkv.check.grading.sandbox import memory_group, messages, seccomp

START = """
import os, sys
sys.path[:] = [sys.argv[1], *map(os.path.realpath, sys.path)]  # in the sandbox only real paths exist, no links to them
from sandbox import fork_server
fork_server.main(int(sys.argv[2]))
"""
PACKAGE = Path(__file__).parents[2]
OWN_PACKAGES = (PACKAGE, PACKAGE.with_name("qkv_pytest"))  # a submission must not find them; torch may be beside them
START_SECONDS = 120.0  # torch is imported first


class SandboxUnavailableError(OSError):
    """This system does not allow the sandbox to be built."""


class SubmissionError(RuntimeError):
    """A call that returned no tensors, and why. stage: import, name, build, call, or time."""

    def __init__(self, message: str, stage: str = "call") -> None:
        super().__init__(message)
        self.stage = stage


@dataclass(frozen=True)
class Limits:
    """What one call may use: processor seconds, memory beyond torch itself, and bytes to return, write or print.

    total_seconds: what all calls of a submission may take together, by the clock.
    max_timeouts: after this many calls without an answer in time, no more are made for that exercise.
    """

    seconds: int = 5
    total_seconds: int = 600
    memory: int = 1 << 30
    max_bytes: int = 16 << 20
    max_timeouts: int = 2

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")

    @property
    def idle_seconds(self) -> float:
        """For how long a call may wait without computing, by the clock."""
        return 4.0 * self.seconds

    @property
    def wall_seconds(self) -> float:
        """The limit of a call by the clock: a busy machine gives it a small part of a processor."""
        return 24.0 * self.seconds


@dataclass(frozen=True)
class Call:
    """One call of the submission's object. Tensors are sent as tensors, numbers and strings as they are."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    grad_output: Tensor | None = None


@dataclass(eq=False)
class Sandbox:
    """The running sandbox of one submission; a context manager.

    isolated: run it in its own namespaces; without, only time, memory and file sizes are limited.
    hidden: directories that the submission must not see.
    name, build, file, also, synonyms: what the next calls are about (`select`).
    notes: what the submission's process says it did not execute.
    quiet, same_seed: dropout is off; every call draws the same random numbers. To judge the rest of what is random.
    """

    source: str | Submission
    name: str
    build: dict[str, Any] | None
    seed: int
    limits: Limits = Limits()
    isolated: bool = True
    hidden: tuple[Path, ...] = ()
    dtype: str = "float64"
    num_calls: int = 0
    num_timeouts: int = 0
    num_memory_kills: int = 0
    stopped: bool = False
    file: str | None = None
    also: tuple[str, ...] = ()
    synonyms: tuple[tuple[str, ...], ...] = ()
    notes: dict[str, None] = field(default_factory=dict)
    deadline: float = float("inf")
    quiet: bool = False
    same_seed: bool = False

    @property
    def package(self) -> str:
        """The submission as it is sent to the sandbox."""
        submission = Submission.of_text(self.source) if isinstance(self.source, str) else self.source
        return submission.pack()

    def select(
        self,
        name: str,
        build: dict[str, Any] | None,
        file: str | None = None,
        also: tuple[str, ...] = (),
        synonyms: tuple[tuple[str, ...], ...] = (),
    ) -> None:
        """Choose what the next calls are about. Calls that were too slow before no longer count."""
        self.name, self.build, self.file, self.also, self.synonyms = name, build, file, also, synonyms
        self.num_timeouts, self.dtype = 0, "float64"
        self.quiet = self.same_seed = False

    def stop(self) -> None:
        """End it from another thread, whatever it is doing."""
        self.stopped = True
        process = getattr(self, "_process", None)
        if process is not None and process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)

    def __enter__(self) -> Sandbox:
        self.deadline = time.monotonic() + self.limits.total_seconds
        self._folder = tempfile.TemporaryDirectory(prefix="qkv-grade-")
        base = Path(self._folder.name, "root")
        base.mkdir(mode=0o755)
        file = Path(self._folder.name, "submission.py")
        file.write_text(self.package, encoding="utf-8", errors="surrogatepass")
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
        self._group = memory_group.create(self.limits.memory, str(self._process.pid)) if self.isolated else None
        settings = {
            "source": str(file),
            "base": str(base),
            "hidden": [str(path.resolve()) for path in (*OWN_PACKAGES, *self.hidden)],
            "isolated": self.isolated,
            "seconds": self.limits.seconds,
            "memory": self.limits.memory,
            "memory_group": self._group,
            "file_size": self.limits.max_bytes,
        }
        try:
            if self.stopped:
                raise SubmissionError("stopped", "time")
            self._channel.send(json.dumps(settings).encode())
            status = self._receive(START_SECONDS)
        except (OSError, SubmissionError) as error:  # no line of the submission has run yet: it is not to blame
            self.__exit__()
            if self.stopped:
                raise SubmissionError("stopped", "time") from None
            raise SandboxUnavailableError(f"the sandbox did not start: {error}") from None
        except BaseException:
            self.__exit__()
            raise
        if "ready" not in status:
            self.__exit__()
            raise SandboxUnavailableError(status.get("refused") or status.get("why") or "the sandbox did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()  # the fork server ends when the socket is closed
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.0 if self.stopped else 1.0)
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._group:
            memory_group.remove(self._group)
        self._folder.cleanup()

    def describe(self) -> tuple[dict[str, Tensor], dict[str, bool]]:
        """Return its parameters with their initial values, and which of them are trainable."""
        tensors, reply = self._request("describe", {}, [], grad=False)
        self._take_notes(reply.get("notes"))
        about = reply.get("parameters")
        if not isinstance(about, dict):
            raise SubmissionError("the reply does not describe its parameters")
        values = {name: tensors[f"w.{name}"] for name in about if f"w.{name}" in tensors}
        trainable = {name: isinstance(about[name], dict) and about[name].get("trainable") is True for name in values}
        return values, trainable

    def describe_function(self) -> None:
        """Load the submission, and raise here if it does not run or does not define what is asked for."""
        build, self.build = self.build, None
        try:
            self.describe()
        finally:
            self.build = build

    def call(
        self, calls: Sequence[Call], weights: dict[str, Tensor] | None = None, *, grad: bool = False
    ) -> tuple[list[Tensor | str], dict[str, Tensor]]:
        """Make the calls, all in one new process. Returns their results, and the gradients that were asked for."""
        tensors = {f"w.{name}": value for name, value in (weights or {}).items()}
        sent = [_pack(call, number, tensors) for number, call in enumerate(calls)]
        outputs, reply = self._request("call", tensors, sent, grad=grad)
        kinds = reply.get("kinds")
        answered = isinstance(kinds, list) and len(kinds) == len(calls)
        if not answered or any(str(n) not in outputs for n in range(len(calls))):
            raise SubmissionError("the reply does not answer the request")
        results: list[Tensor | str] = []
        for number, kind in enumerate(list(kinds or [])):
            output = outputs[str(number)]
            try:
                results.append(messages.tensor_to_text(output) if kind == "text" else output)
            except ValueError as error:
                raise SubmissionError(str(error)) from None
        return results, {name: tensor for name, tensor in outputs.items() if "." in name}

    def probe(
        self, code: str, arguments: dict[str, Any], tensors: dict[str, Tensor] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Run the grader's own code on the submission's object, in a new process. Returns tensors and JSON values."""
        outputs, reply = self._request("probe", tensors or {}, [], grad=True, probe=code, arguments=arguments)
        values = reply.get("values")
        if not isinstance(values, dict):
            raise SubmissionError("the reply does not answer the request")
        return outputs, values

    def _take_notes(self, notes: Any) -> None:
        if isinstance(notes, list):
            self.notes |= dict.fromkeys(clean(str(note)) for note in notes[:20])

    def _fields(self, task: str, calls: list[dict[str, Any]], *, grad: bool) -> dict[str, Any]:
        """The request as JSON. Its seed is derived from the secret and the number of the call."""
        self.num_calls += 1
        purpose = "every call" if self.same_seed else f"call {self.num_calls}"
        return {
            "task": task, "name": self.name, "build": self.build, "dtype": self.dtype, "grad": grad, "calls": calls,
            "file": self.file, "also": self.also, "synonyms": self.synonyms,
            "seed": derive_seed(self.seed, purpose) % 2**31, "quiet": self.quiet,
        }  # fmt: skip

    def _request(
        self, task: str, tensors: dict[str, Tensor], calls: list[dict[str, Any]], *, grad: bool, **more: Any
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if self.num_timeouts >= self.limits.max_timeouts:
            raise SubmissionError(f"given up after {self.num_timeouts} calls that did not answer in time", "time")
        if time.monotonic() > self.deadline:
            total = self.limits.total_seconds
            raise SubmissionError(f"given up: all calls together took more than {total} seconds", "time")
        fields = self._fields(task, calls, grad=grad) | more
        request, result, printed = (_anonymous_file() for _ in range(3))
        try:
            with os.fdopen(request, "wb", closefd=False) as file:
                file.write(messages.encode(tensors, fields))
            wall = max(1.0, min(self.limits.wall_seconds, self.deadline - time.monotonic()))
            message = json.dumps({"wall_seconds": wall, "idle_seconds": self.limits.idle_seconds}).encode()
            try:
                socket.send_fds(self._channel, [message], [request, result, printed])
            except OSError:
                raise SubmissionError("its sandbox has ended", "time") from None
            self._check_exit(self._receive(self.limits.wall_seconds + 30.0))
            return _read_reply(result, self.limits.max_bytes)
        finally:
            for number in (request, result, printed):
                os.close(number)

    def _check_exit(self, status: dict[str, Any]) -> None:
        """Raise unless the submission's process ended by itself."""
        ended = status.get("ended")
        if ended == "broken":
            raise SandboxUnavailableError(str(status.get("why")))
        number = status.get("signal")
        if number == signal.SIGKILL and self._group and memory_group.num_kills(self._group) > self.num_memory_kills:
            self.num_memory_kills = memory_group.num_kills(self._group)
            raise SubmissionError(f"it used more than {self.limits.memory} bytes of memory")
        if ended == "time" or number == signal.SIGXCPU or (number == signal.SIGKILL and ended == "signal"):
            self.num_timeouts += 1
            raise SubmissionError(f"it did not answer within {self.limits.seconds} seconds of computing", "time")
        if ended == "signal":
            raise SubmissionError(f"its process was ended by signal {number} ({_signal_name(number)})")

    def _receive(self, seconds: float) -> dict[str, Any]:
        self._channel.settimeout(seconds)
        try:
            message = self._channel.recv(1 << 16)
        except TimeoutError:
            raise SubmissionError("its sandbox does not answer", "time") from None
        except OSError:
            raise SubmissionError("its sandbox has ended", "time") from None
        if not message:
            raise SubmissionError("its sandbox has ended", "time")
        return json.loads(message)


def missing_features() -> list[str]:
    """The parts of the sandbox that this system does not offer, as noun phrases; it works without them."""
    missing = [] if seccomp.is_available() else ["seccomp filter"]
    group = memory_group.create(1 << 30, "probe")
    if group is None:
        return [*missing, "memory cgroup"]
    memory_group.remove(group)
    return missing


def derive_seed(secret: int, purpose: str) -> int:
    """A seed of 56 bits for one purpose, by HMAC-SHA-256: whoever knows it knows neither the secret nor another seed.

    >>> derive_seed(1, "call 1") == derive_seed(1, "call 1"), derive_seed(1, "call 1") == derive_seed(1, "call 2")
    (True, False)
    """
    digest = hmac.digest(str(secret).encode(), purpose.encode(), hashlib.sha256)
    return int.from_bytes(digest[:7], "little")


def _read_reply(result: int, max_bytes: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the reply from a file that a submission may have filled with anything."""
    size = os.fstat(result).st_size
    if size == 0:
        raise SubmissionError("its process ended without returning anything (as after sys.exit or os._exit)")
    if size > max_bytes:
        raise SubmissionError(f"it returned {size} bytes; {max_bytes} are allowed")
    try:
        tensors, fields = messages.decode(os.pread(result, size, 0))
    except ValueError as error:
        raise SubmissionError(str(error)) from None
    if "error" in fields:
        raise SubmissionError(clean(str(fields["error"])), clean(str(fields.get("stage", "call"))))
    return tensors, fields


def clean(text: str, max_characters: int = 300) -> str:
    """Return one line of printable characters, whatever the text contains.

    >>> clean("a\\x1b[31mred\\nline")
    'a [31mred line'
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in text[:max_characters])
    return " ".join(printable.split())


def _pack(call: Call, number: int, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """One call as JSON; its tensors are added to `tensors` and referred to by name."""

    def value(argument: Any, key: str) -> Any:
        if isinstance(argument, Tensor):
            tensors[key] = argument
            return {"tensor": key}
        return argument

    packed: dict[str, Any] = {
        "args": [value(argument, f"{number}.{index}") for index, argument in enumerate(call.args)],
        "kwargs": {name: value(argument, f"{number}.{name}") for name, argument in call.kwargs.items()},
    }
    if call.grad_output is not None:
        tensors[f"{number}.grad_output"] = call.grad_output
        packed["grad_output"] = f"{number}.grad_output"
    return packed


def _anonymous_file() -> int:
    """Open a file without a name, in memory where the system supports it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("qkv")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _environment() -> dict[str, str]:
    """The environment of the sandbox: only what libraries need to be found, and one thread."""
    avoid_broken_amx()
    kept = {
        name: os.environ[name] for name in ("LD_LIBRARY_PATH", "SYSTEMROOT", "ONEDNN_MAX_CPU_ISA") if name in os.environ
    }
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    folders = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), "/scratch")
    fixed = {"PATH": "/nowhere", "LANG": "C.UTF-8", "USER": "student", "PYTHONHASHSEED": "0"}
    fixed["TORCHDYNAMO_DISABLE"] = "1"  # torch.compile would start a compiler
    return {**fixed, **kept, **threads, **folders}


def _signal_name(number: Any) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
