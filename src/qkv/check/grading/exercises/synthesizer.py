"""The dense synthesizer: each token writes its own row of scores, without meeting the other tokens.

    weights = softmax(mask(ReLU(x A + a) B + b)),  output = (weights · x V) W      (A, V, W whole; B, b shared by heads)

Axes: b batch · h heads · t tokens · d head width · c model width · l longest text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.check.finding import Finding
from qkv.check.functions import HEADS, WIDTH
from qkv.check.grading.exercises.common import PRODUCERS, without_gradients
from qkv.check.grading.exercises.exercise import Exercise, Producer, equality
from qkv.check.grading.exercises.layer import MODEL, Layer, rubric_seed
from qkv.check.grading.proxy import crossed, of_shape, opened
from qkv.check.grading.remote import Remote, UnansweredError

if TYPE_CHECKING:
    from qkv.check.grading.rubric import Rubric

NAMES = ("hidden", "scores", "offset", "value", "output")


class Synthesizer(Layer):
    """parts: hidden (a linear layer), scores (d, l) and offset (l) (parameters), value and output (linear layers)."""

    def linear(self, part: str, x: Tensor) -> Tensor:
        name = self.parts[part]
        bias = self.weights.get(f"{name}.bias")
        out = x @ self.weight(f"{name}.weight", (MODEL, MODEL)).mT
        return out if bias is None else out + bias

    def attention(self, x: Tensor) -> Tensor:
        """The weights (b, h, t, t) that the formula gives."""
        table, offset = (self.weights.get(self.parts[part]) for part in ("scores", "offset"))
        if table is None or offset is None or table.ndim != 2 or table.shape[0] != WIDTH:
            raise UnansweredError(
                f"it has no parameters {self.parts['scores']!r} ({WIDTH}, length) and {self.parts['offset']!r}"
            )
        t = x.shape[1]
        hidden = self.linear("hidden", x).relu().unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
        scores = (hidden @ table + offset)[..., :t]
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        return scores.masked_fill(future, float("-inf")).softmax(-1)


def prepare(remote: Remote, rubric: Rubric) -> Synthesizer:
    return Synthesizer(remote, rubric, opened(remote, rubric_seed(remote)))


def formula(layer: Synthesizer) -> list[Finding]:
    """The output equals the formula's with the same weights, for texts shorter than the longest too."""
    generator, worst = torch.Generator().manual_seed(35), 0.0
    for length in (layer.subject.length, 5, 1):
        x = layer.subject.draw(2, length, generator)
        v = layer.linear("value", x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
        expected = layer.linear("output", (layer.attention(x) @ v).transpose(1, 2).flatten(2))
        off = float((layer.subject.run(x) - expected).abs().max() / expected.abs().max())
        worst = max(worst, off if off == off else float("inf"))
    words = "with the same weights its output differs from the formula's"
    hint = "scores are ReLU(x A + a) B + b of each token alone, cut to the text's length: no q·k and no 1/√d"
    return equality("formula", worst, 1e-6, words, hint)


def _measured(layer: Synthesizer, x: Tensor) -> Tensor:
    """The weights (h, t, t) that the layer really uses.

    Its values read off the unit vectors that the tokens carry in their first features, and its output changes nothing.
    """
    value = torch.zeros(MODEL, MODEL, dtype=torch.float64)
    for head in range(HEADS):
        value[head * WIDTH : (head + 1) * WIDTH, :WIDTH] = torch.eye(WIDTH).double()
    changed = {
        **layer.filled(layer.parts["value"], value),
        **layer.filled(layer.parts["output"], torch.eye(MODEL).double()),
    }
    out = of_shape(crossed(layer.remote, [x], {}, layer.weights | changed), tuple(x.shape))
    return out[0].double().unflatten(-1, (HEADS, WIDTH)).transpose(0, 1)


def _marked(seed: int) -> Tensor:
    """A text of which each token carries its own unit vector, and random numbers in its other features."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(WIDTH, MODEL - WIDTH, generator=generator, dtype=torch.float64)
    return torch.cat((torch.eye(WIDTH, dtype=torch.float64), noise), dim=1)[None]


def rows(layer: Synthesizer) -> list[Finding]:
    """The weights of a token sum to one."""
    off = float((_measured(layer, _marked(36).to(layer.subject.dtype)).sum(-1) - 1).abs().max())
    hint = "the softmax is not over the last axis, or weights are masked after it: put −∞ into the scores before it"
    return equality("rows sum to one", off if off == off else float("inf"), 1e-6, "rows of weights differ from 1", hint)


def alone(layer: Synthesizer) -> list[Finding]:
    """A token's weights are its own: they do not change with what the other tokens are."""
    x, other = _marked(37).to(layer.subject.dtype), _marked(38).to(layer.subject.dtype)
    other[:, -1] = x[:, -1]
    before, after = (_measured(layer, y)[:, -1] for y in (x, other))
    off = float((after - before).abs().max())
    hint = "the weights of a token depend on other tokens: a synthesizer has no keys"
    words = "with other tokens before it a token's weights change"
    return equality("own weights", off if off == off else float("inf"), 1e-6, words, hint)


def validate(rubric: Rubric, where: str) -> None:
    parts = rubric.interface.settings.get("parts", {})
    if rubric.interface.build is None or set(parts) != set(NAMES):
        raise ValueError(f"{where}: this exercise is a class, and interface.parts names {', '.join(NAMES)}")


SYNTHESIZER = Exercise(
    prepare,
    (
        *PRODUCERS,
        Producer(("rows sum to one",), without_gradients(rows)),
        Producer(("own weights",), without_gradients(alone)),
        Producer(("formula",), without_gradients(formula)),
    ),
    validate,
)
