"""Parts of a step to which a slip may be restricted: heads, rows, columns or single numbers."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from qkv.byhand.cell_slips import NameCell
from qkv.byhand.expressions import Array
from qkv.byhand.slips import Scope


def find_regions(
    solved: Array, fits: Array, shape: tuple[int, ...], naming: NameCell, scope: Scope, joined: int = 1
) -> Iterator[tuple[Array, str, float]]:
    """Parts of a step in which a slip explains wrong numbers and spoils none: heads, rows, columns or cells.

    joined: the number of heads that are side by side in the step.
    """
    if solved.shape != shape:
        return
    words = ("column", "row") if naming.columns else ("row", "column")
    heads, rows, columns = shape
    if joined > 1:
        yield from _head_regions(solved, fits, joined)
    parts = (((1, 2), "head", heads), ((0, 2), words[0], rows), ((0, 1), words[1], columns))
    for axes, kind, count in parts[: {"heads": 1, "rows": 2}.get(scope, 3)]:
        flags = solved.any(axes) & fits.all(axes)
        if count > 1 and flags.any() and not flags.all():
            axis = {"head": 0, words[0]: 1, words[1]: 2}[kind]
            region = np.zeros(shape, bool)
            index: list[Any] = [slice(None)] * 3
            index[axis] = flags
            region[tuple(index)] = True
            numbers = [str(i + 1) for i in np.flatnonzero(flags)]
            plural = "s" if len(numbers) > 1 else ""
            yield region[None], f"only in {kind}{plural} {', '.join(numbers)}", 2.5 + len(numbers) * math.log2(count)
    places = [(int(h), int(r), int(c)) for h, r, c in np.argwhere(solved)]
    if len(places) <= 3 and scope == "cells":
        where = ", ".join(naming(place) for place in places)
        yield solved[None], f"only in {where}", 3.0 + len(places) * (3 + math.log2(solved.size))


def _head_regions(solved: Array, fits: Array, heads: int) -> Iterator[tuple[Array, str, float]]:
    """The same for heads that are side by side."""
    by_head = (1, solved.shape[1], heads, -1)
    flags = solved.reshape(by_head).any((0, 1, 3)) & fits.reshape(by_head).all((0, 1, 3))
    if flags.any() and not flags.all():
        region = np.broadcast_to(np.repeat(flags, solved.shape[2] // heads), solved.shape)
        numbers = [str(head + 1) for head in np.flatnonzero(flags)]
        where = f"only in head{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
        yield region[None], where, 2.5 + len(numbers) * math.log2(heads)
