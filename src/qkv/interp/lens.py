"""logit_lens(): what a model would predict if its last blocks did nothing.

Axes: b batch · t tokens · k most likely tokens · l layers · v vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.interp.forward import (
    AnalysisResult,
    ForwardPass,
    Inputs,
    call_eval,
    check_positions,
    get_logits,
    kl_divergence,
    run_forward,
    trace_with_output,
)
from qkv.interp.intervention import intervene
from qkv.interp.model_parts import callable_blocks, find_stack


@dataclass(frozen=True, eq=False)
class LogitLens(AnalysisResult):
    """For each layer and position, the most likely answers read from the residual stream there.

    names: "input" (before the first block), then each block. positions: those asked for; (0,) for a model with one
        answer per input (a class).
    tokens, probabilities: (l, t, k), most likely first. kl: (l, t), KL(the model's answer ‖ this layer's) in nats.
    entropy: (l, t), of each answer, in nats.
    """

    names: tuple[str, ...]
    positions: tuple[int, ...]
    tokens: Int[Tensor, "l t k"]
    probabilities: Float[Tensor, "l t k"]
    kl: Float[Tensor, "l t"]
    entropy: Float[Tensor, "l t"]


def logit_lens(
    model: nn.Module,
    inputs: Inputs,
    *,
    k: int = 5,
    positions: Sequence[int] | None = None,
    batch: int = 0,
    baseline: ForwardPass | None = None,
) -> LogitLens:
    """Read the residual stream after each block with everything that follows the last block: final norm and head.

    Each block's output replaces the last block's output and the model runs on from there, so whatever the model does
    after its blocks (norm, head, biases, caps) is included. The last row is the model's own answer.

    k: how many answers to keep. positions: all by default.
    baseline: the unchanged run, if it was made already (`run_forward`).
    """
    if k < 1:
        raise ValueError(f"k is the number of answers to keep, at least 1; got {k}")
    logits, names = lens_logits(model, inputs, baseline)
    rows = logits[:, batch] if logits.ndim == 4 else logits[:, batch].unsqueeze(1)
    count = rows.shape[1]
    chosen = list(range(count)) if positions is None else check_positions(positions, count)
    rows = rows[:, chosen].double()
    probabilities, tokens = rows.softmax(-1).topk(min(k, rows.shape[-1]), dim=-1)
    kl = kl_divergence(rows[-1:].expand_as(rows), rows)
    entropy = torch.special.entr(rows.softmax(-1)).sum(-1)
    return LogitLens(names, tuple(chosen), tokens, probabilities.float(), kl.float(), entropy.float())


def lens_logits(
    model: nn.Module, inputs: Inputs, baseline: ForwardPass | None = None
) -> tuple[Float[Tensor, "l *b v"], tuple[str, ...]]:
    """The logits read from each layer's residual stream, and the layers' names; the last are the model's own."""
    baseline = run_forward(model, inputs) if baseline is None else baseline
    try:
        get_logits(model, baseline.output)
        blocks = callable_blocks(model, find_stack(baseline.trace))
    except ValueError as error:
        raise ValueError(f"the logit lens does not know this model's head: {error}") from None
    logits = []
    for stream in _residual_streams(model, inputs, blocks):
        with intervene(model, patch={blocks[-1]: stream}):
            logits.append(get_logits(model, call_eval(model, inputs)))
    return torch.stack(logits), ("input", *blocks)


def _residual_streams(model: nn.Module, inputs: Inputs, blocks: Sequence[str]) -> list[Tensor]:
    """The input of the first block, and the output of each block."""
    first_inputs: list[Tensor] = []

    def keep_input(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        vectors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()]
        first_inputs.extend(vectors[:1])

    handle = model.get_submodule(blocks[0]).register_forward_pre_hook(keep_input, with_kwargs=True)
    try:
        trace, _ = trace_with_output(model, inputs, activations=blocks)
    finally:
        handle.remove()
    outputs = [trace.activation(name) for name in blocks]
    if not first_inputs or first_inputs[0].shape != outputs[0].shape:
        raise ValueError(
            f"the logit lens does not know this model's residual stream: the input of {blocks[0]} does not have the "
            "shape of its output"
        )
    return [first_inputs[0], *outputs]
