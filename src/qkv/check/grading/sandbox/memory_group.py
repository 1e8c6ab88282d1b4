"""A memory cgroup for one submission: a limit that counts everything its process makes the kernel hold.

The address-space limit of a process (`namespaces.set_limits`) does not count pipes, page tables and files in memory.
The grader makes the group and removes it; the launcher joins it before it gives up the right to.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

PREFIX = "qkv-grade-"
FILES = {1: ("memory.limit_in_bytes", "memory.oom_control"), 2: ("memory.max", "memory.events")}
KERNEL_BYTES = 512 << 20  # beyond the submission's limit: copies of torch's pages, page tables, its scratch files


def create(memory: int, name: str, root: str = "/") -> str | None:
    """Make a group with `memory` bytes (and some for the sandbox itself); None where the system offers none.

    It is made below this process's own group (version 1, or delegated) or beside it, so limits of the system stay.
    """
    for version, folder in _places(root):
        _remove_stale(folder)
        group = folder / f"{PREFIX}{os.getpid()}-{name}"
        try:
            group.mkdir()
            (group / FILES[version][0]).write_text(str(memory + KERNEL_BYTES))
        except OSError:
            remove(str(group))
            continue
        return str(group)
    return None


def join(group: str) -> None:
    """Move this process, and its children from now on, into the group."""
    with contextlib.suppress(OSError):
        Path(group, "cgroup.procs").write_text(str(os.getpid()))


def num_kills(group: str) -> int:
    """How many processes of the group the kernel has ended because its memory ran out."""
    for _, name in FILES.values():
        with contextlib.suppress(OSError, ValueError):
            counts = dict(line.split() for line in Path(group, name).read_text().splitlines())
            return int(counts.get("oom_kill", 0))
    return 0


def remove(group: str) -> None:
    """Remove an empty group; its last process may still be ending."""
    for _ in range(100):
        try:
            os.rmdir(group)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
        else:
            return


def _places(root: str) -> list[tuple[int, Path]]:
    """Where a group with a memory limit may be made: version of cgroups and folder."""
    try:
        lines = Path(root, "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    places: list[tuple[int, Path]] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            places.append((1, Path(root, "sys/fs/cgroup/memory", path.lstrip("/"))))
        elif not controllers:
            own = Path(root, "sys/fs/cgroup", path.lstrip("/"))
            places += [(2, folder) for folder in (own, own.parent) if _has_memory(folder)]
    return [
        (version, folder)
        for version, folder in places
        if os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)
    ]


def _has_memory(folder: Path) -> bool:
    try:
        return "memory" in (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False


def _remove_stale(folder: Path) -> None:
    """Remove the groups of graders that were killed."""
    for group in folder.glob(f"{PREFIX}*"):
        pid = group.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            with contextlib.suppress(OSError):
                os.rmdir(group)
