"""Batches of variable-length texts: padding, bucketing by length, and sequence packing.

Axes: b batch · t tokens · n tokens of one text.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from qkv.data.batches import Batch, PlannedBatches, epoch_order, generator_for

Layout = Literal["padded", "by-length", "packed"]
PADDING = -1  # in `documents`: no document
GROUP_STREAM = 5  # of randomness


@dataclass(frozen=True)
class Example:
    """One text, and which of its tokens count in the loss when they are predicted."""

    tokens: Int64[Tensor, " n"]
    loss_mask: Bool[Tensor, " n"]


@runtime_checkable
class Examples(Protocol):
    """Texts that may be drawn anew each epoch; pure functions, as `Batches`."""

    def __len__(self) -> int: ...

    @property
    def longest(self) -> int:
        """The most tokens of a text, in any epoch."""
        ...

    def lengths(self, epoch: int) -> Int64[Tensor, " items"]:
        """Number of tokens of each text in this epoch."""
        ...

    def example(self, epoch: int, row: int) -> Example:
        """One text, in this epoch."""
        ...


class FixedExamples:
    """Texts that are the same in every epoch."""

    def __init__(self, examples: Sequence[Example]) -> None:
        if not examples:
            raise ValueError("expected at least one text, got none")
        self.examples = list(examples)
        self._lengths = torch.tensor([len(example.tokens) for example in examples])

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def longest(self) -> int:
        return int(self._lengths.max())

    def lengths(self, epoch: int) -> Int64[Tensor, " items"]:
        return self._lengths

    def example(self, epoch: int, row: int) -> Example:
        return self.examples[row]


def document_examples(documents: Sequence[Tensor], max_length: int) -> FixedExamples:
    """Documents as they are, with a loss on every token.

    A document longer than max_length is cut into pieces that share a token, so that every token but the first of a
    document is predicted once.
    """
    if max_length < 2:
        raise ValueError(f"max_length must be at least 2, or nothing is predicted; got {max_length}")
    pieces = [
        document[start : start + max_length]
        for document in documents
        for start in range(0, max(len(document) - 1, 0), max_length - 1)
    ]
    return FixedExamples([Example(piece, torch.ones(len(piece), dtype=torch.bool)) for piece in pieces])


class SequenceBatches(PlannedBatches[list[list[int]]]):
    """Language-model batches of `tokens`, `targets` and `loss_mask` (b, t): from position i, i + 1 is predicted.

    Args:
        max_length: tokens of the longest text; padded rows are max_length − 1 wide.
        batch_size: rows in a batch. max_tokens: positions in a batch, instead of batch_size.
        layout: "padded", one text per row; "by-length", rows of similar length, as wide as the longest; "packed",
            several texts per row, with `documents` (b, t), the number of each token's text in its row and −1 for
            padding: `GPT(tokens, documents=…)` keeps them apart.
        row_length: positions in a packed row; max_length − 1 if not given. Positions restart with every text, so wider
            rows suit a model of max_length positions.
        pad_id: the token that fills rows.
    """

    def __init__(
        self,
        examples: Examples,
        *,
        max_length: int,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        layout: Layout = "padded",
        row_length: int | None = None,
        pad_id: int = 0,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        check_batch_limits(batch_size, max_tokens)
        if layout not in ("padded", "by-length", "packed"):
            raise ValueError(f"layout must be padded, by-length or packed, got {layout!r}")
        if layout != "packed" and row_length is not None:
            raise ValueError(f"row_length is for packed rows; {layout} rows are as wide as their texts")
        if max_length < 2 or (row_length is not None and row_length < max_length - 1):
            raise ValueError(
                f"expected max_length of at least 2 and row_length of at least max_length − 1, got {max_length} and "
                f"{row_length}"
            )
        if examples.longest > max_length:
            raise ValueError(f"a text of {examples.longest} tokens does not fit into max_length={max_length}")
        self.row_length = max_length - 1 if row_length is None else row_length
        if layout != "by-length" and batch_size is None:
            batch_size = max((max_tokens or 0) // self.row_length, 1)
        self.examples, self.max_length, self.batch_size, self.max_tokens = examples, max_length, batch_size, max_tokens
        self.layout, self.pad_id, self.seed, self.shuffle = layout, pad_id, seed, shuffle

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at that index."""
        rows = [[self.examples.example(epoch, item) for item in row] for row in self._planned(epoch, index)]
        width = self.row_length
        if self.layout == "by-length":
            width = max(len(example.tokens) - 1 for row in rows for example in row)
        return self._fill(rows, width)

    def padding_fraction(self, epoch: int) -> float:
        """The fraction of all positions of an epoch that hold padding."""
        lengths = (self.examples.lengths(epoch) - 1).tolist()
        used = total = 0
        for batch in self.plan(epoch):
            filled = [sum(lengths[item] for item in row) for row in batch]
            used += sum(filled)
            total += len(batch) * (max(filled) if self.layout == "by-length" else self.row_length)
        return 1 - used / total

    def _plan(self, epoch: int) -> list[list[list[int]]]:
        """The texts of each row of each batch."""
        order = {"seed": self.seed, "epoch": epoch, "shuffle": self.shuffle}
        steps = self.examples.lengths(epoch) - 1
        if self.layout == "by-length":
            groups = bucket_by_length(steps[:, None], batch_size=self.batch_size, max_tokens=self.max_tokens, **order)
            return [[[item] for item in group] for group in groups]
        if self.layout == "packed":
            rows = pack_sequences(steps, self.row_length, **order)
        else:
            rows = [[item] for item in epoch_order(len(self.examples), **order).tolist()]
        size = self.batch_size or 1
        return [rows[i : i + size] for i in range(0, len(rows), size)]

    def _fill(self, rows: list[list[Example]], width: int) -> Batch:
        tokens = torch.full((len(rows), width), self.pad_id)
        targets, documents = tokens.clone(), torch.full_like(tokens, PADDING)
        loss_mask = torch.zeros_like(tokens, dtype=torch.bool)
        for number, row in enumerate(rows):
            start = 0
            for document, example in enumerate(row):
                place = slice(start, start + len(example.tokens) - 1)
                tokens[number, place], targets[number, place] = example.tokens[:-1], example.tokens[1:]
                loss_mask[number, place], documents[number, place] = example.loss_mask[1:], document
                start = place.stop
        batch = {"tokens": tokens, "targets": targets, "loss_mask": loss_mask}
        return {**batch, "documents": documents} if self.layout == "packed" else batch


