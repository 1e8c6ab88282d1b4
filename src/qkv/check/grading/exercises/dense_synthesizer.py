"""Grade a dense synthesizer: each token predicts its own row of scores, without comparing it with other tokens.

    weights = softmax(mask(ReLU(x A + a) B + b)),  output = (weights · x V) W      (A, V, W full; B, b shared by heads)

Axes: b batch · h heads · t tokens · d head dim · c model dim · l max length.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.check.calling.functions import HEAD_DIM, HEADS
from qkv.check.grading.client import Sandbox, SubmissionError
from qkv.check.grading.exercises.attention import (
    BREAKS,
    BY_OUTPUT,
    MODEL_DIM,
    GradedAttention,
    check_layer_shape,
    find_other_call,
    parameter_seed,
)
from qkv.check.grading.exercises.common import (
    EXPLAINED,
    FIX,
    LAYER_CHECKS,
    Exercise,
    GradedCheck,
    compare,
    no_grad,
    relative_error,
)
from qkv.check.grading.proxy import load_parameters
from qkv.check.report import Finding

if TYPE_CHECKING:
    from qkv.check.grading.rubric import GradedExercise

PARTS = ("hidden", "scores", "offset", "value", "output")
LIMIT = 1e-6
MAX_OPTIONS = 200
VARIANTS = {  # the words of each mistake, its family and the fix
    "": ("", "", ""),
    "no ReLU": ("the ReLU of the hidden vectors is missing", "relu", "scores are ReLU(w1(x)) @ w2 + b2"),
    "ReLU of the scores": ("the ReLU is applied to the scores, too", "relu", "apply it to the hidden vectors only"),
    "ReLU of the scores only": (
        "the ReLU is applied to the scores, not to the hidden vectors", "relu", "scores are ReLU(w1(x)) @ w2 + b2"),
    "GELU": ("the activation of the hidden vectors is GELU, not ReLU", "relu", "scores are ReLU(w1(x)) @ w2 + b2"),
    "tanh": ("the activation of the hidden vectors is tanh, not ReLU", "relu", "scores are ReLU(w1(x)) @ w2 + b2"),
    "sigmoid": ("the activation of the hidden vectors is sigmoid, no ReLU", "relu", "scores are ReLU(w1(x)) @ w2 + b2"),
    "SiLU": ("the activation of the hidden vectors is SiLU, not ReLU", "relu", "scores are ReLU(w1(x)) @ w2 + b2"),
    "no projection": ("the output projection is never applied", "no projection", "return proj of the merged heads"),
    "no softmax": ("there is no softmax: the scores are used as weights", "softmax replaced",
                   "fill the scores of later tokens with −∞ and take the softmax over the last axis"),
    "inverted": ("the mask is inverted: it hides the past and shows the future", "mask inverted",
                 "hide what the mask excludes: masked_fill(mask == 0, −∞) where the mask is 1 for key ≤ query"),
    "no offset": ("the offset b2 is never added", "offset", "scores are ReLU(w1(x)) @ w2 + b2"),
    "last columns": ("the last columns of w2 are used", "columns", "use the first ones: w2[:, :T] and b2[:T]"),
    "scaled": ("scores are divided by √d", "scaled", "a synthesizer has no scale: leave it out"),
    "next": ("a token sees one token ahead", "mask off by one", "keep key ≤ query: tril(), not tril(1)"),
    "past": ("a token does not see itself", "mask off by one", "keep key ≤ query: tril(), not tril(-1)"),
    "no mask": ("the causal mask is missing", "no mask", "fill the scores of later tokens with −∞"),
    "after": ("the mask is applied after the softmax", "mask after softmax", "put −∞ into the scores before it"),
    "zero": ("masked scores are 0, not −∞", "mask not −∞", "fill them with −∞: a score of 0 counts like any other"),
    "over queries": ("the softmax is over the queries", "softmax axis", "take it over the last axis, dim=-1"),
    "over heads": ("the softmax is over the heads", "softmax axis", "take it over the last axis, dim=-1"),
}  # fmt: skip
ACTIVATIONS = {
    "no ReLU": lambda hidden: hidden, "ReLU of the scores only": lambda hidden: hidden, "GELU": F.gelu,
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "SiLU": F.silu,
}  # fmt: skip
SHIFTS = {"next": 2, "past": 0}  # where the diagonal of a wrong mask begins


class Synthesizer(GradedAttention):
    """parts: hidden (a linear layer), scores (d, l) and offset (l) (parameters), value and output (linear layers).

    A layer whose parameters have other names is searched for parts of these sizes with which the formula explains it.
    """

    def __init__(self, sandbox: Sandbox, rubric: GradedExercise, parameters: nn.Module) -> None:
        super().__init__(sandbox, rubric, parameters)
        if not self._has_parts(self.parts):
            self.parts = self._find_parts() or self.parts

    def _has_parts(self, parts: dict[str, str]) -> bool:
        squares = [self.weights.get(f"{parts[name]}.weight") for name in ("hidden", "value", "output")]
        return all(each is not None and each.shape == (MODEL_DIM, MODEL_DIM) for each in squares) and (
            self.weights.get(parts["scores"]) is not None
        )

    def _find_parts(self) -> dict[str, str] | None:
        squares = [
            n[:-7] for n, w in self.weights.items() if w.shape == (MODEL_DIM, MODEL_DIM) and n.endswith(".weight")
        ]
        tables = [name for name, weight in self.weights.items() if weight.ndim == 2 and HEAD_DIM in weight.shape]
        offsets = [*(name for name, weight in self.weights.items() if weight.ndim == 1), ""]
        options = [
            {"hidden": hidden, "scores": table, "offset": offset, "value": value, "output": output}
            for table in tables
            for offset in offsets
            if not offset or self.weights[offset].numel() in self.weights[table].shape
            for hidden, value, output in permutations(squares, 3)
        ]
        x = self.implementation.random_input(2, 7, torch.Generator().manual_seed(46))
        with torch.no_grad():
            found = self.run(x)
            for variant in VARIANTS:
                for parts in options[:MAX_OPTIONS]:
                    self.parts = parts
                    if relative_error(found, self.expected_output(x, variant)) <= LIMIT:
                        return parts
        return options[0] if options else None

    def expected_output(self, x: Tensor, variant: str = "") -> Tensor:
        v = self.project("value", x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        merged = (self.expected_weights(x, variant) @ v).transpose(1, 2).flatten(2)
        return merged if variant == "no projection" else self.project("output", merged)

    def set_linear(self, name: str, matrix: Tensor) -> dict[str, Tensor]:
        """Weights of a linear layer: this matrix, and a bias of zero."""
        weight = self.weight(f"{name}.weight", (MODEL_DIM, MODEL_DIM))
        values = {f"{name}.weight": matrix.to(weight.dtype)}
        if f"{name}.bias" in self.weights:
            values[f"{name}.bias"] = torch.zeros_like(self.weights[f"{name}.bias"])
        return values

    def weight(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One of its parameters, if it exists and has the shape that the interface names."""
        found = self.weights.get(name)
        if found is None:
            names = ", ".join(sorted(self.weights)[:8]) or "none"
            raise SubmissionError(f"it has no parameter {name!r}, which the interface names; it has {names}")
        if tuple(found.shape) != shape:
            raise SubmissionError(f"its {name} has shape {tuple(found.shape)}, expected {shape}")
        return found

    def project(self, part: str, x: Tensor) -> Tensor:
        """x through the linear layer of this part, computed by the grader."""
        name = self.parts[part]
        bias = self.weights.get(f"{name}.bias")
        out = x @ self.weight(f"{name}.weight", (MODEL_DIM, MODEL_DIM)).mT
        return out if bias is None else out + bias

    def expected_weights(self, x: Tensor, variant: str = "") -> Tensor:
        """The attention weights (b, h, t, t) of the formula, right or with the mistake that `variant` names."""
        table, offset = (self.weights.get(self.parts[part]) for part in ("scores", "offset"))
        if table is None or HEAD_DIM not in table.shape or table.ndim != 2:
            names = ", ".join(f"{n} {tuple(w.shape)}" for n, w in list(self.weights.items())[:8]) or "none"
            raise SubmissionError(f"it has no parameter of {HEAD_DIM} × length that gives the scores; it has {names}")
        table = table if table.shape[0] == HEAD_DIM else table.mT
        t = x.shape[1]
        hidden = ACTIVATIONS.get(variant, torch.relu)(self.project("hidden", x))
        scores = hidden.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) @ table
        scores = scores if offset is None or variant == "no offset" else scores + offset
        scores = scores[..., -t:] if variant == "last columns" else scores[..., :t]
        scores = scores * HEAD_DIM**-0.5 if variant == "scaled" else scores
        scores = scores.relu() if variant.startswith("ReLU of the scores") else scores
        future = torch.ones(t, t, dtype=torch.bool).triu(SHIFTS.get(variant, 1))
        if variant == "after":
            return scores.softmax(-1).masked_fill(future, 0.0)
        if variant == "no softmax":
            return scores.masked_fill(future, 0.0)
        if variant == "inverted":
            return scores.masked_fill(~future, -1e30).softmax(-1)
        if variant != "no mask":
            scores = scores.masked_fill(future, 0.0 if variant == "zero" else float("-inf"))
        return scores.softmax({"over queries": -2, "over heads": 1}.get(variant, -1)).nan_to_num()

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
        return self.call(x, self.weights | changed)[0].double().unflatten(-1, (HEADS, HEAD_DIM)).transpose(0, 1)

    def marked_tokens(self, seed: int) -> Tensor:
        """A sequence in which each token carries its own unit vector, and random numbers in its other features."""
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(HEAD_DIM, MODEL_DIM - HEAD_DIM, generator=generator, dtype=torch.float64)
        return torch.cat((torch.eye(HEAD_DIM, dtype=torch.float64), noise), dim=1)[None].to(self.implementation.dtype)


