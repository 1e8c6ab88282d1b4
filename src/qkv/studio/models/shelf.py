"""The models that can be opened, by id: those that come with qkv, finished runs, and folders that a person named.

An id is looked up among what is listed, never made into a path. A model is read once and kept as long as its files are
the same; the one that was not used for longest goes when there are too many.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from qkv.checkpoints import bundled as shipped
from qkv.checkpoints.weights import nothing_to_read
from qkv.interp import checkpoint
from qkv.interp.subject import Kind, kind_of
from qkv.models.folder import CONFIG, read_json
from qkv.studio.answers import UnknownError
from qkv.studio.stamps import Stamp, stamp
from qkv.training.runs import MODEL, STATUS

KEPT = 4  # models in memory
LARGEST = 6 * 2**30  # bytes of a model's files


@dataclass(frozen=True)
class Source:
    """One model that can be opened. where: what `qkv.load` takes. facts: what is known of it before it is opened."""

    id: str
    origin: str
    title: str
    where: str
    facts: dict[str, Any] = field(default_factory=dict)

    def as_plain(self) -> dict[str, Any]:
        return {"id": self.id, "origin": self.origin, "title": self.title, "where": self.where, "facts": self.facts}


@dataclass(frozen=True, eq=False)
class Held:
    """A model in memory. lock: who runs or changes the model holds it."""

    source: Source
    model: nn.Module
    kind: Kind
    notes: tuple[str, ...]
    lock: threading.RLock = field(default_factory=threading.RLock)


class Shelf:
    """All models of a studio."""

    def __init__(self, runs: Path, named: tuple[Path, ...]) -> None:
        self._runs = runs
        self._folders: dict[str, Source] = {}
        self._held: OrderedDict[str, tuple[Stamp, Held]] = OrderedDict()
        self._lock = threading.Lock()
        self._gates: dict[str, threading.Lock] = {}
        for path in named:
            source = _named(path)
            self._folders[source.id] = source

    def sources(self) -> list[Source]:
        """What can be opened now."""
        return [*_bundled(), *_finished(self._runs), *self._folders.values()]

    def add(self, path: str) -> Source:
        """A folder that a person named; refused at once if it cannot be a model's."""
        if not path.strip():
            raise ValueError("name a model's folder on this machine")
        source = _folder(_checkpoint(Path(path.strip()).expanduser()))
        self._folders[source.id] = source
        return source

    def source(self, name: str) -> Source:
        """One of them by its id."""
        for source in self.sources():
            if source.id == name:
                return source
        raise UnknownError(f"there is no model {str(name)[:80]!r} here; choose one of the list, or name its folder")

    def get(self, name: str) -> Held:
        """The model of an id, read if it is not held yet, or if its files are others by now."""
        source = self.source(name)
        with self._lock:
            gate = self._gates.setdefault(source.id, threading.Lock())
        with gate:
            with self._lock:
                kept = self._held.pop(source.id, None)
            where, written = _files(source)
            held = kept[1] if kept is not None and kept[0] == written else _read(source, where)
            with self._lock:
                self._held[source.id] = written, held
                while len(self._held) > KEPT:
                    self._held.popitem(last=False)
            return held


def _files(source: Source) -> tuple[str, Stamp]:
    """What is read, and which files these are now."""
    if source.origin == "bundled":
        return source.where, ()
    path = _checkpoint(Path(source.where))
    home = path / MODEL if (path / MODEL / CONFIG).is_file() else path
    parts = sorted(file for pattern in ("*.json", "*.safetensors") for file in home.glob(pattern))
    return str(path), stamp(*([path] if path.is_file() else parts))


def _read(source: Source, where: str) -> Held:
    model, notes = checkpoint.load(where)
    return Held(source, model, kind_of(model), notes)


def _bundled() -> list[Source]:
    found = []
    for name in shipped.names():
        card = shipped.read_card(name)
        facts = {key: card.get(key) for key in ("summary", "parameters", "licence", "data", "command", "metrics")}
        found.append(Source(name, "bundled", name.removeprefix(shipped.PREFIX), name, facts))
    return found


def _finished(runs: Path) -> list[Source]:
    """Runs with a trained model, the newest first; a folder whose run.json cannot be read is none."""
    found = []
    for path in runs.glob(f"*/{STATUS}") if runs.is_dir() else []:
        place = path.parent
        try:
            status = read_json(path)
        except (ValueError, OSError):
            continue
        if not status.get("finished") or not (place / MODEL / CONFIG).is_file():
            continue
        facts = {"summary": status.get("recipe"), "parameters": status.get("parameters")}
        found.append((path.stat().st_mtime, Source(f"run:{place.name}", "run", place.name, str(place), facts)))
    return [source for _, source in sorted(found, key=lambda each: -each[0])]


def _named(path: Path) -> Source:
    """A folder of the command line: it is listed whatever it holds, and says what is wrong when it is opened."""
    try:
        return _folder(_checkpoint(path))
    except ValueError:
        return _folder(path)


def _folder(path: Path) -> Source:
    whole = str(path.resolve())
    number = hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return Source(f"folder:{number}", "folder", path.resolve().name, whole, {"summary": whole})


def _checkpoint(path: Path) -> Path:
    """The folder or the file that is read; a ValueError if nothing there can be."""
    if not path.exists():
        raise ValueError(f"there is nothing at {path} on this machine; name a model's folder")
    if path.is_dir() and not (path / CONFIG).is_file() and not (path / MODEL / CONFIG).is_file():
        files = [file for file in sorted(path.glob("*.bin")) if not file.name.startswith("tok")]
        if len(files) != 1:
            raise ValueError(f"{path} is not a model's folder: it has no {CONFIG}")
        path = files[0]
    if path.is_file() and path.suffix != ".bin":
        raise ValueError(f"{path} is a file; name the folder that holds {CONFIG} and safetensors")
    home = path / MODEL if (path / MODEL / CONFIG).is_file() else path
    if home.is_dir() and not any(home.glob("*.safetensors")):
        raise ValueError(nothing_to_read(home))
    size = sum(file.stat().st_size for file in home.glob("*.safetensors")) if home.is_dir() else path.stat().st_size
    if size > LARGEST:
        raise ValueError(f"{path} is {size / 2**30:.1f} GB; the studio opens models of up to {LARGEST / 2**30:.0f} GB")
    return path
