"""The registry of checks: name, function, what it needs and what it proves. To add a check, add a row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from qkv.check.checks.attention_function import check_layout, check_masks, check_module_mask, check_weights
from qkv.check.checks.basics import (
    check_batch_independence,
    check_finite,
    check_inputs_not_mutated,
    check_lengths,
    check_strides,
)
from qkv.check.checks.cache import check_cache
from qkv.check.checks.causality import check_kind, check_source, check_training_leak, check_truncation, describe_sample
from qkv.check.checks.drawn import check_drawn
from qkv.check.checks.formula import check_formula
from qkv.check.checks.gradient import check_gradient
from qkv.check.checks.loss import check_loss, check_own_loss
from qkv.check.checks.padding import check_packing, check_padding
from qkv.check.checks.paths import (
    check_context,
    check_grad_modes,
    check_paths,
    check_returned_weights,
    check_save_and_load,
)
from qkv.check.checks.positions import check_positions
from qkv.check.checks.precision import check_precision
from qkv.check.checks.recorded import check_recorded
from qkv.check.checks.relations import check_relations
from qkv.check.checks.state import check_dropout_rate, check_state
from qkv.check.checks.training_code import check_accumulation, check_split
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation
from qkv.check.influence import InfluenceMap
from qkv.check.report import Finding
from qkv.check.shapes import Options, Sweep
from qkv.check.tracing.readings import Reading

Need = Literal["anything", "function", "module", "encoder-decoder"]


@dataclass(frozen=True)
class Measurements:
    """What checks may use: the implementation, its contract, and what was measured once for all of them.

    Args:
        determinism: the finding that two calls on one input agree; without it nothing can be compared.
        kind: the kind of attention that the influence map shows.
        sweep: one input and the outputs of its beginnings, at every length of the sweep.
        samples: columns of the influence maps of longer sequences.
        readings: the attention recorded inside a module; `refused` says why there is none.
    """

    impl: Implementation
    contract: Contract
    determinism: Finding
    influence: InfluenceMap
    kind: str
    sweep: Sweep
    samples: list[InfluenceMap] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    refused: str | None = None
    options: Options = field(default_factory=Options)

    @property
    def same_kind(self) -> bool:
        """Whether longer sequences show the kind of attention that a short one shows."""
        return not any(describe_sample(sample, self.kind).score for sample in self.samples)


@dataclass(frozen=True)
class Check:
    """One row of the registry.

    Args:
        findings: the names of its findings; a name may continue with a case, as in "batch (alone)".
        function: from the measurements to the findings.
        needs: what the implementation must be.
        proves: what holds if it passes.
        gradients: whether it runs with gradients enabled.
        shares: whether it judges what was measured once for all checks.
    """

    name: str
    findings: tuple[str, ...]
    function: Callable[[Measurements], list[Finding]]
    needs: Need
    proves: str
    gradients: bool = False
    shares: bool = False

    def applies_to(self, impl: Implementation) -> bool:
        have = {
            "anything": True,
            "function": impl.attention is not None,
            "module": impl.module is not None,
            "encoder-decoder": impl.source is not None,
        }
        return have[self.needs]


CHECKS: tuple[Check, ...] = (
    Check(
        "kind",
        ("causal", "past reachable", "kind"),
        lambda m: check_kind(m.influence, m.contract, m.samples, crosses=m.impl.source is not None),
        "anything",
        "outputs change with the tokens that they may see, and with no others (influence map by perturbation)",
        shares=True,
    ),
    Check(
        "deterministic in eval",
        ("deterministic in eval",),
        lambda m: [m.determinism],
        "anything",
        "the same input twice gives the same output",
        shares=True,
    ),
    Check(
        "dropout in eval",
        ("deterministic in eval",),
        lambda m: check_dropout_rate(m.impl, m.sweep),
        "module",
        "a dropout rate does not change the output in eval",
    ),
    Check(
        "lengths",
        ("lengths",),
        lambda m: check_lengths(m.impl, m.sweep),
        "anything",
        "one token runs where two and three do; says which lengths run",
        shares=True,
    ),
    Check(
        "state",
        ("state",),
        lambda m: check_state(m.impl, m.sweep),
        "anything",
        "the output does not depend on earlier calls, longer ones, failed ones or those of another instance",
    ),
    Check(
        "inputs not mutated",
        ("inputs not mutated",),
        lambda m: [check_inputs_not_mutated(m.impl)],
        "anything",
        "the input is bit-identical after the call",
    ),
    Check(
        "strides",
        ("strides",),
        lambda m: [check_strides(m.impl, m.sweep)],
        "anything",
        "inputs that are not contiguous give the outputs of contiguous ones",
    ),
    Check(
        "batch",
        ("batch",),
        lambda m: check_batch_independence(m.impl, m.sweep),
        "anything",
        "a row's output does not depend on the other rows, on their number or on their order",
    ),
    Check(
        "finite",
        ("finite",),
        lambda m: [check_finite(m.impl, m.sweep, m.contract)],
        "anything",
        "finite inputs, also large ones, give finite outputs",
        shares=True,
    ),
    Check(
        "grad modes",
        ("paths agree",),
        lambda m: [check_grad_modes(m.impl, m.sweep)],
        "anything",
        "outputs are the same with and without gradients, also with padding",
    ),
    Check(
        "truncation",
        ("truncation",),
        lambda m: check_truncation(m.impl, m.contract, m.sweep, m.kind),
        "anything",
        "f(x[:t]) = f(x)[:t]: outputs do not depend on the sequence length",
        shares=True,
    ),
    Check(
        "lengths agree",
        ("lengths agree",),
        lambda m: check_relations(m.impl, m.sweep, m.kind, same_kind=m.same_kind),
        "anything",
        "relations between outputs that hold on a short sequence (repeated, reordered tokens) hold on longer ones",
    ),
    Check(
        "training",
        ("causal",),
        lambda m: check_training_leak(m.impl, m.contract, m.kind),
        "module",
        "in training, with dropout, no output changes when a later token changes",
    ),
    Check(
        "padding",
        ("padding", "padding content", "padding removed", "padding in rows", "fully padded row"),
        lambda m: check_padding(m.impl, m.contract, m.sweep),
        "anything",
        "padding on the right, on the left and in holes does not change real tokens; a fully padded row stays finite",
    ),
    Check(
        "source",
        ("cross attention", "source: "),
        lambda m: check_source(m.impl, m.contract),
        "encoder-decoder",
        "every output may use the whole source; padding, batch and paths on the source side",
    ),
    Check(
        "cache",
        ("cache",),
        lambda m: check_cache(m.impl, m.contract, m.kind, m.sweep),
        "anything",
        "steps, prefill and chunks through the KV cache give the outputs of the whole sequence",
    ),
    Check(
        "weights",
        ("rows sum to one", "scale", "head independence"),
        lambda m: check_weights(m.impl, m.contract),
        "function",
        "weights sum to one over the keys, scores have the required scale, heads do not mix",
    ),
    Check(
        "formula",
        ("formula", "dtype"),
        lambda m: check_formula(m.impl, m.contract, m.options),
        "function",
        "outputs and gradients equal softmax(q·kᵀ·scale) v at every shape; 16 and 32 bits err little more than it does",
    ),
    Check(
        "precision",
        ("dtype",),
        lambda m: check_precision(m.impl, m.sweep, m.options),
        "module",
        "float32, bfloat16 and float16 err at most three times as much as a naive implementation, also far out",
    ),
    Check(
        "layout",
        ("alignment", "grouped heads"),
        lambda m: check_layout(m.impl, m.contract),
        "function",
        "alignment with more keys than queries, head sharing of GQA",
    ),
    Check(
        "inside",
        ("inside", "layers", "scale", "softmax", "heads", "grouped heads", "rotary"),
        lambda m: check_recorded(m.impl, m.readings, m.refused, m.contract, leaks=_leaks(m)),
        "module",
        "scale, softmax, heads and RoPE of every attention recorded inside, and which layer leaks",
        shares=True,
    ),
    Check(
        "positions",
        ("order", "relative positions", "long positions", "positions in scores only", "alibi"),
        lambda m: check_positions(m.impl, m.contract, m.kind),
        "anything",
        "only distances matter, also at length 300; ALiBi slopes; permutation equivariance without positions",
    ),
    Check(
        "drawn shapes",
        ("drawn shapes",),
        lambda m: check_drawn(m.impl, m.contract, m.kind, m.sweep, m.options),
        "anything",
        "with --thorough: drawn shapes show nothing that the fixed ones do not",
    ),
    Check(
        "saved and loaded",
        ("saved and loaded",),
        lambda m: check_save_and_load(m.impl),
        "module",
        "loaded from its own state it gives the same outputs, and tied weights stay tied",
    ),
    Check(
        "mask",
        ("mask polarity", "fully masked row", "mask, more keys", "mask, large scores"),
        lambda m: check_masks(m.impl, m.contract),
        "function",
        "what True means in a mask; a query without keys stays finite; the mask works with more keys than queries and "
        "hides keys with large scores",
        gradients=True,
    ),
    Check(
        "mask of a module",
        ("mask polarity",),
        lambda m: check_module_mask(m.impl, m.contract),
        "module",
        "what the values of its mask mean, where the contract states it",
    ),
    Check(
        "paths",
        ("paths agree",),
        lambda m: check_paths(m.impl, m.sweep),
        "module",
        "training and eval, activation checkpointing and returning weights do not change the outputs",
        gradients=True,
    ),
    Check(
        "context",
        ("context",),
        lambda m: check_context(m.impl, m.kind),
        "module",
        "with an optional context, a query has the same output alone and among others",
    ),
    Check(
        "returned weights",
        ("returned weights",),
        lambda m: check_returned_weights(m.impl),
        "module",
        "weights that are returned are those that made the output",
    ),
    Check(
        "loss alignment",
        ("loss alignment",),
        lambda m: check_own_loss(m.impl, m.contract),
        "module",
        "a model's own loss scores each position on the required token",
        gradients=True,
    ),
    Check(
        "packing",
        ("packing",),
        lambda m: check_packing(m.impl),
        "module",
        "packed documents do not see each other and restart their positions",
        gradients=True,
    ),
    Check(
        "gradient",
        ("gradient", "parameters reached", "position tables"),
        lambda m: check_gradient(m.impl, m.sweep),
        "anything",
        "the gradient, of each parameter too, equals a difference quotient in float64, and reaches every parameter",
        gradients=True,
    ),
)


@dataclass(frozen=True)
class TrainingCheck:
    """A check of a part of a training run. function: from the target and a contract to its call and the findings."""

    kind: str
    findings: tuple[str, ...]
    function: Callable[[Any, Contract], tuple[str, list[Finding]]]
    proves: str


# by what `call` says, or what the function's name and parameters show
TRAINING_CHECKS: dict[str | None, TrainingCheck] = {
    "loss": TrainingCheck(
        "a loss of logits",
        ("loss alignment", "loss mask", "labels of −100"),
        check_loss,
        "each position is scored on the required token, masked tokens are left out, and the mean is over scored tokens",
    ),
    "accumulate": TrainingCheck(
        "gradient accumulation",
        ("accumulation", "partial window", "unequal batches"),
        check_accumulation,
        "accumulated small batches give the update of one large batch, also with leftover batches",
    ),
    "split": TrainingCheck(
        "a split of data",
        ("split is disjoint", "split keeps all"),
        check_split,
        "no example is in both the training and the held-out part",
    ),
}


def _leaks(m: Measurements) -> bool:
    """Whether the influence map breaks the promised kind."""
    return any(finding.verdict == "fail" for finding in check_kind(m.influence, m.contract, m.samples))
