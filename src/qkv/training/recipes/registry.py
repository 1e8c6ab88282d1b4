"""The systems that qkv trains, by name; a file is imported when its system is asked for."""

import difflib
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.training.recipes.definition import System

SYSTEMS = {
    "vit-digits": "qkv.training.recipes.images:DIGITS",
    "vit-cifar10": "qkv.training.recipes.images:CIFAR10",
    "vit-cifar100": "qkv.training.recipes.images:CIFAR100",
    "gpt-text": "qkv.training.recipes.language:TEXT",
    "birthplaces": "qkv.training.recipes.facts:BIRTHPLACES",
    "translate": "qkv.training.recipes.translation:TRANSLATE",
    "speech": "qkv.training.recipes.speech:SPEECH",
}


def system(name: str) -> "System":
    """The system of that name."""
    if name not in SYSTEMS:
        near = difflib.get_close_matches(name, SYSTEMS, n=1)
        meant = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(SYSTEMS)}"
        raise ValueError(f"there is no recipe {name!r}{meant}")
    home, _, attribute = SYSTEMS[name].partition(":")
    return getattr(importlib.import_module(home), attribute)
