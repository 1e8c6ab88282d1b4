"""The logit lens: what a model would answer if its last blocks did nothing.

Axes: b batch · t tokens · k likeliest tokens · l layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.interp.intervention.intervene import change
from qkv.interp.outcome import divergence
from qkv.interp.result import Result
from qkv.interp.run import Inputs, call, observing, run_traced, scores_of
from qkv.interp.stacks import called_blocks, stack_of


@dataclass(frozen=True, eq=False)
class Lens(Result):
    """For each layer and position, the likeliest answers as the residual stream stands there.

    names: "input" (before the first block), then each block. positions: those asked for; (0,) for a model that
        answers once (a class).
    tokens, probabilities: (l, t, k), the likeliest first. kl: (l, t), KL(the model's answer ‖ this layer's) in nats.
    entropy: (l, t), of each answer, in nats.
    """

    names: tuple[str, ...]
    positions: tuple[int, ...]
    tokens: Int[Tensor, "l t k"]
    probabilities: Float[Tensor, "l t k"]
    kl: Float[Tensor, "l t"]
    entropy: Float[Tensor, "l t"]


def lens(
    model: nn.Module, inputs: Inputs, *, k: int = 5, positions: Sequence[int] | None = None, batch: int = 0
) -> Lens:
    """The residual stream after each block, read by all that follows the last block: final norm and head.

    The stream of a block is put in the place of the last block's, and the model runs on from there, so whatever the
    model does after its blocks (norm, head, biases, caps) is done. The last row is the model's own answer.
    """
    if k < 1:
        raise ValueError(f"k is how many answers are kept, at least 1; got {k}")
    every, names = lens_logits(model, inputs)
    rows = every[:, batch] if every.ndim == 4 else every[:, batch].unsqueeze(1)
    count = rows.shape[1]
    chosen = list(range(count)) if positions is None else list(positions)
    for position in chosen:
        if not -count <= position < count:
            raise ValueError(f"there are {count} positions, 0 to {count - 1}; got {position}")
    chosen = [position % count for position in chosen]
    rows = rows[:, chosen].double()
    probabilities, tokens = rows.softmax(-1).topk(min(k, rows.shape[-1]), dim=-1)
    kl = divergence(rows[-1:].expand_as(rows), rows)
    entropy = torch.special.entr(rows.softmax(-1)).sum(-1)
    return Lens(names, tuple(chosen), tokens, probabilities.float(), kl.float(), entropy.float())


def lens_logits(model: nn.Module, inputs: Inputs) -> tuple[Float[Tensor, "l *b v"], tuple[str, ...]]:
    """The logits of each layer's stream, and the layers' names; the last are the model's own."""
    trace, output = run_traced(model, inputs)
    try:
        scores_of(model, output)
        blocks = called_blocks(model, stack_of(trace))
    except ValueError as error:
        raise ValueError(f"the logit lens does not know this model's head: {error}") from None
    streams = _streams(model, inputs, blocks)
    logits = []
    for stream in streams:
        with observing(model), change(model, patch={blocks[-1]: stream}):
            logits.append(scores_of(model, call(model, inputs)))
    return torch.stack(logits), ("input", *blocks)


def _streams(model: nn.Module, inputs: Inputs, blocks: Sequence[str]) -> list[Tensor]:
    """What the first block is given, and what each block returns."""
    modules = dict(model.named_modules())
    given: list[Tensor] = []

    def first(module: nn.Module, arguments: tuple, named: dict[str, Any]) -> None:
        vectors = [x for x in (*arguments, *named.values()) if isinstance(x, Tensor) and x.is_floating_point()]
        given.extend(vectors[:1])

    handle = modules[blocks[0]].register_forward_pre_hook(first, with_kwargs=True)
    try:
        trace, _ = run_traced(model, inputs, activations=blocks)
    finally:
        handle.remove()
    streams = [trace.activation(name) for name in blocks]
    if not given or given[0].shape != streams[0].shape:
        raise ValueError(
            f"the logit lens does not know this model's stream: {blocks[0]} is given something else than it returns"
        )
    return [given[0], *streams]
