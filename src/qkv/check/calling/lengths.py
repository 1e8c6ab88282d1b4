"""Lengths that a target insists on, found by trying: a fixed one, multiples of a number, or a longest one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

USUAL = (16, 32, 64, 77, 128, 49, 50, 196, 197, 256, 100, 512)
NAMES = (
    "seq_len", "max_len", "max_length", "max_seq_len", "block_size", "context_length", "n_ctx", "num_patches", "length",
    "num_tokens", "n_tokens", "seq_length", "sequence_length", "window_size", "chunk_size", "bucket_size",
    "fixed_length",
    "n_positions", "lookback_len", "max_position_embeddings", "segment_length", "window", "num_positions",
)  # fmt: skip
LONGEST = 300  # a limit above this is not looked for
STEPS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64, 128)
MOST_ROWS = 3  # calls are tried with batches of 2 and 3: a length like these would hide which axis is which


@dataclass(frozen=True)
class LengthRule:
    """The lengths that a target takes."""

    multiple: int = 1
    fixed: int | None = None
    longest: int | None = None

    def nearest(self, length: int) -> int:
        if self.fixed is not None:
            return self.fixed
        length = length if self.longest is None else min(length, self.longest)
        return -(-length // self.multiple) * self.multiple

    def __str__(self) -> str:
        if self.fixed is not None:
            return f", of length {self.fixed} alone"
        return f", of lengths that are multiples of {self.multiple}" if self.multiple > 1 else ""


def candidate_lengths(module: Any, errors: Iterable[str]) -> list[int]:
    """Lengths to try where the usual one fails: those that attributes and error messages mention, then usual ones."""
    found: list[int] = []
    for error in errors:
        found += [int(number) for number in re.findall(r"(?<![\d.])\d{1,4}(?![\d.]*\d)", error)]
    if isinstance(module, nn.Module):
        for part in list(module.modules())[:20]:
            found += [size for name in NAMES if isinstance(size := getattr(part, name, None), int)]
        found += [p.shape[-2] for name, p in module.named_parameters() if "pos" in name.lower() and p.ndim > 1]
    usual = 8 if isinstance(module, nn.Module) else 5  # this one was tried
    return [size for size in dict.fromkeys((*found, *USUAL)) if MOST_ROWS < size <= 1024 and size != usual][:24]


def find_length_rule(takes: Callable[[int], bool], worked: int) -> LengthRule:
    """The rule behind which lengths a target takes.

    Args:
        takes: whether a call with a sequence of this length works.
        worked: a length that it takes.

    >>> find_length_rule(lambda n: n % 8 == 0, 8)
    LengthRule(multiple=8, fixed=None, longest=None)
    >>> find_length_rule(lambda n: n == 77, 77).fixed, find_length_rule(lambda n: n <= 64, 8).longest
    (77, 64)
    >>> find_length_rule(lambda n: n <= 8 or n % 16 == 0, 8)  # short sequences take another path
    LengthRule(multiple=16, fixed=None, longest=None)
    """
    multiple = 1
    if not (takes(5) and (takes(13) or takes(7))):
        steps = [m for m in STEPS if worked % m == 0 and all(takes(k * m) for k in (1, 2, 3) if k * m <= 2 * worked)]
        if not steps:
            return LengthRule(fixed=worked)
        multiple = steps[0]
    top = LONGEST // multiple
    if takes(top * multiple):
        return LengthRule(multiple)
    low, high = max(worked // multiple, 1), top
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if takes(middle * multiple) else (low, middle)
    beyond = next((m for m in STEPS if m > multiple and _takes_beyond(takes, m, low * multiple)), None)
    return LengthRule(multiple, longest=low * multiple) if beyond is None else LengthRule(beyond)


def _takes_beyond(takes: Callable[[int], bool], step: int, longest: int) -> bool:
    """Whether multiples of a step work beyond a limit: short sequences may take another path."""
    first = longest // step + 1
    return all(takes(k * step) for k in (first, first + 1, LONGEST // step))
