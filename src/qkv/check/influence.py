"""Who influences whom, measured by changing tokens; and the name of what is seen.

Axes: t outputs (rows) · s inputs (columns).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qkv.check.subject import Subject


@dataclass(frozen=True)
class Influence:
    """How far output i moves when input j is changed, as a share of the largest move."""

    moves: Float[Tensor, "t s"]
    tolerance: float

    @property
    def felt(self) -> Bool[Tensor, "t s"]:
        return self.moves > self.tolerance

    @property
    def silent(self) -> bool:
        """Whether nothing moved anything: then nothing can be concluded."""
        return not bool(self.felt.any())


def measure(subject: Subject, *, length: int | None = None, seed: int = 0, draws: int = 2) -> Influence:
    """Change each token in turn, a few times, and see which outputs move."""
    length = subject.length if length is None else length
    generator = torch.Generator().manual_seed(seed)
    moves = torch.zeros(0, length, dtype=torch.float64)
    for _ in range(draws):
        x = subject.draw(1, length, generator)
        before = subject.run(x).double()
        if not len(moves):  # outputs may be more or fewer than inputs
            moves = torch.zeros(before.shape[1], length, dtype=torch.float64)
        for place in range(length):
            after = subject.run(subject.changed(x, place, generator)).double()
            moved = (after - before)[0].flatten(1).abs().amax(-1)
            moves[:, place] = torch.maximum(moves[:, place], moved.nan_to_num(posinf=1e30, nan=1e30))
    largest = moves.max()
    return Influence(moves / largest if largest > 0 else moves, subject.tolerance)


def name_kind(influence: Influence) -> str:
    """The kind of layer that has this influence map.

    >>> name_kind(Influence(torch.ones(4, 4).double(), 1e-6))
    'bidirectional'
    >>> name_kind(Influence(torch.ones(4, 4).tril().double(), 1e-6))
    'causal'
    """
    if influence.silent:
        return "silent: no input moves any output"
    if influence.felt.shape[0] != influence.felt.shape[1]:
        return _other_lengths(influence.felt)
    return name_pattern(influence.felt)


def name_pattern(felt: Bool[Tensor, "t s"]) -> str:
    """The kind that a map of who sees whom is of."""
    n = felt.shape[0]
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    patterns = {
        "bidirectional": torch.ones_like(felt),
        "causal": j <= i,
        "each token alone": j == i,
        "strictly causal: a token does not see itself": j < i,
        "sees one token ahead": j <= i + 1,
        "anti-causal: sees the future, not the past": j >= i,
    }
    for name, pattern in patterns.items():
        if torch.equal(felt, pattern.expand_as(felt)):
            return name
    if n > 2 and torch.equal(felt[1:], (j < i)[1:]):  # the first query has nothing left: what it does is its own affair
        return "strictly causal: a token does not see itself"
    return _window(felt, i, j) or _prefix(felt, i, j) or _chunks(felt, i, j) or "irregular"


def _other_lengths(felt: Tensor) -> str:
    """Outputs that are no row for each input: a class, patches with a class token, a target."""
    outputs = "the output moves" if len(felt) == 1 else f"all {len(felt)} outputs move"
    if bool(felt.all()):
        return f"every input seen: {outputs} for each of {felt.shape[1]} inputs"
    return f"partly seen: {float(felt.float().mean()):.0%} of {len(felt)} outputs × {felt.shape[1]} inputs"


def _window(felt: Tensor, i: Tensor, j: Tensor) -> str | None:
    n = felt.shape[0]
    for left in range(n):
        for right in range(n):
            if torch.equal(felt, (j >= i - left) & (j <= i + right)):
                return f"window of {left + 1}" if right == 0 else f"window, {left} back and {right} ahead"
    return None


def _prefix(felt: Tensor, i: Tensor, j: Tensor) -> str | None:
    for length in range(2, felt.shape[0]):
        if torch.equal(felt, (j <= i) | (j < length)):
            return f"prefix of {length}"
    return None


def _chunks(felt: Tensor, i: Tensor, j: Tensor) -> str | None:
    n = felt.shape[0]
    for size in range(2, n):
        for left in (*range(n // size + 1), None):
            back = i // size - j // size
            if torch.equal(felt, (back >= 0) & (back <= (n if left is None else left))):
                return f"chunks of {size}" + (f", {left} before" if left is not None and left < n // size else "")
    return None
