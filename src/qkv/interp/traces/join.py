"""Joining calls of one layer into one map: steps of a generation, or blocks of queries.

Axes: b batch · h heads · g heads of keys · t queries · s keys · d head width.

A call continues an earlier one if its keys begin with keys seen before and it has more keys than queries (a cache that
grows, slides, or has a fixed size), if it has one query and the very same keys (a memory read step by step), or if its
queries stand right behind the last ones in memory (a block). Keys that several calls share are held once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.interp.recording.hold import Held, Holder
from qkv.interp.recording.structure import four_axes, mask_of
from qkv.interp.traces.layer import Layer, Piece
from qkv.interp.traces.lazy_weights import Derived, Recipe, Source, Written
from qkv.nn.masks import Band


@dataclass(frozen=True, eq=False)
class Step:
    """One call: where its rows and columns begin, and what it brought; its keys are among those of the layer."""

    row: int
    column: int
    t: int
    s: int
    kind: type  # of source: Recipe, Derived or Written
    tensor: Held | None = None  # the queries of a recipe, or the weights
    rest: dict[str, Any] = field(default_factory=dict)  # of a recipe, all but queries and keys
    derived: Derived | None = None

    @property
    def rule(self) -> Rule | None:
        """What the call allows, as a rule that other calls may follow too."""
        if self.kind is not Recipe or self.rest["bias"] is not None or self.rest["sink"] is not None:
            return None
        if isinstance(self.rest["scale"], Tensor):
            return None
        place = self.column + self.s - self.t - self.row  # the column of row 0's own key
        left, right = None if self.column == 0 else place - self.column + self.row, 0
        mask = self.rest["mask"]
        if isinstance(mask, Band):
            left, right = mask.left, mask.right
        elif mask is not None or self.t > 1:
            return None
        low, high = None if left is None else place - left, None if right is None else place + right
        return Rule(low, high, self.rest["scale"], self.rest["softcap"])


class Rule(NamedTuple):
    """Row i attends to the columns from i + low to i + high; None is without bound."""

    low: int | None
    high: int | None
    scale: float
    softcap: float | None


class Calls:
    """The calls that make one layer's map, and all keys that they have seen."""

    def __init__(self, source: Source, holder: Holder, values: Tensor | None = None) -> None:
        self.cross: bool | None = None
        self._holder = holder
        self._keys = holder.hold(source.keys) if isinstance(source, Recipe) else None
        self._values = None if values is None else holder.hold(values)
        self._sizes = source.shape[:2]
        self._offset = source.keys.storage_offset() if isinstance(source, Recipe) else 0
        self._steps = [self._step(0, 0, source)]

    def hear(self, cross: bool) -> None:
        """Learn whether the layer attends to another sequence."""
        self.cross = cross

    def continued(self, source: Source, values: Tensor | None = None) -> bool:
        """Take a call as a continuation, if it is one."""
        last = self._steps[-1]
        if type(source) is not last.kind or isinstance(source, Derived) or source.shape[:2] != self._sizes:
            return False
        column = self._column_of(source)
        if column is None:
            return False
        if isinstance(source, Recipe):
            self._keys = self._taken(self._keys, source.keys, column)
            self._offset = source.keys.storage_offset()
        self._values = self._taken(self._values, values, column)
        self._steps.append(self._step(last.row + last.t, column, source))
        return True

    def _column_of(self, source: Source) -> int | None:
        """The column at which a continuation begins; None if it is none."""
        last, t, s = self._steps[-1], source.shape[2], source.shape[3]
        if isinstance(source, Written):
            return last.column if t < s and s in (last.s + t, last.s if t == 1 else -1) else None
        assert isinstance(source, Recipe) and self._keys is not None
        held = self._keys.tensor
        if held.shape[-1] != source.keys.shape[-1] or held.shape[1] != source.keys.shape[1]:
            return None
        if self._is_block(source):
            return last.column + int((source.keys.storage_offset() - self._offset) // source.keys.stride(-2))
        if held.shape == source.keys.shape and torch.equal(held, source.keys):
            return 0 if t == 1 else None
        if t >= s:
            return None
        alike = (held[..., last.column :, :] == source.keys[..., :1, :]).all(-1).flatten(0, 1).all(0)
        for place in alike.nonzero().flatten().tolist():
            column = last.column + place  # among tokens that repeat, more than the first key must agree
            shared = min(held.shape[-2] - column, s - t)
            if torch.equal(held[..., column : column + shared, :], source.keys[..., :shared, :]):
                return column
        fixed = held.shape == source.keys.shape and bool(alike.any()) and bool(alike[0])
        return 0 if fixed else None

    def _is_block(self, source: Recipe) -> bool:
        """Whether the queries stand right behind the last call's in memory: a block of the same queries."""
        last, new = self._steps[-1].tensor, source.queries
        if last is None or last.tensor.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
            return False
        behind = last.tensor.storage_offset() + last.tensor.shape[-2] * last.tensor.stride(-2)
        return last.tensor.stride() == new.stride() and new.storage_offset() == behind

    def _taken(self, known: Held | None, new: Tensor | None, column: int) -> Held | None:
        """All keys (or values) seen so far, with a call's own from a column on."""
        if known is None or new is None:
            return None
        held = known.tensor
        if column == 0 and new.shape[-2] >= held.shape[-2]:
            self._holder.release(known)
            return self._holder.hold(new)
        if column + new.shape[-2] > held.shape[-2]:
            self._holder.release(known)
            return Held(torch.cat((held[..., :column, :], new.detach()), dim=-2))
        return known

    def _step(self, row: int, column: int, source: Source) -> Step:
        t, s = source.shape[2:]
        if isinstance(source, Recipe):
            rest = {name: value for name, value in vars(source).items() if name not in ("queries", "keys")}
            return Step(row, column, t, s, Recipe, self._holder.hold(source.queries), rest)
        if isinstance(source, Written):
            return Step(row, column, t, s, Written, self._holder.hold(source.weights))
        return Step(row, column, t, s, Derived, derived=source)

    def empty(self, nothing: Tensor) -> None:
        """Take note that what these queries of the last call gathered was set to 0: they attend to nothing."""
        last = self._steps[-1]
        if last.kind is Recipe and nothing.shape[-1] == 1 and bool(nothing.any()):
            allowed = ~four_axes(nothing)
            if last.rest["mask"] is not None:
                allowed = allowed & last.rest["mask"].tile(range(last.t), range(last.s), nothing.device)
            last.rest["mask"] = mask_of(allowed.expand(*allowed.shape[:2], last.t, last.s), last.t, last.s)

    def layer(self, name: str) -> Layer:
        """The layer's map, with calls that follow one rule put together into one recipe."""
        runs: list[list[Step]] = []
        for step in self._steps:
            rule = step.rule
            if runs and rule is not None and runs[-1][-1].rule == rule:
                runs[-1].append(step)
            else:
                runs.append([step])
        values = None if self._values is None else self._values.compact()
        return Layer.of(name, tuple(self._piece(run) for run in runs), self.cross, values)

    def _piece(self, run: list[Step]) -> Piece:
        first, last = run[0], run[-1]
        if first.derived is not None:
            return Piece(first.row, first.column, first.derived)
        tensors = [step.tensor.compact() for step in run if step.tensor is not None]
        if first.kind is Written or self._keys is None:
            return Piece(first.row, first.column, Written(tensors[0]))
        s = last.column + last.s - first.column
        keys = self._keys.compact()[..., first.column : first.column + s, :]
        queries, rule, rest = tensors[0] if len(run) == 1 else torch.cat(tensors, dim=-2), first.rule, first.rest
        if len(run) > 1 and rule is not None:
            t = queries.shape[-2]
            place = first.column + s - t - first.row
            left = None if rule.low is None else place - rule.low
            right = None if rule.high is None else rule.high - place
            rest = {**rest, "mask": Band(t, s, left, right)}
        return Piece(first.row, first.column, Recipe(queries, keys, **rest))
