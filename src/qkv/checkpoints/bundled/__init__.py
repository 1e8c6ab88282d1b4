"""The bundled models, such as `qkv.load("qkv:digits")`: one folder each, with a card that says how it was trained.

card.json holds the SHA-256 of every other file, so that damaged or changed files are refused.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from pathlib import Path
from typing import Any

from qkv._files import read_json

HOME = Path(__file__).parent
PREFIX, CARD = "qkv:", "card.json"
EXPECTED = f"a bundled model is a folder with {CARD}"


def names() -> list[str]:
    """The names of the bundled models, as `qkv.load` takes them.

    >>> "qkv:digits" in names()
    True
    """
    return [PREFIX + path.parent.name for path in sorted(HOME.glob(f"*/{CARD}"))]


def is_name(source: str | Path) -> bool:
    """Whether this is written as the name of a bundled model, existing or not.

    >>> is_name("qkv:digits"), is_name("openai-community/gpt2")
    (True, False)
    """
    return os.fspath(source).startswith(PREFIX)


def folder(name: str) -> Path:
    """The folder of a bundled model, after checking every file against the SHA-256 in its card."""
    path = _find(name)
    for file_name, expected in read_card(name)["sha256"].items():
        file = path / Path(file_name).name
        if not file.is_file() or sha256(file) != expected:
            raise ValueError(f"{name} is damaged: {file.name} differs from its card; reinstall qkv")
    return path


def read_card(name: str) -> dict[str, Any]:
    """Read a model's card: recipe, seed, command, metrics, number of parameters, license of the data, SHA-256."""
    path = _find(name) / CARD
    card = read_json(path, EXPECTED)
    if not isinstance(card.get("sha256"), dict):
        raise ValueError(f"{path} lacks sha256, the checksums of the model's files; reinstall qkv")
    return card


def sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _find(name: str) -> Path:
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        advice = f"did you mean {near[0]}?" if near else f"the bundled models are {', '.join(known) or 'none'}"
        raise ValueError(f"there is no bundled model {name!r}; {advice}")
    return HOME / name.removeprefix(PREFIX)