def prepare(sandbox: Sandbox, rubric: GradedExercise) -> Synthesizer:
    layer = Synthesizer(sandbox, rubric, load_parameters(sandbox, parameter_seed(sandbox)))
    x = layer.implementation.random_input(2, 4, torch.Generator().manual_seed(32))
    try:
        with torch.no_grad():
            layer.run(x)
    except SubmissionError as error:
        find_other_call(layer, x, error)  # if not, every check says what fails
    return layer


def check_formula(layer: Synthesizer) -> list[Finding]:
    """The output equals that of the formula with the same weights, also for sequences shorter than the longest."""
    generator, worst, causes = torch.Generator().manual_seed(35), 0.0, None
    for length in (layer.implementation.length, 5, 1):
        x = layer.implementation.random_input(2, length, generator)
        found = layer.implementation.run(x)
        error = relative_error(found, layer.expected_output(x))
        if error > LIMIT:
            fitting = [v for v in VARIANTS if relative_error(found, layer.expected_output(x, v)) <= LIMIT]
            causes = fitting if causes is None else [variant for variant in causes if variant in fitting]
        worst = max(worst, error)
    evidence = "with the same weights its output differs from the formula's"
    hint = "scores are ReLU(x A + a) B + b of each token alone, cut to the sequence length: no q·k and no 1/√d"
    family = None
    if causes:
        words, family, fix = VARIANTS[causes[0]]
        hint = f"{EXPLAINED}{words}{FIX}{fix}"
    return [replace(finding, family=family) for finding in compare("formula", worst, LIMIT, evidence, hint)]


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


