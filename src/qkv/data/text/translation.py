"""Translation data: sentence pairs from two files, number words in English and German, and batches of pairs.

Axes: b batch · m source tokens · t target tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.data.batches import Batch, PlannedBatches, generator_for
from qkv.data.files import read_lines
from qkv.data.text.sequence_batches import bucket_by_length, check_batch_limits
from qkv.data.text.tokenizers import PAD, START, STOP

NUMBER_STREAM = 9  # of randomness


class SentencePair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


def read_pairs(source: str | Path, target: str | Path) -> list[SentencePair]:
    """Read two files line by line; a line that is empty on one side only raises a ValueError."""
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise ValueError(
            f"expected two files of equally many lines, but {source} has {len(sources):,} and {target} has "
            f"{len(targets):,}"
        )
    pairs = []
    for line, (first, second) in enumerate(zip(sources, targets, strict=True), start=1):
        first, second = first.strip(), second.strip()
        if bool(first) != bool(second):
            raise ValueError(f"{target if first else source}, line {line} is empty, but its translation is not")
        if first:
            pairs.append(SentencePair(first, second))
    return pairs


class PairBatches(PlannedBatches[list[int]]):
    """Batches of `source`, `source_token_mask` (b, m) and `target_in`, `targets`, `loss_mask` (b, t).

    The source ends in STOP. The target is read after START and predicted up to STOP; its padding comes last, so a
    causal decoder never sees it.

    Args:
        sources, targets: token ids of each side.
        batch_size: pairs in a batch. max_tokens: positions on the wider side of a batch, instead of batch_size.
        max_length: pairs with a longer side are left out, and counted in `num_skipped`.
    """

    def __init__(
        self,
        sources: Sequence[Tensor],
        targets: Sequence[Tensor],
        *,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        max_length: int = 256,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        check_batch_limits(batch_size, max_tokens)
        if len(sources) != len(targets):
            raise ValueError(f"expected as many targets as sources, got {len(sources)} and {len(targets)}")
        fits = [i for i, (s, t) in enumerate(zip(sources, targets, strict=True)) if max(len(s), len(t)) < max_length]
        if not fits:
            raise ValueError(f"none of {len(sources)} pairs fits into max_length={max_length}")
        self.sources, self.targets = [sources[i] for i in fits], [targets[i] for i in fits]
        self.num_skipped = len(sources) - len(fits)
        self.batch_size, self.max_tokens, self.seed, self.shuffle = batch_size, max_tokens, seed, shuffle
        sides = ([len(ids) + 1 for ids in side] for side in (self.sources, self.targets))
        self._lengths = torch.tensor(list(zip(*sides, strict=True)))

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at that index."""
        pairs = self._planned(epoch, index)
        source = _pad_with_stop([self.sources[i] for i in pairs])
        targets = _pad_with_stop([self.targets[i] for i in pairs])
        shifted = torch.cat((torch.full_like(targets[:, :1], START), targets[:, :-1]), 1)
        lengths = self._lengths[pairs]
        source_token_mask = torch.arange(source.shape[1]) < lengths[:, 0, None]
        loss_mask = torch.arange(targets.shape[1]) < lengths[:, 1, None]
        return {
            "source": source,
            "source_token_mask": source_token_mask,
            "target_in": shifted.masked_fill(~loss_mask, PAD),
            "targets": targets,
            "loss_mask": loss_mask,
        }

    def _plan(self, epoch: int) -> list[list[int]]:
        """Pairs of similar length."""
        return bucket_by_length(
            self._lengths,
            batch_size=self.batch_size,
            max_tokens=self.max_tokens,
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
        )

    def padding_fraction(self, epoch: int) -> float:
        """The fraction of all positions, of both sides, that hold padding."""
        positions = sum(len(group) * int(self._lengths[group].max(0).values.sum()) for group in self.plan(epoch))
        return 1 - int(self._lengths.sum()) / positions


def _pad_with_stop(rows: list[Tensor]) -> Tensor:
    ended = [torch.cat((ids, ids.new_tensor([STOP]))) for ids in rows]
    return torch.nn.utils.rnn.pad_sequence(ended, batch_first=True, padding_value=PAD)


# Number words: synthetic pairs for trying out translation. German puts the last two digits of every three in reverse
# order ("sechsundfünfzig") and writes a number as one word, so a model has something to reorder.
ENGLISH = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
    "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
ENGLISH_TENS = ("-", "-", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
GERMAN = (
    "null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun",
    "zehn", "elf", "zwölf", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn",
)  # fmt: skip
GERMAN_TENS = ("-", "-", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")


def number_to_english(number: int) -> str:
    """Write a number from 0 to 999,999 in English words.

    >>> number_to_english(0), number_to_english(21), number_to_english(340_056)
    ('zero', 'twenty-one', 'three hundred forty thousand fifty-six')
    """
    if number >= 1000:
        rest = f" {number_to_english(number % 1000)}" if number % 1000 else ""
        return f"{number_to_english(number // 1000)} thousand{rest}"
    if number >= 100:
        rest = f" {number_to_english(number % 100)}" if number % 100 else ""
        return f"{ENGLISH[number // 100]} hundred{rest}"
    if number < 20:
        return ENGLISH[number]
    return ENGLISH_TENS[number // 10] + (f"-{ENGLISH[number % 10]}" if number % 10 else "")


def number_to_german(number: int) -> str:
    """Write a number from 0 to 999,999 in German words.

    >>> number_to_german(1), number_to_german(21), number_to_german(340_056), number_to_german(101)
    ('eins', 'einundzwanzig', 'dreihundertvierzigtausendsechsundfünfzig', 'einhunderteins')
    """
    word = _german_stem(number)
    return word + "s" if number % 100 == 1 else word


def _german_stem(number: int) -> str:
    """The number inside a longer number word: without the final s of "eins"."""
    if number >= 1000:
        return f"{_german_stem(number // 1000)}tausend{_german_stem(number % 1000) if number % 1000 else ''}"
    if number >= 100:
        return f"{GERMAN[number // 100]}hundert{_german_stem(number % 100) if number % 100 else ''}"
    if number < 20:
        return GERMAN[number]
    return (f"{GERMAN[number % 10]}und" if number % 10 else "") + GERMAN_TENS[number // 10]


def draw_numbers(count: int, seed: int) -> list[int]:
    """Draw distinct numbers below a million; short and long ones are equally likely."""
    generator, found = generator_for(seed, NUMBER_STREAM), {}
    while len(found) < count:
        digits = int(torch.randint(1, 7, (), generator=generator))
        found[int(torch.randint(0, 10**digits, (), generator=generator))] = True
    return list(found)
