"""What every exercise shares: its definition, checks that any layer can go through, and inputs drawn in secret."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor, nn
from torch.overrides import TorchFunctionMode

from qkv.check import influence
from qkv.check.checks.basics import check_batch_independence, check_determinism, check_finite
from qkv.check.checks.causality import check_kind, check_truncation
from qkv.check.checks.gradient import check_directional_derivative
from qkv.check.checks.paths import check_grad_modes
from qkv.check.contract import Contract
from qkv.check.grading.client import Sandbox, SubmissionError, derive_seed
from qkv.check.implementation import Implementation
from qkv.check.report import Finding
from qkv.check.shapes import Sweep

if TYPE_CHECKING:
    from qkv.check.grading.rubric import GradedExercise

EXPLAINED = "explained exactly: "  # begins the hint of a finding whose cause is proven
FIX = "; fix: "  # between the cause and what to do
BATCH_CHECKS = ("batch (alone)", "batch (with others)", "batch (reordered)")
RANDOM_FUNCTIONS = {torch.randn, torch.rand, torch.randint, torch.randperm, torch.normal}
MAX_NOISE = 0.8  # of a random output, compared with the effect of another input; dropout stays far below
SALTED = 1 << 62  # seeds from here on come from `mix_seeds`


class NoiseError(SubmissionError):
    """The outputs of two calls differ as much as those for different inputs."""


@dataclass(frozen=True)
class GradedCheck:
    """A function that makes findings, and the names of the checks that it decides."""

    names: tuple[str, ...]
    find: Callable[[Any], list[Finding]]


def _accept(rubric: GradedExercise, where: str) -> None:
    """Ask nothing more of a rubric."""


def require_response_of_layer(layer: GradedLayer) -> None:
    """Raise unless the layer computes something from its input."""
    implementation, generator = layer.implementation, torch.Generator().manual_seed(39)
    first, second = (implementation.random_input(2, implementation.length, generator) for _ in range(2))
    require_response(implementation.run, first, second)


def require_response(run: Callable[[Tensor], Tensor], first: Tensor, second: Tensor) -> None:
    """Raise unless outputs are finite and depend on the input. A call that fails is left to the checks.

    A constant would pass every check of what must not change.
    """
    try:
        with torch.no_grad():
            out, again, other = run(first), run(first), run(second)
    except SubmissionError as error:
        if error.stage == "time":
            raise
        return
    if not all(bool(each.isfinite().all()) for each in (out, again, other)):
        raise SubmissionError("for ordinary inputs its output has NaN or infinite values")
    effect, noise = float((out - other).abs().mean()), float((out - again).abs().mean())
    if effect == 0:
        raise SubmissionError("its output is the same for every input")
    if noise > MAX_NOISE * effect:
        raise NoiseError("its output is noise: it differs as much for the same input as for another one")


@dataclass(frozen=True)
class Exercise:
    """prepare: opens the submission; its result goes to the checks. validate: raises if the rubric does not fit.

    require_response: raises SubmissionError if the submission computes nothing from its input; then it earns nothing.
    also: further names of the submission that it calls. stubs: the source of modules that a student need not hand in.
    lines: patterns of the lines that a check is about, for the feedback. fixes: what to do where a check gives no hint.
    owners: the functions or classes that a check is about, where it is not the one that the rubric names.
    breaks: the checks that each known mistake breaks by itself, by the family of a finding whose cause is exact. What
    else fails in `by_output`, or in `hides` of its family, is only a consequence of it and costs nothing.
    """

    prepare: Callable[[Sandbox, GradedExercise], Any]
    checks: tuple[GradedCheck, ...]
    validate: Callable[[GradedExercise, str], None] = _accept
    require_response: Callable[[Any], None] = require_response_of_layer
    also: tuple[str, ...] = ()
    stubs: dict[str, str] = field(default_factory=dict)
    lines: dict[str, tuple[str, ...]] = field(default_factory=dict)
    fixes: dict[str, str] = field(default_factory=dict)
    owners: dict[str, tuple[str, ...]] = field(default_factory=dict)
    breaks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    by_output: tuple[str, ...] = ()
    hides: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def check_names(self) -> tuple[str, ...]:
        return tuple(name for check in self.checks for name in check.names)


DETACHED = "part of the computation is detached (detach, item, no_grad, numpy), so training misses it: remove that"
RANDOM = (
    "random numbers are drawn in forward (torch.randn, torch.rand), or layers are kept in a Python list: then their "
    "weights are not registered, saved or trained, and each start draws new ones (use nn.ModuleList)"
)


def quiet_down(
    sandbox: Sandbox, check: GradedCheck, prepare: Callable[[], Any], random: Finding
) -> tuple[Any, Finding]:
    """Make what is not deterministic so, to judge the rest of it: dropout off, then the same random numbers too.

    Returns what the checks take, prepared again, and the finding with the cause that this shows.
    """
    sandbox.quiet = True
    try:
        prepared = prepare()
        if check.find(prepared)[0].verdict == "pass":
            return prepared, random
    except NoiseError:
        pass
    sandbox.same_seed = True
    return prepare(), replace(random, hint=RANDOM, family="random numbers")


def apply_cause(findings: dict[str, Finding], exercise: Exercise) -> dict[str, Finding]:
    """Charge a mistake once, where it is proven: its own checks name it, and its consequences cost nothing.

    A cause is exact if a formula with that mistake gives the same outputs. So nothing else is wrong with the outputs,
    and another check that fails on them (no scale can be measured where a softmax is wrong) fails because of it.
    """
    exact = [f for f in findings.values() if f.verdict == "fail" and (f.hint or "").startswith(EXPLAINED)]
    cause = next((finding for finding in exact if finding.family in exercise.breaks), None)
    if cause is None:
        return findings
    own = exercise.breaks[str(cause.family)]
    changed = dict(findings)
    for name, finding in findings.items():
        if finding.verdict == "pass" or name not in (*exercise.by_output, *exercise.hides.get(str(cause.family), ())):
            continue
        if finding is cause and not any(findings[each].verdict == "fail" for each in own if each in findings):
            continue  # nothing else charges it
        if name in own:
            changed[name] = replace(finding, hint=cause.hint, family=cause.family)
        else:
            words = (cause.hint or "").partition(FIX)[0].removeprefix(EXPLAINED)
            evidence = f"it fails only because {words}, which costs points elsewhere ({finding.evidence})"
            changed[name] = replace(finding, verdict="pass", hint=None, family=None, evidence=evidence)
    return changed


class GradedLayer:
    """A layer under grading: its implementation, its contract, and the grader's copy of its weights."""

    def __init__(self, implementation: Implementation, contract: Contract, parameters: nn.Module) -> None:
        self.implementation, self.contract, self.parameters = implementation, contract, parameters

    @property
    def weights(self) -> dict[str, Tensor]:
        return dict(self.parameters.named_parameters())

    @cached_property
    def sweep(self) -> Sweep:
        """One input and its output: every length is a process of its own, so there is one only."""
        length = self.implementation.length
        x = self.implementation.random_input(2, length, torch.Generator().manual_seed(44))
        with torch.no_grad():
            return Sweep(x, {length: self.implementation.run(x)})

    @cached_property
    def influence(self) -> influence.InfluenceMap:
        with torch.no_grad():
            return influence.measure_influence(self.implementation)


