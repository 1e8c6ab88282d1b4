"""The systems that qkv trains, by name; a file is imported when its system is asked for."""

import difflib
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.recipes.system import System

SYSTEMS = {
    "vit-digits": "qkv.recipes.pictures:DIGITS",
    "vit-cifar10": "qkv.recipes.pictures:CIFAR10",
    "vit-cifar100": "qkv.recipes.pictures:CIFAR100",
    "gpt-text": "qkv.recipes.texts:TEXT",
    "birthplaces": "qkv.recipes.facts:BIRTHPLACES",
    "translate": "qkv.recipes.translation:TRANSLATE",
    "speech": "qkv.recipes.speech:SPEECH",
}


def system(name: str) -> "System":
    """The system of that name."""
    if name not in SYSTEMS:
        near = difflib.get_close_matches(name, SYSTEMS, n=1)
        meant = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(SYSTEMS)}"
        raise ValueError(f"there is no recipe {name!r}{meant}")
    home, _, attribute = SYSTEMS[name].partition(":")
    return getattr(importlib.import_module(home), attribute)
