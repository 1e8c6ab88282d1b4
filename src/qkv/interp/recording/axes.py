"""Following the axes of a product of two matrices through views, so that rows and columns are found again at the end.

A product has axes of three kinds: batch axes, its rows and its columns. Views split and merge batch axes and change the
order of all; each axis of a view is therefore a run of `Atom`s. Which, is read off the strides, so every kind of view
is understood the same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

Axes = tuple[tuple["Atom", ...], ...]  # the atoms of each axis; an axis of size 1 has none


@dataclass(frozen=True, eq=False)
class Atom:
    """An axis of the product, or a part of one."""

    kind: Literal["batch", "row", "column", "inner"]
    size: int


@dataclass(frozen=True, eq=False)
class Layout:
    """The axes of a tensor, and how atoms were split on the way."""

    axes: Axes
    splits: dict[Atom, tuple[Atom, Atom]]

    @staticmethod
    def of(shape: tuple[int, ...]) -> Layout:
        """The layout of a product with shape (…, rows, columns)."""
        kinds = ["batch"] * (len(shape) - 2) + ["row", "column"]
        axes = tuple((Atom(kind, size),) if size > 1 else () for kind, size in zip(kinds, shape, strict=True))  # pyright: ignore[reportArgumentType]
        return Layout(axes, {})

    def viewed(self, before: Tensor, after: Tensor) -> Layout | None:
        """The layout of a view that shows every element of `before` once; None if rows or columns were split."""
        if after.numel() != before.numel() or after.storage_offset() != before.storage_offset():
            return None
        splits = dict(self.splits)
        atoms: dict[int, Atom] = {}  # by stride
        for axis, step in zip(self.axes, before.stride(), strict=True):
            for atom in reversed(axis):
                atoms[step] = atom
                step *= atom.size
        axes = []
        for size, step in zip(after.shape, after.stride(), strict=True):
            found: list[Atom] = []
            while size > 1:
                atom = _atom_at(atoms, splits, step, size)
                if atom is None:
                    return None
                found.insert(0, atom)
                size //= atom.size
                step *= atom.size
            axes.append(tuple(found))
        return Layout(tuple(axes), splits)

    def parts(self, atom: Atom) -> tuple[Atom, ...]:
        """The atom, or what it was split into."""
        if atom not in self.splits:
            return (atom,)
        return tuple(part for half in self.splits[atom] for part in self.parts(half))

    def find(self, axis: int) -> Literal["row", "column"] | None:
        """Which axis of the product this axis is, whole."""
        atoms = self.axes[axis]
        kinds = {atom.kind for atom in atoms}
        if len(atoms) == 1 and kinds <= {"row", "column"}:
            return "row" if "row" in kinds else "column"
        if not atoms:  # of size 1: the one that is nowhere else
            elsewhere = {atom.kind for other in self.axes for atom in other}
            return "column" if "column" not in elsewhere else "row" if "row" not in elsewhere else None
        return None


def _atom_at(atoms: dict[int, Atom], splits: dict[Atom, tuple[Atom, Atom]], step: int, size: int) -> Atom | None:
    """The atom with this stride and at most this size, split off if need be."""
    for start, atom in list(atoms.items()):
        if not (start <= step < start * atom.size) or step % start:
            continue
        inner = step // start
        if inner > 1:
            if atom.size % inner or atom.kind != "batch":
                return None
            outer, low = replace(atom, size=atom.size // inner), replace(atom, size=inner)
            splits[atom] = (outer, low)
            atoms[start], atoms[step], atom = low, outer, outer
        if atom.size > size:
            if atom.size % size or atom.kind != "batch":
                return None
            outer, low = replace(atom, size=atom.size // size), replace(atom, size=size)
            splits[atom] = (outer, low)
            atoms[step], atoms[step * size], atom = low, outer, low
        return atom if size % atom.size == 0 else None
    return None


def arranged(x: Tensor, axes: Axes, layout: Layout, order: tuple[tuple[Atom, ...], ...]) -> Tensor:
    """A tensor that broadcasts to `axes`, brought to new axes: each of `order` is a run of atoms of the final layout.

    An axis of size 1 stands for all; where a new axis merges such a one with a full one, it is written out.
    """
    shape: list[int] = []
    place: dict[Atom, int] = {}
    for atoms, size in zip(axes, (1,) * (len(axes) - x.ndim) + tuple(x.shape), strict=True):
        for atom in (part for whole in atoms for part in layout.parts(whole)):
            place[atom] = len(shape)
            shape.append(atom.size if size > 1 else 1)
    x = x.reshape(shape)
    wanted = [atom for run in order for atom in run]
    for atom in wanted:
        if atom not in place:
            place[atom] = x.ndim
            x = x.unsqueeze(-1)
    x = x.permute([place[atom] for atom in wanted])
    sizes, start = [], 0
    for run in order:
        full = [atom.size for atom in run]
        if all(size == 1 for size in x.shape[start : start + len(run)]):
            sizes.append(1)
        else:
            x = x.expand(*x.shape[:start], *full, *x.shape[start + len(run) :])
            sizes.append(math.prod(full))
        start += len(run)
    return x.reshape(sizes)
