"""Join the recorded calls of one layer into one attention map: KV-cache steps of a generation, or blocks of queries.

Axes: b batch · h heads · g key heads · t queries · s keys · d head dim.

A call continues an earlier one if its keys start with keys seen before and it has more keys than queries (a cache that
grows, slides or has a fixed size), if it has one query and exactly the same keys (a memory that is read step by step),
or if its queries follow the last ones in memory (a block). Keys that several calls share are stored once.

Recorded tensors are held by reference. A tensor is copied right before an operation writes into its memory (a KV cache
that is filled in place). Tensors in memory that was already written in place, and parameters, are copied at once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from qkv.interp.layers import Piece, TracedLayer
from qkv.interp.lazy_weights import DenseWeights, FusedWeights, LazyWeights, WeightSource
from qkv.interp.recording.mask_structure import find_mask, four_axes
from qkv.nn.masks import BandMask


class HeldTensor:
    """A tensor of the run, as it was when it was recorded."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def compact(self) -> Tensor:
        """The tensor without the larger memory that it may be a view of."""
        storage = self.tensor.untyped_storage().nbytes()
        if storage > self.tensor.numel() * self.tensor.element_size():
            self.tensor = self.tensor.clone(memory_format=torch.contiguous_format)
        return self.tensor


class TensorHolder:
    """All tensors held during one recording."""

    def __init__(self) -> None:
        self._held: defaultdict[int, list[HeldTensor]] = defaultdict(list)
        self._written: set[int] = set()
        self._mutable: dict[Any, bool] = {}

    def hold(self, tensor: Tensor) -> HeldTensor:
        """Keep a tensor as it is now."""
        storage = _storage(tensor)
        if storage in self._written or (tensor.is_leaf and tensor.requires_grad):
            return HeldTensor(tensor.detach().clone())
        held = HeldTensor(tensor.detach())
        self._held[storage].append(held)
        return held

    def release(self, held: HeldTensor) -> None:
        """Stop protecting a tensor from being overwritten."""
        others = self._held.get(_storage(held.tensor))
        if others is not None and held in others:
            others.remove(held)

    def before(self, operator: Any, args: tuple, kwargs: dict[str, Any]) -> list[int]:
        """Copy what the operator is about to overwrite; return the storages it writes to."""
        mutable = self._mutable.get(operator)
        if mutable is None:
            mutable = self._mutable[operator] = operator._schema.is_mutable
        if not mutable:
            return []
        storages = []
        for index, argument in enumerate(operator._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            storages += [_storage(x) for x in tree_leaves(value) if isinstance(x, Tensor)]
        for storage in storages:
            self._written.add(storage)
            for held in self._held.pop(storage, ()):
                held.tensor = held.tensor.clone()
        return storages


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class BandRule(NamedTuple):
    """Row i attends to the columns from i + low to i + high; None means no bound."""

    low: int | None
    high: int | None
    scale: float
    softcap: float | None


@dataclass(frozen=True, eq=False)
class RecordedCall:
    """One call: where its rows and columns start, and what it brought; its keys are among the layer's keys.

    kind: LazyWeights, FusedWeights or DenseWeights. tensor: the queries, or the dense weights.
    rest: for LazyWeights, all fields but queries and keys.
    """

    row: int
    column: int
    t: int
    s: int
    kind: type
    tensor: HeldTensor | None = None
    rest: dict[str, Any] = field(default_factory=dict)
    fused: FusedWeights | None = None

    @property
    def rule(self) -> BandRule | None:
        """The call's mask, as a rule that other calls may share; None if it has no such rule."""
        if self.kind is not LazyWeights or self.rest["bias"] is not None or self.rest["sink"] is not None:
            return None
        if isinstance(self.rest["scale"], Tensor):
            return None
        diagonal = self.column + self.s - self.t - self.row  # the column of row 0's own key
        mask = self.rest["mask"]
        if isinstance(mask, BandMask):
            left, right = mask.left, mask.right
        elif mask is not None or self.t > 1:
            return None
        else:
            left, right = (None if self.column == 0 else diagonal - self.column + self.row), 0
        low = None if left is None else diagonal - left
        high = None if right is None else diagonal + right
        return BandRule(low, high, self.rest["scale"], self.rest["softcap"])


class LayerCalls:
    """The calls that make up one layer's map, and all keys they have seen."""

    def __init__(self, source: WeightSource, holder: TensorHolder, values: Tensor | None = None) -> None:
        self.cross: bool | None = None
        self._holder = holder
        self._keys = holder.hold(source.keys) if isinstance(source, LazyWeights) else None
        self._values = None if values is None else holder.hold(values)
        self._sizes = source.shape[:2]
        self._offset = source.keys.storage_offset() if isinstance(source, LazyWeights) else 0
        self._calls = [self._make_call(0, 0, source)]

    def set_cross(self, cross: bool) -> None:
        """Note whether the layer is cross-attention."""
        self.cross = cross

    def join(self, source: WeightSource, values: Tensor | None = None) -> bool:
        """Add a call if it continues the last one; return whether it does."""
        last = self._calls[-1]
        if type(source) is not last.kind or isinstance(source, FusedWeights) or source.shape[:2] != self._sizes:
            return False
        column = self._start_column(source)
        if column is None:
            return False
        if isinstance(source, LazyWeights):
            self._keys = self._extend(self._keys, source.keys, column)
            self._offset = source.keys.storage_offset()
        self._values = self._extend(self._values, values, column)
        self._calls.append(self._make_call(last.row + last.t, column, source))
        return True

    def _start_column(self, source: WeightSource) -> int | None:
        """The column at which a continuation starts; None if the call is not a continuation."""
        last, t, s = self._calls[-1], source.shape[2], source.shape[3]
        if isinstance(source, DenseWeights):
            return last.column if t < s and s in (last.s + t, last.s if t == 1 else -1) else None
        assert isinstance(source, LazyWeights) and self._keys is not None
        held = self._keys.tensor
        if held.shape[-1] != source.keys.shape[-1] or held.shape[1] != source.keys.shape[1]:
            return None
        if self._is_next_block(source):
            return last.column + int((source.keys.storage_offset() - self._offset) // source.keys.stride(-2))
        if held.shape == source.keys.shape and torch.equal(held, source.keys):
            return 0 if t == 1 else None
        if t >= s:
            return None
        first_key_matches = (held[..., last.column :, :] == source.keys[..., :1, :]).all(-1).flatten(0, 1).all(0)
        for position in first_key_matches.nonzero().flatten().tolist():
            column = last.column + position  # with repeated tokens, more than the first key must agree
            shared = min(held.shape[-2] - column, s - t)
            if torch.equal(held[..., column : column + shared, :], source.keys[..., :shared, :]):
                return column
        fixed_size = held.shape == source.keys.shape and bool(first_key_matches.any()) and bool(first_key_matches[0])
        return 0 if fixed_size else None

    def _is_next_block(self, source: LazyWeights) -> bool:
        """Whether the queries directly follow the last call's queries in memory: the next block."""
        last, new = self._calls[-1].tensor, source.queries
        if last is None or _storage(last.tensor) != _storage(new):
            return False
        end = last.tensor.storage_offset() + last.tensor.shape[-2] * last.tensor.stride(-2)
        return last.tensor.stride() == new.stride() and new.storage_offset() == end

    def _extend(self, known: HeldTensor | None, new: Tensor | None, column: int) -> HeldTensor | None:
        """All keys (or values) seen so far, with a call's own from a column on."""
        if known is None or new is None:
            return None
        held = known.tensor
        if column == 0 and new.shape[-2] >= held.shape[-2]:
            self._holder.release(known)
            return self._holder.hold(new)
        if column + new.shape[-2] > held.shape[-2]:
            self._holder.release(known)
            return HeldTensor(torch.cat((held[..., :column, :], new.detach()), dim=-2))
        return known

    def _make_call(self, row: int, column: int, source: WeightSource) -> RecordedCall:
        t, s = source.shape[2:]
        if isinstance(source, LazyWeights):
            rest = {name: value for name, value in vars(source).items() if name not in ("queries", "keys")}
            return RecordedCall(row, column, t, s, LazyWeights, self._holder.hold(source.queries), rest)
        if isinstance(source, DenseWeights):
            return RecordedCall(row, column, t, s, DenseWeights, self._holder.hold(source.weights))
        return RecordedCall(row, column, t, s, FusedWeights, fused=source)

    def mark_empty(self, empty: Tensor) -> None:
        """Note that the output of these queries of the last call was set to 0: they attend to nothing."""
        last = self._calls[-1]
        if last.kind is LazyWeights and empty.shape[-1] == 1 and bool(empty.any()):
            mask = ~four_axes(empty)
            if last.rest["mask"] is not None:
                mask = mask & last.rest["mask"].tile(range(last.t), range(last.s), empty.device)
            last.rest["mask"] = find_mask(mask.expand(*mask.shape[:2], last.t, last.s), last.t, last.s)

    def layer(self, name: str) -> TracedLayer:
        """The layer's map; consecutive calls that follow one rule become one piece."""
        runs: list[list[RecordedCall]] = []
        for call in self._calls:
            rule = call.rule
            if runs and rule is not None and runs[-1][-1].rule == rule:
                runs[-1].append(call)
            else:
                runs.append([call])
        values = None if self._values is None else self._values.compact()
        return TracedLayer.from_pieces(name, tuple(self._make_piece(run) for run in runs), self.cross, values)

    def _make_piece(self, run: list[RecordedCall]) -> Piece:
        first, last = run[0], run[-1]
        if first.fused is not None:
            return Piece(first.row, first.column, first.fused)
        tensors = [call.tensor.compact() for call in run if call.tensor is not None]
        if first.kind is DenseWeights or self._keys is None:
            return Piece(first.row, first.column, DenseWeights(tensors[0]))
        s = last.column + last.s - first.column
        keys = self._keys.compact()[..., first.column : first.column + s, :]
        queries = tensors[0] if len(run) == 1 else torch.cat(tensors, dim=-2)
        rule, rest = first.rule, first.rest
        if len(run) > 1 and rule is not None:
            t = queries.shape[-2]
            diagonal = first.column + s - t - first.row
            left = None if rule.low is None else diagonal - rule.low
            right = None if rule.high is None else rule.high - diagonal
            rest = {**rest, "mask": BandMask(t, s, left, right)}
        return Piece(first.row, first.column, LazyWeights(queries, keys, **rest))
