"""Batches of several kinds in one stream, in an order drawn anew each epoch."""

from collections.abc import Sequence

import torch

from qkv.data.batches import Batch, Batches, generator_for

TURNS = 12  # the stream of randomness that says whose turn it is


class Mixture:
    """Every batch of each part once an epoch. Each batch is of one part, so that each has its own say however few of
    its tokens are scored."""

    def __init__(self, parts: Sequence[Batches], seed: int = 0) -> None:
        if not parts:
            raise ValueError("a mixture has at least one part; got none")
        self.parts, self.seed = list(parts), seed
        self._planned: tuple[int, list[tuple[int, int]]] | None = None  # the last epoch's, for speed alone

    def count(self, epoch: int) -> int:
        """How many batches the epoch has."""
        return sum(part.count(epoch) for part in self.parts)

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at that place."""
        part, place = self.plan(epoch)[index]
        return self.parts[part].batch(epoch, place)

    def plan(self, epoch: int) -> list[tuple[int, int]]:
        """Which batch of which part comes when."""
        if self._planned is None or self._planned[0] != epoch:
            all_of = [(number, place) for number, part in enumerate(self.parts) for place in range(part.count(epoch))]
            order = torch.randperm(len(all_of), generator=generator_for(self.seed, TURNS, epoch)).tolist()
            self._planned = epoch, [all_of[i] for i in order]
        return self._planned[1]
