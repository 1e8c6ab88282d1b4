"""qkv checks, explains and trains transformers.

Importing qkv is cheap: torch is imported when a name is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv import byhand, check, checkpoints, claims, data, interp, masks, models, nn, positions, training
    from qkv.checkpoints import load
    from qkv.nn.attention import attention
    from qkv.nn.multi_head_attention import MultiHeadAttention

__version__ = "0.1.0"
__all__ = [
    "MultiHeadAttention",
    "attention",
    "byhand",
    "check",
    "checkpoints",
    "claims",
    "data",
    "interp",
    "load",
    "masks",
    "models",
    "nn",
    "positions",
    "training",
]

_HOMES = {
    "attention": "qkv.nn.attention",
    "MultiHeadAttention": "qkv.nn.multi_head_attention",
    "load": "qkv.checkpoints",
}


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
    return sorted({*globals(), *__all__} - {"importlib", "TYPE_CHECKING"})
