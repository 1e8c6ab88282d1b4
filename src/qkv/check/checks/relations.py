"""Relations between outputs that hold at 12 tokens must hold at other lengths, whatever was promised.

Attention without positions does not change when every token is repeated, and not when tokens are reordered; one
repeated token gives one repeated output if positions enter the scores only. Which of these an implementation keeps is
measured on a short sequence. If a longer one breaks it, then something begins there: a block, a padded key, a table.

Axes: b batch · t tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.check.implementation import Implementation, relative_difference
from qkv.check.report import Finding
from qkv.check.shapes import Sweep, describe_condition
from qkv.check.tracing.readings import record_run

HINT = "it computes something else at other lengths: look for blocks, padded keys, tables and paths for long inputs"
NOT_ONE = (
    "the weights of a query no longer sum to 1: the normalizer is not that of the keys that are summed (overwritten by "
    "the last block, not rescaled, or with the keys that fill a block)"
)


@dataclass(frozen=True)
class Relation:
    """A relation between outputs.

    Args:
        words: what is done to the input and what holds then.
        kinds: the kinds of attention that may keep it; any, and another one at each length, if empty.
        measure: from the implementation and an input to how far the outputs are from keeping it (relative).
        growth: how many times as long as the input the longest call is.
        repeats: whether tokens are repeated: code that chooses by value then chooses among equals.
        hint: what is likely wrong where it does not hold.
    """

    words: str
    kinds: tuple[str, ...]
    measure: Callable[[Implementation, Tensor], float]
    growth: int = 1
    repeats: bool = False
    hint: str = HINT


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


ANY_KIND = ()
RELATIONS = (
    Relation("the sequence twice gives the outputs of the sequence", ("bidirectional",), _repeat_sequence, 2, True),
    Relation("every token twice gives the outputs of the sequence", ("causal",), _repeat_each, 2, True),
    Relation("reordered tokens give the reordered outputs", ("bidirectional",), _reorder),
    Relation("reordered earlier tokens give the same last output", ("causal",), _reorder_past),
    Relation("one repeated token gives one repeated output", ANY_KIND, _one_token, repeats=True, hint=NOT_ONE),
)
LENGTHS = (2, 3, 13, 16, 33, 65, 129)
WHOLE_BLOCKS = (16, 64)  # blocks of up to 64 tokens are full at one of these


def check_relations(impl: Implementation, sweep: Sweep, kind: str, *, same_kind: bool, chosen: bool) -> list[Finding]:
    """Relations that hold on a short sequence hold on others.

    Args:
        kind: the kind of attention that the influence map of a short sequence shows.
        same_kind: whether longer sequences show the same kind; a window, for example, breaks relations by design.
        chosen: whether it chooses by value, as top-k attention does.
    """
    if not impl.aligned:
        return []
    limit = 10 * impl.tolerance
    kept, worst, evidence, broken = [], 0.0, "", RELATIONS[0]
    for relation in RELATIONS:
        if (relation.kinds and (kind not in relation.kinds or not same_kind)) or (relation.repeats and chosen):
            continue
        first = _first_kept(impl, relation, sweep, limit)
        if first is None:
            continue
        kept.append(relation.words)
        for length in LENGTHS:
            if relation.growth * length > sweep.longest():
                continue
            try:
                off = relation.measure(impl, sweep.x[:, :length])
            except Exception:  # lengths that are refused are listed elsewhere
                continue
            # an epsilon matters more in a shorter sequence
            if off > max(worst, limit if length >= first else 100 * limit):
                words = "short inputs" if first <= impl.length else f"{first} tokens"
                worst, broken = off, relation
                evidence = f"{relation.words} on {words}; at {length} tokens it is off by {off:.2g}"
    if not kept:
        return [Finding("lengths agree", "n/a", None, "no relation between outputs holds on short inputs")]
    if worst > limit:
        family = "block" if broken.hint == NOT_ONE else "lengths differ"
        condition = describe_condition(lambda length: _keeps(impl, broken, sweep, limit, length), sweep.longest())
        if (hint := _name_visible_fill(impl, sweep.x, condition, limit)) is not None:
            return [Finding("lengths agree", "fail", worst, f"{evidence} (relative)", hint, "block", "", condition)]
        return [Finding("lengths agree", "fail", worst, f"{evidence} (relative)", broken.hint, family, "", condition)]
    return [Finding("lengths agree", "pass", worst, f"{'; '.join(kept)}: at every length")]


def _name_visible_fill(impl: Implementation, x: Tensor, condition: str, limit: float) -> str | None:
    """Whether zeros after the tokens change nothing up to whole blocks: the code fills them, and does not mask that."""
    found = re.search(r"not multiples of (\d+)", condition)
    if found is None or impl.vocab_size is not None:
        return None

    def adds_nothing(length: int) -> bool:
        short, zeros = x[:, :length], torch.zeros_like(x[:, :1])
        return relative_difference(impl.run(short), impl.run(torch.cat((short, zeros), 1))[:, :length]) <= limit

    try:
        equal = {length: adds_nothing(length) for length in range(1, min(int(found[1]) + 1, x.shape[1]))}
    except Exception:  # lengths that it does not take
        return None
    all_of_them = equal.get(1, False)
    first = next((length for length, same in equal.items() if same != all_of_them), None)
    if first is None:
        return None
    size = first if all_of_them else first + 1
    expected = {n: (n % size != 0) if all_of_them else (n % size == size - 1) for n in equal}
    if size < 3 or equal != expected:
        return None
    which = "all of their keys take" if all_of_them else "one of their keys takes"
    return f"tokens that fill the length to a multiple of {size} are not all masked: {which} part in the softmax"


def _reads_memory(impl: Implementation, x: Tensor) -> bool:
    """Whether attention on one repeated token meets values that differ: a learned state, which longer inputs change."""
    if impl.module is None:
        return False
    for attention in record_run(impl, x.contiguous()).attentions:
        seen = (attention.weights > 1e-9).any(-2)[..., None] & (attention.values != 0)
        high = attention.values.masked_fill(~seen, -torch.inf).amax(-2)
        low = attention.values.masked_fill(~seen, torch.inf).amin(-2)
        if bool(((high - low) > 1e-6 * attention.values.abs().max()).any()):
            return True
    return False


def _first_kept(impl: Implementation, relation: Relation, sweep: Sweep, limit: float) -> int | None:
    """The first length at which a relation holds, and not by chance: an even one, an odd one, those of whole blocks."""
    half = impl.length // 2
    for n in (half, half + 1, *WHOLE_BLOCKS):
        if _keeps(impl, relation, sweep, limit, n):
            repeated = sweep.x[:, :1].expand_as(sweep.x[:, :n])
            if not relation.repeats or not _reads_memory(impl, repeated):
                return n
    return None


def _keeps(impl: Implementation, relation: Relation, sweep: Sweep, limit: float, length: int) -> bool | None:
    """Whether a relation holds at a length; None if it cannot be measured there."""
    if relation.growth * length > sweep.longest():
        return None
    try:
        return relation.measure(impl, sweep.x[:, :length]) <= limit
    except Exception:  # a length that it does not take
        return None
