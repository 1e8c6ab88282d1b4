"""Training runs that the page starts, stops and resumes: each is a `qkv train` process that outlives the server."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qkv._files import open_regular, write_atomic
from qkv.training.lock import (
    LOCK_FILE,
    describe_process,
    is_alive,
    is_held_by,
    lock_holder,
    read_process,
    terminate,
)
from qkv.training.recipes import get_recipe
from qkv.training.runs import RECIPE_FILE

PROCESS_FILE, LOG_FILE = ".studio.json", ".studio.log"  # in a run's folder: its process, and what it printed
LOG_TAIL = 2000  # bytes of the log that are shown
MAX_MINUTES = 7 * 24 * 60
MAX_STEPS = 10_000_000


class RunProcesses:
    """The training processes of a folder of runs, at most one at a time."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.problem = ""  # why the last run could not start
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    def start(self, form: Mapping[str, Any]) -> dict[str, Any]:
        """Start a new run with the values of the page's form."""
        options = train_options(form)
        with self._lock:
            self._collect_ended()
            self._check_none_running()
            folder = self._new_folder(options[0])
            folder.mkdir(parents=True)
            self._launch(folder, [*options, "--folder", str(folder), "--resume", "never"])
        return {"id": folder.name, "command": train_command(*options, "--folder", str(folder))}

    def resume(self, folder: Path) -> dict[str, Any]:
        """Resume an unfinished run, bit-exactly."""
        options = ["--config", str(folder / RECIPE_FILE), "--folder", str(folder), "--resume", "always"]
        with self._lock:
            self._collect_ended()
            self._check_none_running()
            self._launch(folder, options)
        return {"id": folder.name, "command": train_command(*options)}

    def is_running(self, folder: Path) -> bool:
        """Whether a process that a page started is training this run."""
        self.collect_ended()
        return _find_process(folder) is not None

    def starting(self) -> list[str]:
        """Runs that were started and have no recipe file yet, because their data is being read."""
        self.collect_ended()
        files = self.runs.glob(f"*/{PROCESS_FILE}")
        names = [path.parent.name for path in files if not (path.parent / RECIPE_FILE).is_file()]
        return sorted(name for name in names if _find_process(self.runs / name) is not None)

    def log_tail(self, folder: Path) -> str:
        """The last lines that a run's process printed."""
        try:
            with open_regular(folder / LOG_FILE, follow_link=False) as file:
                file.seek(max(file.seek(0, 2) - LOG_TAIL, 0))
                return file.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def stop(self, folder: Path, holder: dict[str, Any] | None, stages: Iterable[Path] = ()) -> None:
        """Stop a run with SIGTERM; it saves a checkpoint first.

        The files of a run folder may name any process. It is signaled only if it has the lock file of this folder or of
        one of its stages open, or if it is the `qkv train --folder` of this folder that a studio started.

        holder: the process that its lock names. stages: the folders of its stages.
        """
        process = holder or _find_process(folder)
        if process is None or not is_alive(process):
            raise ValueError(f"{folder.name} is not running")
        own = self._processes.get(folder.name)
        started_here = own is not None and own.poll() is None and own.pid == process.get("pid")

        def is_training(process: dict[str, Any]) -> bool:
            held = any(is_held_by(process, each) for each in (folder, *stages))
            return started_here or held or _is_command_of(process, folder) is True

        if process.get("host") != describe_process(os.getpid())["host"]:
            raise ValueError(
                f"{folder.name} runs on {process.get('host') or 'a machine without a name'}; stop it there"
            )
        try:
            terminate(process, is_training)
        except ProcessLookupError:
            if not is_alive(process):
                return  # it has ended meanwhile
            raise ValueError(
                f"process {process['pid']} does not hold the lock of {folder.name}, so it is not stopped; if it is its "
                f"training, stop it in a terminal: kill {process['pid']}"
            ) from None
        except PermissionError:
            raise ValueError(
                f"{folder.name} runs as process {process['pid']} of another user; they can stop it"
            ) from None

    def collect_ended(self) -> None:
        """Forget ended processes; of a run that could not start, keep the error and delete the folder."""
        with self._lock:
            self._collect_ended()

    def _collect_ended(self) -> None:
        for name, process in list(self._processes.items()):
            code = process.poll()
            if code is None:
                continue
            del self._processes[name]
            folder = self.runs / name
            (folder / PROCESS_FILE).unlink(missing_ok=True)
            if (folder / RECIPE_FILE).is_file():
                continue
            if code not in (0, -signal.SIGTERM):
                lines = self.log_tail(folder).splitlines()
                self.problem = lines[-1].removeprefix("qkv: ") if lines else f"the process ended with exit code {code}"
            (folder / LOG_FILE).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it contains something else: keep it
                folder.rmdir()

    def _check_none_running(self) -> None:
        for folder in sorted(path for path in self.runs.glob("*") if path.is_dir()):
            locked = [path.parent for depth in ("", "*/") for path in folder.glob(depth + LOCK_FILE)]
            if _find_process(folder) is not None or any(lock_holder(each) is not None for each in locked):
                raise ValueError(f"{folder.name} is training; the studio runs one at a time, stop it first")

    def _new_folder(self, recipe: str) -> Path:
        numbers = [path.name.rpartition("-")[2] for path in self.runs.glob(f"{recipe}-*")]
        return self.runs / f"{recipe}-{max((int(n) for n in numbers if n.isdecimal()), default=0) + 1}"

    def _launch(self, folder: Path, options: list[str]) -> None:
        self.problem = ""
        (folder / LOG_FILE).unlink(missing_ok=True)  # in a folder from others it may be a link or a pipe
        handle = os.open(folder / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "qkv", "train", *options, "--quiet"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the server's terminal must not stop the run
            )
        self._processes[folder.name] = process
        write_atomic(folder / PROCESS_FILE, json.dumps(describe_process(process.pid)))


