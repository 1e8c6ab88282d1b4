"""SymbolicScores: what hand-written attention did to q·k on its way to the softmax (views, scale, mask, bias, softcap).

Axes: b batch · h heads · t queries · s keys · d head dim.

A product of two matrices has three kinds of axes: batch axes, rows and columns. Views split and merge batch axes and
permute all axes, so each axis of a view is a run of `AxisPart`s, which are read off the strides. Every operation gives
new SymbolicScores, or None if attention does not use that operation; the softmax at the end gives LazyWeights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from qkv.interp.lazy_weights import LazyWeights, RelativeBias
from qkv.interp.recording.mask_structure import AddedBias, AnalyzeBias, deduplicate_heads, find_mask, join_masks
from qkv.nn.masks import Mask

Axes = tuple[tuple["AxisPart", ...], ...]  # the parts of each axis; an axis of size 1 has none


@dataclass(frozen=True, eq=False)
class AxisPart:
    """An axis of the product, or a part of one."""

    kind: Literal["batch", "row", "column", "inner"]
    size: int


@dataclass(frozen=True, eq=False)
class AxisLayout:
    """The axes of a tensor, and how axis parts were split on the way."""

    axes: Axes
    splits: dict[AxisPart, tuple[AxisPart, AxisPart]]

    @staticmethod
    def from_shape(shape: tuple[int, ...]) -> AxisLayout:
        """The layout of a product of shape (…, rows, columns)."""
        kinds = ["batch"] * (len(shape) - 2) + ["row", "column"]
        axes = tuple((AxisPart(kind, size),) if size > 1 else () for kind, size in zip(kinds, shape, strict=True))  # pyright: ignore[reportArgumentType]
        return AxisLayout(axes, {})

    def follow_view(self, before: Tensor, after: Tensor) -> AxisLayout | None:
        """The layout of a view that shows every element of `before` once; None if it splits rows or columns."""
        if after.numel() != before.numel() or after.storage_offset() != before.storage_offset():
            return None
        splits = dict(self.splits)
        by_stride: dict[int, AxisPart] = {}
        for axis, stride in zip(self.axes, before.stride(), strict=True):
            for part in reversed(axis):
                by_stride[stride] = part
                stride *= part.size
        axes = []
        for size, stride in zip(after.shape, after.stride(), strict=True):
            parts: list[AxisPart] = []
            while size > 1:
                part = _part_at(by_stride, splits, stride, size)
                if part is None:
                    return None
                parts.insert(0, part)
                size //= part.size
                stride *= part.size
            axes.append(tuple(parts))
        return AxisLayout(tuple(axes), splits)

    def split_parts(self, part: AxisPart) -> tuple[AxisPart, ...]:
        """The part, or what it was split into."""
        if part not in self.splits:
            return (part,)
        return tuple(piece for half in self.splits[part] for piece in self.split_parts(half))

    def find(self, axis: int) -> Literal["row", "column"] | None:
        """Whether this axis is the product's whole row axis or its whole column axis."""
        parts = self.axes[axis]
        kinds = {part.kind for part in parts}
        if len(parts) == 1 and kinds <= {"row", "column"}:
            return "row" if "row" in kinds else "column"
        if not parts:  # an axis of size 1: the one that is nowhere else
            elsewhere = {part.kind for other in self.axes for part in other}
            if "column" not in elsewhere:
                return "column"
            if "row" not in elsewhere:
                return "row"
        return None


