"""Span corruption: cut spans out of a text, and train the model to produce the missing spans.

Axes: n tokens of one text.

The defaults are those of Stanford CS224N A5: a document is cut at a random length, a quarter of it on average is taken
out, and the model reads `prefix ⁇ suffix ⁇ missing`. With more spans: `… ⁇ … ⁇ … ⁇ first ⁇ second`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Int64
from torch import Generator, Tensor

from qkv.data.batches import generator_for
from qkv.data.text.sequence_batches import Example
from qkv.data.text.tokenizers import character_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD_CHAR, MASK_CHAR = "□", "⁇"  # tokens 0 and 1 of the vocabulary
LENGTH_STREAM, SPAN_STREAM = 6, 7  # of randomness
Span = tuple[int, int]


@dataclass(frozen=True)
class SpanCorruption:
    """How texts are corrupted. The defaults are CS224N A5's for texts of 128 tokens.

    min_length, max_length: a document is cut to a random length between them.
    crop: "start" keeps the beginning of a document, "random" a run from anywhere in it.
    corruption_rate: the fraction that is missing, on average; its size is uniform from 1 to twice that, less one.
    num_spans: number of missing spans (fewer in short texts).
    salient_prob: probability of choosing among a document's salient spans (such as names and places), where some lie
        within the part that is kept.
    loss_on: every token, as in CS224N A5, or only the missing ones.
    """

    min_length: int = 4
    max_length: int = 112
    crop: Literal["start", "random"] = "start"
    corruption_rate: float = 0.25
    num_spans: int = 1
    salient_prob: float = 0.0
    loss_on: Literal["all", "missing"] = "all"

    def __post_init__(self) -> None:
        if not 2 <= self.min_length <= self.max_length:
            raise ValueError(f"expected 2 ≤ min_length ≤ max_length, got {self.min_length} and {self.max_length}")
        if not 0 < self.corruption_rate < 1:
            raise ValueError(f"corruption_rate must be between 0 and 1, got {self.corruption_rate}")
        if not 0 <= self.salient_prob <= 1:
            raise ValueError(f"salient_prob must be in [0, 1], got {self.salient_prob}")
        if self.num_spans < 1:
            raise ValueError(f"num_spans must be at least 1, got {self.num_spans}")
        if self.crop not in ("start", "random"):
            raise ValueError(f"crop must be 'start' or 'random', got {self.crop!r}")
        if self.loss_on not in ("all", "missing"):
            raise ValueError(f"loss_on must be 'all' or 'missing', got {self.loss_on!r}")

    @classmethod
    def for_length(cls, length: int, **settings: Any) -> SpanCorruption:
        """CS224N A5's settings for texts of another length: cut at 4 … 7/8 of it."""
        return cls(max_length=int(7 / 8 * length), **settings)

    def spans_for(self, kept: int) -> int:
        """Number of spans in a text of `kept` tokens: each has 2 tokens on average, and some around it."""
        return max(1, min(self.num_spans, int(self.corruption_rate * kept / 2), kept // 4))


def span_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A character tokenizer for a corpus, with □ (padding) as token 0 and ⁇ (mask) as token 1, as in CS224N A5."""
    return character_tokenizer(texts, special=(PAD_CHAR, MASK_CHAR))


class SpanCorruptionExamples:
    """Documents corrupted anew every epoch.

    Args:
        documents: token ids of each document.
        mask_id: the token id of ⁇.
        salient: for each document, the spans (start, stop) of tokens that are worth predicting.
    """

    def __init__(
        self,
        documents: Sequence[Tensor],
        mask_id: int,
        corruption: SpanCorruption | None = None,
        *,
        salient: Sequence[Sequence[Span]] | None = None,
        seed: int = 0,
    ) -> None:
        if salient is not None and len(salient) != len(documents):
            raise ValueError(f"expected salient spans for {len(documents)} documents, got {len(salient)}")
        spans = [()] * len(documents) if salient is None else salient
        self.salient = [list(s) for s, document in zip(spans, documents, strict=True) if len(document) >= 2]
        self.documents = [document for document in documents if len(document) >= 2]
        if not self.documents:
            raise ValueError("span corruption needs documents of at least 2 tokens, got none")
        self.mask_id, self.seed = mask_id, seed
        self.corruption = SpanCorruption() if corruption is None else corruption
        self._lengths = torch.tensor([len(document) for document in self.documents])
        self._cached_kept: tuple[int, Tensor] | None = None  # of the last epoch

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def longest(self) -> int:
        most = min(self.corruption.max_length, int(self._lengths.max()))
        return most + 2 * self.corruption.spans_for(most)

    def kept(self, epoch: int) -> Int64[Tensor, " items"]:
        """The length to which each document is cut in this epoch."""
        if self._cached_kept is None or self._cached_kept[0] != epoch:
            low, high = self.corruption.min_length, self.corruption.max_length
            generator = generator_for(self.seed, LENGTH_STREAM, epoch)
            drawn = torch.randint(low, high + 1, (len(self),), generator=generator)
            self._cached_kept = epoch, torch.minimum(drawn, self._lengths)
        return self._cached_kept[1]

    def lengths(self, epoch: int) -> Int64[Tensor, " items"]:
        kept = self.kept(epoch)
        return kept + 2 * torch.tensor([self.corruption.spans_for(n) for n in kept.tolist()])

    def example(self, epoch: int, row: int) -> Example:
        generator = generator_for(self.seed, SPAN_STREAM, epoch, row)
        document, kept = self.documents[row], int(self.kept(epoch)[row])
        start = 0
        if self.corruption.crop == "random":
            start = int(torch.randint(0, len(document) - kept + 1, (), generator=generator))
        spans = sample_spans(kept, self.corruption, generator)
        salient_prob = self.corruption.salient_prob
        if salient_prob and float(torch.rand((), generator=generator)) < salient_prob:
            inside = [(a - start, b - start) for a, b in self.salient[row] if start <= a < b <= start + kept]
            spans = choose_spans(inside, len(spans), generator) or spans
        tokens, missing = corrupt(document[start : start + kept], spans, self.mask_id)
        return Example(tokens, torch.ones_like(missing) if self.corruption.loss_on == "all" else missing)


def corrupt(document: Int64[Tensor, " n"], spans: Sequence[Span], mask_id: int) -> tuple[Tensor, Tensor]:
    """Move spans to the end: `… ⁇ … ⁇ missing`. Returns the tokens, and a mask of the missing ones.

    >>> corrupt(torch.tensor([5, 6, 7, 8]), [(1, 3)], mask_id=1)[0].tolist()
    [5, 1, 8, 1, 6, 7]
    """
    mask = document.new_tensor([mask_id])
    rest, moved, start = [], [], 0
    for begin, stop in spans:
        rest += [document[start:begin], mask]
        moved += [mask, document[begin:stop]]
        start = stop
    rest.append(document[start:])
    tokens = torch.cat((*rest, *moved))
    missing = torch.zeros_like(tokens, dtype=torch.bool)
    place = sum(len(part) for part in rest)
    for begin, stop in spans:
        missing[place + 1 : place + 1 + stop - begin] = True
        place += 1 + stop - begin
    return tokens, missing


def sample_spans(kept: int, corruption: SpanCorruption, generator: Generator) -> list[Span]:
    """Draw the missing spans of a text of `kept` tokens: uniformly, at least one token apart."""
    count = corruption.spans_for(kept)
    middle = max(round(corruption.corruption_rate * kept), count)
    most = max(min(2 * middle - 1, kept - count), 1)
    low = min(max(count, 2 * middle - most), most)
    total = max(int(torch.randint(low, most + 1, (), generator=generator)), count)
    sizes = [1 + extra for extra in _random_partition(total - count, count, generator)]
    gaps = _random_partition(kept - total - (count - 1), count + 1, generator)
    spans, place = [], 0
    for number, (gap, size) in enumerate(zip(gaps, sizes, strict=False)):
        place += gap + (number > 0)  # at least one token between two spans
        spans.append((place, place + size))
        place += size
    return spans


def choose_spans(spans: list[Span], count: int, generator: Generator) -> list[Span]:
    """Choose `count` of these spans at random, in order and without overlap; none if there are too few."""
    chosen: list[Span] = []
    for i in torch.randperm(len(spans), generator=generator).tolist():
        begin, stop = spans[i]
        if len(chosen) < count and all(stop < b or e < begin for b, e in chosen):
            chosen.append((begin, stop))
    return sorted(chosen) if len(chosen) == count else []


def _random_partition(total: int, count: int, generator: Generator) -> list[int]:
    """Cut `total` into `count` parts, each partition equally likely."""
    if count == 1:
        return [total]
    cuts = torch.randperm(total + count - 1, generator=generator)[: count - 1].sort().values
    edges = torch.cat((cuts.new_tensor([-1]), cuts, cuts.new_tensor([total + count - 1])))
    return (edges.diff() - 1).tolist()
