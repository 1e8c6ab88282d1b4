"""Span corruption: part of a text is taken out, and the model learns to say what is missing.

Axes: n tokens of one text.

As the course has it: a document is cut at a random length, about a quarter of it is taken out, and what is read is
`prefix ⁇ suffix ⁇ missing`. With more spans, `… ⁇ … ⁇ … ⁇ first ⁇ second`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Int64
from torch import Generator, Tensor

from qkv.data.batches import generator_for
from qkv.data.sequences import Example
from qkv.data.tokens import character_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD_CHARACTER, MARK = "□", "⁇"  # numbers 0 and 1 of the vocabulary
LENGTHS, PLACES = 6, 7  # streams of randomness
Span = tuple[int, int]


@dataclass(frozen=True)
class Corruption:
    """How texts are corrupted; the defaults are the course's for texts of 128: cut at 4 … 112, a quarter missing.

    begin: "start" keeps the beginning of a document, "anywhere" takes a run from any place of it.
    share: the part that is missing, on average; its size is drawn evenly from 1 to twice that, less one.
    spans: how many pieces are taken out (fewer of short texts).
    salient: the chance that the spans are drawn from those named for the document (such as names and places), where
        some lie within what is kept.
    score: every token as the course does, or only the missing ones.
    """

    shortest: int = 4
    longest: int = 112
    begin: Literal["start", "anywhere"] = "start"
    share: float = 0.25
    spans: int = 1
    salient: float = 0.0
    score: Literal["all", "missing"] = "all"

    def __post_init__(self) -> None:
        if not 2 <= self.shortest <= self.longest:
            raise ValueError(f"lengths run from 2 up; got shortest={self.shortest}, longest={self.longest}")
        if not 0 < self.share < 1 or not 0 <= self.salient <= 1 or self.spans < 1:
            raise ValueError(
                f"share is between 0 and 1, salient a chance and spans 1 or more; got {self.share}, {self.salient} and "
                f"{self.spans}"
            )
        if self.begin not in ("start", "anywhere") or self.score not in ("all", "missing"):
            raise ValueError(
                f"begin is 'start' or 'anywhere', score 'all' or 'missing'; got {self.begin!r} and {self.score!r}"
            )

    @classmethod
    def for_length(cls, length: int, **settings) -> Corruption:
        """The course's for texts of another length: cut at 4 … 7/8 of it."""
        return cls(longest=int(7 / 8 * length), **settings)

    def spans_of(self, kept: int) -> int:
        """How many spans a text of so many tokens gets: each has 2 tokens missing on average and some around it."""
        return max(1, min(self.spans, int(self.share * kept / 2), kept // 4))


def span_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """The characters of a corpus after □ (padding, 0) and ⁇ (1), as the course numbers them."""
    return character_tokenizer(texts, special=(PAD_CHARACTER, MARK))


class SpanExamples:
    """Documents corrupted afresh every epoch.

    documents: their tokens. mark: the number of ⁇.
    salient: for each document, the runs (start, stop) of tokens that are worth asking for.
    """

    def __init__(
        self,
        documents: Sequence[Tensor],
        mark: int,
        corruption: Corruption | None = None,
        *,
        salient: Sequence[Sequence[Span]] | None = None,
        seed: int = 0,
    ) -> None:
        self.documents = [document for document in documents if len(document) >= 2]
        if not self.documents:
            raise ValueError("span corruption needs documents of 2 tokens or more; got none")
        if salient is not None and len(salient) != len(documents):
            raise ValueError(f"there are {len(documents)} documents and salient spans for {len(salient)}")
        spans = [()] * len(documents) if salient is None else salient
        self.salient = [list(s) for s, document in zip(spans, documents, strict=True) if len(document) >= 2]
        self.mark, self.seed = mark, seed
        self.corruption = Corruption() if corruption is None else corruption
        self._lengths = torch.tensor([len(document) for document in self.documents])
        self._kept: tuple[int, Tensor] | None = None  # the last epoch's, for speed alone

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def longest(self) -> int:
        most = min(self.corruption.longest, int(self._lengths.max()))
        return most + 2 * self.corruption.spans_of(most)

    def kept(self, epoch: int) -> Int64[Tensor, " items"]:
        """At which length each document is cut in this epoch."""
        if self._kept is None or self._kept[0] != epoch:
            low, high = self.corruption.shortest, self.corruption.longest
            drawn = torch.randint(low, high + 1, (len(self),), generator=generator_for(self.seed, LENGTHS, epoch))
            self._kept = epoch, torch.minimum(drawn, self._lengths)
        return self._kept[1]

    def lengths(self, epoch: int) -> Int64[Tensor, " items"]:
        kept = self.kept(epoch)
        return kept + 2 * torch.tensor([self.corruption.spans_of(n) for n in kept.tolist()])

    def example(self, epoch: int, row: int) -> Example:
        generator = generator_for(self.seed, PLACES, epoch, row)
        document, kept = self.documents[row], int(self.kept(epoch)[row])
        start = 0
        if self.corruption.begin == "anywhere":
            start = int(torch.randint(0, len(document) - kept + 1, (), generator=generator))
        spans = drawn_spans(kept, self.corruption, generator)
        if self.corruption.salient and float(torch.rand((), generator=generator)) < self.corruption.salient:
            inside = [(a - start, b - start) for a, b in self.salient[row] if start <= a < b <= start + kept]
            spans = chosen(inside, len(spans), generator) or spans
        tokens, missing = corrupted(document[start : start + kept], spans, self.mark)
        scored = torch.ones_like(tokens, dtype=torch.bool) if self.corruption.score == "all" else missing
        return Example(tokens, scored)


def corrupted(document: Int64[Tensor, " n"], spans: Sequence[Span], mark: int) -> tuple[Tensor, Tensor]:
    """`… ⁇ … ⁇ missing` for one span and likewise for more; and which of these tokens are the missing ones.

    >>> corrupted(torch.tensor([5, 6, 7, 8]), [(1, 3)], mark=1)[0].tolist()
    [5, 1, 8, 1, 6, 7]
    """
    marked = document.new_tensor([mark])
    left, gone, start = [], [], 0
    for begin, stop in spans:
        left += [document[start:begin], marked]
        gone += [marked, document[begin:stop]]
        start = stop
    left.append(document[start:])
    tokens = torch.cat((*left, *gone))
    missing = torch.zeros_like(tokens, dtype=torch.bool)
    place = sum(len(part) for part in left)
    for part, (begin, stop) in zip(gone[1::2], spans, strict=True):
        missing[place + 1 : place + 1 + len(part)] = True
        place += 1 + stop - begin
    return tokens, missing


def drawn_spans(kept: int, corruption: Corruption, generator: Generator) -> list[Span]:
    """Where the missing pieces of a text of `kept` tokens are: apart from one another, anywhere else by even chance."""
    count = corruption.spans_of(kept)
    middle = max(round(corruption.share * kept), count)
    most = max(min(2 * middle - 1, kept - count), 1)
    low = min(max(count, 2 * middle - most), most)
    total = max(int(torch.randint(low, most + 1, (), generator=generator)), count)
    sizes = [1 + extra for extra in _parts(total - count, count, generator)]
    gaps = _parts(kept - total - (count - 1), count + 1, generator)
    spans, place = [], 0
    for number, (gap, size) in enumerate(zip(gaps, sizes, strict=False)):
        place += gap + (number > 0)  # at least one token between two pieces
        spans.append((place, place + size))
        place += size
    return spans


def chosen(spans: list[Span], count: int, generator: Generator) -> list[Span]:
    """Up to `count` of these spans, drawn at random, in order, none overlapping another; none if there are too few."""
    taken: list[Span] = []
    for i in torch.randperm(len(spans), generator=generator).tolist():
        begin, stop = spans[i]
        if len(taken) < count and all(stop < b or e < begin for b, e in taken):
            taken.append((begin, stop))
    return sorted(taken) if len(taken) == count else []


def _parts(total: int, count: int, generator: Generator) -> list[int]:
    """`total` cut into `count` parts, each division equally likely."""
    if count == 1:
        return [total]
    cuts = torch.randperm(total + count - 1, generator=generator)[: count - 1].sort().values
    edges = torch.cat((cuts.new_tensor([-1]), cuts, cuts.new_tensor([total + count - 1])))
    return (edges.diff() - 1).tolist()
