"""Ablation: measure the effect of an intervention, sweep over all heads (ablation_sweep) or scales (scale_sweep).

Axes: b batch · t tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from qkv.interp.edited_attention import HeadKey, LayerKey, Pattern, Scale
from qkv.interp.forward import (
    AnalysisResult,
    ForwardPass,
    Inputs,
    Measure,
    call_eval,
    get_logits,
    kl_divergence,
    run_forward,
)
from qkv.interp.intervention import Patch, intervene

Progress = Callable[[int, int], None]  # runs done, runs in total


@dataclass(frozen=True, eq=False)
class Effect(AnalysisResult):
    """What an intervention does to a model's answers.

    kind: "tokens" if there is an answer at each position, "class" if there is one per input, "measure" if the caller
        measured.
    loss_before, loss_after: the mean cross-entropy over the positions that count; None without right answers.
    kl: KL(before ‖ after) in nats, the mean; kl_at: at each position (of the first row).
    top_before, top_after: the most likely token at each position (of the first row), or the class.
    probability_before, probability_after: of the answers that were most likely before.
    flipped: the share of answers whose most likely token or class changed.
    """

    kind: str
    loss_before: float | None
    loss_after: float | None
    kl: float | None = None
    kl_at: tuple[float, ...] = ()
    top_before: tuple[int, ...] = ()
    top_after: tuple[int, ...] = ()
    probability_before: tuple[float, ...] = ()
    probability_after: tuple[float, ...] = ()
    flipped: float | None = None

    @property
    def increase(self) -> float | None:
        """The increase of the loss."""
        if self.loss_before is None or self.loss_after is None:
            return None
        return self.loss_after - self.loss_before


def measure_effect(
    model: nn.Module,
    inputs: Inputs,
    *,
    ablate_heads: Iterable[tuple[LayerKey, HeadKey]] = (),
    mask_edges: Iterable[tuple[LayerKey, HeadKey, int, int]] = (),
    scale: Scale | None = None,
    pattern: Mapping[tuple[LayerKey, HeadKey], Pattern] | None = None,
    patch: Mapping[str, Patch] | None = None,
    targets: Tensor | None = None,
    positions: Sequence[int] | None = None,
    measure: Measure | None = None,
) -> Effect:
    """The effect of an intervention (arguments as for `intervene`) on loss, probabilities and most likely answers.

    targets: the right answers: (b, t) tokens (−100 where unknown) or (b,) classes. By default a causal language model's
        own next tokens.
    positions: the positions whose loss counts; all by default.
    measure: a function of the model's output to use instead, for a model that returns no logits; higher is worse.

    >>> import torch, qkv
    >>> _ = torch.manual_seed(0)
    >>> model = qkv.models.GPT(qkv.models.GPTConfig(vocab_size=65, dim=32, layers=2, heads=4))
    >>> effect = measure_effect(model, torch.randint(0, 65, (1, 6)), ablate_heads=[(0, 2)])
    >>> effect.kind, len(effect.kl_at), effect.kl > 0
    ('tokens', 6, True)
    """
    before = run_forward(model, inputs, targets, positions)
    with intervene(model, ablate_heads=ablate_heads, mask_edges=mask_edges, scale=scale, pattern=pattern, patch=patch):
        after = call_eval(model, inputs)
    if measure is not None:
        return Effect("measure", float(measure(before.output)), float(measure(after)))
    return compare_outputs(before, after)


def compare_outputs(before: ForwardPass, after: Any) -> Effect:
    """The effect of whatever turned the output of a run into the output `after`."""
    old, new = before.logits, get_logits(before.model, after)
    old_losses, new_losses = before.losses(old), before.losses(new)
    kl = kl_divergence(old, new)
    top_before, top_after = (logits[:1].argmax(-1).flatten() for logits in (old, new))
    probabilities = [logits[:1].double().softmax(-1).flatten(0, -2) for logits in (old, new)]
    picked = [each.gather(-1, top_before[:, None]).squeeze(-1) for each in probabilities]
    return Effect(
        kind="tokens" if old.ndim == 3 else "class",
        loss_before=None if old_losses is None else before.mean(old_losses),
        loss_after=None if new_losses is None else before.mean(new_losses),
        kl=before.mean(kl),
        kl_at=tuple(kl[:1].flatten().tolist()),
        top_before=tuple(top_before.tolist()),
        top_after=tuple(top_after.tolist()),
        probability_before=tuple(picked[0].tolist()),
        probability_after=tuple(picked[1].tolist()),
        flipped=float((old.argmax(-1) != new.argmax(-1)).double().mean()),
    )


@dataclass(frozen=True, eq=False)
class SweepTable(AnalysisResult):
    """The cost of each intervention of a sweep: a row for each layer, a number for each head (or each scale).

    names: of the layers. columns: "head 0", … or the factors of the scale.
    measure: "loss" (cross-entropy, if the right answers are known), "kl" (from the unchanged answers, otherwise), or
        "measure" (the caller's). before: without an intervention.
    table: measure − before; None where a layer has no such head or no scale.
    """

    names: tuple[str, ...]
    columns: tuple[str, ...]
    measure: str
    before: float
    table: tuple[tuple[float | None, ...], ...]

    def largest(self, count: int = 5) -> tuple[tuple[int, int, float], ...]:
        """The interventions that cost most: (layer, column, cost)."""
        costs = [
            (row, column, cost)
            for row, each in enumerate(self.table)
            for column, cost in enumerate(each)
            if cost is not None
        ]
        return tuple(sorted(costs, key=lambda each: -each[2])[:count])


def ablation_sweep(
    model: nn.Module,
    inputs: Inputs,
    *,
    targets: Tensor | None = None,
    positions: Sequence[int] | None = None,
    measure: Measure | None = None,
    progress: Progress | None = None,
    baseline: ForwardPass | None = None,
) -> SweepTable:
    """Ablate each head in turn: how much the loss grows, or without right answers how far the answers move (KL).

    targets, positions, measure: as for `measure_effect`. progress: called after each run with runs done and in total.
    baseline: the unchanged run, if it was made already (`run_forward`); it brings targets and positions.
    """
    baseline = run_forward(model, inputs, targets, positions) if baseline is None else baseline
    layers = baseline.trace.layers
    most = max(layer.heads for layer in layers)
    edits = [
        [{"ablate_heads": [(index, head)]} if head < layer.heads else None for head in range(most)]
        for index, layer in enumerate(layers)
    ]
    return _sweep(baseline, inputs, [f"head {i}" for i in range(most)], edits, measure, progress)


def scale_sweep(
    model: nn.Module,
    inputs: Inputs,
    factors: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.25, 1.5, 2.0, 4.0),
    *,
    targets: Tensor | None = None,
    positions: Sequence[int] | None = None,
    measure: Measure | None = None,
    progress: Progress | None = None,
) -> SweepTable:
    """Multiply each layer's scale (β, the inverse temperature) by each factor in turn; 0 gives uniform attention."""
    baseline = run_forward(model, inputs, targets, positions)
    edits: list[list[dict[str, Any] | None]] = []
    for index, layer in enumerate(baseline.trace.layers):
        own = layer.scale
        edits.append([None if own is None else {"scale": {index: own * factor}} for factor in factors])
    return _sweep(baseline, inputs, [f"scale × {factor:g}" for factor in factors], edits, measure, progress)


def _sweep(
    baseline: ForwardPass,
    inputs: Inputs,
    columns: Sequence[str],
    edits: Sequence[Sequence[dict[str, Any] | None]],
    measure: Measure | None,
    progress: Progress | None,
) -> SweepTable:
    kind = "loss" if baseline.targets is not None else "kl"
    kind = kind if measure is None else "measure"
    before = _measure_output(baseline, baseline.output, measure)
    total, done = sum(edit is not None for row in edits for edit in row), 0
    table: list[tuple[float | None, ...]] = []
    for row in edits:
        costs: list[float | None] = []
        for edit in row:
            if edit is None:
                costs.append(None)
                continue
            with intervene(baseline.model, **edit):
                output = call_eval(baseline.model, inputs)
            costs.append(_measure_output(baseline, output, measure) - before)
            done += 1
            if progress is not None:
                progress(done, total)
        table.append(tuple(costs))
    names = tuple(layer.name for layer in baseline.trace.layers)
    return SweepTable(names, tuple(columns), kind, before, tuple(table))


def _measure_output(baseline: ForwardPass, output: Any, measure: Measure | None) -> float:
    if measure is not None:
        return float(measure(output))
    logits = get_logits(baseline.model, output)
    losses = baseline.losses(logits)
    found = baseline.mean(kl_divergence(baseline.logits, logits) if losses is None else losses)
    if math.isnan(found):
        raise ValueError("no right answer is known at these positions; choose other positions, or pass targets")
    return found
