"""Models that come with qkv: `qkv.load("qkv:digits")`. Each is a folder here, with a card that says how it was made.

card.json holds the SHA-256 of every file beside it, so that a damaged or a changed one is refused.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from pathlib import Path
from typing import Any

from qkv.models.folder import read_json

HOME = Path(__file__).parent
PREFIX, CARD = "qkv:", "card.json"
NEEDED = f"a model that comes with qkv is a folder with {CARD}"


def names() -> list[str]:
    """The names of the models that are here, as `qkv.load` takes them.

    >>> "qkv:digits" in names()
    True
    """
    return [PREFIX + path.parent.name for path in sorted(HOME.glob(f"*/{CARD}"))]


def is_name(path_or_id: str | Path) -> bool:
    """Whether this asks for a model that comes with qkv, there or not.

    >>> is_name("qkv:digits"), is_name("openai-community/gpt2")
    (True, False)
    """
    return os.fspath(path_or_id).startswith(PREFIX)


def place(name: str) -> Path:
    """The folder of a model, after every file of it was compared with its card."""
    folder = _known(name)
    for file, wanted in read_card(name)["sha256"].items():
        path = folder / Path(file).name
        if not path.is_file() or digest(path) != wanted:
            raise ValueError(f"{name} is damaged: {path.name} is not what its card says; install qkv anew")
    return folder


def read_card(name: str) -> dict[str, Any]:
    """What is known of a model: recipe, seed, command, metrics, parameters, the data's licence, its files' SHA-256."""
    path = _known(name) / CARD
    card = read_json(path, NEEDED)
    if not isinstance(card.get("sha256"), dict):
        raise ValueError(f"{path} lacks sha256, the checksums of the model's files; install qkv anew")
    return card


def is_here(path: Path) -> bool:
    """Whether a folder is that of a model that comes with qkv; it may be stored in half precision to be small."""
    return path.parent == HOME


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _known(name: str) -> Path:
    have = names()
    if name not in have:
        near = difflib.get_close_matches(name, have, n=1)
        meant = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(have) or 'none'}"
        raise ValueError(f"no model {name!r} comes with qkv{meant}")
    return HOME / name.removeprefix(PREFIX)
