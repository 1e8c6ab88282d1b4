"""Grade a dense synthesizer: each token predicts its own row of scores, without comparing it with other tokens.

    weights = softmax(mask(ReLU(x A + a) B + b)),  output = (weights · x V) W      (A, V, W full; B, b shared by heads)

Axes: b batch · h heads · t tokens · d head dim · c model dim · l max length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.check.calling.functions import HEAD_DIM, HEADS
from qkv.check.grading.client import Sandbox, SubmissionError
from qkv.check.grading.exercises.attention import MODEL_DIM, GradedAttention, parameter_seed
from qkv.check.grading.exercises.common import LAYER_CHECKS, Exercise, GradedCheck, compare, no_grad, relative_error
from qkv.check.grading.proxy import call_remote, check_shape, load_parameters
from qkv.check.report import Finding

if TYPE_CHECKING:
    from qkv.check.grading.rubric import Rubric

PARTS = ("hidden", "scores", "offset", "value", "output")


class Synthesizer(GradedAttention):
    """parts: hidden (a linear layer), scores (d, l) and offset (l) (parameters), value and output (linear layers)."""

    def expected_weights(self, x: Tensor) -> Tensor:
        """The attention weights (b, h, t, t) of the formula."""
        table, offset = (self.weights.get(self.parts[part]) for part in ("scores", "offset"))
        if table is None or offset is None or table.ndim != 2 or table.shape[0] != HEAD_DIM:
            raise SubmissionError(
                f"it has no parameters {self.parts['scores']!r} ({HEAD_DIM}, length) and {self.parts['offset']!r}"
            )
        t = x.shape[1]
        hidden = self.project("hidden", x).relu().unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        scores = (hidden @ table + offset)[..., :t]
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        return scores.masked_fill(future, float("-inf")).softmax(-1)

    def measured_weights(self, x: Tensor) -> Tensor:
        """The attention weights (h, t, t) that the layer uses.

        The values read the unit vectors that the tokens carry in their first features; the output changes nothing.
        """
        value = torch.zeros(MODEL_DIM, MODEL_DIM, dtype=torch.float64)
        for head in range(HEADS):
            value[head * HEAD_DIM : (head + 1) * HEAD_DIM, :HEAD_DIM] = torch.eye(HEAD_DIM).double()
        changed = {
            **self.set_linear(self.parts["value"], value),
            **self.set_linear(self.parts["output"], torch.eye(MODEL_DIM).double()),
        }
        out = check_shape(call_remote(self.sandbox, [x], {}, self.weights | changed), tuple(x.shape))
        return out[0].double().unflatten(-1, (HEADS, HEAD_DIM)).transpose(0, 1)

    def marked_tokens(self, seed: int) -> Tensor:
        """A sequence in which each token carries its own unit vector, and random numbers in its other features."""
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(HEAD_DIM, MODEL_DIM - HEAD_DIM, generator=generator, dtype=torch.float64)
        return torch.cat((torch.eye(HEAD_DIM, dtype=torch.float64), noise), dim=1)[None].to(self.implementation.dtype)


def prepare(sandbox: Sandbox, rubric: Rubric) -> Synthesizer:
    return Synthesizer(sandbox, rubric, load_parameters(sandbox, parameter_seed(sandbox)))


def check_formula(layer: Synthesizer) -> list[Finding]:
    """The output equals that of the formula with the same weights, also for sequences shorter than the longest."""
    generator, worst = torch.Generator().manual_seed(35), 0.0
    for length in (layer.implementation.length, 5, 1):
        x = layer.implementation.random_input(2, length, generator)
        v = layer.project("value", x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        expected = layer.project("output", (layer.expected_weights(x) @ v).transpose(1, 2).flatten(2))
        worst = max(worst, relative_error(layer.implementation.run(x), expected))
    evidence = "with the same weights its output differs from the formula's"
    hint = "scores are ReLU(x A + a) B + b of each token alone, cut to the sequence length: no q·k and no 1/√d"
    return compare("formula", worst, 1e-6, evidence, hint)


def check_row_sums(layer: Synthesizer) -> list[Finding]:
    """The weights of a token sum to one."""
    sums = layer.measured_weights(layer.marked_tokens(36)).sum(-1)
    hint = "the softmax is not over the last axis, or weights are masked after it: put −∞ into the scores before it"
    return compare("rows sum to one", relative_error(sums, torch.ones_like(sums)), 1e-6, "row sums differ from 1", hint)


def check_own_weights(layer: Synthesizer) -> list[Finding]:
    """The weights of a token do not change when the other tokens do."""
    x, other = layer.marked_tokens(37), layer.marked_tokens(38)
    other[:, -1] = x[:, -1]
    before, after = (layer.measured_weights(y)[:, -1] for y in (x, other))
    error = float((after - before).abs().max())
    hint = "the weights of a token depend on other tokens: a synthesizer has no keys"
    evidence = "with other tokens before it a token's weights change"
    return compare("own weights", error if error == error else float("inf"), 1e-6, evidence, hint)


def validate(rubric: Rubric, where: str) -> None:
    parts = rubric.interface.settings.get("parts", {})
    if rubric.interface.build is None or set(parts) != set(PARTS):
        raise ValueError(f"{where}: this exercise is a class, and interface.parts must name {', '.join(PARTS)}")


DENSE_SYNTHESIZER = Exercise(
    prepare,
    (
        *LAYER_CHECKS,
        GradedCheck(("rows sum to one",), no_grad(check_row_sums)),
        GradedCheck(("own weights",), no_grad(check_own_weights)),
        GradedCheck(("formula",), no_grad(check_formula)),
    ),
    validate,
)
