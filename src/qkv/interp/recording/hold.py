"""Keeping tensors of a run without copying them, and without being fooled when the run writes over them.

What is recorded is kept by reference. If an operation is about to write into its memory (a cache that is filled in
place), it is copied first. What already lives in memory that is written in place, or in a parameter, is copied at once.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


class Held:
    """A tensor of the run, as it was when it was recorded."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def compact(self) -> Tensor:
        """The tensor without the larger memory that it may be a view of."""
        whole = self.tensor.untyped_storage().nbytes()
        if whole > self.tensor.numel() * self.tensor.element_size():
            self.tensor = self.tensor.clone(memory_format=torch.contiguous_format)
        return self.tensor


class Holder:
    """All tensors held during one recording."""

    def __init__(self) -> None:
        self._held: defaultdict[int, list[Held]] = defaultdict(list)
        self._written: set[int] = set()
        self._mutable: dict[Any, bool] = {}

    def hold(self, tensor: Tensor) -> Held:
        """Keep a tensor as it is now."""
        place = _place(tensor)
        if place in self._written or (tensor.is_leaf and tensor.requires_grad):
            return Held(tensor.detach().clone())
        held = Held(tensor.detach())
        self._held[place].append(held)
        return held

    def release(self, held: Held) -> None:
        """Keep it no longer."""
        kept = self._held.get(_place(held.tensor))
        if kept is not None and held in kept:
            kept.remove(held)

    def before(self, operator: Any, arguments: tuple, named: dict[str, Any]) -> list[int]:
        """Copy what the operator is about to write over; give the places it writes to."""
        mutable = self._mutable.get(operator)
        if mutable is None:
            mutable = self._mutable[operator] = operator._schema.is_mutable
        if not mutable:
            return []
        places = []
        for argument, value in zip(operator._schema.arguments, arguments, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                places += [_place(x) for x in tree_leaves(value) if isinstance(x, Tensor)]
        for argument in operator._schema.arguments:
            if argument.name in named and argument.alias_info is not None and argument.alias_info.is_write:
                places += [_place(x) for x in tree_leaves(named[argument.name]) if isinstance(x, Tensor)]
        for place in places:
            self._written.add(place)
            for held in self._held.pop(place, ()):
                held.tensor = held.tensor.clone()
        return places


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
