"""Influence map: which tokens change which outputs, measured by perturbation; and the kind of attention it shows.

Axes: t outputs (rows) · s inputs (columns).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qkv.check.implementation import Implementation


@dataclass(frozen=True)
class InfluenceMap:
    """effects[i, j]: how much output i changes when token j is changed, relative to the largest change."""

    effects: Float[Tensor, "t s"]
    tolerance: float

    @property
    def visible(self) -> Bool[Tensor, "t s"]:
        """Which outputs see which tokens."""
        return self.effects > self.tolerance

    @property
    def empty(self) -> bool:
        """Whether no token changes any output: then nothing can be concluded."""
        return not bool(self.visible.any())


def measure_influence(
    impl: Implementation, *, length: int | None = None, seed: int = 0, draws: int = 2
) -> InfluenceMap:
    """Change each token in turn, a few times, and measure how much each output changes."""
    length = impl.length if length is None else length
    generator = torch.Generator().manual_seed(seed)
    effects = torch.zeros(0, length, dtype=torch.float64)
    for _ in range(draws):
        x = impl.random_input(1, length, generator)
        before = impl.run(x).double()
        if not len(effects):  # the number of outputs may differ from the number of inputs
            effects = torch.zeros(before.shape[1], length, dtype=torch.float64)
        for position in range(length):
            after = impl.run(impl.change_token(x, position, generator)).double()
            change = (after - before)[0].flatten(1).abs().amax(-1)
            effects[:, position] = torch.maximum(effects[:, position], change.nan_to_num(posinf=1e30, nan=1e30))
    largest = effects.max()
    return InfluenceMap(effects / largest if largest > 0 else effects, impl.tolerance)


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
        return name_pattern(visible)
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


def _name_chunks(visible: Tensor, i: Tensor, j: Tensor) -> str | None:
    n = visible.shape[0]
    for size in range(2, n):
        for left in (*range(n // size + 1), None):
            back = i // size - j // size
            if torch.equal(visible, (back >= 0) & (back <= (n if left is None else left))):
                return f"chunks of {size}" + (f", {left} before" if left is not None and left < n // size else "")
    return None
