"""Pairs of sentences, line by line from two files, as batches for a model that reads one and writes the other.

Axes: b batch · m source tokens · t target tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.data.batches import Batch
from qkv.data.lengths import by_length, check_budget
from qkv.data.planned import Planned
from qkv.data.reading import read_lines
from qkv.data.tokens import PAD, START, STOP


class Pair(NamedTuple):
    """Two sentences that say the same."""

    source: str
    target: str


def read_pairs(source: str | Path, target: str | Path) -> list[Pair]:
    """The pairs of two files of equally many lines; a line that is empty on one side only is a ValueError."""
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise ValueError(
            f"line by line pairs need two files of equally many lines; {source} has {len(sources):,}, {target} has "
            f"{len(targets):,}"
        )
    pairs = []
    for line, (first, second) in enumerate(zip(sources, targets, strict=True), start=1):
        first, second = first.strip(), second.strip()
        if bool(first) != bool(second):
            raise ValueError(f"{target if first else source}, line {line} is empty and its partner is not")
        if first:
            pairs.append(Pair(first, second))
    return pairs


class PairBatches(Planned[list[int]]):
    """`source`, `source_present` (b, m); `target_in`, `targets`, `scored` (b, t).

    The source ends in STOP; the target is read after START and predicted up to STOP. (Padding of the target comes
    last, so a causal decoder never sees it.)

    rows, tokens: pairs in a batch, or places on its wider side.
    length: pairs with a longer side are left out, and counted in `left_out`.
    """

    def __init__(
        self,
        sources: Sequence[Tensor],
        targets: Sequence[Tensor],
        *,
        rows: int | None = None,
        tokens: int | None = None,
        length: int = 256,
        seed: int = 0,
        shuffled: bool = True,
    ) -> None:
        check_budget(rows, tokens)
        if len(sources) != len(targets):
            raise ValueError(f"pairs have two sides; got {len(sources)} sources and {len(targets)} targets")
        fits = [i for i, (s, t) in enumerate(zip(sources, targets, strict=True)) if max(len(s), len(t)) < length]
        if not fits:
            raise ValueError(f"none of {len(sources)} pairs fits into length={length}")
        self.sources, self.targets = [sources[i] for i in fits], [targets[i] for i in fits]
        self.left_out = len(sources) - len(fits)
        self.rows, self.tokens, self.seed, self.shuffled = rows, tokens, seed, shuffled
        sides = ([len(side) + 1 for side in both] for both in (self.sources, self.targets))
        self._lengths = torch.tensor(list(zip(*sides, strict=True)))

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at that place."""
        pairs = self._held(epoch, index)
        source = _filled([_ended(self.sources[i]) for i in pairs])
        targets = _filled([_ended(self.targets[i]) for i in pairs])
        read = torch.cat((torch.full_like(targets[:, :1], START), targets[:, :-1]), 1)
        lengths = self._lengths[pairs]
        source_present, scored = (
            torch.arange(side.shape[1]) < lengths[:, k, None] for k, side in enumerate((source, targets))
        )
        return {
            "source": source,
            "source_present": source_present,
            "target_in": read.masked_fill(~scored, PAD),
            "targets": targets,
            "scored": scored,
        }

    def _plan(self, epoch: int) -> list[list[int]]:
        """Pairs of like lengths."""
        return by_length(
            self._lengths, rows=self.rows, tokens=self.tokens, seed=self.seed, epoch=epoch, shuffled=self.shuffled
        )

    def padding(self, epoch: int) -> float:
        """The share of all places, of both sides, that hold no token."""
        places = sum(len(group) * int(self._lengths[group].max(0).values.sum()) for group in self.plan(epoch))
        return 1 - int(self._lengths.sum()) / places


def _ended(ids: Tensor) -> Tensor:
    return torch.cat((ids, ids.new_tensor([STOP])))


def _filled(rows: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
