"""What was seen of one attention: its operands, its scores before the softmax, and the weights as they met the values.

Axes: b batch · h heads · t queries · s keys · d head width · e value width · n features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Axis = Literal["keys", "queries", "heads or batch"]


@dataclass(frozen=True, eq=False)
class Seen:
    """One attention of a run, in one form whatever its code looks like; all tensors in float64.

    product: q·k, before anything is done to it. scores: what the softmax was given; None if there was no softmax.
    soft: what the softmax gave. weights: what multiplied the values. The keys are, by definition, what is summed over.
    averaged: whether the weights were reduced over the heads on the way. dropped: whether a dropout changed them.
    kernel: the operator's name, where one did it all. order: its place among all that was recorded.
    """

    name: str
    order: int
    queries: Tensor
    keys: Tensor
    values: Tensor
    output: Tensor
    product: Tensor
    scores: Tensor | None
    soft: Tensor | None
    weights: Tensor
    axis: Axis | None
    precision: torch.dtype | None
    dropped: bool = False
    averaged: bool = False
    kernel: str | None = None

    @property
    def heads(self) -> int:
        return self.product.shape[1]

    @property
    def width(self) -> int:
        return self.queries.shape[-1]

    @property
    def allowed(self) -> Tensor | None:
        """(b, h, t, s): which scores are not pushed out of sight, as the softmax sees them."""
        return None if self.scores is None else self.scores > floor_of(self.product)


@dataclass(frozen=True, eq=False)
class Projection:
    """A product with parameters: what went in (…, c), what came out (…, n), and its place in the order.

    source: where in memory the parameter lies.
    """

    name: str
    order: int
    given: Tensor
    output: Tensor
    source: int = 0


@dataclass(frozen=True)
class Recording:
    """All that was seen in one run; `refused` says why nothing was, if so."""

    seen: tuple[Seen, ...] = ()
    projections: tuple[Projection, ...] = ()
    refused: str | None = None


def floor_of(product: Tensor) -> float:
    """A score so far below all products that the softmax makes it nothing."""
    size = float(product.abs().max()) if product.numel() else 1.0
    return -max(100.0 * size, 1e3)
