"""Observe attention from outside: features of q, k and v that go in, merged heads that come out, at any size.

A function is called with chosen q, k and v. In a module, the projections around the attention are recorded; what runs
between them may be written in any way: in blocks, as loops, or as one fused kernel.

Axes: b batch · h heads · g key heads · t queries · s keys · d head dim · n features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.checks.basics import random_mask
from qkv.check.checks.precision import parameters_in
from qkv.check.checks.state import dropout_rates
from qkv.check.contract import Contract
from qkv.check.hypotheses.formula import Observation, Sizes, merge_heads, repeat_heads, split_heads, tile_heads
from qkv.check.implementation import Implementation
from qkv.check.tracing.recorder import ProjectionRecord, Recording, record_attention

HEAD_COUNTS = (
    "heads", "num_heads", "n_head", "n_heads", "nhead", "h", "num_attention_heads", "n_q_heads", "num_q_heads",
    "head_count", "nheads", "H", "attention_heads", "n_query_heads",
)  # fmt: skip
TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}


@dataclass(frozen=True)
class Case:
    """The sizes and the setting of one observed call; modules run with gradients enabled unless `no_grad`."""

    length: int
    batch: int = 2
    keys: int | None = None
    heads: int = 4
    kv_heads: int | None = None
    head_dim: int = 8
    dtype: torch.dtype = torch.float64
    padding: str | None = None  # where it is, or "pairs" for a mask of pairs of tokens
    gradients: bool = False
    no_grad: bool = False
    training: bool = False
    seed: int = 0


Observer = Callable[[Case], Observation | None]


def padding_tokens(case: Case) -> Tensor | None:
    """(b, t): which tokens are real. Each row is padded differently, so that mixing rows shows."""
    if case.padding is None or case.padding == "pairs":
        return None
    places, rows = torch.arange(case.length), []
    for row in range(case.batch):
        count = (3, 1, 2, 4)[row % 4]
        rows.append(
            {
                "right": places < case.length - count,
                "left": places >= count,
                "holes": (places != 2 + row) & (places != case.length - 4 - row),
            }[case.padding]
        )
    return torch.stack(rows)


def passed_mask(case: Case) -> Tensor | None:
    """(b, t, t): a mask of pairs of tokens, other for each row; None if the case has none."""
    return random_mask(case.batch, case.length, 86 + case.seed) if case.padding == "pairs" else None


def fit_case(impl: Implementation, case: Case) -> Case:
    """The case with the nearest lengths that an implementation takes."""
    keys = None if case.keys is None else impl.nearest_length(case.keys)
    return replace(case, length=impl.nearest_length(case.length), keys=keys)


def observe_function(impl: Implementation, contract: Contract) -> Observer:
    """Calls a function with random q, k and v, with the mask that the contract promises."""
    call = impl.attention
    assert call is not None
    causal = contract.kind in ("causal", "window") and (impl.causal_flag is not None or impl.takes_mask)

    def observe(case: Case) -> Observation | None:
        case = fit_case(impl, case)
        generator = torch.Generator().manual_seed(61 + case.seed)
        keys, groups = case.keys or case.length, case.kv_heads or impl.key_heads(case.heads)
        shapes = ((case.heads, case.length), (groups, keys), (groups, keys))
        q, k, v = (
            torch.randn(case.batch, h, n, case.head_dim, generator=generator, dtype=torch.float64).to(case.dtype)
            for h, n in shapes
        )
        tokens, pairs = padding_tokens(case), passed_mask(case)
        flag = causal and impl.causal_flag is not None
        mask = torch.ones(case.length, keys, dtype=torch.bool).tril(keys - case.length) if causal and not flag else None
        if tokens is not None:
            mask = tokens[:, None, None] if mask is None else mask & tokens[:, None, None]
            mask = mask.expand(-1, 1, case.length, -1)
        if pairs is not None:
            mask = pairs[:, None] if mask is None else mask & pairs[:, None]
        with torch.set_grad_enabled(case.gradients):
            one, two, three = (x.clone().requires_grad_(case.gradients) for x in (q, k, v))
            out = call(one, two, three, mask, causal=flag).detach()
        sizes = Sizes(case.batch, case.heads, groups, case.length, keys, case.head_dim)
        q, k, v, out = (x.double().transpose(1, 2).flatten(2) for x in (q, k, v, out))
        given = tokens[:, None].expand(-1, case.length, -1) if tokens is not None else pairs
        return Observation(q, k, v, out, sizes, given, tokens, TOLERANCES[case.dtype])

    return observe


# -- modules -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Which recorded projections make queries, keys and values, and which one reads the merged heads.

    Args:
        parts: for q, k and v: the indices of projections, and the features of each: (first, last, step or None).
        reader: the projection that reads the merged heads; None if they are the output.
        sequence_first: tokens come before rows of the batch. heads_last: merged heads are read as (d, h).
        name: the module that the attention runs in. names: the modules of q, k, v and of the reader.
    """

    parts: tuple[tuple[int, str], tuple[int, str], tuple[int, str]]
    reader: int | None
    heads: int
    kv_heads: int
    head_dim: int
    sequence_first: bool = False
    heads_last: bool = False
    name: str = field(default="", compare=False)
    names: tuple[str, ...] = field(default=(), compare=False)


