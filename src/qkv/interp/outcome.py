"""What a model answers, in numbers that can be compared before and after a change.

Axes: b batch · t tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.interp.run import Inputs, call, observing, read_tokens, run_traced, scores_of
from qkv.interp.tiles import is_causal
from qkv.interp.traces.trace import Trace
from qkv.models.generate import LanguageModel
from qkv.models.translate import Translator

Measure = Callable[[Any], float | Tensor]  # of what the model returns; higher is worse, as a loss is


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked of a model's answers: which numbers are right, and at which places.

    targets: (b, t) the right token after each, −100 where none is known; (b,) the right class; None if unknown.
    positions: the places that count; all if None.
    """

    targets: Tensor | None
    positions: tuple[int, ...] | None = None

    def losses(self, logits: Tensor) -> Float[Tensor, "*b"] | None:
        """The cross-entropy of each answer, NaN where none is known; None if no target is known."""
        if self.targets is None:
            return None
        if logits.shape[:-1] != self.targets.shape:
            raise ValueError(
                f"targets are {tuple(logits.shape[:-1])}, a right answer for each of the model's; got "
                f"{tuple(self.targets.shape)}"
            )
        known = self.targets >= 0
        logged = logits.double().log_softmax(-1)
        picked = logged.gather(-1, self.targets.clamp(min=0)[..., None]).squeeze(-1)
        return (-picked).masked_fill(~known, float("nan"))

    def at(self, each: Float[Tensor, "*b"]) -> float:
        """The mean over the places that count."""
        if each.ndim == 2 and self.positions is not None:
            _check_positions(self.positions, each.shape[1])
            each = each[:, list(self.positions)]
        return float(each.nanmean())


def question(
    model: nn.Module, inputs: Inputs, targets: Tensor | None = None, positions: tuple[int, ...] | None = None
) -> tuple[Question, Any]:
    """The question for a model, and its answer: a text that it reads causally is its own target, a token ahead."""
    asked, output, _ = question_traced(model, inputs, targets, positions)
    return asked, output


def question_traced(
    model: nn.Module, inputs: Inputs, targets: Tensor | None = None, positions: tuple[int, ...] | None = None
) -> tuple[Question, Any, Trace]:
    """The same with the trace of the run."""
    trace, output = run_traced(model, inputs)
    tokens = read_tokens(inputs)
    if targets is None and tokens is not None and _foretells(model, trace, tokens) and _speaks(model, output, tokens):
        targets = torch.cat((tokens[:, 1:], torch.full_like(tokens[:, :1], -100)), dim=1).long()
    return Question(targets, positions), output, trace


def answer(model: nn.Module, inputs: Inputs) -> Any:
    """What the model returns."""
    with observing(model):
        return call(model, inputs)


def _foretells(model: nn.Module, trace: Trace, tokens: Tensor) -> bool:
    """Whether a model foretells the next token: ours that are made for it, others whose attention never looks ahead."""
    if tokens.shape[1] < 2 or isinstance(model, LanguageModel | Translator):
        return tokens.shape[1] > 1
    own = [layer for layer in trace.layers if not layer.cross and layer.queries == layer.keys == tokens.shape[1]]
    return bool(own) and all(is_causal(layer) for layer in own)


def _speaks(model: nn.Module, output: Any, tokens: Tensor) -> bool:
    """Whether the model has logits for each token, of a vocabulary that holds them."""
    try:
        logits = scores_of(model, output)
    except ValueError:
        return False
    return logits.ndim == 3 and logits.shape[:2] == tokens.shape and logits.shape[-1] > int(tokens.max())


def divergence(before: Float[Tensor, "*b v"], after: Float[Tensor, "*b v"]) -> Float[Tensor, "*b"]:
    """KL(before ‖ after) of the answers, in nats."""
    p, q = (x.double().log_softmax(-1) for x in (before, after))
    gap = torch.where(p.isneginf(), 0.0, p - q)
    return (p.exp() * gap).sum(-1).clamp(min=0)


def _check_positions(positions: tuple[int, ...], count: int) -> None:
    for position in positions:
        if not -count <= position < count:
            raise ValueError(f"there are {count} positions, 0 to {count - 1}; got {position}")
