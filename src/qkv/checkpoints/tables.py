"""Tables that say which tensor of ours is which of theirs; each is read in both directions.

A row names a module or a tensor on each side; `*` stands for the number of a layer, and a row for a module covers its
weight and its bias. What differs between the two is said by `how`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class How:
    """What turns their tensor into ours (one, or several that they keep together), and ours into theirs."""

    read: Callable[[Tensor], Sequence[Tensor]]
    write: Callable[[Sequence[Tensor]], Tensor]


SAME = How(lambda theirs: [theirs], lambda ours: ours[0])
TRANSPOSED = How(lambda theirs: [theirs.mT if theirs.ndim > 1 else theirs], lambda ours: _turned(ours[0]))
UNBATCHED = How(lambda theirs: [theirs[0]], lambda ours: ours[0][None])  # theirs has a first axis of size 1
# queries, keys and values side by side in one matrix that is stored transposed
THREE_TRANSPOSED = How(lambda theirs: [_turned(part) for part in theirs.chunk(3, dim=-1)], lambda ours: _joined(ours))


def after(rows: int) -> How:
    """Their table begins with rows that are never read."""
    return How(lambda theirs: [theirs[rows:]], lambda ours: torch.cat((torch.zeros_like(ours[0][:rows]), ours[0])))


def regrouped(head_width: int) -> How:
    """Rows of each head: ours turn (0, 1), (2, 3), … together, theirs the first half with the second."""

    def read(theirs: Tensor) -> list[Tensor]:
        return [theirs.unflatten(0, (-1, 2, head_width // 2)).transpose(1, 2).flatten(0, 2)]

    def write(ours: Sequence[Tensor]) -> Tensor:
        return ours[0].unflatten(0, (-1, head_width // 2, 2)).transpose(1, 2).flatten(0, 2)

    return How(read, write)


@dataclass(frozen=True)
class Row:
    """One line of a table: our name (or names, where they keep several of ours together), theirs, and how."""

    ours: str | tuple[str, ...]
    theirs: str
    how: How = SAME


@dataclass(frozen=True)
class Pair:
    """A row made out for one tensor."""

    ours: tuple[str, ...]
    theirs: str
    how: How


def pairs(table: Iterable[Row], names: Iterable[str]) -> list[Pair]:
    """A table made out for these names of ours; a name that no row covers is a ValueError.

    >>> pairs([Row("blocks.*.norm", "h.*.ln")], ["blocks.0.norm.weight", "blocks.0.norm.bias"])[1].theirs
    'h.0.ln.bias'
    """
    rows = {_pattern(row): row for row in table}
    found: dict[str, Pair] = {}
    covered: set[str] = set()
    for name in names:
        for pattern, row in rows.items():
            if match := pattern.fullmatch(name):
                layer, part = match["layer"] if "layer" in pattern.groupindex else "", match["part"] or ""
                ours = (row.ours,) if isinstance(row.ours, str) else row.ours
                pair = Pair(
                    tuple(one.replace("*", layer) + part for one in ours),
                    row.theirs.replace("*", layer) + part,
                    row.how,
                )
                found[pair.theirs] = pair
                covered.update(pair.ours)
        if name not in covered:
            raise ValueError(f"{name} has no equal in that architecture")
    return list(found.values())


def _pattern(row: Row) -> re.Pattern[str]:
    first = row.ours if isinstance(row.ours, str) else row.ours[0]
    return re.compile(re.escape(first).replace(r"\*", r"(?P<layer>\d+)") + r"(?P<part>\.weight|\.bias)?")


def _turned(x: Tensor) -> Tensor:
    return x.mT.contiguous() if x.ndim > 1 else x


def _joined(ours: Sequence[Tensor]) -> Tensor:
    return torch.cat([_turned(part) for part in ours], dim=-1)
