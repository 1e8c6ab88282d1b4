"""Where the output is in what a call returned: tensors, tuples, dictionaries, dataclasses, arrays of other libraries.

Axes: b batch · t tokens · c features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

OUTPUT_NAMES = (
    "logits", "last_hidden_state", "prediction_logits", "prediction_outputs", "hidden_states", "output", "out",
    "outputs", "sample", "y", "hidden", "attn_output", "context",
)  # fmt: skip
Path = tuple[int | str, ...]  # the steps from a result to one of its parts


def parts(result: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """Every tensor in a result, with its path; outputs with the usual names go first."""
    if isinstance(result, Tensor):
        yield path, result
        return
    for step, part in _children(result):
        yield from parts(part, (*path, step))


def follow(result: Any, path: Path) -> Any:
    """The part of a result at a path."""
    for step in path:
        result = dict(_children(result))[step]
    return result


def _children(result: Any) -> list[tuple[int | str, Any]]:
    if isinstance(result, tuple | list) and not hasattr(result, "_fields"):
        return list(enumerate(result))
    if isinstance(result, dict):
        named = {str(name): part for name, part in result.items()}
    elif isinstance(result, tuple) and hasattr(result, "_fields"):
        named = dict(zip(result._fields, result, strict=True))  # type: ignore[attr-defined]
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        named = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    elif hasattr(result, "__dict__") and not callable(result):
        named = dict(vars(result))  # any object with tensors in it
    else:
        return []
    usual = [name for name in OUTPUT_NAMES if named.get(name) is not None]
    return [(name, named[name]) for name in (*usual, *(name for name in named if name not in usual))]


def to_torch(result: Any) -> Any:
    """A result with the arrays of numpy, JAX and other libraries as tensors."""
    if isinstance(result, Tensor) or result is None or isinstance(result, str | int | bool):
        return result
    if isinstance(result, tuple | list):
        return tuple(to_torch(part) for part in result)
    if isinstance(result, dict):
        return {name: to_torch(part) for name, part in result.items()}
    if hasattr(result, "__array__") and not dataclasses.is_dataclass(result):
        import numpy as np

        return torch.from_numpy(np.array(result))  # a copy: the target may write into its own
    return result


def find_tensor(result: Any, fits: Callable[[Tensor], bool]) -> Tensor | None:
    """The first floating-point tensor that fits."""
    return next((part for _, part in parts(result) if part.is_floating_point() and fits(part)), None)


def find_output(result: Any, batch: int, tokens: int) -> Tensor | None:
    """The first output that has a row for each token: (b, t, …), also from (b, h, t, d) and (b·t, …)."""
    found = find_tensor(result, lambda part: part.ndim >= 2 and tuple(part.shape[:2]) == (batch, tokens))
    if found is not None:
        return found
    found = find_tensor(
        result, lambda part: part.ndim == 4 and (part.shape[0], part.shape[2]) == (batch, tokens) and part.shape[3] > 1
    )
    if found is not None:
        return found.transpose(1, 2).flatten(2)
    found = find_tensor(result, lambda part: part.ndim == 2 and batch > 1 and part.shape[0] == batch * tokens)
    return None if found is None else found.unflatten(0, (batch, tokens))


def find_rows(result: Any, batch: int) -> Tensor | None:
    """An output that is not aligned with the input, as (b, rows, features): maps are flattened, a vector is one row."""
    found = find_tensor(result, lambda part: part.ndim >= 2 and part.shape[0] == batch)
    if found is None:
        found = find_tensor(result, lambda part: part.ndim == 1 and part.shape[0] == batch)
        return None if found is None else found[:, None, None]
    if found.ndim == 3:
        return found
    return found[:, None] if found.ndim == 2 else found.flatten(2).transpose(1, 2)


def first_tensor(result: Any) -> Tensor:
    """The result, or its first element if more is returned."""
    return result if isinstance(result, Tensor) else result[0]


def differentiable_outputs(result: Any) -> list[Tensor]:
    """All outputs that have a gradient."""
    return [part for _, part in parts(result) if part.is_floating_point() and part.requires_grad]
