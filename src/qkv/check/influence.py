"""Influence map: which tokens change which outputs, measured by perturbation; and the kind of attention it shows.

Axes: t outputs (rows) · s inputs (columns).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from qkv.check.implementation import Implementation
from qkv.check.tracing.choices import makes_choices

MORE_DRAWS = 60
FEW_DRAWS = 10
ROWS = 12  # changed sequences in one batch


@dataclass(frozen=True)
class InfluenceMap:
    """effects[i, j]: how much output i changes when token columns[j] is changed, relative to the largest change.

    Args:
        columns: the tokens that were changed; all of them if None.
        sparse: some pairs showed an effect only after several draws, so that a pair without one may be chance.
        chosen: the code chooses by value (top-k, a router), so that what a token sees depends on the content.
    """

    effects: Float[Tensor, "t s"]
    tolerance: float
    columns: tuple[int, ...] | None = None
    sparse: bool = False
    chosen: bool = False

    @property
    def visible(self) -> Bool[Tensor, "t s"]:
        """Which outputs see which tokens."""
        return self.effects > self.tolerance

    @property
    def empty(self) -> bool:
        """Whether no token changes any output: then nothing can be concluded."""
        return not bool(self.visible.any())

    @property
    def distances(self) -> Tensor:
        """(t, s): how far output i is behind the token that was changed."""
        columns = range(self.effects.shape[1]) if self.columns is None else self.columns
        return torch.arange(self.effects.shape[0])[:, None] - torch.tensor(list(columns))[None, :]

    @property
    def reached(self) -> Bool[Tensor, "t s"]:
        """Which outputs change at all, beyond rounding: among many tokens, one may have little weight."""
        return self.effects > self.tolerance * 1e-6 * self.effects.amax(0, keepdim=True)


def measure_influence(impl: Implementation, *, seed: int = 0, draws: int = 2) -> InfluenceMap:
    """Change each token in turn, a few times, and measure how much each output changes.

    Pairs without any effect get further draws: a weight may be zero by chance (after a ReLU, in a choice of experts).
    """
    length = impl.length
    generator = torch.Generator().manual_seed(seed)
    effects = torch.zeros(0, length, dtype=torch.float64)
    sparse = False
    for draw in range(draws + MORE_DRAWS):
        positions = range(length)
        if draw >= draws:
            past = torch.ones_like(effects, dtype=torch.bool).tril()
            unseen = (effects <= 1e-6 * impl.tolerance * effects.amax(0)) & past
            seen = int((~unseen & past).sum())
            if not bool(unseen.any()) or int(unseen.sum()) > seen:  # most pairs unseen: a mask, not chance
                break
            sparse = True
            positions = [int(position) for position in unseen.any(0).nonzero()[:, 0]]
        x = impl.random_input(1, length, generator)
        before = impl.run(x).double()
        if not len(effects):  # the number of outputs may differ from the number of inputs
            effects = torch.zeros(before.shape[1], length, dtype=torch.float64)
        for position in positions:
            after = impl.run(impl.change_token(x, position, generator)).double()
            change = (after - before)[0].flatten(1).abs().amax(-1)
            effects[:, position] = torch.maximum(effects[:, position], change.nan_to_num(posinf=1e30, nan=1e30))
    largest = effects.max()
    chosen = makes_choices(impl)
    return InfluenceMap(effects / largest if largest > 0 else effects, impl.tolerance, sparse=sparse, chosen=chosen)


def sample_influence(impl: Implementation, length: int, columns: Sequence[int], seed: int = 0) -> InfluenceMap:
    """Some columns of the influence map of a longer sequence; the changes are the rows of one batch.

    A few pairs without an effect may be chance (a ReLU): they get further draws.
    """
    generator = torch.Generator().manual_seed(seed + length)
    found = _sample_once(impl, length, columns, generator)
    for _ in range(FEW_DRAWS):
        past = found.distances >= 0
        unseen = past & ~found.reached
        if found.tolerance > 1e-5 or not 0 < int(unseen.sum()) < 0.1 * int(past.sum()):
            break
        again = [column for column, some in zip(columns, unseen.any(0).tolist(), strict=True) if some]
        more = _sample_once(impl, length, again, generator).effects
        effects = found.effects.clone()
        for place, column in enumerate(again):
            at = columns.index(column)
            effects[:, at] = torch.maximum(effects[:, at], more[:, place])
        found = replace(found, effects=effects)
    return found


def _sample_once(impl: Implementation, length: int, columns: Sequence[int], generator: Generator) -> InfluenceMap:
    x = impl.random_input(1, length, generator)
    changes = []
    rows = ROWS if length <= 300 else 1
    for start in range(0, len(columns), rows):
        some = columns[start : start + rows]
        changed = torch.cat([x, *(impl.change_token(x, column, generator) for column in some)])
        out = impl.run(changed).double()
        changes.append((out[1:] - out[:1]).flatten(2).abs().amax(-1).nan_to_num(posinf=1e30, nan=1e30))
    effects = torch.cat(changes).T
    largest = effects.max()
    return InfluenceMap(effects / largest if largest > 0 else effects, impl.tolerance, tuple(columns))


def columns_of(length: int, most: int) -> list[int]:
    """Tokens worth changing in a sequence: both ends, and both sides of every power of two from 8 on.

    >>> columns_of(20, 12)
    [0, 1, 6, 7, 8, 9, 15, 16, 17, 18, 19]
    """
    near = [2**power + side for power in range(3, 13) for side in (0, -1, 1)]
    chosen = [length - 1, 0, length - 2, *(place for place in reversed(near)), 1, length // 3]
    inside = dict.fromkeys(place for place in chosen if 0 <= place < length)
    return sorted(list(inside)[:most])


def name_kind(influence: InfluenceMap) -> str:
    """The kind of attention that has this influence map.

    >>> name_kind(InfluenceMap(torch.ones(4, 4).double(), 1e-6))
    'bidirectional'
    >>> name_kind(InfluenceMap(torch.ones(4, 4).tril().double(), 1e-6))
    'causal'
    """
    if influence.empty:
        return "no influence: no input changes any output"
    visible = influence.visible
    outputs, inputs = visible.shape
    if outputs == inputs:
        kind = name_pattern(visible)
        # weak effects (a squared ReLU) count as well, if only with them the map makes sense
        return kind if kind != "irregular" or influence.tolerance > 1e-5 else name_pattern(influence.reached)
    # outputs that do not correspond to inputs: a class, patches with a class token, a target
    if bool(visible.all()):
        subject = "the output changes" if outputs == 1 else f"all {outputs} outputs change"
        return f"every input seen: {subject} for each of {inputs} inputs"
    return f"partly seen: {float(visible.float().mean()):.0%} of {outputs} outputs × {inputs} inputs"


def name_pattern(visible: Bool[Tensor, "t s"]) -> str:
    """The kind of a square map of which query sees which key."""
    n = visible.shape[0]
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    patterns = {
        "bidirectional": torch.ones_like(visible),
        "causal": j <= i,
        "each token alone": j == i,
        "strictly causal: a token does not see itself": j < i,
        "sees one token ahead": j <= i + 1,
        "anti-causal: sees the future, not the past": j >= i,
    }
    for name, pattern in patterns.items():
        if torch.equal(visible, pattern.expand_as(visible)):
            return name
    if n > 2 and torch.equal(visible[1:], (j < i)[1:]):  # the first query sees nothing: its output may be anything
        return "strictly causal: a token does not see itself"
    return _name_window(visible, i, j) or _name_prefix(visible, i, j) or _name_chunks(visible, i, j) or "irregular"


def _name_window(visible: Tensor, i: Tensor, j: Tensor) -> str | None:
    n = visible.shape[0]
    for left in range(n):
        for right in range(n):
            if torch.equal(visible, (j >= i - left) & (j <= i + right)):
                return f"window of {left + 1}" if right == 0 else f"window, {left} back and {right} ahead"
    return None


def _name_prefix(visible: Tensor, i: Tensor, j: Tensor) -> str | None:
    for length in range(2, visible.shape[0]):
        if torch.equal(visible, (j <= i) | (j < length)):
            return f"prefix of {length}"
    return None


def name_prefix_bug(visible: Bool[Tensor, "t s"]) -> str:
    """What is wrong with a map that should be that of a prefix and causal after it; "" if it is nothing known.

    >>> name_prefix_bug(torch.ones(5, 5).tril().bool())
    'the prefix is masked causally too: its tokens do not see the later ones of the prefix'
    """
    n = visible.shape[0]
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    if bool(visible.all()):
        return "every token sees every other one: what follows the prefix is not masked causally"
    if torch.equal(visible, j <= i):
        return "the prefix is masked causally too: its tokens do not see the later ones of the prefix"
    for p in range(1, n):
        bugs = {
            f"the first {p} tokens (the prefix) see every token, also those after the prefix: rows and columns of the "
            "prefix mask are swapped": (j <= i) | (i < p),
            f"tokens after the prefix of {p} do not see it": ((j <= i) & (j >= p)) | ((i < p) & (j < p)),
            f"after the prefix of {p}, a token sees one token ahead": (j <= i + 1) & ((i >= p) | (j < p)) | (j < p),
            f"after the prefix of {p}, a token does not see itself": (j < i) | (j < p),
            f"tokens after the prefix of {p} see each other in both directions, the prefix sees itself only": (
                (i >= p) | (j < p)
            ),
        }
        for words, pattern in bugs.items():
            if torch.equal(visible, pattern):
                return words
    return ""


def _name_chunks(visible: Tensor, i: Tensor, j: Tensor) -> str | None:
    n = visible.shape[0]
    for size in range(2, n):
        back = i // size - j // size
        for left in (*range(n // size + 1), None):
            before = (back >= 0) & (back <= (n if left is None else left))
            words = f"chunks of {size}" + (f", {left} before" if left is not None and left < n // size else "")
            if torch.equal(visible, before):
                return words
            if torch.equal(visible, before & (j <= i)):
                return f"{words}, causal"
    return None
