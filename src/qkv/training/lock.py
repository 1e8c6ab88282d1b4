"""Lock of a run directory: one process writes to it. The lock of a process that has ended is taken over."""

import fcntl
import json
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from qkv._files import open_regular

LOCK_FILE = "lock"
MAX_LOCK_BYTES = 4096
MAX_PID = 2**22  # the kernel's own limit


class LockedError(ValueError):
    """Another live process writes to the directory."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a directory inside the block; raises a LockedError if another live process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    path, me = folder / LOCK_FILE, describe_process(os.getpid())
    with _open_lock(path) as held:  # open until the end: by it `is_held_by` recognizes this process
        fcntl.flock(held, fcntl.LOCK_EX)  # only while reading and writing the file: workers would inherit it
        holder = _read(held)
        if holder and is_alive(holder):
            raise LockedError(
                f"{folder} is in use by process {holder['pid']} on {holder['host']}; wait for it, stop it, "
                f"or choose another directory (if it has certainly ended, delete {path})"
            )
        _write(held, json.dumps(me))
        fcntl.flock(held, fcntl.LOCK_UN)
        try:
            yield
        finally:
            _clear_lock(path, me)


def _open_lock(path: Path) -> BinaryIO:
    """Open or make a lock file, to read and append. A link raises a ValueError: its target would be overwritten."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        if path.is_symlink():
            raise ValueError(f"{path} is a symbolic link; delete it, so that the directory can be locked") from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{path} is not a regular file; delete it, so that the directory can be locked")
    return os.fdopen(handle, "a+b")


def _clear_lock(path: Path, me: dict[str, Any]) -> None:
    with _open_lock(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if _read(file) == me:
            _write(file, "")


def lock_holder(folder: Path) -> dict[str, Any] | None:
    """Return the live process that writes to a directory, or None; a copy of a locked directory has none."""
    process = read_process(folder / LOCK_FILE)
    return None if process is None or is_held_by(process, folder) is False else process


def is_held_by(process: dict[str, Any], folder: Path) -> bool | None:
    """Whether a process holds the lock of this directory: whether it has its lock file open for writing.

    None if that cannot be known: it runs on another host, belongs to another user, or the system has no /proc.
    """
    if process.get("host") != socket.gethostname() or not _is_pid(process.get("pid")):
        return None
    try:
        lock = os.stat(folder / LOCK_FILE, follow_symlinks=False)
        if not stat.S_ISREG(lock.st_mode):
            return False
        if lock.st_nlink != 1:  # `cp -al` made a second name, or this is the second name of another run's lock
            return None
        numbers = os.listdir(f"/proc/{process['pid']}/fd")
    except OSError:
        return None
    return any(_is_open_for_writing(process["pid"], number, lock) for number in numbers)


def _is_open_for_writing(pid: int, number: str, file: os.stat_result) -> bool:
    try:
        found = os.stat(f"/proc/{pid}/fd/{number}")
        if (found.st_dev, found.st_ino) != (file.st_dev, file.st_ino):
            return False
        about = Path(f"/proc/{pid}/fdinfo/{number}").read_text(encoding="ascii")
    except OSError:  # closed meanwhile
        return False
    fields = dict(line.split(":", 1) for line in about.splitlines() if ":" in line)
    return int(fields.get("flags", "0"), 8) & os.O_ACCMODE != os.O_RDONLY


def read_process(path: Path) -> dict[str, Any] | None:
    """Return the live process that a file describes, or None; the file may hold anything."""
    try:
        with open_regular(path, follow_link=False) as file:
            process = _read(file)
    except OSError:
        return None
    return process if process and is_alive(process) else None


def terminate(process: dict[str, Any], is_training: Callable[[dict[str, Any]], bool]) -> None:
    """Send SIGTERM to the process that a file describes, if it is one, still runs and belongs to this user.

    is_training: whether the process is the one that is meant; asked when its number can no longer be reused. If not, a
    ProcessLookupError is raised.

    Raises ProcessLookupError if it has ended, PermissionError if it is another user's, ValueError if its number is not
    one that may be signaled: above 1, so that no group of processes is meant, and not our own.
    """
    pid = process.get("pid")
    if not _is_pid(pid) or pid in (1, os.getpid()):
        raise ValueError(f"{pid!r} is not the number of a training process")
    handle = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None  # from here on the number cannot be reused
    try:
        if not is_alive(process):
            raise ProcessLookupError(pid)
        if os.path.exists(f"/proc/{pid}") and os.stat(f"/proc/{pid}").st_uid != os.geteuid():
            raise PermissionError(pid)
        if not is_training(process):
            raise ProcessLookupError(pid)
        if handle is None:
            os.kill(pid, signal.SIGTERM)
        else:
            signal.pidfd_send_signal(handle, signal.SIGTERM)
    finally:
        if handle is not None:
            os.close(handle)


def describe_process(pid: int) -> dict[str, Any]:
    """Describe a process so that a later process with the same number is not mistaken for it."""
    return {"pid": pid, "host": socket.gethostname(), "began": _start_time(pid)}


def is_alive(process: dict[str, Any]) -> bool:
    """Whether the process still runs; neither a zombie nor a process that reuses its number counts."""
    if not _is_pid(process.get("pid")):
        return False
    if process.get("host") != socket.gethostname():
        return True  # cannot be known from here
    try:
        os.kill(int(process["pid"]), 0)
    except PermissionError:
        return True
    except (ProcessLookupError, KeyError, ValueError):
        return False
    ended = _read_stat(int(process["pid"]))[:1] in (["Z"], ["X"])
    return not ended and _start_time(int(process["pid"])) == process.get("began")


def _is_pid(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_PID


def _start_time(pid: int) -> str:
    """Return the boot id and the clock ticks from boot to the start of a process; "" where the system has no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{_read_stat(pid)[19]}"
    except (OSError, IndexError):
        return ""


def _read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name (state, …); empty where there are none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _read(file: Any) -> dict[str, Any]:
    file.seek(0)
    try:
        found = json.loads(file.read(MAX_LOCK_BYTES) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(file: Any, text: str) -> None:
    file.truncate(0)
    file.write(text.encode())
    file.flush()
