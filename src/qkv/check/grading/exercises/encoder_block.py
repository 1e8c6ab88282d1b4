"""Grade an encoder block: attention and an MLP, each with a layer norm and a residual connection.

Layers may have any names, pre- or post-norm. With all weights zero a block with residual connections returns its input
(pre-norm) or its normalized input (post-norm); with the MLP off, what it adds is attention, which the formula explains.

Axes: b batch · t tokens · c model dim.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.check.contract import Contract
from qkv.check.grading.client import Sandbox, SubmissionError
from qkv.check.grading.exercises.attention import MAX_LAYOUTS, parameter_seed
from qkv.check.grading.exercises.common import (
    EXPLAINED,
    FIX,
    LAYER_CHECKS,
    PARAMETER_GRADIENTS,
    Exercise,
    GradedCheck,
    GradedLayer,
    compare,
    identity_mlp,
    no_grad,
    relative_error,
)
from qkv.check.grading.exercises.projections import Variant, explain_attention, layouts
from qkv.check.grading.proxy import call_remote, check_shape, load_parameters
from qkv.check.implementation import Implementation
from qkv.check.report import Finding

if TYPE_CHECKING:
    from qkv.check.grading.rubric import GradedExercise

LIMIT, LARGE = 1e-3, 1e4


class GradedBlock(GradedLayer):
    """An encoder block under grading."""

    def __init__(
        self, sandbox: Sandbox, rubric: GradedExercise, parameters: nn.Module, initial: dict[str, Tensor]
    ) -> None:
        settings = rubric.interface.settings
        self.sandbox, self.dim, self.heads, self.mlp_dim = (
            sandbox,
            settings["dim"],
            settings["heads"],
            settings["mlp_dim"],
        )
        self.initial = initial
        implementation = Implementation(
            name=rubric.interface.name,
            level="layer",
            how=rubric.interface.signature,
            run=self.run,
            dim=self.dim,
            length=9,
            dtype=getattr(torch, sandbox.dtype),
            module=parameters,
        )
        super().__init__(implementation, Contract(kind="bidirectional"), parameters)
        self._order: str | None = None
        self.asked_mlp_dim = self.mlp_dim
        if not any(self.mlp_dim in value.shape for value in self.weights.values()):
            self.mlp_dim = self._other_mlp_dim() or self.mlp_dim

    def _other_mlp_dim(self) -> int | None:
        """The size of a hidden layer that is not the one asked for: there are weights (size, dim) and (dim, size)."""
        shapes = [tuple(value.shape) for value in self.weights.values()]
        others = [a for a, *b in shapes if b == [self.dim] and a != self.dim and (self.dim, a) in shapes]
        return others[0] if others else None

    def run(self, x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        return check_shape(call_remote(self.sandbox, [x], {}, self.weights), tuple(x.shape))

    def run_with(self, x: Tensor, changed: dict[str, Tensor]) -> Tensor:
        """Its output with these weights, without the positions that it adds itself: they are judged alone."""
        weights = {name: value.detach() for name, value in self.weights.items()} | changed | self.positions
        x = (x - self.offset).to(self.implementation.dtype)
        return check_shape(call_remote(self.sandbox, [x], {}, weights), tuple(x.shape)).double()

    @cached_property
    def positions(self) -> dict[str, Tensor]:
        """Its own position embeddings as zeros; a block should have none."""
        named = {name: value for name, value in self.weights.items() if re.search(r"(^|[._])pos", name.lower())}
        return {name: torch.zeros_like(value) for name, value in named.items()}

    @cached_property
    def offset(self) -> Tensor:
        """What it adds to every input even if all weights are 0: fixed positions; 0 for a right block."""
        self.__dict__["offset"] = torch.zeros(())  # while it is measured
        found = [self.run_with(self.draw(seed), self.zeros) - self.draw(seed) for seed in (127, 128)]
        is_constant = (
            relative_error(found[1], found[0]) <= LIMIT and relative_error(found[0][:1], found[0][1:]) <= LIMIT
        )
        return found[0][:1] if is_constant and float(found[0].abs().max()) > LIMIT else torch.zeros(())

    def draw(self, seed: int, batch: int = 2) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(batch, 9, self.dim, generator=generator, dtype=torch.float64)

    @property
    def zeros(self) -> dict[str, Tensor]:
        return {name: torch.zeros_like(value) for name, value in self.weights.items()}

    @property
    def norms(self) -> dict[str, Tensor]:
        """The parameters of layer norms as they begin: ones, and zeros of the same layer."""
        gains = [n for n, v in self.initial.items() if v.ndim == 1 and len(v) == self.dim and bool((v == 1).all())]
        layers = {name.rpartition(".")[0] for name in gains}
        return {
            name: (torch.ones_like if name in gains else torch.zeros_like)(value.detach())
            for name, value in self.weights.items()
            if name in gains or (name.rpartition(".")[0] in layers and value.ndim == 1 and len(value) == self.dim)
        }

    @property
    def mlp(self) -> dict[str, Tensor]:
        """The weights of the MLP as zeros: those with the size of its hidden layer, and the bias of its last layer.

        Empty if there is no MLP, which costs the points of the MLP only.
        """
        found = [name for name, value in self.weights.items() if self.mlp_dim in value.shape]
        last = [name.replace("weight", "bias") for name in found if self.weights[name].shape[0] == self.dim]
        return {name: torch.zeros_like(self.weights[name]) for name in (*found, *last) if name in self.weights}

    @property
    def identity_mlp(self) -> dict[str, Tensor] | None:
        """Weights with which the MLP returns its input."""
        return identity_mlp({name: value.detach() for name, value in self.weights.items()}, self.dim, self.mlp_dim)

    @cached_property
    def has_only_mlp(self) -> bool:
        """Whether the residual connection around the MLP is missing: then the output is mlp(norm2(x + …))."""
        identity = self.identity_mlp
        if self.order != "none" or identity is None:
            return False
        x = self.draw(136)
        return relative_error(self.run_with(x, self.zeros | self.norms | identity), normalize(x)) <= LIMIT

    @property
    def order(self) -> str:
        """pre or post, by what it returns when nothing is added; none if that is neither."""
        if self._order is None:
            x = self.draw(130)
            self._order = "none"
            if relative_error(self.run_with(x, self.zeros), x) <= LIMIT:
                self._order = "pre"
            elif relative_error(self.run_with(x, self.zeros | self.norms), normalize(x)) <= LIMIT:
                self._order = "post"
        return self._order


def normalize(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def rms_normalize(x: Tensor) -> Tensor:
    return x * x.square().mean(-1, keepdim=True).add(1e-6).rsqrt()


def prepare(sandbox: Sandbox, rubric: GradedExercise) -> GradedBlock:
    """Open the block in float64, or in float32 where its code does not work in float64."""
    first_error = None
    for dtype in ("float64", "float32"):
        sandbox.dtype = dtype
        initial, _ = sandbox.describe()
        block = GradedBlock(sandbox, rubric, load_parameters(sandbox, parameter_seed(sandbox)), initial)
        try:
            with torch.no_grad():
                block.run_with(block.draw(129), {})
            return block
        except SubmissionError as error:
            first_error = first_error or error
    assert first_error is not None
    raise first_error


def check_equivariance(block: GradedBlock) -> list[Finding]:
    """Tokens in another order give the same outputs in that order."""
    x = block.draw(131)
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(132))
    x = x.to(block.implementation.dtype)
    error = relative_error(block.run(x[:, order]).double(), block.run(x)[:, order].double())
    hint = "positions are added before the first block, and an encoder has no mask"
    return compare("order of tokens", error, LIMIT, "with tokens in another order outputs differ", hint)


def check_residual(block: GradedBlock) -> list[Finding]:
    if block.order != "none":
        words = {"pre": "its input", "post": "its normalized input"}[block.order]
        return [Finding("residual", "pass", 0.0, f"with all other weights 0 the block returns {words}")]
    out = block.run_with(block.draw(130), block.zeros)
    evidence = f"with all weights 0 the block returns values up to {float(out.abs().max()):.2g}, not its input"
    hint = "x = x + attention(norm1(x)), then x = x + mlp(norm2(x))"
    if block.has_only_mlp:
        evidence = "what the block returns is what its MLP returns: nothing is added to it"
        hint = "the residual connection around the MLP is missing: x = x + mlp(norm2(x))"
    return [Finding("residual", "fail", None, evidence, hint, "residual, mlp" if block.has_only_mlp else None)]


def check_norms(block: GradedBlock) -> list[Finding]:
    """Both sublayers get a normalized input (pre-norm), or the output is normalized (post-norm)."""
    x, name = block.draw(133), "layer norms"
    if block.order == "post":
        out = block.run_with(x, block.norms)
        error = float((out.mean(-1).abs() + (out.var(-1, unbiased=False) - 1).abs()).max())
        return compare(
            name,
            error,
            1e-2,
            "the output of the block is not normalized: mean and variance are off",
            "norm2(x + mlp(x))",
        )
    off = block.mlp
    added = [block.run_with(factor * x, off) - (factor * x if block.order == "pre" else 0) for factor in (1.0, 3.0)]
    error = relative_error(added[1], added[0])
    evidence = "for an input three times as large attention adds something else"
    first = compare(name, error, 1e-2, evidence, "normalize the input of attention: x + attention(norm1(x))")
    if first[0].verdict != "pass" or not off:
        return first
    large = [block.run_with(f * LARGE * x, {}) - block.run_with(f * LARGE * x, off) for f in (1.0, 3.0)]
    evidence = "for an input three times as large the MLP adds something else"
    hint = "normalize the input of the MLP: x + mlp(norm2(x))"
    found = compare(name, relative_error(large[1], large[0]), 0.05, evidence, hint)
    return [replace(finding, family="residual, mlp") for finding in found]


def check_mlp(block: GradedBlock) -> list[Finding]:
    """There is an MLP of the asked size, it changes the output, and it is not linear."""
    if block.mlp_dim != block.asked_mlp_dim:
        evidence = f"the hidden layer has {block.mlp_dim} features, expected mlp_dim = {block.asked_mlp_dim}"
        return [Finding("mlp", "fail", None, evidence, "nn.Linear(embed_dim, mlp_dim): use the argument", "size")]
    x, off = block.draw(134), block.mlp
    if not off:
        sizes = ", ".join(f"{n} {tuple(w.shape)}" for n, w in list(block.weights.items())[:8])
        raise SubmissionError(f"no parameter has the size {block.mlp_dim} of the MLP's hidden layer; it has {sizes}")
    rest = block.run_with(x, off)
    full = block.run_with(x, {}) - rest
    if not float(full.abs().max()) > 1e-9:
        return [Finding("mlp", "fail", None, "the MLP changes nothing", "x = x + mlp(norm2(x))")]
    into = [
        n
        for n, w in block.weights.items()
        if w.shape[:1] == (block.mlp_dim,) or (w.ndim == 1 and len(w) == block.mlp_dim)
    ]
    last = {name: value for name, value in off.items() if block.weights[name].shape == (block.dim,)}
    parts = []
    for factor in (1.0, -1.0, 2.0):
        changed = {name: factor * block.weights[name].detach() for name in into} | last
        parts.append(block.run_with(x, changed) - rest)
    if (
        block.order == "post"
        or relative_error(parts[1], -parts[0]) > LIMIT
        or relative_error(parts[2], 2 * parts[0]) > LIMIT
    ):
        return [Finding("mlp", "pass", 0.0, f"an MLP with a hidden layer of {block.mlp_dim}, not linear")]
    evidence = "the MLP is linear: twice its first weights give exactly twice its output"
    return [Finding("mlp", "fail", None, evidence, "put a GELU or ReLU between its two layers")]


def check_attention(block: GradedBlock) -> list[Finding]:
    """What the block adds with the MLP off is multi-head attention of its normalized input: scale, softmax, heads."""
    x = block.draw(135)
    hidden = block.has_only_mlp  # attention is then seen through the MLP only
    mlp = block.identity_mlp if hidden else block.mlp
    found = block.run_with(x, {**(mlp or {}), **block.norms})
    weights = {name: value.detach().double() for name, value in block.weights.items()}
    candidates = list(islice(layouts(weights, block.dim, block.heads), MAX_LAYOUTS))
    if not candidates:
        sizes = ", ".join(f"{n} {tuple(w.shape)}" for n, w in list(weights.items())[:8])
        raise SubmissionError(f"no queries, keys, values and output are found among its parameters: {sizes}")
    best = None
    for norm in (normalize, rms_normalize):
        if hidden:
            best = explain_attention(
                norm(x), found, weights, candidates, LIMIT, causal=False, finish=lambda out, n=norm: n(x + out)
            )
        elif block.order == "post":
            best = explain_attention(
                x, found, weights, candidates, 1e-2, causal=False, finish=lambda out, n=norm: n(n(x + out))
            )
        else:
            target = found - x if block.order == "pre" else found
            best = explain_attention(norm(x), target, weights, candidates, LIMIT, causal=False)
        if best is not None:
            break
    if best is None and block.order == "post":  # pre-norm inside, and a norm at the end
        best = explain_attention(
            normalize(x), found, weights, candidates[:100], 1e-2, causal=False, finish=lambda out: normalize(x + out)
        )
    if best is None and block.order != "post":  # a missing norm is judged elsewhere
        target = found - x if block.order == "pre" else found
        best = explain_attention(x, target, weights, candidates[:100], LIMIT, causal=False)
    if best is None and not hidden and block.order != "post":
        swapped, target = normalize(x).transpose(0, 1), (found - x if block.order == "pre" else found).transpose(0, 1)
        along_batch = explain_attention(swapped, target, weights, candidates, LIMIT, causal=False)
        if along_batch is not None and not along_batch[1].words:
            evidence = f"multi-head attention with {block.heads} heads, but along the batch, which is judged elsewhere"
            return [Finding("attention", "pass", None, evidence)]
    if best is None:
        evidence = "with the MLP off, what the block adds is not multi-head attention of its normalized input"
        hint = "softmax(q·kᵀ/√d) · v for each head of dim / heads features, then the output projection"
        return [Finding("attention", "fail", None, evidence, hint)]
    if best[1].words:
        evidence = "with the MLP off, what the block adds is attention with a mistake"
        family = "causal mask" if best[1].mask == "causal" else "softmax axis" if best[1].softmax != "keys" else None
        hint = f"{EXPLAINED}{best[1].words}{FIX}{best[1].fix}"
        return [Finding("attention", "fail", None, evidence, hint, family or _family(best[1]))]
    return [Finding("attention", "pass", 0.0, f"multi-head attention with {block.heads} heads and scale 1/√d")]


def _family(variant: Variant) -> str:
    if variant.split != "right":
        return "heads merged" if variant.split == "merge" else "heads mixed"
    return "scale" if variant.scale != "head" else "formula"


def validate(rubric: GradedExercise, where: str) -> None:
    settings = rubric.interface.settings
    if rubric.interface.build is None or set(settings) != {"dim", "heads", "mlp_dim"}:
        raise ValueError(f"{where}: this exercise is a class, and interface must have dim, heads and mlp_dim")
    if settings["dim"] % settings["heads"] or settings["mlp_dim"] % settings["dim"] == 0:
        raise ValueError(
            f"{where}: dim must be a multiple of heads, and mlp_dim no multiple of dim (to tell layers apart)"
        )


ENCODER_BLOCK = Exercise(
    prepare,
    (
        *(check for check in LAYER_CHECKS if check is not PARAMETER_GRADIENTS),
        GradedCheck(("order of tokens",), no_grad(check_equivariance)),
        GradedCheck(("residual",), no_grad(check_residual)),
        GradedCheck(("layer norms",), no_grad(check_norms)),
        GradedCheck(("mlp",), no_grad(check_mlp)),
        GradedCheck(("attention",), no_grad(check_attention)),
    ),
    validate,
    lines={
        "causal mask": (r"tril|triu|is_causal|mask",),
        "order of tokens": (r"tril|triu|mask|\bpos|_pos|position", r"arange", r"def forward"),
        "residual": (r"(att\w*|msa|mha)\(", r"(mlp|ff|feed)\w*\("),
        "residual, mlp": (r"(mlp|ff|feed)[\w.]*\(",),
        "layer norms": (r"norm\w*\(|ln\w*\(", r"LayerNorm", r"mlp\("),
        "mlp": (r"GELU|ReLU|gelu|relu", r"(mlp|ff|feed)\w*\s*=", r"mlp", r"Linear"),
        "attention": (r"softmax|scaled_dot_product|MultiheadAttention", r"attn\("),
        "kind": (r"mask|tril|causal", r"attn\("),
    },
    breaks={
        "causal mask": ("kind", "order of tokens"),
        "softmax axis": ("attention",),
        "heads mixed": ("attention",),
        "heads merged": ("attention",),
        "scale": ("attention",),
    },
    by_output=("attention", "kind", "order of tokens", "layer norms"),
    fixes={"mlp": "an MLP of two linear layers with mlp_dim features between them, and a GELU"},
)
