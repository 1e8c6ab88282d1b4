"""qkv: the workbench for transformers.

Importing qkv is cheap: torch is imported when a name is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv import byhand, check, claims, data, hub, layers, look, loop, masks, models, ops, positions, recipes, trace
    from qkv.hub import load
    from qkv.layers import MultiHeadAttention
    from qkv.ops.attention import attention

__version__ = "0.1.0"
__all__ = [
    "MultiHeadAttention",
    "attention",
    "byhand",
    "check",
    "claims",
    "data",
    "hub",
    "layers",
    "load",
    "look",
    "loop",
    "masks",
    "models",
    "ops",
    "positions",
    "recipes",
    "trace",
]

_HOMES = {"attention": "qkv.ops.attention", "MultiHeadAttention": "qkv.layers", "load": "qkv.hub"}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in __all__:
        value = importlib.import_module(f"qkv.{name}")
    else:
        raise AttributeError(f"module 'qkv' has no attribute {name!r}; it has {', '.join(__all__)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