def check_batch_limits(batch_size: int | None, max_tokens: int | None) -> None:
    """Raise a ValueError unless exactly one of the two is given, at least 1."""
    if (batch_size is None) == (max_tokens is None) or (batch_size or max_tokens or 0) < 1:
        raise ValueError(f"give one of batch_size and max_tokens, at least 1; got {batch_size} and {max_tokens}")


def bucket_by_length(
    lengths: Int64[Tensor, "n sides"],
    *,
    batch_size: int | None = None,
    max_tokens: int | None = None,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
) -> list[list[int]]:
    """Group items of similar length into batches of `batch_size`, or of up to `max_tokens` positions with padding.

    lengths: of each item, on each side (a sentence pair has two sides). Equal lengths, and the batches, are shuffled by
    (seed, epoch). Each further side is sorted up and down in turn within the side before, so that neighbors are alike.

    >>> bucket_by_length(torch.tensor([[3], [9], [3], [8]]), batch_size=2, shuffle=False)
    [[0, 2], [3, 1]]
    """
    check_batch_limits(batch_size, max_tokens)
    generator = generator_for(seed, GROUP_STREAM, epoch)
    count = len(lengths)
    order = torch.randperm(count, generator=generator) if shuffle else torch.arange(count)
    keys = lengths[order].clone()
    for side in range(1, lengths.shape[1]):
        keys[:, side] = torch.where(keys[:, side - 1] % 2 == 0, keys[:, side], -keys[:, side])
    for side in reversed(range(lengths.shape[1])):
        by = keys[:, side].argsort(stable=True)
        order, keys = order[by], keys[by]
    batches = _cut_into_batches(order.tolist(), lengths.tolist(), batch_size, max_tokens)
    if not shuffle:
        return batches
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def _cut_into_batches(
    order: list[int], lengths: list[list[int]], batch_size: int | None, max_tokens: int | None
) -> list[list[int]]:
    if batch_size is not None:
        return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    assert max_tokens is not None
    batches: list[list[int]] = []
    widest: list[int] = []
    for item in order:
        wider = [max(pair) for pair in zip(widest, lengths[item], strict=True)] if widest else lengths[item]
        if batches and (len(batches[-1]) + 1) * max(wider) <= max_tokens:
            batches[-1].append(item)
            widest = wider
        else:
            batches.append([item])
            widest = lengths[item]
    return batches


def pack_sequences(
    lengths: Int64[Tensor, " n"], capacity: int, *, seed: int = 0, epoch: int = 0, shuffle: bool = True
) -> list[list[int]]:
    """Pack items into rows of `capacity` positions, best fit: the longest first, into the fullest row with room.

    >>> pack_sequences(torch.tensor([5, 4, 3, 6, 2]), 10, shuffle=False)
    [[3, 1], [0, 2, 4]]
    """
    if len(lengths) and int(lengths.max()) > capacity:
        raise ValueError(f"a text of {int(lengths.max())} tokens does not fit into rows of {capacity}")
    generator = generator_for(seed, GROUP_STREAM, epoch)
    order = torch.randperm(len(lengths), generator=generator) if shuffle else torch.arange(len(lengths))
    order = order[lengths[order].argsort(stable=True, descending=True)]
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free positions, row), sorted
    for item, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        at = bisect.bisect_left(room, (length, -1))
        if at == len(room):
            rows.append([item])
            bisect.insort(room, (capacity - length, len(rows) - 1))
        else:
            free, row = room.pop(at)
            rows[row].append(item)
            bisect.insort(room, (free - length, row))
    return [rows[i] for i in torch.randperm(len(rows), generator=generator).tolist()] if shuffle else rows
