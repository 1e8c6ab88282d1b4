"""State of a run: training, testing, finished, stopped, failed or unfinished, from run.json and its locks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from qkv._files import json_safe, read_json, write_atomic
from qkv.training.lock import LockedError, lock_folder, lock_holder

STATUS_FILE = "run.json"
MAX_STATUS_BYTES = 4 * 2**20
STATUS_TYPES = {"seconds": int | float, "parameters": int, "notes": list, "result": dict}
STATUS_TYPES |= {"test": dict, "validation": dict}  # of the result
RunState = Literal["training", "testing", "finished", "stopped", "failed", "unfinished"]
RESUMABLE: tuple[RunState, ...] = ("stopped", "failed", "unfinished")
UNFINISHED = "its process ended without finishing the run; resume it to continue"


def read_status(run_folder: Path) -> dict[str, Any]:
    """Read the run.json of a run directory; a ValueError names the first field that is damaged."""
    path, expected = run_folder / STATUS_FILE, "a run directory has recipe.toml and run.json"
    status = read_json(path, expected, max_bytes=MAX_STATUS_BYTES, follow_link=False)
    tables = {name: table for name, table in status.items() if name in STATUS_TYPES}
    if isinstance(result := tables.get("result"), dict):
        tables |= {name: result[name] for name in ("test", "validation") if result.get(name) is not None}
    for name, value in tables.items():
        if not isinstance(value, STATUS_TYPES[name]):
            raise ValueError(f"{run_folder / STATUS_FILE} is damaged: {name} is {value!r}")
    return status


def write_status(run_folder: Path, status: dict[str, Any]) -> None:
    """Write the run.json of a run directory."""
    write_atomic(run_folder / STATUS_FILE, json.dumps(json_safe(status), indent=2, ensure_ascii=False) + "\n")


def change_status(run_folder: Path, **changes: Any) -> None:
    """Change fields of a run's run.json; a field that becomes None is removed."""
    status = {**read_status(run_folder), **changes}
    write_status(run_folder, {name: value for name, value in status.items() if value is not None})


def find_state(run_folder: Path, stage_folders: Iterable[Path]) -> RunState:
    """Return the state of a run. A run that was asked to stop is stopped; one whose process was killed is unfinished.

    stage_folders: the directories that `train` locks, one per stage; the run directory itself is locked by the test.
    """
    status = read_status(run_folder)
    if status.get("finished"):
        return "finished"
    if any(lock_holder(folder) for folder in {run_folder, *stage_folders}):
        return "testing" if status.get("testing") else "training"
    if status.get("error"):
        return "failed"
    return "stopped" if status.get("stopped") else "unfinished"


@contextmanager
def recorded_test(run_folder: Path) -> Iterator[None]:
    """Mark the run as testing inside the block, and hold its lock."""
    with lock_folder(run_folder):
        change_status(run_folder, testing=True)
        yield
        change_status(run_folder, testing=None)


@contextmanager
def recorded_end(run_folder: Path) -> Iterator[None]:
    """Write an error that ends a run, or that it was stopped, to its run.json; a new attempt clears both."""
    change_status(run_folder, error=None, stopped=None)
    try:
        yield
    except LockedError:
        raise  # another process continues the run
    except BaseException as error:
        kind = "error" if isinstance(error, Exception) else "stopped"  # by Ctrl-C or a signal
        with suppress(OSError):  # a full disk may be the error
            change_status(run_folder, **{kind: str(error) or type(error).__name__})
        raise
