"""The models that can be opened, by id: bundled models, finished runs, and folders that the user named.

An id is looked up in the list of models and never used as a path. A loaded model is kept until its files change or too
many others are used.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from qkv.checkpoints import bundled, load_any, resolve
from qkv.checkpoints.huggingface.folder import missing_weights_message
from qkv.interp.inputs import InputKind, input_kind
from qkv.models.folder import CONFIG
from qkv.studio.responses import NotFoundError
from qkv.studio.run_files import FileStamp, file_stamp, printable_name
from qkv.training.run_state import STATUS_FILE, read_status
from qkv.training.runs import MODEL_FOLDER

MAX_LOADED = 4  # models in memory
MAX_BYTES = 6 * 2**30  # of a model's files
RECIPE_KINDS: dict[str, InputKind] = {
    "gpt-text": "text",
    "birthplaces": "text",
    "translate": "pair",
    "speech": "audio",
    "vit-digits": "image",
    "vit-cifar10": "image",
    "vit-cifar100": "image",
}
CARD_FACTS = ("summary", "parameters", "license", "data", "command", "metrics")


@dataclass(frozen=True)
class ModelSource:
    """A model that can be opened. checkpoint: what `qkv.load` takes. facts: what is known before it is opened."""

    id: str
    origin: str
    title: str
    checkpoint: str
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in memory. lock: hold it to run or change the model."""

    source: ModelSource
    model: nn.Module
    kind: InputKind
    notes: tuple[str, ...]
    lock: threading.RLock = field(default_factory=threading.RLock)


class ModelStore:
    """All models of a studio."""

    def __init__(self, runs: Path, folders: tuple[Path, ...]) -> None:
        self._runs = runs
        self._folders: dict[str, ModelSource] = {}
        self._loaded: OrderedDict[str, tuple[FileStamp, LoadedModel]] = OrderedDict()
        self._lock = threading.Lock()
        self._loading: dict[str, threading.Lock] = {}
        for path in folders:
            source = _command_line_source(path)
            self._folders[source.id] = source

    def sources(self) -> list[ModelSource]:
        """The models that can be opened now."""
        return [*_bundled_sources(), *_run_sources(self._runs), *self._folders.values()]

    def add(self, path: str) -> ModelSource:
        """Add a folder that the user named; ValueError if it cannot be a model's."""
        if not path.strip():
            raise ValueError("enter the path of a model folder on this machine")
        source = _folder_source(_check_folder(Path(path.strip()).expanduser()))
        self._folders[source.id] = source
        return source

    def source(self, name: str) -> ModelSource:
        """A model by its id."""
        for source in self.sources():
            if source.id == name:
                return source
        raise NotFoundError(f"there is no model {str(name)[:80]!r}; choose one of the list, or enter its folder")

    def get(self, name: str) -> LoadedModel:
        """The loaded model of an id; loaded again if its files have changed."""
        source = self.source(name)
        with self._lock:
            loading = self._loading.setdefault(source.id, threading.Lock())
        with loading:
            with self._lock:
                kept = self._loaded.pop(source.id, None)
            checkpoint, stamp = _checkpoint_files(source)
            if kept is not None and kept[0] == stamp:
                loaded = kept[1]
            else:
                model, notes = load_any(checkpoint)
                loaded = LoadedModel(source, model, input_kind(model), notes)
            with self._lock:
                self._loaded[source.id] = stamp, loaded
                while len(self._loaded) > MAX_LOADED:
                    self._loaded.popitem(last=False)
            return loaded


def _checkpoint_files(source: ModelSource) -> tuple[str, FileStamp]:
    """What is loaded, and the stamp of its files."""
    if source.origin == "bundled":
        return source.checkpoint, ()
    path = _check_folder(Path(source.checkpoint))
    folder = resolve(path)
    files = sorted(file for pattern in ("*.json", "*.safetensors") for file in folder.glob(pattern))
    return str(path), file_stamp(*([path] if path.is_file() else files))


def _bundled_sources() -> list[ModelSource]:
    sources = []
    for name in bundled.names():
        card = bundled.read_card(name)
        facts = {key: card.get(key) for key in CARD_FACTS} | {"kind": RECIPE_KINDS.get(str(card.get("recipe")))}
        sources.append(ModelSource(name, "bundled", name.removeprefix(bundled.PREFIX), name, facts))
    return sources


def _run_sources(runs: Path) -> list[ModelSource]:
    """Finished runs with a model, newest first; folders whose run.json cannot be read are left out."""
    sources = []
    for path in runs.glob(f"*/{STATUS_FILE}") if runs.is_dir() else []:
        folder = path.parent
        try:
            status = read_status(folder)
        except (ValueError, OSError):
            continue
        if not status.get("finished") or not (folder / MODEL_FOLDER / CONFIG).is_file():
            continue
        recipe = status.get("recipe")
        facts = {"summary": recipe, "parameters": status.get("parameters"), "kind": RECIPE_KINDS.get(str(recipe))}
        name = printable_name(folder)
        source = ModelSource(f"run:{name}", "run", name, str(folder), facts)
        sources.append((path.stat().st_mtime, source))
    return [source for _, source in sorted(sources, key=lambda each: -each[0])]


def _command_line_source(path: Path) -> ModelSource:
    """A folder of the command line: it is listed in any case, and opening it says what is wrong with it."""
    try:
        return _folder_source(_check_folder(path))
    except ValueError:
        return _folder_source(path)


def _folder_source(path: Path) -> ModelSource:
    full = str(path.resolve())
    number = hashlib.sha256(full.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return ModelSource(f"folder:{number}", "folder", path.resolve().name, full, {"summary": full})


def _check_folder(path: Path) -> Path:
    """The folder or file that is loaded; ValueError if it cannot be a model."""
    if not path.exists():
        raise ValueError(f"there is nothing at {path} on this machine; enter the path of a model folder")
    if path.is_dir() and not (path / CONFIG).is_file() and not (path / MODEL_FOLDER / CONFIG).is_file():
        files = [file for file in sorted(path.glob("*.bin")) if not file.name.startswith("tok")]
        if len(files) != 1:
            raise ValueError(f"{path} is not a model folder: it has no {CONFIG}")
        path = files[0]
    if path.is_file() and path.suffix != ".bin":
        raise ValueError(f"{path} is a file; enter the folder with {CONFIG} and safetensors")
    folder = resolve(path)
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        raise ValueError(missing_weights_message(folder))
    files = folder.glob("*.safetensors") if folder.is_dir() else [path]
    size = sum(file.stat().st_size for file in files)
    if size > MAX_BYTES:
        raise ValueError(f"{path} has {size / 2**30:.1f} GB; the studio opens models up to {MAX_BYTES / 2**30:.0f} GB")
    return path
