"""The designs that a contract allows, and what names and numbers in a module say about its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.calling.names import parameters_of
from qkv.check.contract import Contract
from qkv.check.hypotheses.formula import Design, Norms, Observation, Sizes, merge_heads, split_heads
from qkv.check.implementation import Implementation
from qkv.check.influence import measure_influence, name_kind
from qkv.check.tracing.readings import read_attentions


@dataclass(frozen=True)
class Clues:
    """What names and numbers in a module say about its design.

    Args:
        bases: of RoPE, beside 10,000. caps: of the scores. rotary_dims: how many dims of a head are rotated.
        norms: of queries and keys. rotates: whether they may be rotated.
        visible: the mask that was measured, if a prefix or chunks are promised.
    """

    bases: Sequence[float] = (500_000.0, 1e6)
    caps: Sequence[float] = ()
    rotary_dims: Sequence[int] = ()
    norms: Norms | None = None
    rotates: bool = True
    visible: Callable[[Sizes], Tensor] | None = None


def find_clues(impl: Implementation, seen: Observation) -> Clues:
    dims = rotary_dims(impl, seen.sizes.head_dim)
    return Clues(rotary_bases(impl), softcaps(impl), dims, find_norms(impl, seen), not is_unrotated(impl))


def measure_mask(impl: Implementation) -> Callable[[Sizes], Tensor] | None:
    """The mask of a prefix or of chunks, measured at a length that shows most of them; None if it is neither."""
    kind = name_kind(measure_influence(replace(impl, length=impl.nearest_length(40)), draws=1))
    prefix = re.fullmatch(r"prefix of (\d+)", kind)
    chunks = re.fullmatch(r"chunks of (\d+)(?:, (\d+) before)?(, causal)?", kind)
    if prefix is not None:
        return partial(_prefix_mask, size=int(prefix[1]))
    return None if chunks is None else partial(_chunk_mask, int(chunks[1]), int(chunks[2] or 0), bool(chunks[3]))


def _prefix_mask(sizes: Sizes, size: int) -> Tensor:
    i, j = torch.arange(sizes.queries)[:, None] + sizes.offset, torch.arange(sizes.keys)
    return (j <= i) | (j < size)


def _chunk_mask(size: int, before: int, causal: bool, sizes: Sizes) -> Tensor:
    i, j = torch.arange(sizes.queries)[:, None] + sizes.offset, torch.arange(sizes.keys)
    back = i // size - j // size
    return (back >= 0) & (back <= before) & ((j <= i) if causal else True)


def is_unrotated(impl: Implementation) -> bool:
    """Whether every attention was recorded with queries and keys that are as the projections gave them."""
    readings, _ = read_attentions(impl) if impl.module is not None else ([], None)
    rotations = [reading.rotations[name] for reading in readings for name in ("queries", "keys")]
    return bool(rotations) and all(rotation is not None and rotation.kind == "none" for rotation in rotations)


def rotary_dims(impl: Implementation, head_dim: int) -> list[int]:
    """Numbers below the head dim, or shares of it, whose names say that they are rotated."""
    found: list[int] = []
    for part in [] if impl.module is None else list(impl.module.modules()):
        for holder in (part, *(getattr(part, name, None) for name in ("config", "cfg", "args"))):
            for name, value in vars(holder).items() if hasattr(holder, "__dict__") else ():
                rotary = any(word in name.lower() for word in ("rot", "rope", "partial"))
                if rotary and type(value) in (int, float) and not isinstance(value, bool):
                    dims = value if type(value) is int else round(value * head_dim)
                    found += [dims] if 2 <= dims < head_dim and dims % 2 == 0 else []
    return list(dict.fromkeys(found))[:2]


def find_norms(impl: Implementation, seen: Observation) -> Norms | None:
    """The norms of queries and keys, if a module has some with such names."""
    d, h = seen.sizes.head_dim, seen.sizes.heads
    found: dict[str, nn.Module] = {}
    for path, part in [] if impl.module is None else list(impl.module.named_modules()):
        last = path.rpartition(".")[2].lower().replace("_", "")
        is_norm = (
            "norm" in last or "norm" in type(part).__name__.lower() or last in ("qn", "kn", "qln", "kln", "lnq", "lnk")
        )
        weights = list(part.parameters(recurse=False))
        fits = all(w.numel() in (d, h * d, seen.sizes.kv_heads * d) for w in weights)
        if is_norm and fits and not list(part.children()):
            for letter in ("q", "k"):
                if last.startswith(letter) or last.endswith(letter) or {"q": "query", "k": "key"}[letter] in last:
                    found.setdefault(letter, part)
    return (partial(_normed, found["q"]), partial(_normed, found["k"])) if len(found) == 2 else None


def _normed(norm: nn.Module, x: Tensor) -> Tensor:
    """A norm of each head, or of all heads together, by the number of its weights."""
    weights = list(norm.parameters(recurse=False))
    if not weights or weights[0].numel() == x.shape[-1]:
        return norm(x).detach().double()
    return split_heads(norm(merge_heads(x)), x.shape[1]).detach().double()


def _unit_norm(x: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)


def rare_designs(contract: Contract, seen: Observation, clues: Clues) -> Iterator[Design]:
    """Designs that only a fit can suggest: norms without gain, and, unless RoPE over all of it is promised, over a part
    of the head dim."""
    d = seen.sizes.head_dim
    if clues.norms is None:
        yield from find_designs(contract, seen, replace(clues, norms=(_unit_norm, _unit_norm)))
    if not clues.rotary_dims and contract.position != "rotary":
        dims = [part for part in (d // 2, d // 4) if part >= 2 and part % 2 == 0]
        for design in find_designs(contract, seen, replace(clues, rotary_dims=dims)):
            if design.rotary_dim is not None:
                yield design


def rotary_bases(impl: Implementation) -> list[float]:
    """Bases of RoPE: the usual ones, and numbers that a module or its config calls a theta or a base."""
    found = [500_000.0, 1e6]
    for part in [] if impl.module is None else list(impl.module.modules()):
        for holder in (part, *(getattr(part, name, None) for name in ("config", "cfg", "args"))):
            named = vars(holder) if hasattr(holder, "__dict__") else {}
            known = [value for name, value in named.items() if "theta" in name or "base" in name]
            found += [float(value) for value in known if type(value) in (int, float) and 10 < value != 10_000]
    return list(dict.fromkeys(found))[:4]


def softcaps(impl: Implementation) -> list[float]:
    """Numbers that a module, its config or a default of a function calls a cap."""
    holders: list[Any] = [] if impl.module is None else list(impl.module.modules())
    holders += [config for part in holders if (config := getattr(part, "config", None)) is not None]
    named = [pair for holder in holders if hasattr(holder, "__dict__") for pair in vars(holder).items()]
    function = getattr(impl.attention, "function", None)
    if function is not None:
        named += [(name, p.default) for name, p in parameters_of(function).items()]
    found = [float(value) for name, value in named if "cap" in name.lower() and type(value) in (int, float)]
    return [cap for cap in dict.fromkeys(found) if 0 < cap < 1000][:2]


def find_designs(
    contract: Contract,
    seen: Observation,
    clues: Clues | None = None,
) -> Iterator[Design]:
    """The designs that a contract allows; the plain ones first."""
    clues = clues or Clues()
    bases, caps = clues.bases, clues.caps
    causals = (True,) if contract.kind in ("causal", "window") else (False,)
    if contract.kind is None:
        causals = (False, True)
    scales: tuple[float | None, ...] = (None,)
    if contract.scale is None:
        scales = (None, 1.0)
    elif contract.scale != "head":
        scales = (float(contract.scale),)
    tilings = (False, True) if seen.sizes.kv_heads < seen.sizes.heads and contract.grouped is None else (False,)
    if contract.grouped == "tiled":
        tilings = (True,)
    positions = [Design(), Design(rotary="halves"), Design(rotary="interleaved"), Design(alibi=True)]
    positions += [Design(rotary=pairing, base=base) for base in bases for pairing in ("halves", "interleaved")]
    if not clues.rotates and contract.position != "rotary":
        positions = [position for position in positions if position.rotary == "none"]
    if contract.position in ("rotary", "alibi"):
        wanted = [d for d in positions if (d.alibi if contract.position == "alibi" else d.rotary != "none")]
        positions = wanted
    elif contract.position == "none":
        positions = positions[:1]
    positions = [replace(position, cap=cap) for cap in caps for position in positions[:3]] + positions
    rotated = [position for position in positions if position.rotary != "none"]
    positions = [replace(position, rotary_dim=dims) for dims in clues.rotary_dims for position in rotated] + positions
    if clues.norms is not None:
        positions = [replace(position, norms=clues.norms) for position in positions]
    for position in positions:
        for tiled in tilings:
            for scale in scales:
                for causal in causals:
                    window = contract.window if causal else None
                    yield replace(
                        position, tiled=tiled, scale=scale, causal=causal, window=window, visible=clues.visible
                    )