def observe_module(impl: Implementation) -> list[list[tuple[Layout, Observer]]]:
    """For each attention of a module: an observer for each way in which its projections can be read."""
    recording, out = _record(impl, Case(7), same_rows=True)
    if recording is None:
        return []
    groups: dict[int, list[Layout]] = {}
    for layout in _layouts(impl.module, recording, out, fit_case(impl, Case(7)).length):
        groups.setdefault(layout.parts[0][0], []).append(layout)
    return [[(layout, partial(_observe, impl, layout)) for layout in _likely(impl, group)] for group in groups.values()]


def _likely(impl: Implementation, layouts: list[Layout]) -> list[Layout]:
    """The layouts under which a single token attends to itself: its output is its value. All if there is none."""
    found = []
    for layout in layouts:
        for candidate in (layout, replace(layout, heads_last=True)):
            seen = _observe(impl, candidate, Case(1, batch=1))
            if seen is None:
                continue
            values = split_heads(seen.v, layout.kv_heads)
            if any(seen.fits(merge_heads(share(values, layout.heads, "v"))) for share in (repeat_heads, tile_heads)):
                found.append(candidate)
                break
    return found or layouts


def _record(impl: Implementation, case: Case, *, same_rows: bool = False) -> tuple[Recording | None, Tensor | None]:
    """Record one run; same_rows: all rows of the batch are equal."""
    case, module = fit_case(impl, case), impl.module
    x = replace(impl, dtype=case.dtype).random_input(
        case.batch, case.length, torch.Generator().manual_seed(62 + case.seed)
    )
    if same_rows:
        x = x[:1].expand_as(x).clone()
    was = None if module is None else module.training
    try:
        if module is not None:
            module.train(case.training)
        without_dropout = dropout_rates(module, 0.0) if case.training and module is not None else nullcontext()
        lower = parameters_in(module, case.dtype) if module is not None and case.dtype != impl.dtype else nullcontext()
        with (
            without_dropout,
            lower,
            torch.set_grad_enabled(not case.no_grad),
            record_attention(module, case.batch) as found,
        ):
            pairs = passed_mask(case)
            if pairs is None:
                out = impl.run(x, padding_tokens(case))
            else:
                assert impl.run_masked is not None
                out = impl.run_masked(x, pairs)
    except Exception:  # this size or dtype is not supported
        return None, None
    finally:
        if module is not None:
            module.train(bool(was))
    return found[0], out.detach().double()


def _observe(impl: Implementation, layout: Layout, case: Case) -> Observation | None:
    case = fit_case(impl, case)
    recording, out = _record(impl, case)
    if recording is None or out is None:
        return None
    tolerance = max(TOLERANCES[case.dtype], TOLERANCES[impl.dtype])
    seen = read_projections(layout, recording.projections, out, case.batch, case.length, tolerance, fills=True)
    tokens, pairs = padding_tokens(case), passed_mask(case)
    given = tokens[:, None].expand(-1, case.length, -1) if tokens is not None else pairs
    return None if seen is None else replace(seen, given=given, tokens=tokens)


def read_projections(
    layout: Layout,
    made: Sequence[ProjectionRecord],
    out: Tensor,
    batch: int,
    length: int,
    tolerance: float,
    *,
    fills: bool = False,
) -> Observation | None:
    """What went into an attention and what came out of it, from the projections of one call and its output.

    fills: the code may put tokens of its own after the last, to fill a length.
    """
    needed = [index for index, _ in layout.parts] + ([] if layout.reader is None else [layout.reader])
    if max(needed) >= len(made):
        return None
    longer = _filled_length(made[layout.parts[1][0]].output, batch, length) if fills else length
    shape = (batch, longer, layout.sequence_first)
    q, k, v = (_features(made[index], how, layout, shape) for index, how in layout.parts)
    read = out if layout.reader is None else made[layout.reader].given
    merged = _sequence(read, batch, _filled_length(read, batch, length) if fills else length, layout.sequence_first)
    fill: tuple[Tensor, Tensor] | None = None
    if longer > length and q is not None and k is not None and v is not None and merged is not None:
        fill = k[:, length:], v[:, length:]
        q, k, v, merged = (x[:, :length] for x in (q, k, v, merged))
    if q is None or k is None or v is None or merged is None or merged.shape != q.shape:
        return None
    if layout.heads_last:
        merged = merged.unflatten(-1, (layout.head_dim, layout.heads)).transpose(-1, -2).flatten(2)
    sizes = Sizes(batch, layout.heads, layout.kv_heads, q.shape[1], k.shape[1], layout.head_dim)
    return Observation(q, k, v, merged, sizes, tolerance=tolerance, fill=fill)


