"""Folders that appear whole or not at all: JSON that says what is in them, and tensors. Never a pickle.

A folder is written beside its place and moved there by one rename; an older one is moved away first, and put back if
the second rename fails.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor


def write_whole(target: Path, own: Collection[str], write: Callable[[Path], None], *, what: str) -> None:
    """Let `write` fill a folder that then replaces `target`, if that holds nothing but files named in `own`."""
    _refuse_foreign(target, own, what)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        write(scratch)
        scratch.chmod(0o755)
        for path in (*scratch.iterdir(), scratch):
            _to_disk(path)
        _swap(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _to_disk(target.parent)


def read_json(path: Path, *, needed: str) -> dict[str, Any]:
    """The object in a folder's JSON file; `needed` says what such a folder holds."""
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent} is not a folder; {needed}")
    if not path.exists():
        raise ValueError(f"{path.parent} has no {path.name}; {needed}")
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(described, dict):
        raise ValueError(f"{path} should hold a JSON object; got {type(described).__name__}")
    return described


def read_tensors(path: Path, *, needed: str) -> dict[str, Tensor]:
    """The tensors in a folder's safetensors file."""
    if not path.exists():
        raise ValueError(f"{path.parent} has no {path.name}; {needed}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from None


def _refuse_foreign(target: Path, own: Collection[str], what: str) -> None:
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file; a {what} is saved to a folder")
    foreign = sorted(path.name for path in target.iterdir()) if target.exists() else []
    foreign = [name for name in foreign if name not in own]
    if foreign:
        raise ValueError(f"{target} holds other files ({foreign[0]}, …); choose a new folder, so that nothing is lost")


def _swap(new: Path, target: Path) -> None:
    if not target.exists():
        new.rename(target)
        return
    old = new.with_name(new.name + ".old")
    target.rename(old)
    try:
        new.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
