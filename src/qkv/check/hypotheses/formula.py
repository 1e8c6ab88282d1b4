"""Attention as a formula in steps, from the features of q, k and v to the merged heads. A hypothesis changes a step.

Axes: b batch · h heads · g key heads · t queries · s keys · d head dim · n features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Role = Literal["q", "k", "v"]
Rotary = Literal["none", "halves", "interleaved"]
Norms = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]  # of queries and of keys (b, h, t, d)


@dataclass(frozen=True)
class Sizes:
    """The sizes of one call; offset: how many keys come before the first query."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int

    @property
    def offset(self) -> int:
        return self.keys - self.queries


@dataclass(frozen=True, eq=False)
class Observation:
    """What went into one attention and what came out of it.

    Args:
        q: (b, t, h·d), k and v: (b, s, g·d): features of the projections, before any rotation.
        out: (b, t, h·d), the merged heads.
        given: (b, t, s), the mask that was passed, True = may attend; None without one.
        tokens: (b, s), True for real tokens, if the mask was one of padding.
        tolerance: how far an output may be from the formula, relative to the largest.
        fill: (b, e, g·d), keys and values of tokens that the code itself put after the last, to fill a length.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    sizes: Sizes
    given: Tensor | None = None
    tokens: Tensor | None = None
    tolerance: float = 1e-7
    fill: tuple[Tensor, Tensor] | None = None

    def fits(self, found: Tensor, *, all_rows: bool = False) -> bool:
        """Whether a formula gives this output; without all_rows, the outputs of padding may be anything."""
        return self.off(found, all_rows=all_rows) <= self.tolerance

    def off(self, found: Tensor, *, all_rows: bool = False) -> float:
        """The largest difference from what a formula gives, relative to the largest output."""
        if found.shape != self.out.shape:
            return float("inf")
        difference = (found - self.out).abs()
        if self.tokens is not None and self.tokens.shape[1] == difference.shape[1] and not all_rows:
            difference = difference[self.tokens]
        size = float(self.out.abs().max()) or 1.0
        return float(difference.max()) / size if bool(difference.isfinite().all()) else float("inf")


def split_heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def split_role(x: Tensor, heads: int, role: Role) -> Tensor:
    return split_heads(x, heads)


def merge_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def repeat_heads(x: Tensor, heads: int, role: Role) -> Tensor:
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def tile_heads(x: Tensor, heads: int, role: Role) -> Tensor:
    return x.repeat(1, heads // x.shape[1], 1, 1)


def frequencies(head_dim: int, base: float = 10_000.0) -> Tensor:
    return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)


def rotate_by(x: Tensor, angles: Tensor, pairing: Rotary) -> Tensor:
    """x (…, t, d) rotated by angles (t, d/2)."""
    if pairing == "none":
        return x
    angles = angles.to(x)
    cos, sin = angles.cos(), angles.sin()
    if pairing == "halves":
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


def rotate(
    x: Tensor,
    positions: Tensor,
    role: Role,
    pairing: Rotary = "none",
    base: float = 10_000.0,
    dims: int | None = None,
) -> Tensor:
    """Rotary positions of queries and keys, of their first dims if given; values stay."""
    if pairing == "none" or role == "v" or x.shape[-1] % 2:
        return x
    if dims is not None and dims < x.shape[-1]:
        return torch.cat((rotate(x[..., :dims], positions, role, pairing, base), x[..., dims:]), -1)
    return rotate_by(x, positions.double()[:, None] * frequencies(x.shape[-1], base), pairing)


def causal_mask(sizes: Sizes, window: int | None = None) -> Tensor:
    """(t, s): the last query sees all keys."""
    distance = torch.arange(sizes.queries)[:, None] + sizes.offset - torch.arange(sizes.keys)
    return (distance >= 0) if window is None else (distance >= 0) & (distance < window)


def full_mask(sizes: Sizes) -> Tensor:
    return torch.ones(sizes.queries, sizes.keys, dtype=torch.bool)


def given_mask(given: Tensor) -> Tensor:
    return given[:, None]


def weigh(scores: Tensor, mask: Tensor) -> Tensor:
    """A softmax over the visible keys; rows without any are zero."""
    nothing = ~mask.any(-1, keepdim=True)
    return scores.masked_fill(~(mask | nothing), float("-inf")).softmax(-1).masked_fill(nothing, 0.0)


def average(scores: Tensor, mask: Tensor, v: Tensor) -> Tensor:
    return weigh(scores, mask) @ v


def uniform_average(scores: Tensor, mask: Tensor, v: Tensor) -> Tensor:
    """A row that sees nothing has equal weights, which a large negative number leaves of them."""
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) @ v


def head_scale(sizes: Sizes) -> float:
    return sizes.head_dim**-0.5


@dataclass(frozen=True)
class Formula:
    """The steps of attention; the defaults are the textbook's, without a mask and without positions."""

    split: Callable[[Tensor, int, Role], Tensor] = split_role
    inputs: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] = lambda q, k, v: (q, k, v)
    rotate: Callable[[Tensor, Tensor, Role], Tensor] = lambda x, positions, role: x
    share: Callable[[Tensor, int, Role], Tensor] = repeat_heads
    scale: Callable[[Sizes], float] = head_scale
    scores: Callable[[Tensor, Tensor, float], Tensor] = lambda q, k, scale: q @ k.mT * scale
    bias: Callable[[Tensor], Tensor] = lambda scores: scores
    mask: Callable[[Sizes], Tensor] = full_mask
    given: Callable[[Tensor], Tensor] = given_mask
    core: Callable[[Tensor, Tensor, Tensor], Tensor] = average
    given_core: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None  # with a mask that was given, apart
    merge: Callable[[Tensor], Tensor] = merge_heads
    fills: bool = False  # whether tokens that fill a length are seen by all

    def __call__(self, seen: Observation) -> Tensor:
        """The merged heads (b, t, h·d)."""
        sizes = seen.sizes
        q = self.split(seen.q, sizes.heads, "q")
        fill = seen.fill if self.fills else None
        k, v = (seen.k, seen.v) if fill is None else (torch.cat((seen.k, fill[0]), 1), torch.cat((seen.v, fill[1]), 1))
        k, v = self.split(k, sizes.kv_heads, "k"), self.split(v, sizes.kv_heads, "v")
        q, k, v = self.inputs(q, k, v)
        places, more = torch.arange(k.shape[2]), k.shape[2] - sizes.keys
        q = self.rotate(q, places[sizes.offset : sizes.keys], "q")
        k, v = self.rotate(k, places, "k"), self.rotate(v, places, "v")
        k, v = self.share(k, q.shape[1], "k"), self.share(v, q.shape[1], "v")
        scores = self.scores(q, k, self.scale(sizes))
        own = self.bias(scores[..., : sizes.keys]) if more else self.bias(scores)
        scores = torch.cat((own, scores[..., sizes.keys :]), -1) if more else own
        mask = self.mask(sizes)
        if seen.given is not None and self.given_core is not None:
            return self.merge(self.given_core(scores, mask, v, seen.given))
        if seen.given is not None:
            mask = mask & self.given(seen.given)
        mask = F.pad(mask, (0, more), value=True) if more else mask
        return self.merge(self.core(scores, mask, v))

    def but(self, **steps: Any) -> Formula:
        """The formula with some steps replaced."""
        return replace(self, **steps)