def validate(rubric: GradedExercise, where: str) -> None:
    parts = rubric.interface.settings.get("parts", {})
    if rubric.interface.build is None or set(parts) != set(PARTS):
        raise ValueError(f"{where}: this exercise is a class, and interface.parts must name {', '.join(PARTS)}")


DENSE_SYNTHESIZER = Exercise(
    prepare,
    (
        GradedCheck(("shape",), no_grad(check_layer_shape)),
        *(check for check in LAYER_CHECKS if "shape" not in check.names),
        GradedCheck(("rows sum to one",), no_grad(check_row_sums)),
        GradedCheck(("own weights",), no_grad(check_own_weights)),
        GradedCheck(("formula",), no_grad(check_formula)),
    ),
    validate,
    lines={
        "relu": (r"relu|ReLU|gelu|GELU|tanh|sigmoid|silu|SiLU", r"w1\b|w1\("),
        "offset": (r"w2|@|matmul|einsum",),
        "columns": (r"w2.*\[|\[.*:\s*\]", r"w2|@|matmul"),
        "scaled": (r"sqrt|\*\*", r"w2|@"),
        "formula": (r"w2|@|matmul|einsum", r"softmax"),
        "own weights": (r"@.*transpose|key|query", r"softmax", r"@"),
    },
    breaks={**BREAKS, **dict.fromkeys(("relu", "offset", "columns", "scaled"), ())},
    by_output=(*BY_OUTPUT, "own weights"),
)