LONGEST_FILL = 256


def _filled_length(x: Tensor, batch: int, length: int) -> int:
    """How many tokens a projection got, if it is a few more than there are."""
    count, rest = divmod(x.numel(), batch * x.shape[-1])
    return count if not rest and length < count <= length + LONGEST_FILL else length


def record_pieces(impl: Implementation, pieces: Sequence[Tensor]) -> list[tuple[tuple[ProjectionRecord, ...], Tensor]]:
    """For each piece that runs through the KV cache its projections and its output; [] if they cannot be told apart."""
    assert impl.run_cached is not None
    try:
        with torch.no_grad(), record_attention(impl.module, len(pieces[0])) as found:
            out = impl.run_cached(pieces)
    except Exception:  # so many rows are not supported, or a length is not
        return []
    made = found[0].projections
    count, rest = divmod(len(made), len(pieces))
    if rest or not count:
        return []
    outs = out.detach().double().split([piece.shape[1] for piece in pieces], dim=1)
    return [(made[number * count : (number + 1) * count], part) for number, part in enumerate(outs)]


def measure_grouping(impl: Implementation) -> str | None:
    """Which query heads use the first key head, as "repeated" or "tiled", by changing what its projection gives.

    None if no projection of fewer key heads is found, or if other heads change.
    """
    for layout in (layout for group in observe_module(impl) for layout, _ in group if impl.module is not None):
        before = _observe(impl, layout, Case(7))
        if layout.kv_heads == layout.heads or before is None or impl.module is None or not layout.names[1]:
            continue
        place, how = layout.parts[1]
        recording, _ = _record(impl, Case(7))
        assert recording is not None
        made = recording.projections[place]
        batch, length = before.k.shape[0], before.k.shape[1]
        numbers = torch.arange(made.output.shape[-1]).expand(batch, length, -1)
        features = _features(replace(made, output=numbers), how, layout, (batch, length, False))
        assert features is not None
        first = features[0, 0, : layout.head_dim]

        def change(part: nn.Module, inputs: Any, out: Tensor, first: Tensor = first) -> Tensor:
            out = out.clone()
            out[..., first] = out[..., first].flip(-1) + 0.5
            return out

        hook = impl.module.get_submodule(layout.names[1]).register_forward_hook(change)
        try:
            after = _observe(impl, layout, Case(7))
        finally:
            hook.remove()
        if after is None:
            continue
        changed = (after.out - before.out).abs().unflatten(-1, (layout.heads, -1)).amax((0, 1, 3)) > 1e-9
        users = changed.nonzero()[:, 0].tolist()
        rate = layout.heads // layout.kv_heads
        if users == list(range(rate)):
            return "repeated"
        if users == list(range(0, layout.heads, layout.kv_heads)):
            return "tiled"
    return None


def _sequence(x: Tensor, batch: int, length: int, sequence_first: bool) -> Tensor | None:
    n = x.shape[-1]
    if x.numel() != batch * length * n:
        return None
    return x.reshape(length, batch, n).transpose(0, 1) if sequence_first else x.reshape(batch, length, n)


def _features(made: ProjectionRecord, how: str, layout: Layout, shape: tuple[int, int, bool]) -> Tensor | None:
    """The features of q, k or v in a projection: all of them, one of three parts, or one part of each head."""
    x = _sequence(made.output, *shape)
    if x is None:
        return None
    kind, _, number = how.partition(" ")
    if kind == "whole":
        return x
    place = int(number)
    if kind == "grouped":  # queries of all heads, then keys, then values
        q, kv = layout.heads * layout.head_dim, layout.kv_heads * layout.head_dim
        return x.split((q, kv, kv), dim=-1)[place]
    if kind == "pair":
        return x.chunk(2, dim=-1)[place]
    if kind == "headpair":
        return x.unflatten(-1, (layout.kv_heads, 2, -1))[..., place, :].flatten(2)
    return x.unflatten(-1, (layout.heads, 3, -1))[..., place, :].flatten(2)  # "perhead"


