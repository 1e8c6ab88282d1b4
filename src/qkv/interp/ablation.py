"""Which heads matter: each silenced in turn, or each layer's β changed, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from qkv.interp.intervention.intervene import change
from qkv.interp.outcome import Measure, Question, answer, divergence, question
from qkv.interp.result import Result
from qkv.interp.run import Inputs, at, scores_of
from qkv.interp.traces.layer import Layer
from qkv.interp.traces.lazy_weights import Derived, Recipe

Progress = Callable[[int, int], None]  # how many runs are done, of how many


@dataclass(frozen=True, eq=False)
class Sweep(Result):
    """A table of what each change costs: a row for each layer, a number for each head (or each β).

    names: the layers'. columns: what the columns are: "head 0", … or the factors of β.
    measure: "loss" (cross-entropy, where the right answers are known), "kl" (from the unchanged answers, else), or
        "measure" (the caller's). before: without a change.
    table: measure − before; None where a layer has no such head or no β.
    """

    names: tuple[str, ...]
    columns: tuple[str, ...]
    measure: str
    before: float
    table: tuple[tuple[float | None, ...], ...]

    def worst(self, count: int = 5) -> tuple[tuple[int, int, float], ...]:
        """The changes that cost most: (layer, column, cost)."""
        every = [
            (row, column, cost)
            for row, costs in enumerate(self.table)
            for column, cost in enumerate(costs)
            if cost is not None
        ]
        return tuple(sorted(every, key=lambda each: -each[2])[:count])


def sweep(
    model: nn.Module,
    inputs: Inputs,
    *,
    targets: Tensor | None = None,
    positions: Sequence[int] | None = None,
    measure: Measure | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Silence each head in turn; how much the loss grows (or, without known answers, how far they move: KL).

    targets, positions, measure: as for `effect`. progress: called after each run with how many are done, of how many.
    """
    layers = at(model, inputs).layers
    most = max(layer.heads for layer in layers)
    changes = [
        [{"silence": [(place, head)]} if head < layer.heads else None for head in range(most)]
        for place, layer in enumerate(layers)
    ]
    return _swept(
        model, inputs, layers, [f"head {i}" for i in range(most)], changes, targets, positions, measure, progress
    )


def sweep_beta(
    model: nn.Module,
    inputs: Inputs,
    factors: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.25, 1.5, 2.0, 4.0),
    *,
    targets: Tensor | None = None,
    positions: Sequence[int] | None = None,
    measure: Measure | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Multiply each layer's β, its inverse temperature, by each factor in turn: 0 makes it a plain mean."""
    layers = at(model, inputs).layers
    changes: list[list[dict[str, Any] | None]] = []
    for place, layer in enumerate(layers):
        own = beta_of(layer)
        changes.append([None if own is None else {"beta": {place: own * factor}} for factor in factors])
    columns = [f"β × {factor:g}" for factor in factors]
    return _swept(model, inputs, layers, columns, changes, targets, positions, measure, progress)


def beta_of(layer: Layer) -> float | None:
    """What multiplies q·k in a layer, as the model calls its attention; None where it is no one number."""
    for piece in layer.pieces:
        source = piece.source.recipe if isinstance(piece.source, Derived) else piece.source
        if isinstance(source, Recipe) and isinstance(source.scale, int | float):
            return float(source.scale)
    return None


def _swept(
    model: nn.Module,
    inputs: Inputs,
    layers: Sequence[Layer],
    columns: Sequence[str],
    changes: Sequence[Sequence[dict[str, Any] | None]],
    targets: Tensor | None,
    positions: Sequence[int] | None,
    measure: Measure | None,
    progress: Progress | None,
) -> Sweep:
    asked, unchanged = question(model, inputs, targets, None if positions is None else tuple(positions))
    kind = "measure" if measure is not None else "kl" if asked.targets is None else "loss"
    before = _measured(model, asked, unchanged, unchanged, measure)
    total, done = sum(each is not None for row in changes for each in row), 0
    table: list[tuple[float | None, ...]] = []
    for row in changes:
        costs: list[float | None] = []
        for each in row:
            if each is None:
                costs.append(None)
                continue
            with change(model, **each):
                costs.append(_measured(model, asked, unchanged, answer(model, inputs), measure) - before)
            done += 1
            if progress is not None:
                progress(done, total)
        table.append(tuple(costs))
    return Sweep(tuple(layer.name for layer in layers), tuple(columns), kind, before, tuple(table))


def _measured(model: nn.Module, asked: Question, unchanged: Any, output: Any, measure: Measure | None) -> float:
    if measure is not None:
        return float(measure(output))
    logits = scores_of(model, output)
    losses = asked.losses(logits)
    found = asked.at(divergence(scores_of(model, unchanged), logits) if losses is None else losses)
    if math.isnan(found):
        raise ValueError("no right answer is known at the positions that count; name others, or give targets")
    return found
