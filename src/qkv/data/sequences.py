"""Texts of different lengths as language-model batches: padded, grouped by length, or packed with documents kept apart.

Axes: b batch · t tokens · n tokens of one text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from qkv.data.batches import Batch
from qkv.data.lengths import by_length, check_budget, packed
from qkv.data.order import epoch_order
from qkv.data.planned import Planned

Layout = Literal["padded", "by-length", "packed"]
PADDING = -1  # in `documents`: no document


@dataclass(frozen=True)
class Example:
    """One text, and which of its tokens count when they are predicted from those before them."""

    tokens: Int64[Tensor, " n"]
    scored: Bool[Tensor, " n"]


@runtime_checkable
class Examples(Protocol):
    """Texts that may be drawn anew each epoch; pure functions, as `Batches`."""

    def __len__(self) -> int: ...

    @property
    def longest(self) -> int:
        """No text has more tokens, in any epoch."""
        ...

    def lengths(self, epoch: int) -> Int64[Tensor, " items"]:
        """How many tokens each text has in this epoch."""
        ...

    def example(self, epoch: int, row: int) -> Example:
        """That text, in this epoch."""
        ...


class FixedExamples:
    """Texts that stay as they are."""

    def __init__(self, examples: Sequence[Example]) -> None:
        if not examples:
            raise ValueError("a set of texts has at least one; got none")
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


def whole_documents(ids: Sequence[Tensor], length: int) -> FixedExamples:
    """Documents as they are, every token scored; one longer than `length` is cut into pieces that share a token, so
    that every token but the first of a document is predicted once."""
    if length < 2:
        raise ValueError(f"a text that predicts anything has 2 tokens or more; got length={length}")
    pieces = [
        document[start : start + length]
        for document in ids
        for start in range(0, max(len(document) - 1, 0), length - 1)
    ]
    return FixedExamples([Example(piece, torch.ones(len(piece), dtype=torch.bool)) for piece in pieces])


class SequenceBatches(Planned[list[list[int]]]):
    """`tokens`, `targets`, `scored` (b, t): place i of a text is read, i + 1 is to be predicted.

    length: the longest text; padded rows are length − 1 wide.
    width: places in a packed row; length − 1 if not given. Positions restart with every text, so wider rows suit a
        model that knows `length` positions.
    rows, tokens: how many rows a batch has, or how many places; padded and packed batches go by rows.
    layout: "padded", each text in a row of its own; "by-length", rows of like lengths, as wide as the longest;
        "packed", several texts in a row, with `documents` (b, t), the number of each one's text in its row, −1 for
        padding: `GPT(tokens, documents=…)` keeps them apart.
    """

    def __init__(
        self,
        examples: Examples,
        *,
        length: int,
        rows: int | None = None,
        tokens: int | None = None,
        layout: Layout = "padded",
        width: int | None = None,
        pad: int = 0,
        seed: int = 0,
        shuffled: bool = True,
    ) -> None:
        check_budget(rows, tokens)
        if layout not in ("padded", "by-length", "packed"):
            raise ValueError(f"a layout is padded, by-length or packed; got {layout!r}")
        if layout != "packed" and width is not None:
            raise ValueError(f"a width is that of packed rows; {layout} rows are as wide as their texts")
        if length < 2 or (width is not None and width < length - 1):
            raise ValueError(f"texts have 2 tokens or more and fit into a row; got length={length}, width={width}")
        self.width = length - 1 if width is None else width
        if layout != "by-length" and rows is None:
            rows = max((tokens or 0) // self.width, 1)
        if examples.longest > length:
            raise ValueError(f"a text of {examples.longest} tokens does not fit into length={length}")
        self.examples, self.length, self.rows, self.tokens = examples, length, rows, tokens
        self.layout, self.pad, self.seed, self.shuffled = layout, pad, seed, shuffled

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at that place."""
        rows = [[self.examples.example(epoch, item) for item in row] for row in self._held(epoch, index)]
        width = self.width
        if self.layout == "by-length":
            width = max(len(example.tokens) - 1 for row in rows for example in row)
        return self._filled(rows, width)

    def padding(self, epoch: int) -> float:
        """The share of all places of an epoch that hold no text."""
        lengths = (self.examples.lengths(epoch) - 1).tolist()
        used = places = 0
        for batch in self.plan(epoch):
            held = [sum(lengths[item] for item in row) for row in batch]
            used += sum(held)
            places += len(batch) * (max(held) if self.layout == "by-length" else self.width)
        return 1 - used / places

    def _plan(self, epoch: int) -> list[list[list[int]]]:
        """Rows of texts."""
        settings = {"seed": self.seed, "epoch": epoch, "shuffled": self.shuffled}
        steps = self.examples.lengths(epoch) - 1
        if self.layout == "by-length":
            groups = by_length(steps[:, None], rows=self.rows, tokens=self.tokens, **settings)
            return [[[item] for item in group] for group in groups]
        if self.layout == "packed":
            rows = packed(steps, self.width, **settings)
        else:
            order = epoch_order(len(self.examples), self.seed, epoch, shuffled=self.shuffled)
            rows = [[item] for item in order.tolist()]
        size = self.rows or 1
        return [rows[i : i + size] for i in range(0, len(rows), size)]

    def _filled(self, rows: list[list[Example]], width: int) -> Batch:
        tokens = torch.full((len(rows), width), self.pad)
        targets, documents = tokens.clone(), torch.full_like(tokens, PADDING)
        scored = torch.zeros_like(tokens, dtype=torch.bool)
        for number, row in enumerate(rows):
            start = 0
            for document, example in enumerate(row):
                place = slice(start, start + len(example.tokens) - 1)
                tokens[number, place], targets[number, place] = example.tokens[:-1], example.tokens[1:]
                scored[number, place], documents[number, place] = example.scored[1:], document
                start = place.stop
        batch = {"tokens": tokens, "targets": targets, "scored": scored}
        return {**batch, "documents": documents} if self.layout == "packed" else batch
