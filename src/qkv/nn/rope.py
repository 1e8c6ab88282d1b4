"""Rotary positions: each pair of features is a point in the plane, turned by an angle that grows with position.

Axes: b batch · h heads · t tokens · d head width.

A query at position m and a key at position n then meet with a score that depends on m − n alone.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.nn.positions import Relative, Rotation, exact_dtype

Pairing = Literal["interleaved", "halves"]


@dataclass(frozen=True)
class Scaling:
    """How a model trained on short texts is stretched to long ones: it changes the frequencies. This one does not."""

    @property
    def amplitude(self) -> float:
        """What cosine and sine are multiplied by."""
        return 1.0

    def frequencies(self, dim: int, base: float) -> Float[Tensor, " pairs"]:
        """How far each pair turns from one token to the next: base^(−2i/d), as published."""
        return base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)


@dataclass(frozen=True)
class Rope(Relative):
    """Rotary position embedding.

    base: the slowest pair turns once in about 2π·base tokens.
    pairing: "interleaved" turns features (0, 1), (2, 3), … together, as published; "halves" turns (i, i + d/2).
    width: how many of a head's first features are turned; None is all of them.
    scaling: how frequencies are stretched for texts longer than the model was trained on.

    >>> x = torch.tensor([[[[1.0, 0.0]]]])
    >>> Rope()(x, offset=1).round(decimals=3).tolist()
    [[[[0.5..., 0.841...]]]]
    """

    base: float = 10000.0
    pairing: Pairing = "interleaved"
    rotary_dim: int | None = None
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        if self.pairing not in ("interleaved", "halves"):
            raise ValueError(f"a Rope pairs features as 'interleaved' or 'halves'; got {self.pairing!r}")
        if self.base <= 0:
            raise ValueError(f"a Rope's base is a positive number; got {self.base}")
        if self.rotary_dim is not None and (self.rotary_dim < 2 or self.rotary_dim % 2):
            raise ValueError(f"a Rope turns pairs, so its width is an even number from 2; got {self.rotary_dim}")

    def __call__(
        self, x: Float[Tensor, "*b t d"], positions: Tensor | None = None, *, offset: int = 0
    ) -> Float[Tensor, "*b t d"]:
        """Turn x by its positions: (t,) or (b, t); counted from `offset` if not given."""
        if positions is None:
            positions = torch.arange(offset, offset + x.shape[-2], device=x.device)
        if positions.shape[-1] != x.shape[-2]:
            raise ValueError(f"{x.shape[-2]} tokens stand at as many positions; got {positions.shape[-1]} of them")
        rotation = self.rotation(positions, x.shape[-1], x.dtype)
        if positions.ndim == 2 and x.ndim == 3:  # x has no heads
            rotation = Rotation(rotation.cos.squeeze(-3), rotation.sin.squeeze(-3))
        return self.turn(x, rotation)

    def build(self, heads: int, head_dim: int) -> "Rope":
        self.turned(head_dim)
        return self

    def turned(self, head_dim: int) -> int:
        """How many features of a head are turned."""
        dim = head_dim if self.rotary_dim is None else self.rotary_dim
        if dim % 2 or dim > head_dim:
            raise ValueError(
                f"a Rope turns an even number of features, at most the head's width; "
                f"got {dim} of {head_dim}; the nearest that fits: Rope(rotary_dim={min(dim, head_dim) // 2 * 2})"
            )
        return dim

    def rotation(self, positions: Int[Tensor, "... t"], head_dim: int, dtype: torch.dtype) -> Rotation:
        """The table of angles for these positions, which every layer of a model can share."""
        dim, exact = self.turned(head_dim), exact_dtype(positions.device)
        scaling = self.scaling or Scaling()
        frequencies = scaling.frequencies(dim, self.base).to(positions.device, exact)
        angles = positions[..., None].to(exact) * frequencies
        angles = angles if positions.ndim == 1 else angles.unsqueeze(-3)
        dtype = torch.promote_types(dtype, torch.float32)
        amplitude = scaling.amplitude
        return Rotation((angles.cos() * amplitude).to(dtype), (angles.sin() * amplitude).to(dtype))

    def turn(self, x: Float[Tensor, "*b t d"], rotation: Rotation | None) -> Float[Tensor, "*b t d"]:
        """Turn the pairs of x by a table of angles; in float32 at least."""
        if rotation is None:
            raise ValueError("a Rope turns by a table of angles: rope.rotation(positions, head_width, dtype)")
        dim = 2 * rotation.cos.shape[-1]
        turned = x[..., :dim].to(rotation.cos.dtype)
        if self.pairing == "interleaved":
            first, second = turned[..., 0::2], turned[..., 1::2]
        else:
            first, second = turned.chunk(2, dim=-1)
        pairs = (
            first * rotation.cos - second * rotation.sin,
            second * rotation.cos + first * rotation.sin,
        )
        turned = torch.stack(pairs, -1).flatten(-2) if self.pairing == "interleaved" else torch.cat(pairs, -1)
        turned = turned.to(x.dtype)
        return turned if dim == x.shape[-1] else torch.cat((turned, x[..., dim:]), dim=-1)


@dataclass(frozen=True)
class Linear(Scaling):
    """Positions pressed together by `factor` (position interpolation)."""

    factor: float

    def __post_init__(self) -> None:
        _positive(self, "factor")

    def frequencies(self, dim: int, base: float) -> Float[Tensor, " pairs"]:
        return super().frequencies(dim, base) / self.factor


@dataclass(frozen=True)
class Ntk(Scaling):
    """A larger base, so that the slowest pair is stretched by `factor` and the fastest not at all."""

    factor: float

    def __post_init__(self) -> None:
        _positive(self, "factor")

    def frequencies(self, dim: int, base: float) -> Float[Tensor, " pairs"]:
        return super().frequencies(dim, base * self.factor ** (dim / max(dim - 2, 1)))


@dataclass(frozen=True)
class Llama3(Scaling):
    """Llama 3: slow pairs are stretched by `factor`, fast ones are kept, those between are blended."""

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original_max_length: int = 8192

    def __post_init__(self) -> None:
        _positive(self, "factor", "original_max_length")
        if self.low >= self.high:
            raise ValueError(
                f"Llama3 blends from low to a higher number of turns; got low={self.low}, high={self.high}"
            )

    def frequencies(self, dim: int, base: float) -> Float[Tensor, " pairs"]:
        plain = super().frequencies(dim, base)
        turns = self.original_max_length * plain / (2 * math.pi)  # how often a pair turns within the trained length
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return kept * plain + (1 - kept) * plain / self.factor


@dataclass(frozen=True)
class Yarn(Scaling):
    """YaRN: as Llama 3's, with the blend measured in pairs, and scores sharpened by `attention`.

    attention: what cosine and sine are multiplied by; None is 0.1·ln(factor) + 1.
    """

    factor: float
    original_max_length: int
    fast: float = 32.0
    slow: float = 1.0
    attention: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        _positive(self, "factor", "original_max_length", "fast", "slow")

    @property
    def amplitude(self) -> float:
        if self.attention is not None:
            return self.attention
        return 1.0 if self.factor <= 1 else 0.1 * math.log(self.factor) + 1.0

    def frequencies(self, dim: int, base: float) -> Float[Tensor, " pairs"]:
        def pair_turning(turns: float) -> float:
            return dim * math.log(self.original_max_length / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = pair_turning(self.fast), pair_turning(self.slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        plain = super().frequencies(dim, base)
        pairs = torch.arange(dim // 2, dtype=torch.float64)
        stretched = ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
        return stretched * plain / self.factor + (1 - stretched) * plain


def _positive(scaling: Scaling, *names: str) -> None:
    for name in names:
        if getattr(scaling, name) <= 0:
            raise ValueError(f"{type(scaling).__name__}'s {name} is a positive number; got {getattr(scaling, name)}")