@dataclass(frozen=True)
class Design:
    """Choices that are no bugs unless something else was promised: positions, head sharing, mask, scale and softcap."""

    rotary: Rotary = "none"
    base: float = 10_000.0
    alibi: bool = False
    tiled: bool = False
    causal: bool = True
    window: int | None = None
    scale: float | None = None
    cap: float | None = None
    rotary_dim: int | None = None
    norms: Norms | None = None
    visible: Callable[[Sizes], Tensor] | None = None  # a mask that was measured, of a prefix or of chunks

    @property
    def formula(self) -> Formula:
        steps: dict[str, Any] = {}
        if self.norms is not None:
            normed = self.norms
            steps["inputs"] = lambda q, k, v: (normed[0](q), normed[1](k), v)
        if self.causal:
            steps["mask"] = partial(causal_mask, window=self.window)
        if self.visible is not None:
            steps["mask"] = self.visible
        if self.rotary != "none":
            steps["rotate"] = partial(rotate, pairing=self.rotary, base=self.base, dims=self.rotary_dim)
        if self.alibi:
            steps["bias"] = alibi_bias
        if self.tiled:
            steps["share"] = tile_heads
        if self.scale is not None:
            steps["scale"] = lambda sizes: self.scale
        if self.cap is not None:
            steps["scores"] = lambda q, k, scale: self.cap * (q @ k.mT * scale / self.cap).tanh()
        return Formula(**steps)


def alibi_slopes(heads: int) -> Tensor:
    return 2.0 ** (-8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)


def distances(scores: Tensor) -> Tensor:
    """(t, s): how far each key is behind the query."""
    t, s = scores.shape[-2:]
    return (torch.arange(t)[:, None] + s - t - torch.arange(s)).to(scores)


def alibi_bias(scores: Tensor, slopes: Callable[[int], Tensor] = alibi_slopes) -> Tensor:
    return scores - slopes(scores.shape[1]).to(scores)[:, None, None] * distances(scores)