def _layouts(module: nn.Module | None, recording: Recording, out: Tensor | None, length: int) -> Iterator[Layout]:
    counts = _head_counts(module)
    recorded = [attention.heads for attention in recording.attentions if attention.heads > 1]
    for first, members in _runs(recording.projections):
        sizes = [recording.projections[index].output.shape[-1] for index in members]
        for parts, features, kv_features in _assignments(recording.projections, members, sizes):
            reader = _reader(recording.projections, members[-1], features)
            if reader is None and (out is None or out.shape[-1] != features):
                continue
            name = recording.projections[first].name.rpartition(".")[0]
            given = recording.projections[first].given
            for sequence_first in _row_orders(given, 2, length):
                for heads in dict.fromkeys((*recorded, *(counts or _divisors(features)))):
                    d = features // heads
                    if features % heads or kv_features % d or heads % max(kv_features // d, 1):
                        continue
                    used = [index for index, _ in parts] + ([] if reader is None else [reader])
                    names = tuple(recording.projections[index].name for index in used)
                    yield Layout(parts, reader, heads, kv_features // d, d, sequence_first, name=name, names=names)


def _row_orders(given: Tensor, batch: int, length: int) -> list[bool]:
    """Whether tokens come before rows: read so, equal rows of the batch are equal."""
    orders = []
    for sequence_first in (False, True):
        x = _sequence(given, batch, _filled_length(given, batch, length), sequence_first)
        if x is not None and float((x - x[:1]).abs().max()) <= 1e-9 * float(x.abs().max()):
            orders.append(sequence_first)
    return orders or [False, True]


def _runs(made: Sequence[ProjectionRecord]) -> Iterator[tuple[int, list[int]]]:
    """Projections that follow each other and read the same input."""
    start = 0
    while start < len(made):
        members = [start]
        for index in range(start + 1, len(made)):
            same = made[index].given.numel() == made[start].given.numel() and torch.equal(
                made[index].given.flatten(), made[start].given.flatten()
            )
            if not same:
                break
            members.append(index)
        yield start, members
        start = members[-1] + 1


Assignment = tuple[tuple[tuple[int, str], tuple[int, str], tuple[int, str]], int, int]


def _assignments(made: Sequence[ProjectionRecord], members: list[int], sizes: list[int]) -> Iterator[Assignment]:
    """q, k, v as parts of a run of projections, with the number of features of queries and of keys."""
    if len(members) >= 3:
        order = _by_name(made, members) or tuple(members[:3])
        q, k, v = order
        n, m = made[q].output.shape[-1], made[k].output.shape[-1]
        if m == made[v].output.shape[-1]:
            yield ((q, "whole"), (k, "whole"), (v, "whole")), n, m
    elif len(members) == 2 and sizes[1] % 2 == 0:
        q, kv = members
        yield ((q, "whole"), (kv, "pair 0"), (kv, "pair 1")), sizes[0], sizes[1] // 2
        yield ((q, "whole"), (kv, "headpair 0"), (kv, "headpair 1")), sizes[0], sizes[1] // 2
    elif len(members) == 1:
        given, n = made[members[0]].given.shape[-1], sizes[0]
        one = members[0]
        if n % 3 == 0:
            yield ((one, "grouped 0"), (one, "grouped 1"), (one, "grouped 2")), n // 3, n // 3
            yield ((one, "perhead 0"), (one, "perhead 1"), (one, "perhead 2")), n // 3, n // 3
        if n > given and (n - given) % 2 == 0 and n != 3 * given:
            yield ((one, "grouped 0"), (one, "grouped 1"), (one, "grouped 2")), given, (n - given) // 2


def _by_name(made: Sequence[ProjectionRecord], members: list[int]) -> tuple[int, int, int] | None:
    """The projections whose names say that they make queries, keys and values."""
    found: dict[str, int] = {}
    for index in members:
        last = made[index].name.rpartition(".")[2].lower()
        for letter, words in (("q", ("query", "queries")), ("k", ("key", "keys")), ("v", ("value", "values"))):
            core = last.replace("proj", "").replace("linear", "").replace("_", "").removeprefix("w").removeprefix("to")
            if core in (letter, *words) or any(word in last for word in words):
                found.setdefault(letter, index)
    return (found["q"], found["k"], found["v"]) if len(found) == 3 else None


def _reader(made: Sequence[ProjectionRecord], after: int, features: int) -> int | None:
    following = after + 1
    return following if following < len(made) and made[following].given.shape[-1] == features else None


def _head_counts(module: nn.Module | None) -> list[int]:
    """Head counts among the attributes of a module and its parts."""
    parts: list[Any] = [] if module is None else list(module.modules())
    found = [
        value
        for part in parts
        for name in HEAD_COUNTS
        if isinstance(value := getattr(part, name, None), int) and not isinstance(value, bool) and value > 0
    ]
    return sorted(set(found), reverse=True)


def _divisors(n: int) -> list[int]:
    return [h for h in (4, 2, 8, 1) if n % h == 0]
