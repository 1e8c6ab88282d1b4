"""Lock of a run directory: one process writes to it. The lock of a process that has ended is taken over."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOCK_FILE = "lock"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a directory inside the block; raises a ValueError if another live process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    path, me = folder / LOCK_FILE, describe_process(os.getpid())
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # only while reading and writing the file: workers would inherit it
        holder = _read(file)
        if holder and is_alive(holder):
            raise ValueError(
                f"{folder} is in use by process {holder['pid']} on {holder['host']}; wait for it, stop it, "
                f"or choose another directory (if it has certainly ended, delete {path})"
            )
        _write(file, json.dumps(me))
    try:
        yield
    finally:
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _read(file) == me:
                _write(file, "")


def lock_holder(folder: Path) -> dict[str, Any] | None:
    """Return the live process that writes to a directory, or None."""
    try:
        with (folder / LOCK_FILE).open("rb") as file:
            holder = _read(file)
    except OSError:
        return None
    return holder if holder and is_alive(holder) else None


def describe_process(pid: int) -> dict[str, Any]:
    """Describe a process so that a later process with the same number is not mistaken for it."""
    return {"pid": pid, "host": socket.gethostname(), "began": _start_time(pid)}


def is_alive(process: dict[str, Any]) -> bool:
    """Whether the process still runs; neither a zombie nor a process that reuses its number counts."""
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
        found = json.loads(file.read() or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _write(file: Any, text: str) -> None:
    file.truncate(0)
    file.write(text.encode())
    file.flush()
