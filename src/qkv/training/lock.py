"""One process writes to a run's folder. The lock names it; a lock whose process is gone is taken over."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAME = "lock"


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the folder; a ValueError if another live process does."""
    folder.mkdir(parents=True, exist_ok=True)
    path, me = folder / NAME, process(os.getpid())
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # for the moment of looking and writing only: workers would inherit it
        found = _read(file)
        if found and alive(found):
            raise ValueError(
                f"{folder} is being written to by process {found['pid']} on {found['host']}; wait for it, stop it, "
                f"or choose another folder (if it is gone for certain, delete {path})"
            )
        _write(file, json.dumps(me))
    try:
        yield
    finally:
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _read(file) == me:
                _write(file, "")


def holder(folder: Path) -> dict[str, Any] | None:
    """The live process that writes to a folder; None if there is none."""
    try:
        with (folder / NAME).open("rb") as file:
            found = _read(file)
    except OSError:
        return None
    return found if found and alive(found) else None


def process(pid: int) -> dict[str, Any]:
    """Who a process is, so that a later one with the same number is not taken for it."""
    return {"pid": pid, "host": socket.gethostname(), "began": _began(pid)}


def _began(pid: int) -> str:
    """When a process began, where the system tells: its boot and the clock ticks since."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{_stat(pid)[19]}"
    except (OSError, IndexError):
        return ""


def _stat(pid: int) -> list[str]:
    """What the system tells of a process after its name: its state, …; nothing where it tells nothing."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return told.rpartition(")")[2].split()


def alive(holder: dict[str, Any]) -> bool:
    """Whether a process that `process` described still runs, not only that its number is taken."""
    if holder.get("host") != socket.gethostname():
        return True  # nothing can be known of it from here
    try:
        os.kill(int(holder["pid"]), 0)
    except PermissionError:
        return True
    except (ProcessLookupError, KeyError, ValueError):
        return False
    ended = _stat(int(holder["pid"]))[:1] in (["Z"], ["X"])
    return not ended and _began(int(holder["pid"])) == holder.get("began")


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
