"""Run one `qkv` command line in a fork of this process, which has torch loaded, and measure what it does."""

import contextlib
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

EXIT_CODES = (0, 1, 2, 130, 143)
MAX_MEMORY = 1_500_000_000
SECONDS = 30.0  # after these it gets SIGTERM, as it may be busy with something valid
GRACE = 30.0  # after these it hangs
SIGNS = ("Traceback (most recent", "This is a bug in qkv", "Exception ignored", "panicked at", "out of memory")


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its exit code (−1: killed, since it did not stop), peak memory in bytes, and its output."""

    code: int
    memory: int
    seconds: float
    out: str
    err: str
    left: tuple[str, ...]

    def problem(self) -> str:
        """What is wrong with it, in a few words; empty if nothing is."""
        if self.code == -1:
            return "hang"
        if self.code not in EXIT_CODES:
            return f"exit code {self.code}"
        for sign in SIGNS:
            if sign in self.err:
                return sign
        if self.code == 2 and not self.err.strip():
            return "no message"
        if self.memory > MAX_MEMORY:
            return f"{self.memory / 1e9:.2f} GB of memory"
        if self.left:
            return f"left behind: {', '.join(self.left)}"
        return ""


def run_command(arguments: Sequence[str]) -> int:
    from qkv.cli.main import run

    return run([*arguments])


def run_reader(code: str, path: str) -> int:
    """Run a reader that no command is made for alone; what it raises is judged as for a command."""
    try:
        exec(code, {"path": Path(path)})
    except (ValueError, OSError) as error:
        print(f"qkv: {error}".encode("utf-8", "backslashreplace").decode(), file=sys.stderr)
        return 2
    return 0


def run_forked(action: Callable[[], int], folder: Path) -> Outcome:
    """Run a command in `folder`. It may write only what it is asked to, and nothing if it fails."""
    logs = [folder.parent / f"{folder.name}.{name}" for name in ("out", "err")]
    temporary = folder.parent / f"{folder.name}.tmp"
    temporary.mkdir(exist_ok=True)
    before = set(folder.rglob("*"))
    started = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _be_child(action, folder, temporary, logs)
    code, memory = _wait(child)
    seconds = time.monotonic() - started
    left = [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]  # torch's cache
    new = sorted(str(path.relative_to(folder)) for path in set(folder.rglob("*")) - before)
    left += [name for name in new if code not in (0, 1, 143, 130) or name.endswith((".part", ".tmp", ".old"))]
    out, err = (log.read_text(encoding="utf-8", errors="replace") for log in logs)
    return Outcome(code, memory, seconds, out, err, tuple(left))


def _be_child(action: Callable[[], int], folder: Path, temporary: Path, logs: Sequence[Path]) -> None:
    """The command's own process; it never returns."""
    code = 1
    try:
        os.setsid()
        for number, log in enumerate(logs, 1):
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, number)
            os.close(handle)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.chdir(folder)
        os.environ["TMPDIR"] = str(temporary)
        os.environ["HF_HUB_OFFLINE"] = "1"
        import tempfile

        tempfile.tempdir = None
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2 * MAX_MEMORY,) * 2)  # a safety net for the machine
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from qkv.cli.standard_streams import guard_streams

        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        guard_streams()
        code = action()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        with contextlib.suppress(Exception):
            os.write(2, traceback.format_exc().encode("utf-8", "replace"))
            code = 70
    finally:
        os._exit(code)


def _wait(child: int) -> tuple[int, int]:
    """Wait for the child; tell it to stop after a while, then kill it."""
    handle = os.pidfd_open(child)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    asked_nicely = bool(poll.poll(SECONDS * 1000))
    if not asked_nicely:
        os.kill(child, signal.SIGTERM)
    stopped = asked_nicely or bool(poll.poll(GRACE * 1000))
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)  # also what it has started
    _, status, usage = os.wait4(child, 0)
    os.close(handle)
    if not stopped:
        return -1, usage.ru_maxrss * 1024
    code = os.waitstatus_to_exitcode(status)
    return (128 - code if code < 0 else code), usage.ru_maxrss * 1024
