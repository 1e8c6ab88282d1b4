"""The registry of checks: name, what each finding means, function, what it needs. To add a check, add a row here."""

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
from qkv.check.checks.row_masks import check_row_masks
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
        findings: for each finding, what holds if it passes; a name may continue with a case, as in "batch (alone)".
        function: from the measurements to the findings.
        needs: what the implementation must be.
        gradients: whether it runs with gradients enabled.
        shares: whether it judges what was measured once for all checks.
    """

    name: str
    findings: dict[str, str]
    function: Callable[[Measurements], list[Finding]]
    needs: Need
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
        {
            "causal": "no output changes when a later token changes",
            "past reachable": "every output changes when its own or an earlier token changes",
            "kind": "every output changes with the tokens that the kind lets it see, and with no others",
        },
        lambda m: check_kind(m.influence, m.contract, m.samples, crosses=m.impl.source is not None),
        "anything",
        shares=True,
    ),
    Check(
        "deterministic in eval",
        {"deterministic in eval": "two calls in eval mode give the same output"},
        lambda m: [m.determinism],
        "anything",
        shares=True,
    ),
    Check(
        "dropout in eval",
        {"deterministic in eval": "a dropout rate has no effect in eval mode"},
        lambda m: check_dropout_rate(m.impl, m.sweep),
        "module",
    ),
    Check(
        "lengths",
        {"lengths": "a sequence of one token runs; the report lists the lengths that run"},
        lambda m: check_lengths(m.impl, m.sweep),
        "anything",
        shares=True,
    ),
    Check(
        "state",
        {"state": "the output does not depend on earlier calls (longer ones, failed ones) or on other instances"},
        lambda m: check_state(m.impl, m.sweep),
        "anything",
    ),
    Check(
        "inputs not mutated",
        {"inputs not mutated": "the call does not modify its inputs"},
        lambda m: [check_inputs_not_mutated(m.impl)],
        "anything",
    ),
    Check(
        "strides",
        {"strides": "inputs that are not contiguous give the same outputs as contiguous ones"},
        lambda m: [check_strides(m.impl, m.sweep)],
        "anything",
    ),
    Check(
        "batch",
        {"batch": "the output of a row does not depend on the other rows, on their number or on their order"},
        lambda m: check_batch_independence(m.impl, m.sweep),
        "anything",
    ),
    Check(
        "finite",
        {"finite": "finite inputs, including large ones, give finite outputs"},
        lambda m: [check_finite(m.impl, m.sweep, m.contract)],
        "anything",
        shares=True,
    ),
    Check(
        "grad modes",
        {"paths agree": "outputs are the same with and without gradient tracking, even with padding"},
        lambda m: [check_grad_modes(m.impl, m.sweep)],
        "anything",
    ),
    Check(
        "truncation",
        {"truncation": "the outputs of a causal model do not depend on the sequence length: f(x[:t]) = f(x)[:t]"},
        lambda m: check_truncation(m.impl, m.contract, m.sweep, m.kind),
        "anything",
        shares=True,
    ),
    Check(
        "lengths agree",
        {"lengths agree": "symmetries of 12 tokens (when repeated or reordered) also hold at other lengths"},
        lambda m: check_relations(m.impl, m.sweep, m.kind, same_kind=m.same_kind, chosen=m.influence.chosen),
        "anything",
    ),
    Check(
        "training",
        {"causal": "the same holds in training mode, with dropout"},
        lambda m: check_training_leak(m.impl, m.contract, m.kind),
        "module",
    ),
    Check(
        "padding",
        {
            "padding": "a padding mask that marks every token as real gives the same outputs as no mask",
            "padding content": "the content of padding (right, left, holes) does not change the outputs of real tokens",
            "padding removed": "real tokens have the same outputs with padding as without it",
            "padding in rows": "in longer batches with a different padding in each row, padding has no effect",
            "fully padded row": "a row that is all padding gives finite outputs and does not change other rows",
        },
        lambda m: check_padding(m.impl, m.contract, m.sweep),
        "anything",
    ),
    Check(
        "source",
        {
            "cross attention": "every output of an encoder-decoder changes when any source token changes",
            "source: ": "the padding, batch and path checks also hold on the source side, with a fixed decoder input",
        },
        lambda m: check_source(m.impl, m.contract),
        "encoder-decoder",
    ),
    Check(
        "cache",
        {"cache": "decoding with the KV cache (steps, prefill, chunks) gives the outputs of the full sequence"},
        lambda m: check_cache(m.impl, m.contract, m.kind, m.sweep),
        "anything",
    ),
    Check(
        "weights",
        {
            "rows sum to one": "the weights of each query sum to 1 over the keys",
            "scale": "scores are q·k times the required scale",
            "head independence": "changing q, k and v of one head changes the output of that head only",
        },
        lambda m: check_weights(m.impl, m.contract),
        "function",
    ),
    Check(
        "formula",
        {
            "formula": "outputs and gradients equal those of softmax(q·kᵀ·scale) v at every tested shape",
            "dtype": "in low precision, the error is at most about three times that of a naive implementation",
        },
        lambda m: check_formula(m.impl, m.contract, m.options),
        "function",
    ),
    Check(
        "precision",
        {"dtype": "in low precision, the error is at most about three times that of a naive implementation"},
        lambda m: check_precision(m.impl, m.sweep, m.options),
        "module",
    ),
    Check(
        "layout",
        {
            "alignment": "with more keys than queries, the causal mask is aligned as required",
            "grouped heads": "with fewer key heads than query heads, each query head uses the required key head",
        },
        lambda m: check_layout(m.impl, m.contract),
        "function",
    ),
    Check(
        "inside",
        {
            "inside": "only described: heads, head dim, and whether a fused kernel is used",
            "layers": "no recorded layer puts weight on later keys",
            "mask, large scores": "a masked key has no effect even if its score is very large",
            "scale": "scores are q·k times the required scale",
            "softmax": "every recorded attention has a softmax over the keys whose rows sum to 1",
            "heads": "the projections are split into heads, and the heads merged, without mixing them",
            "grouped heads": "with fewer key heads than query heads, each query head uses the required key head",
            "rotary": "queries and keys are rotated alike, by position × frequency, as RoPE defines it",
        },
        lambda m: check_recorded(m.impl, m.readings, m.refused, m.contract, leaks=_leaks(m)),
        "module",
        shares=True,
    ),
    Check(
        "positions",
        {
            "order": "without position encoding, reordered tokens give the same outputs in the new order",
            "relative positions": "scores depend only on the distance between query and key",
            "long positions": "scores depend only on the distance, even at 300 tokens",
            "positions in scores only": "positions change only the scores: a repeated token gives one output",
            "alibi": "the bias falls with the distance, with the slopes of ALiBi",
        },
        lambda m: check_positions(m.impl, m.contract, m.kind),
        "anything",
    ),
    Check(
        "drawn shapes",
        {"drawn shapes": "with --thorough: the properties also hold at random shapes"},
        lambda m: check_drawn(m.impl, m.contract, m.kind, m.sweep, m.options),
        "anything",
    ),
    Check(
        "saved and loaded",
        {"saved and loaded": "loading the saved state gives the same outputs, and tied weights stay tied"},
        lambda m: check_save_and_load(m.impl),
        "module",
    ),
    Check(
        "mask",
        {
            "mask polarity": "True in a mask means what is required: may attend, or may not attend",
            "fully masked row": "a query that may not attend to any key gives finite outputs and gradients",
            "mask, more keys": "a mask also works with more keys than queries",
            "mask, large scores": "a masked key has no effect even if its score is very large",
        },
        lambda m: check_masks(m.impl, m.contract),
        "function",
        gradients=True,
    ),
    Check(
        "mask in rows",
        {"mask in rows": "if each row of the batch, or each head, has its own mask, that mask is used for it"},
        lambda m: check_row_masks(m.impl),
        "anything",
    ),
    Check(
        "mask of a module",
        {"mask polarity": "True in a mask means what is required: may attend, or may not attend"},
        lambda m: check_module_mask(m.impl, m.contract),
        "module",
    ),
    Check(
        "paths",
        {"paths agree": "train mode without dropout, checkpointing and returning weights do not change the outputs"},
        lambda m: check_paths(m.impl, m.sweep),
        "module",
        gradients=True,
    ),
    Check(
        "context",
        {"context": "with a context (cross-attention), a query has the same output alone and with other queries"},
        lambda m: check_context(m.impl, m.kind),
        "module",
    ),
    Check(
        "returned weights",
        {"returned weights": "the returned attention weights are those that give the output"},
        lambda m: check_returned_weights(m.impl),
        "module",
    ),
    Check(
        "loss alignment",
        {"loss alignment": "each position is scored on the required token"},
        lambda m: check_own_loss(m.impl, m.contract),
        "module",
        gradients=True,
    ),
    Check(
        "packing",
        {"packing": "packed documents do not attend to each other, and positions restart in each"},
        lambda m: check_packing(m.impl),
        "module",
        gradients=True,
    ),
    Check(
        "gradient",
        {
            "gradient": "the gradients of inputs and parameters equal finite differences in float64",
            "parameters reached": "every trainable parameter gets a nonzero gradient",
            "position tables": "no two positions share a row of a position table",
        },
        lambda m: check_gradient(m.impl, m.sweep, m.contract),
        "anything",
        gradients=True,
    ),
)


@dataclass(frozen=True)
class TrainingCheck:
    """A check of a part of a training run. function: from the target and a contract to its call and the findings."""

    kind: str
    findings: dict[str, str]
    function: Callable[[Any, Contract], tuple[str, list[Finding]]]


# by what `call` says, or what the function's name and parameters show
TRAINING_CHECKS: dict[str | None, TrainingCheck] = {
    "loss": TrainingCheck(
        "a loss of logits",
        {
            "loss alignment": "each position is scored on the required token",
            "loss mask": "masked tokens do not count, and the mean is over the scored tokens",
            "labels of −100": "labels of −100 do not count",
        },
        check_loss,
    ),
    "accumulate": TrainingCheck(
        "gradient accumulation",
        {
            "accumulation": "accumulated small batches give the update of one large batch",
            "partial window": "leftover batches at the end give the update of one batch of their total size",
            "unequal batches": "small batches of different sizes give the update of one large batch",
        },
        check_accumulation,
    ),
    "split": TrainingCheck(
        "a split of data",
        {
            "split is disjoint": "no example is in both the training and the held-out part",
            "split keeps all": "only described: how many examples are in at least one part",
        },
        check_split,
    ),
}


def _leaks(m: Measurements) -> bool:
    """Whether the influence map shows later tokens where they are not promised."""
    found = check_kind(m.influence, m.contract, m.samples, crosses=m.impl.source is not None)
    return any(finding.verdict == "fail" and finding.check != "past reachable" for finding in found)