def _part_at(
    by_stride: dict[int, AxisPart], splits: dict[AxisPart, tuple[AxisPart, AxisPart]], stride: int, size: int
) -> AxisPart | None:
    """The part with this stride and at most this size, split off if needed."""
    for start, part in list(by_stride.items()):
        if not (start <= stride < start * part.size) or stride % start:
            continue
        inner = stride // start
        if inner > 1:
            if part.size % inner or part.kind != "batch":
                return None
            outer, low = replace(part, size=part.size // inner), replace(part, size=inner)
            splits[part] = (outer, low)
            by_stride[start], by_stride[stride], part = low, outer, outer
        if part.size > size:
            if part.size % size or part.kind != "batch":
                return None
            outer, low = replace(part, size=part.size // size), replace(part, size=size)
            splits[part] = (outer, low)
            by_stride[stride], by_stride[stride * size], part = low, outer, low
        return part if size % part.size == 0 else None
    return None


def rearrange(x: Tensor, axes: Axes, layout: AxisLayout, order: tuple[tuple[AxisPart, ...], ...]) -> Tensor:
    """Bring a tensor that broadcasts to `axes` to new axes; each of `order` is a run of parts of the final layout.

    An axis of size 1 broadcasts; where a new axis merges such a one with a full one, it is expanded.
    """
    shape: list[int] = []
    position: dict[AxisPart, int] = {}
    for parts, size in zip(axes, (1,) * (len(axes) - x.ndim) + tuple(x.shape), strict=True):
        for part in (piece for whole in parts for piece in layout.split_parts(whole)):
            position[part] = len(shape)
            shape.append(part.size if size > 1 else 1)
    x = x.reshape(shape)
    wanted = [part for run in order for part in run]
    for part in wanted:
        if part not in position:
            position[part] = x.ndim
            x = x.unsqueeze(-1)
    x = x.permute([position[part] for part in wanted])
    sizes, start = [], 0
    for run in order:
        full = [part.size for part in run]
        if all(size == 1 for size in x.shape[start : start + len(run)]):
            sizes.append(1)
        else:
            x = x.expand(*x.shape[:start], *full, *x.shape[start + len(run) :])
            sizes.append(math.prod(full))
        start += len(run)
    return x.reshape(sizes)


@dataclass(frozen=True, eq=False)
class ScoreTerm:
    """A tensor that was added, multiplied or used as a mask, and the axes that the scores had then."""

    tensor: Tensor
    axes: Axes
    factor: float = 1.0
    after: int = 0  # how many terms had been added before


@dataclass(frozen=True, eq=False)
class SymbolicScores:
    """left · right and what followed: amplitude · tanh(scale · …) or scale · …, plus terms, with fills.

    fills: masked_fill operations; a fill's factor is the score that is filled in.
    shifted: whether something that is equal for the whole last axis was left out.
    """

    left: Tensor
    right: Tensor
    product: AxisLayout
    layout: AxisLayout
    inner: tuple[AxisPart, ...]
    scale: float = 1.0
    scales: tuple[ScoreTerm, ...] = ()
    amplitude: float | None = None
    terms: tuple[ScoreTerm, ...] = ()
    fills: tuple[ScoreTerm, ...] = ()
    sink: ScoreTerm | None = None
    shifted: bool = False

    @staticmethod
    def from_product(left: Tensor, right: Tensor, product: Tensor) -> SymbolicScores:
        layout = AxisLayout.from_shape(tuple(product.shape))
        inner = (AxisPart("inner", left.shape[-1]),) if left.shape[-1] > 1 else ()
        return SymbolicScores(left.detach(), right.detach(), layout, layout, inner)

    def multiply(self, factor: float | Tensor) -> SymbolicScores | None:
        if isinstance(factor, Tensor) and factor.numel() == 1:
            factor = float(factor)
        if isinstance(factor, Tensor):
            if self.terms or self.fills or self.amplitude is not None:
                return None
            return replace(self, scales=(*self.scales, ScoreTerm(factor, self.layout.axes)))
        terms = tuple(replace(term, factor=term.factor * factor) for term in self.terms)
        fills = tuple(replace(fill, factor=fill.factor * factor) for fill in self.fills)
        if self.amplitude is not None:
            return replace(self, amplitude=self.amplitude * factor, terms=terms, fills=fills)
        return replace(self, scale=self.scale * factor, terms=terms, fills=fills)

    def add(self, added: Tensor | float, factor: float = 1.0) -> SymbolicScores | None:
        if not isinstance(added, Tensor) or added.ndim == 0 or (added.shape[-1] == 1 and self.layout.axes[-1]):
            return replace(self, shifted=True)  # the softmax ignores what all keys have in common
        term = self._make_term(added, factor)
        return None if term is None else replace(self, terms=(*self.terms, term))

    def tanh(self) -> SymbolicScores | None:
        if self.terms or self.fills or self.amplitude is not None or self.shifted:
            return None
        return replace(self, amplitude=1.0)

    def masked_fill(self, where: Tensor, value: float) -> SymbolicScores | None:
        term = self._make_term(where, value)
        return None if term is None else replace(self, fills=(*self.fills, term))

    def append_sink(self, sink: Tensor, shape: tuple[int, ...]) -> SymbolicScores | None:
        """Scores with one more column at the end, for a key without a value (an attention sink)."""
        if self.sink is not None or self.layout.find(len(shape) - 1) != "column":
            return None
        layout = replace(self.layout, axes=(*self.layout.axes[:-1], (AxisPart("column", shape[-1]),)))
        return replace(self, sink=ScoreTerm(sink.detach(), self.layout.axes), layout=layout)

    def _make_term(self, x: Tensor, factor: float) -> ScoreTerm | None:
        """An operand as a term, without its column for the sink; None if it changes the sink."""
        axes = self.layout.axes if self.sink is None else self.sink.axes
        if self.sink is not None and x.shape[-1] > 1:
            if bool(x[..., -1].any()):
                return None
            x = x[..., :-1]
        elif self.sink is not None and bool(x.any()):
            return None
        return ScoreTerm(x.detach() if x.requires_grad else x, axes, factor, len(self.terms))

    def lazy_weights(self, axis: int, heads: int | None, analyze_bias: AnalyzeBias) -> LazyWeights | None:
        """The weights after a softmax over this axis; None if it does not run over keys."""
        kind = self.layout.find(axis)
        last = len(self.layout.axes) - 1
        if kind is None or ((self.shifted or self.sink is not None) and axis != last):
            return None
        groups = self._batch_and_heads(axis, kind, heads)
        if groups is None:
            return None
        b, h = groups
        row, column = self.product.axes[-2], self.product.axes[-1]
        left = rearrange(self.left, (*self.product.axes[:-1], self.inner), self.layout, (b, h, row, self.inner))
        right_axes = (*self.product.axes[:-2], self.inner, column)
        right = rearrange(self.right, right_axes, self.layout, (b, h, column, self.inner))
        if kind == "column":
            return self._with_terms(left, deduplicate_heads(right), (b, h, row, column), analyze_bias)
        return self._with_terms(right, deduplicate_heads(left), (b, h, column, row), analyze_bias)

    def _with_terms(self, queries: Tensor, keys: Tensor, order: tuple, analyze_bias: AnalyzeBias) -> LazyWeights | None:
        """Queries and keys with everything that was done to their product."""
        size = (queries.shape[-2], keys.shape[-2])
        added = [self._analyze_term(term, order, size, analyze_bias) for term in self.terms]
        masks: list[Mask | None] = [part.mask for part in added]
        mask_values = {part.mask_value for part in added if part.mask is not None}
        for fill in self.fills:
            hides_scores = fill.factor <= torch.finfo(queries.dtype).min / 2
            if fill.after < len(self.terms) and not hides_scores:
                return None
            masks.append(find_mask(~rearrange(fill.tensor, fill.axes, self.layout, order), *size))
            mask_values.add(fill.factor)
        if len(mask_values - {float("-inf")}) > 1:
            return None
        scale: float | Tensor = self.scale * (1.0 if self.amplitude is None else self.amplitude)
        for term in self.scales:
            scale = scale * rearrange(term.tensor, term.axes, self.layout, order)
        sink = self.sink
        return LazyWeights(
            queries,
            keys,
            scale=scale,
            mask=join_masks(masks),
            mask_value=max(mask_values, default=float("-inf")),
            bias=_sum_biases([part.bias for part in added if part.bias is not None], *size),
            softcap=self.amplitude,
            sink=None if sink is None else _unexpand(rearrange(sink.tensor, sink.axes, self.layout, order)).clone(),
        )

    def _analyze_term(
        self, term: ScoreTerm, order: tuple, size: tuple[int, int], analyze_bias: AnalyzeBias
    ) -> AddedBias:
        added = rearrange(term.tensor, term.axes, self.layout, order)
        if term.factor == 1.0:
            return analyze_bias(added, term.tensor, *size)
        return AddedBias(bias=added * term.factor)

    def _batch_and_heads(
        self, axis: int, kind: str, heads: int | None
    ) -> tuple[tuple[AxisPart, ...], tuple[AxisPart, ...]] | None:
        """The axis parts of batch and heads."""
        other = "row" if kind == "column" else "column"
        rows = [place for place, parts in enumerate(self.layout.axes) if [part.kind for part in parts] == [other]]
        before = axis - 1 if axis else 1
        row = rows[0] if rows else before
        leading = [parts for place, parts in enumerate(self.layout.axes) if place not in (row, axis)]
        if any(part.kind != "batch" for parts in leading for part in parts):
            return None
        if len(leading) == 1 and heads is not None:
            return _split_off_heads(leading[0], heads, self.layout)
        return (leading[0] if leading else ()), tuple(part for parts in leading[1:] for part in parts)


def _split_off_heads(
    parts: tuple[AxisPart, ...], heads: int, layout: AxisLayout
) -> tuple[tuple[AxisPart, ...], tuple[AxisPart, ...]]:
    """Split one axis into batch and heads; all of it is the batch if it does not hold that many heads."""
    kept, taken = list(parts), []
    while kept and heads > 1:
        part = kept.pop()
        if heads % part.size == 0:
            taken.insert(0, part)
            heads //= part.size
        elif part.size % heads == 0:
            outer, low = AxisPart("batch", part.size // heads), AxisPart("batch", heads)
            layout.splits[part] = (outer, low)
            return (*kept, outer), (low, *taken)
        else:
            break
    return (tuple(kept), tuple(taken)) if heads == 1 else (parts, ())


def _unexpand(x: Tensor) -> Tensor:
    """A tensor with its expanded axes (stride 0) cut to size 1."""
    for axis, stride in enumerate(x.stride()):
        x = x if stride else x.narrow(axis, 0, 1)
    return x


def _sum_biases(biases: list[Tensor | RelativeBias], t: int, s: int) -> Tensor | RelativeBias | None:
    if len(biases) < 2:
        return biases[0] if biases else None
    dense = [bias if isinstance(bias, Tensor) else bias.tile(range(t), range(s)) for bias in biases]
    return torch.stack(torch.broadcast_tensors(*dense)).sum(0)
