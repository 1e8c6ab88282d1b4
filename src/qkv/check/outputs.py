"""What comes back from a call: the output with a row for each token, and the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

FIRST = ("logits", "last_hidden_state", "prediction_logits", "hidden_states", "output", "out")


def output_of(result: Any, batch: int, tokens: int) -> Tensor | None:
    """The first output that has a row for each token."""
    return first(result, lambda part: part.ndim >= 2 and tuple(part.shape[:2]) == (batch, tokens))


def picture_output(result: Any, batch: int) -> Tensor | None:
    """The output of a model on images as (b, rows, features): maps are read row by row, one vector is one row."""
    found = first(result, lambda part: part.ndim >= 2 and part.shape[0] == batch)
    if found is None:
        return None
    return found[:, None] if found.ndim == 2 else found if found.ndim == 3 else found.flatten(2).transpose(1, 2)


def first(result: Any, fits: Callable[[Tensor], bool]) -> Tensor | None:
    """The first tensor of numbers that fits; named outputs that are the usual ones go first."""
    if isinstance(result, Tensor):
        return result if result.is_floating_point() and fits(result) else None
    named = result if isinstance(result, dict) else None
    if named is None and any(isinstance(getattr(result, name, None), Tensor) for name in FIRST):
        named = {name: getattr(result, name, None) for name in FIRST}  # any object with the usual names
    if named is None and not isinstance(result, tuple | list):
        return None
    parts = list(named.values()) if named is not None else list(result)
    if named is not None:
        parts = [named[name] for name in FIRST if named.get(name) is not None] + parts
    return next((out for part in parts if (out := first(part, fits)) is not None), None)


def held(result: Any) -> Any:
    """The cache that a call returned, or None."""
    for name in ("past_key_values", "cache_params", "state", "cache", "mems"):
        if (cache := getattr(result, name, None)) is not None:
            return cache
    if isinstance(result, dict):
        return next((value for name, value in result.items() if "cache" in name or "past" in name), None)
    if isinstance(result, tuple | list) and len(result) > 1:
        nested = [part for part in result[1:] if isinstance(part, tuple | list | dict) and part]
        return nested[0] if nested else result[-1]
    return None


def every(result: Any) -> list[Tensor]:
    """All outputs that have a gradient."""
    if isinstance(result, Tensor):
        return [result] if result.is_floating_point() and result.requires_grad else []
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, tuple | list) else ()
    return [out for part in parts for out in every(part)]
