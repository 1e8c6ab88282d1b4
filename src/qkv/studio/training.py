"""Runs that the page begins, ends and goes on with: each a process of its own, which outlives page and server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkv._files import write_whole
from qkv.training.lock import alive, process
from qkv.training.recipes.registry import system
from qkv.training.runs import RECIPE

HOLDER, LOG = ".studio.json", ".studio.log"  # in a run's folder: which process, and what it said
WORDS = 2000  # bytes of what a process said last
LONGEST = 7 * 24 * 60  # minutes
MOST = 10_000_000  # steps


class Training:
    """Processes that train, at most one at a time."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.problem = ""  # why the last one could not begin
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    def start(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a run; `asked` is what the page's form says."""
        options = options_of(asked)
        recipe = options[0]
        with self._lock:
            self._settle()
            self._alone()
            place = self._free(recipe)
            place.mkdir(parents=True)
            self._begin(place, [*options, "--folder", str(place), "--resume", "never"])
        return {"id": place.name, "command": command(*options, "--folder", str(place))}

    def resume(self, place: Path) -> dict[str, Any]:
        """Go on with an unfinished run; it ends with the bits that it would have had."""
        options = ["--config", str(place / RECIPE), "--folder", str(place), "--resume", "always"]
        with self._lock:
            self._settle()
            self._alone()
            self._begin(place, options)
        return {"id": place.name, "command": command(*options)}

    def running(self, place: Path) -> bool:
        """Whether a process that a page began is at work on a run."""
        self.settle()
        return _held(place) is not None

    def beginning(self) -> list[str]:
        """Runs that were begun and have no recipe yet: their data is being read."""
        self.settle()
        names = [path.parent.name for path in self.runs.glob(f"*/{HOLDER}") if not (path.parent / RECIPE).is_file()]
        return sorted(name for name in names if _held(self.runs / name) is not None)

    def said(self, place: Path) -> str:
        """The last words of a run's process."""
        try:
            with (place / LOG).open("rb") as file:
                file.seek(max(file.seek(0, 2) - WORDS, 0))
                return file.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def stop(self, place: Path, holder: dict[str, Any] | None) -> None:
        """Ask a run to end: it saves, and can be gone on with. holder: the process that writes to its folder."""
        found = holder or _held(place)
        if found is None or not alive(found):
            raise ValueError(f"{place.name} is not running")
        if found.get("host") != process(os.getpid())["host"]:
            raise ValueError(f"{place.name} runs on {found.get('host')}; stop it there")
        try:
            os.kill(int(found["pid"]), signal.SIGTERM)
        except ProcessLookupError:
            return  # it has ended meanwhile
        except PermissionError:
            raise ValueError(f"{place.name} is another person's process, {found['pid']}; they can stop it") from None

    def settle(self) -> None:
        """Take note of processes that have ended; one that never began leaves its last words and no folder."""
        with self._lock:
            self._settle()

    def _settle(self) -> None:
        for name, ended in list(self._processes.items()):
            code = ended.poll()
            if code is None:
                continue
            del self._processes[name]
            place = self.runs / name
            (place / HOLDER).unlink(missing_ok=True)
            if (place / RECIPE).is_file():
                continue
            if code not in (0, -signal.SIGTERM):
                words = self.said(place).splitlines()
                self.problem = words[-1].removeprefix("qkv: ") if words else f"the process ended with code {code}"
            (place / LOG).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # something else is in it: it stays
                place.rmdir()

    def _alone(self) -> None:
        for path in self.runs.glob(f"*/{HOLDER}"):
            if _held(path.parent) is not None:
                raise ValueError(f"{path.parent.name} is being trained; one run at a time is begun here: stop it first")

    def _free(self, recipe: str) -> Path:
        numbers = [path.name.rpartition("-")[2] for path in self.runs.glob(f"{recipe}-*")]
        return self.runs / f"{recipe}-{max((int(n) for n in numbers if n.isdecimal()), default=0) + 1}"

    def _begin(self, place: Path, options: list[str]) -> None:
        self.problem = ""
        handle = os.open(place / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as log:
            started = subprocess.Popen(
                [sys.executable, "-m", "qkv", "train", *options, "--quiet"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the server's terminal is not meant for it
            )
        self._processes[place.name] = started
        write_whole(place / HOLDER, json.dumps(process(started.pid)))


def options_of(asked: Mapping[str, Any]) -> list[str]:
    """What a form says, as the options of `qkv train`; a ValueError names what does not fit."""
    name = _word(asked, "recipe") or ""
    known = system(name)
    model, preset, data = (_word(asked, each) for each in ("model", "preset", "data"))
    seed, steps = _number(asked, "seed", 0, 2**31 - 1, whole=True), _number(asked, "steps", 1, MOST, whole=True)
    minutes = _number(asked, "minutes", 0.05, LONGEST)
    if minutes is not None and steps is not None:
        raise ValueError("a run is given minutes or steps, not both")
    changes = {"data.path": data} if data else {}
    known.recipe(changes, preset=preset, model=model, seed=None if seed is None else int(seed))
    named = {"model": model, "preset": preset, "data": data, "seed": seed, "steps": steps, "minutes": minutes}
    return [name, *(f"--{key}={value}" for key, value in named.items() if value is not None)]


def command(*options: str) -> str:
    """The line that does the same in a terminal."""
    import shlex

    return shlex.join(["qkv", "train", *options])


def _word(asked: Mapping[str, Any], name: str) -> str | None:
    value = asked.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > 4096 or "\0" in value:
        raise ValueError(f"{name} is a text; got {str(value)[:50]!r}")
    return value


def _number(
    asked: Mapping[str, Any], name: str, least: int | float, most: int, *, whole: bool = False
) -> int | float | None:
    value = asked.get(name)
    if value is None or value == "":
        return None
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
        raise ValueError(f"{name} is a {'whole ' if whole else ''}number from {least:,} to {most:,}; got {value!r}")
    return value


def _held(place: Path) -> dict[str, Any] | None:
    """The live process that a page began for a run."""
    try:
        found = json.loads((place / HOLDER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and alive(found) else None
