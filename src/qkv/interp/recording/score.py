"""What is known of a tensor of scores while a hand-written attention computes it.

Axes: b batch · h heads · t queries · s keys · d head width.

It begins as a product of two matrices and is scaled, squeezed, masked and added to, in views of many shapes. Each step
gives a new `Score`, or None where the step is not one that attention knows; the softmax at the end gives the recipe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.interp.recording.axes import Atom, Axes, Layout, arranged
from qkv.interp.recording.structure import Added, mask_of, without_copies
from qkv.interp.traces.lazy_weights import ByDistance, Recipe
from qkv.nn.masks import Both, Mask


@dataclass(frozen=True, eq=False)
class Term:
    """A tensor that was added, multiplied or used as a mask, and the axes that the scores had then."""

    tensor: Tensor
    axes: Axes
    factor: float = 1.0
    after: int = 0  # how many terms had been added before


# (what is added, the tensor it is a view of, t, s): finds its structure, and remembers it for the next layer
Understand = Callable[[Tensor, Tensor, int, int], Added]


@dataclass(frozen=True, eq=False)
class Score:
    """left · right, then as the fields say: amplitude · tanh(scale · …) or scale · …, plus terms, with fills."""

    left: Tensor
    right: Tensor
    product: Layout
    layout: Layout
    inner: tuple[Atom, ...]
    scale: float = 1.0
    scales: tuple[Term, ...] = ()
    amplitude: float | None = None
    terms: tuple[Term, ...] = ()
    fills: tuple[Term, ...] = ()  # the factor is the score that is filled in
    sink: Term | None = None
    shifted: bool = False  # whether something that is the same for all of the last axis was left out

    @staticmethod
    def of(left: Tensor, right: Tensor, product: Tensor) -> Score:
        layout = Layout.of(tuple(product.shape))
        inner = (Atom("inner", left.shape[-1]),) if left.shape[-1] > 1 else ()
        return Score(left.detach(), right.detach(), layout, layout, inner)

    def multiplied(self, factor: float | Tensor) -> Score | None:
        if isinstance(factor, Tensor) and factor.numel() == 1:
            factor = float(factor)
        if isinstance(factor, Tensor):
            if self.terms or self.fills or self.amplitude is not None:
                return None
            return replace(self, scales=(*self.scales, Term(factor, self.layout.axes)))
        terms = tuple(replace(term, factor=term.factor * factor) for term in self.terms)
        fills = tuple(replace(fill, factor=fill.factor * factor) for fill in self.fills)
        if self.amplitude is not None:
            return replace(self, amplitude=self.amplitude * factor, terms=terms, fills=fills)
        return replace(self, scale=self.scale * factor, terms=terms, fills=fills)

    def plus(self, added: Tensor | float, factor: float = 1.0) -> Score | None:
        if not isinstance(added, Tensor) or added.ndim == 0 or (added.shape[-1] == 1 and self.layout.axes[-1]):
            return replace(self, shifted=True)  # the softmax does not see what all keys have in common
        term = self._operand(added, factor)
        return None if term is None else replace(self, terms=(*self.terms, term))

    def squeezed(self) -> Score | None:
        if self.terms or self.fills or self.amplitude is not None or self.shifted:
            return None
        return replace(self, amplitude=1.0)

    def filled(self, where: Tensor, value: float) -> Score | None:
        term = self._operand(where, value)
        return None if term is None else replace(self, fills=(*self.fills, term))

    def _operand(self, x: Tensor, factor: float) -> Term | None:
        """An operand as a term; without its column for the sink, if it has one; None if it changes the sink."""
        axes = self.layout.axes if self.sink is None else self.sink.axes
        if self.sink is not None and x.shape[-1] > 1:
            if bool(x[..., -1].any()):
                return None
            x = x[..., :-1]
        elif self.sink is not None and bool(x.any()):
            return None
        return Term(x.detach() if x.requires_grad else x, axes, factor, len(self.terms))

    def with_sink(self, sink: Tensor, shape: tuple[int, ...]) -> Score | None:
        """Scores with one column more at their end, for a key without a value."""
        if self.sink is not None or self.layout.find(len(shape) - 1) != "column":
            return None
        layout = replace(self.layout, axes=(*self.layout.axes[:-1], (Atom("column", shape[-1]),)))
        return replace(self, sink=Term(sink.detach(), self.layout.axes), layout=layout)

    def recipe(self, axis: int, heads: int | None, understand: Understand) -> Recipe | None:
        """The recipe of the weights that the softmax over this axis gives; None if it does not run over keys."""
        kind = self.layout.find(axis)
        last = len(self.layout.axes) - 1
        if kind is None or ((self.shifted or self.sink is not None) and axis != last):
            return None
        groups = self._groups(axis, kind, heads)
        if groups is None:
            return None
        b, h = groups
        row, column = (self.product.axes[-2], self.product.axes[-1])
        t, s = (row, column) if kind == "column" else (column, row)
        left = arranged(self.left, (*self.product.axes[:-1], self.inner), self.layout, (b, h, row, self.inner))
        right = arranged(
            self.right, (*self.product.axes[:-2], self.inner, column), self.layout, (b, h, column, self.inner)
        )
        queries, keys = (left, right) if kind == "column" else (right, left)
        return self._dressed(queries, without_copies(keys), (b, h, t, s), understand)

    def _dressed(self, queries: Tensor, keys: Tensor, order: tuple, understand: Understand) -> Recipe | None:
        """Queries and keys with what was done to their product."""
        size = (queries.shape[-2], keys.shape[-2])
        added = [self._added(term, order, size, understand) for term in self.terms]
        masks: list[Mask] = [part.mask for part in added if part.mask is not None]
        floors = {part.floor for part in added if part.mask is not None}
        for fill in self.fills:
            drowning = fill.factor <= torch.finfo(queries.dtype).min / 2
            if fill.after < len(self.terms) and not drowning:
                return None
            mask = mask_of(~arranged(fill.tensor, fill.axes, self.layout, order), *size)
            masks += [] if mask is None else [mask]
            floors.add(fill.factor)
        if len(floors - {float("-inf")}) > 1:
            return None
        scale: float | Tensor = self.scale * (1.0 if self.amplitude is None else self.amplitude)
        for term in self.scales:
            scale = scale * arranged(term.tensor, term.axes, self.layout, order)
        sink = self.sink
        return Recipe(
            queries,
            keys,
            scale=scale,
            mask=None if not masks else masks[0] if len(masks) == 1 else Both.of(*masks),
            floor=max(floors, default=float("-inf")),
            bias=_sum([part.bias for part in added if part.bias is not None], *size),
            softcap=self.amplitude,
            sink=None if sink is None else _single(arranged(sink.tensor, sink.axes, self.layout, order)).clone(),
        )

    def _added(self, term: Term, order: tuple, size: tuple[int, int], understand: Understand) -> Added:
        added = arranged(term.tensor, term.axes, self.layout, order)
        if term.factor == 1.0:
            return understand(added, term.tensor, *size)
        return Added(bias=added * term.factor)

    def _groups(self, axis: int, kind: str, heads: int | None) -> tuple[tuple[Atom, ...], tuple[Atom, ...]] | None:
        """The atoms of batch and heads."""
        other = "row" if kind == "column" else "column"
        rows = [place for place, atoms in enumerate(self.layout.axes) if [atom.kind for atom in atoms] == [other]]
        row = rows[0] if rows else axis - 1 if axis else 1
        leading = [atoms for place, atoms in enumerate(self.layout.axes) if place not in (row, axis)]
        if any(atom.kind != "batch" for atoms in leading for atom in atoms):
            return None
        if len(leading) == 1 and heads is not None:
            return _last(leading[0], heads, self.layout)
        return (leading[0] if leading else ()), tuple(atom for atoms in leading[1:] for atom in atoms)


def _last(atoms: tuple[Atom, ...], heads: int, layout: Layout) -> tuple[tuple[Atom, ...], tuple[Atom, ...]]:
    """One axis for batch and heads together, cut; all of it is the batch if it does not hold that many heads."""
    kept, taken = list(atoms), []
    while kept and heads > 1:
        atom = kept.pop()
        if heads % atom.size == 0:
            taken.insert(0, atom)
            heads //= atom.size
        elif atom.size % heads == 0:
            outer, low = Atom("batch", atom.size // heads), Atom("batch", heads)
            layout.splits[atom] = (outer, low)
            return (*kept, outer), (low, *taken)
        else:
            break
    return (tuple(kept), tuple(taken)) if heads == 1 else (atoms, ())


def _single(x: Tensor) -> Tensor:
    """A tensor with axes that are one number repeated cut to that one."""
    for axis, step in enumerate(x.stride()):
        x = x if step else x.narrow(axis, 0, 1)
    return x


def _sum(biases: list[Tensor | ByDistance], t: int, s: int) -> Tensor | ByDistance | None:
    if len(biases) < 2:
        return biases[0] if biases else None
    written = [bias if isinstance(bias, Tensor) else bias.tile(range(t), range(s)) for bias in biases]
    return torch.stack(torch.broadcast_tensors(*written)).sum(0)
