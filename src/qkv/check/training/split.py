"""Splits of data: nothing that is validated on is trained on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.finding import Finding

COUNT = 200


def check_split(function: Callable[..., Any], contract: Contract) -> tuple[str, list[Finding]]:
    """split(examples, …) -> train, validation, …: called with 200 examples that are all different."""
    names = list(inspect.signature(function).parameters)
    forms = {
        "a list": list(range(COUNT)),
        "a tensor": torch.arange(COUNT),
        "a text": [f"example {i}" for i in range(COUNT)],
    }
    tried = []
    for form, data in forms.items():
        try:
            parts = function(data)
            parts = tuple(parts.values()) if isinstance(parts, dict) else tuple(parts)
            if len(parts) >= 2 and all(hasattr(part, "__len__") for part in parts):
                return f"({', '.join(names)}) with {form} of {COUNT} examples", [_disjoint(parts), _kept(parts)]
            tried.append(f"{form}: {len(parts)} parts")
        except Exception as error:  # another form is tried
            tried.append(f"{form}: {type(error).__name__}: {error}")
    raise ValueError(f"the split could not be called with examples alone; tried {'; '.join(tried)}")


def _members(part: Any) -> set[Any]:
    if isinstance(part, Tensor):
        return set(part.flatten().tolist())
    members: set[Any] = set()
    for item in part:
        members |= _members(item) if isinstance(item, Tensor | list | tuple) else {item}
    return members


def _disjoint(parts: tuple[Any, ...]) -> Finding:
    train, held = _members(parts[0]), set().union(*(_members(part) for part in parts[1:]))
    both = train & held
    evidence = f"{len(train)} examples to train on, {len(held)} held out, {len(both)} on both sides"
    if not train or not held:
        return Finding("split is disjoint", "inconclusive", None, evidence)
    if not both:
        return Finding("split is disjoint", "pass", 0.0, evidence)
    example = sorted(both, key=str)[0]
    hint = f"{example!r} stands on both sides: split first, then cut into windows and shuffle"
    return Finding("split is disjoint", "fail", len(both) / len(held), evidence, hint, "split")


def _kept(parts: tuple[Any, ...]) -> Finding:
    seen = set().union(*(_members(part) for part in parts))
    return Finding("split keeps all", "described", None, f"{len(seen)} of {COUNT} examples are in some part")
