"""Relations between outputs that hold at 12 tokens must hold at other lengths, whatever was promised.

Attention without positions does not change when every token is repeated, and not when tokens are reordered; one
repeated token gives one repeated output if positions enter the scores only. Which of these an implementation keeps is
measured on a short sequence. If a longer one breaks it, then something begins there: a block, a padded key, a table.

Axes: b batch · t tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.check.implementation import Implementation, relative_difference
from qkv.check.report import Finding
from qkv.check.shapes import Sweep


@dataclass(frozen=True)
class Relation:
    """A relation between outputs.

    Args:
        words: what is done to the input and what holds then.
        kinds: the kinds of attention that may keep it.
        measure: from the implementation and an input to how far the outputs are from keeping it (relative).
        growth: how many times as long as the input the longest call is.
    """

    words: str
    kinds: tuple[str, ...]
    measure: Callable[[Implementation, Tensor], float]
    growth: int = 1


def _repeat_sequence(impl: Implementation, x: Tensor) -> float:
    return relative_difference(impl.run(x), impl.run(torch.cat((x, x), dim=1))[:, : x.shape[1]])


def _repeat_each(impl: Implementation, x: Tensor) -> float:
    return relative_difference(impl.run(x), impl.run(x.repeat_interleave(2, dim=1))[:, 1::2])


def _reorder(impl: Implementation, x: Tensor) -> float:
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(49))
    return relative_difference(impl.run(x)[:, order], impl.run(x[:, order]))


def _reorder_past(impl: Implementation, x: Tensor) -> float:
    order = torch.randperm(x.shape[1] - 1, generator=torch.Generator().manual_seed(49))
    order = torch.cat((order, torch.tensor([x.shape[1] - 1])))
    return relative_difference(impl.run(x)[:, -1], impl.run(x[:, order])[:, -1])


def _one_token(impl: Implementation, x: Tensor) -> float:
    out = impl.run(x[:, :1].expand_as(x).contiguous())
    return relative_difference(out[:, :1].expand_as(out), out)


RELATIONS = (
    Relation("the sequence twice gives the outputs of the sequence", ("bidirectional",), _repeat_sequence, 2),
    Relation("every token twice gives the outputs of the sequence", ("causal",), _repeat_each, 2),
    Relation("reordered tokens give the reordered outputs", ("bidirectional",), _reorder),
    Relation("reordered earlier tokens give the same last output", ("causal",), _reorder_past),
    Relation("one repeated token gives one repeated output", ("bidirectional", "causal"), _one_token),
)
LENGTHS = (2, 3, 13, 16, 33, 65, 129)
HINT = "from this length on it computes something else: look for blocks, padded keys, tables and paths for long inputs"


def check_relations(impl: Implementation, sweep: Sweep, kind: str, same_kind: bool) -> list[Finding]:
    """Relations that hold on a short sequence hold on others.

    Args:
        kind: the kind of attention that the influence map of a short sequence shows.
        same_kind: whether longer sequences show the same kind; a window, for example, breaks relations by design.
    """
    if not impl.aligned or not same_kind:
        return []
    limit = 10 * impl.tolerance
    kept, worst, evidence = [], 0.0, ""
    for relation in RELATIONS:
        short = [sweep.x[:, :length] for length in (impl.length // 2, impl.length // 2 + 1)]  # even and odd
        if kind not in relation.kinds or not any(_holds(impl, relation, x, limit) for x in short):
            continue
        kept.append(relation.words)
        for length in LENGTHS:
            if relation.growth * length > sweep.longest():
                continue
            try:
                off = relation.measure(impl, sweep.x[:, :length])
            except Exception:  # lengths that are refused are listed elsewhere
                continue
            if off > max(worst, limit):
                worst, evidence = off, f"{relation.words} on short inputs; at {length} tokens it is off by {off:.2g}"
    if not kept:
        return [Finding("lengths agree", "n/a", None, "no relation between outputs holds on short inputs")]
    if worst > limit:
        return [Finding("lengths agree", "fail", worst, f"{evidence} (relative)", HINT, "lengths differ")]
    return [Finding("lengths agree", "pass", worst, f"{'; '.join(kept)}: at every length")]


def _holds(impl: Implementation, relation: Relation, x: Tensor, limit: float) -> bool:
    try:
        return relation.measure(impl, x) <= limit
    except Exception:
        return False
