"""Find where an implementation keeps what an earlier call left behind: resetting that place makes the output right.

Places are attributes of modules and of their classes, and, for functions, globals and caches (lru_cache) of their file.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.implementation import Implementation

INTERNAL = ("_qkv_parameters", "_parameters", "_modules", "_buffers", "training", "forward")
ABSENT = object()
KINDS = (dict, list, set, Tensor, int, float, tuple, type(None))


@dataclass(frozen=True, eq=False)
class Place:
    """Something that is kept between calls: its name, and functions that set it to its first value and back."""

    name: str
    reset: Callable[[], None]
    restore: Callable[[], None]


def find_kept(impl: Implementation, fresh: nn.Module | None, is_right: Callable[[], bool]) -> str:
    """The name of the place that makes the output wrong, as in "`self._cos`"; empty if none is found.

    Args:
        fresh: the module as it was before any call, if there is one.
        is_right: runs the implementation, and says whether its output is that of a first call.
    """
    places = list(_places_of_module(impl.module, fresh) if impl.module is not None else ())
    places += _places_of_file(impl)
    named = [place.name for place in places if _explains([place], is_right)]
    if named:
        return named[0]
    if not 1 < len(places) <= 12 or not _explains(places, is_right):
        return ""
    for place in list(places):  # only those that are needed
        fewer = [other for other in places if other is not place]
        if fewer and _explains(fewer, is_right):
            places = fewer
    names = [place.name for place in places]
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"


def _explains(places: list[Place], is_right: Callable[[], bool]) -> bool:
    try:
        for place in places:
            place.reset()
        return is_right()
    except Exception:  # something else depends on this place
        return False
    finally:
        for place in places:
            place.restore()


def _places_of_module(module: nn.Module, fresh: nn.Module | None) -> Iterator[Place]:
    """Attributes and buffers that differ from those of a module that was never called, and attributes of classes."""
    others = {} if fresh is None else dict(fresh.named_modules())
    for path, part in module.named_modules():
        other = others.get(path)
        prefix = f"self.{path}." if path else "self."
        for holder, first in ((vars(part), vars(other) if other is not None else None),
                              (part._buffers, other._buffers if other is not None else None)):  # fmt: skip
            for name, value in list(holder.items()):
                known = name not in INTERNAL and not name.endswith("_hooks") and isinstance(value, KINDS)
                if not known or name.startswith(("_forward_", "_backward_")):
                    continue
                if first is not None and (name not in first or not _same(value, first[name])):
                    yield _entry(f"`{prefix}{name}`", holder, name, first.get(name, ABSENT))
                elif first is None and isinstance(value, dict) and value:
                    yield _entry(f"`{prefix}{name}`", holder, name, {})
        for name, value in list(vars(type(part)).items()):
            if isinstance(value, dict | list | set) and value and not name.startswith("__"):
                yield _contents(f"`{type(part).__name__}.{name}`", value)
            elif isinstance(value, Tensor):
                yield _attribute(f"`{type(part).__name__}.{name}`", type(part), name)


def _places_of_file(impl: Implementation) -> Iterator[Place]:
    function = getattr(impl.attention, "function", None)
    owner = type(impl.module) if impl.module is not None else function
    namespace = vars(sys.modules[owner.__module__]) if getattr(owner, "__module__", None) in sys.modules else {}
    if isinstance(function, FunctionType):
        namespace = function.__globals__
        for name, value in list(vars(function).items()):
            if isinstance(value, dict | list | set) and value:
                yield _contents(f"`{function.__name__}.{name}`", value)
            elif isinstance(value, Tensor):
                yield _attribute(f"`{function.__name__}.{name}`", function, name)
        for default in function.__defaults__ or ():
            if isinstance(default, dict | list | set) and default:
                yield _contents(f"a default argument of `{function.__name__}`", default)
    for name, value in list(namespace.items()):
        if name.startswith("__"):
            continue
        if hasattr(value, "cache_clear") and hasattr(value, "cache_info"):
            yield Place(f"the cache of `{name}`", value.cache_clear, lambda: None)
        elif isinstance(value, dict | list | set) and value and _holds_tensors(value):
            yield _contents(f"`{name}`", value)
        elif isinstance(value, Tensor):
            yield _entry(f"`{name}`", namespace, name, None)


def _holds_tensors(value: Any) -> bool:
    items = list(value.values()) if isinstance(value, dict) else list(value)
    return any(isinstance(part, Tensor | int | float) for item in items for part in (
        item if isinstance(item, tuple | list) else [item]))  # fmt: skip


def _entry(words: str, holder: dict[str, Any], name: str, first: Any) -> Place:
    """first: the value before any call; ABSENT if there was none."""
    now = holder[name]

    def reset() -> None:
        if first is ABSENT:
            holder.pop(name, None)
        else:
            holder[name] = copy.deepcopy(first)

    def restore() -> None:
        holder[name] = now

    return Place(words, reset, restore)


def _attribute(words: str, holder: Any, name: str) -> Place:
    now = getattr(holder, name)
    return Place(words, lambda: setattr(holder, name, None), lambda: setattr(holder, name, now))


def _contents(words: str, kept: Any) -> Place:
    """The contents of a dict, list or set; the object stays the same, since others may refer to it."""
    now = copy.copy(kept)

    def restore() -> None:
        kept.clear()
        kept.extend(now) if isinstance(kept, list) else kept.update(now)

    return Place(words, kept.clear, restore)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    with suppress(Exception):
        return type(one) is type(other) and bool(one == other)
    return False