def no_grad(find: Callable[[Any], list[Finding]]) -> Callable[[Any], list[Finding]]:
    """The same check, run without gradients."""

    def run(prepared: Any) -> list[Finding]:
        with torch.no_grad():
            return find(prepared)

    return run


def compare(check: str, error: float, limit: float, evidence: str, hint: str | None = None) -> list[Finding]:
    """A finding about two results that must be equal; NaN is not."""
    same = error <= limit
    return [Finding(check, "pass" if same else "fail", error, f"{evidence} by {error:.2g}", None if same else hint)]


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest expected value; infinite where something is NaN."""
    error = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-12))
    return error if error == error else float("inf")


def identity_mlp(weights: dict[str, Tensor], dim: int, hidden: int | None = None) -> dict[str, Tensor] | None:
    """Weights with which an MLP returns its input: f(z) − f(−z) = z for ReLU, GELU and SiLU.

    None if the two layers of an MLP are not found, by their sizes, or its hidden layer is too small.
    """
    first = [n for n, w in weights.items() if w.ndim == 2 and w.shape[1] == dim and w.shape[0] >= 2 * dim]
    first = [name for name in first if hidden in (None, weights[name].shape[0])]
    first = [n for n in first if any(w.shape == weights[n].shape[::-1] for w in weights.values())]  # no fused q, k, v
    last = [n for n, w in weights.items() if first and w.shape == weights[first[0]].shape[::-1]]
    if len(first) != 1 or len(last) != 1:
        return None
    both = torch.zeros_like(weights[first[0]])
    both[:dim], both[dim : 2 * dim] = torch.eye(dim).to(both), -torch.eye(dim).to(both)
    biases = [name.replace("weight", "bias") for name in (*first, *last)]
    changed = {name: torch.zeros_like(weights[name]) for name in biases if name in weights}
    return {**changed, first[0]: both, last[0]: both.mT.contiguous()}


# checks of any layer with vectors in and out


def check_shape_of_layer(layer: GradedLayer) -> list[Finding]:
    """One vector out for each token in, at several lengths and batch sizes (`run` raises on another shape)."""
    generator = torch.Generator().manual_seed(30)
    for batch, length in ((1, 1), (2, 5), (3, layer.implementation.length)):
        layer.implementation.run(layer.implementation.random_input(batch, length, generator))
    return [Finding("shape", "pass", 0.0, "one vector for each token, for sequences of 1, 5 and more tokens")]


def check_influence(layer: GradedLayer) -> list[Finding]:
    return check_kind(layer.influence, layer.contract)


def check_cut(layer: GradedLayer) -> list[Finding]:
    """A sequence cut short gives the beginning of the outputs."""
    kind = layer.contract.kind or "causal"
    return check_truncation(layer.implementation, layer.contract, layer.sweep, kind)


def check_input_gradient(layer: GradedLayer) -> list[Finding]:
    """The gradient of the input equals the difference quotient; those of parameters have a check of their own."""
    finding = check_directional_derivative(replace(layer.implementation, module=None), layer.sweep)
    return [finding if finding.verdict != "fail" else replace(finding, hint=DETACHED, family=None)]


def check_parameter_gradients(layer: GradedLayer) -> list[Finding]:
    """The gradient of every parameter equals the difference quotient: it is trained, not detached."""
    implementation, generator = layer.implementation, torch.Generator().manual_seed(31)
    named = {name: weight for name, weight in layer.parameters.named_parameters() if weight.requires_grad}
    if not named:
        return [Finding("gradients of parameters", "fail", None, "it has no trainable parameters")]
    x = implementation.random_input(2, implementation.length, generator)
    with torch.enable_grad():
        out = implementation.run(x)
        grad_output = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
        gradients = torch.autograd.grad((out * grad_output).sum(), list(named.values()), allow_unused=True)
    exact = implementation.dtype == torch.float64
    rows = []
    for (name, weight), gradient in zip(named.items(), gradients, strict=True):
        direction = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight.dtype)
        slope = 0.0 if gradient is None else float((gradient * direction).sum())
        quotient = _difference_quotient(implementation, x, grad_output, weight, direction, 1e-6 if exact else 1e-2)
        rows.append((name, slope, quotient))
    return [_worst_gradient(rows, 1e-4 if exact else 5e-2)]


def _difference_quotient(
    implementation: Implementation, x: Tensor, grad_output: Tensor, weight: Tensor, direction: Tensor, step: float
) -> float:
    original = weight.detach().clone()
    sides = []
    with torch.no_grad():
        for sign in (1, -1):
            weight.copy_(original + sign * step * direction)
            sides.append(float((implementation.run(x) * grad_output).sum()))
        weight.copy_(original)
    return (sides[0] - sides[1]) / (2 * step)


def _worst_gradient(rows: list[tuple[str, float, float]], limit: float) -> Finding:
    """A finding about (name, gradient, difference quotient) rows: the one that is furthest off."""
    size = max(abs(quotient) for _, _, quotient in rows)
    if not size > 0:
        return Finding("gradients of parameters", "fail", None, "no parameter changes the output")
    name, slope, quotient = max(rows, key=lambda row: abs(row[1] - row[2]))
    score = abs(slope - quotient) / size
    evidence = (
        f"of {len(rows)} parameters {name} is furthest off: gradient {slope:.4g}, difference quotient {quotient:.4g}"
    )
    if score <= limit:
        return Finding("gradients of parameters", "pass", score, evidence)
    return Finding("gradients of parameters", "fail", score, evidence, DETACHED)


DETERMINISM = GradedCheck(
    ("deterministic in eval",),
    no_grad(lambda layer: [check_determinism(layer.implementation, may_keep_state=False)]),
)
BATCH_INDEPENDENCE = GradedCheck(
    BATCH_CHECKS, no_grad(lambda layer: check_batch_independence(layer.implementation, layer.sweep))
)
INPUT_GRADIENT = GradedCheck(("gradient",), check_input_gradient)
PARAMETER_GRADIENTS = GradedCheck(("gradients of parameters",), check_parameter_gradients)
LAYER_CHECKS = (
    GradedCheck(("shape",), no_grad(check_shape_of_layer)),
    GradedCheck(("finite",), no_grad(lambda layer: [check_finite(layer.implementation, layer.sweep)])),
    DETERMINISM,
    BATCH_INDEPENDENCE,
    GradedCheck(("paths agree",), lambda layer: [check_grad_modes(layer.implementation, layer.sweep)]),
    GradedCheck(("causal", "past reachable", "kind"), no_grad(check_influence)),
    GradedCheck(("truncation",), no_grad(check_cut)),
    INPUT_GRADIENT,
    PARAMETER_GRADIENTS,
)


# inputs that no submission can know


class SecretDraws(TorchFunctionMode):
    """Reseed every generator of the checks from the grading's own seed.

    The checks draw from generators whose seeds are in their source code, so a submission could know their inputs.

    >>> with SecretDraws(1):
    ...     first = torch.rand(3, generator=torch.Generator().manual_seed(7))
    >>> with SecretDraws(2):
    ...     second = torch.rand(3, generator=torch.Generator().manual_seed(7))
    >>> bool((first == second).any())
    False
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.default = Generator().manual_seed(mix_seeds(seed, -1))  # for draws that name no generator

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in RANDOM_FUNCTIONS:
            generator = kwargs.get("generator")
            if generator is None:
                kwargs["generator"] = self.default
            elif not generator.initial_seed() & SALTED:
                generator.manual_seed(mix_seeds(self.seed, generator.initial_seed()))
        return func(*args, **kwargs)


def mix_seeds(seed: int, other: int) -> int:
    """Derive a seed from the grading's own and that of a generator; it reveals neither."""
    return SALTED | derive_seed(seed, f"generator {other}")