def train_options(form: Mapping[str, Any]) -> list[str]:
    """The values of the page's form as options of `qkv train`; ValueError names what does not fit."""
    name = _read_text(form, "recipe") or ""
    recipe = get_recipe(name)
    model, preset, data = (_read_text(form, each) for each in ("model", "preset", "data"))
    seed = _read_number(form, "seed", 0, 2**31 - 1, integer=True)
    steps = _read_number(form, "steps", 1, MAX_STEPS, integer=True)
    minutes = _read_number(form, "minutes", 0.05, MAX_MINUTES)
    if minutes is not None and steps is not None:
        raise ValueError("give minutes or steps, not both")
    changes = {"data.path": data} if data else {}
    recipe.resolve(changes, preset=preset, model=model, seed=None if seed is None else int(seed))
    options = {"model": model, "preset": preset, "data": data, "seed": seed, "steps": steps, "minutes": minutes}
    return [name, *(f"--{key}={value}" for key, value in options.items() if value is not None)]


def train_command(*options: str) -> str:
    """The shell command of a run."""
    return shlex.join(["qkv", "train", *options])


def _read_text(form: Mapping[str, Any], name: str) -> str | None:
    value = form.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > 4096 or "\0" in value:
        raise ValueError(f"{name} must be a text, got {str(value)[:50]!r}")
    return value


def _read_number(
    form: Mapping[str, Any], name: str, least: int | float, most: int, *, integer: bool = False
) -> int | float | None:
    value = form.get(name)
    if value is None or value == "":
        return None
    types = int if integer else int | float
    if isinstance(value, bool) or not isinstance(value, types) or not least <= value <= most:
        kind = "a whole number" if integer else "a number"
        raise ValueError(f"{name} must be {kind} from {least:,} to {most:,}, got {value!r}")
    return value


def _find_process(folder: Path) -> dict[str, Any] | None:
    """The live process that a page started for a run; a copy of the run's folder has none."""
    process = read_process(folder / PROCESS_FILE)
    return None if process is None or _is_command_of(process, folder) is False else process


def _is_command_of(process: Mapping[str, Any], folder: Path) -> bool | None:
    """Whether a process is `python … -m qkv train … --folder FOLDER`; None if that cannot be known from here."""
    if process.get("host") != socket.gethostname():
        return None
    place = Path("/proc") / str(process["pid"])
    try:
        words = [os.fsdecode(word) for word in (place / "cmdline").read_bytes().split(b"\0")]
        if words == [""]:
            return None  # it is about to begin
        pairs = list(itertools.pairwise(words))
        if ("-m", "qkv") not in pairs or ("qkv", "train") not in pairs:
            return False
        named = [place / "cwd" / after for before, after in pairs if before == "--folder"]
        return any(os.path.samefile(each, folder) for each in named)
    except FileNotFoundError:
        return False if place.exists() else None
    except OSError:
        return None
