"""Rotary position embedding (RoPE) and its scalings for long contexts: linear, NTK, Llama 3, YaRN.

Axes: b batch · h heads · t tokens · d head dim.

Each pair of features is a point in the plane, rotated by an angle that grows with the position. The score of a query at
position m and a key at position n then depends on m − n alone.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv._config import variant
from qkv.nn.positions import PositionScheme, Rotation, get_angle_dtype

Pairing = Literal["interleaved", "halves"]


@dataclass(frozen=True)
class RopeScaling:
    """How RoPE is stretched to contexts longer than the trained one, by changing frequencies. This one does nothing."""

    @property
    def amplitude(self) -> float:
        """Factor of cosine and sine."""
        return 1.0

    def frequencies(self, dim: int, base: float) -> Float[Tensor, " pairs"]:
        """The angle from one token to the next, for each pair: base^(−2i/d), as published."""
        return base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)


@variant
@dataclass(frozen=True)
class Rope(PositionScheme):
    """Rotary position embedding (RoPE).

    Args:
        base: the slowest pair turns once in about 2π·base tokens (rope_theta).
        pairing: "interleaved" rotates features (0, 1), (2, 3), … as published; "halves" rotates (i, i + d/2) as Llama.
        rotary_dim: number of a head's first features that are rotated; None is all.
        scaling: stretches the frequencies for contexts longer than the trained one.

    >>> x = torch.tensor([[[[1.0, 0.0]]]])
    >>> Rope()(x, offset=1).round(decimals=3).tolist()
    [[[[0.5..., 0.841...]]]]
    """

    base: float = 10000.0
    pairing: Pairing = "interleaved"
    rotary_dim: int | None = None
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        if self.pairing not in ("interleaved", "halves"):
            raise ValueError(f"pairing of Rope must be 'interleaved' or 'halves', got {self.pairing!r}")
        if self.base <= 0:
            raise ValueError(f"base of Rope must be positive, got {self.base}")
        if self.rotary_dim is not None and (self.rotary_dim < 2 or self.rotary_dim % 2):
            raise ValueError(f"rotary_dim of Rope must be an even number of at least 2, got {self.rotary_dim}")

    def __call__(
        self, x: Float[Tensor, "*b t d"], positions: Tensor | None = None, *, offset: int = 0
    ) -> Float[Tensor, "*b t d"]:
        """Rotate x by its positions, (t,) or (b, t); they are counted from `offset` if not given."""
        if positions is None:
            positions = torch.arange(offset, offset + x.shape[-2], device=x.device)
        if positions.shape[-1] != x.shape[-2]:
            raise ValueError(f"there must be one position per token, got {positions.shape[-1]} for {x.shape[-2]}")
        rotation = self.rotation(positions, x.shape[-1], x.dtype)
        if positions.ndim == 2 and x.ndim == 3:  # x has no heads
            rotation = Rotation(rotation.cos.squeeze(-3), rotation.sin.squeeze(-3))
        return self.rotate(x, rotation)

    def build(self, heads: int, head_dim: int) -> "Rope":
        self.rotated_dim(head_dim)
        return self

    def rotated_dim(self, head_dim: int) -> int:
        """The number of features of a head that are rotated."""
        dim = head_dim if self.rotary_dim is None else self.rotary_dim
        if dim % 2 or dim > head_dim:
            raise ValueError(
                f"Rope rotates an even number of features, at most head_dim={head_dim}, got {dim}; try "
                f"Rope(rotary_dim={min(dim, head_dim) // 2 * 2})"
            )
        return dim

    def rotation(self, positions: Int[Tensor, "... t"], head_dim: int, dtype: torch.dtype) -> Rotation:
        """The table of angles for these positions, which all layers of a model share."""
        dim, exact = self.rotated_dim(head_dim), get_angle_dtype(positions.device)
        scaling = self.scaling or RopeScaling()
        frequencies = scaling.frequencies(dim, self.base).to(positions.device, exact)
        angles = positions[..., None].to(exact) * frequencies
        angles = angles if positions.ndim == 1 else angles.unsqueeze(-3)
        dtype = torch.promote_types(dtype, torch.float32)
        amplitude = scaling.amplitude
        return Rotation((angles.cos() * amplitude).to(dtype), (angles.sin() * amplitude).to(dtype))

    def rotate(self, x: Float[Tensor, "*b t d"], rotation: Rotation | None) -> Float[Tensor, "*b t d"]:
        """Rotate the pairs of x by a table of angles, at least in float32."""
        if rotation is None:
            raise ValueError("Rope needs a table of angles: rope.rotation(positions, head_dim, dtype)")
        dim = 2 * rotation.cos.shape[-1]
        features = x[..., :dim].to(rotation.cos.dtype)
        if self.pairing == "interleaved":
            first, second = features[..., 0::2], features[..., 1::2]
        else:
            first, second = features.chunk(2, dim=-1)
        pairs = (
            first * rotation.cos - second * rotation.sin,
            second * rotation.cos + first * rotation.sin,
        )
        rotated = torch.stack(pairs, -1).flatten(-2) if self.pairing == "interleaved" else torch.cat(pairs, -1)
        rotated = rotated.to(x.dtype)
        return rotated if dim == x.shape[-1] else torch.cat((rotated, x[..., dim:]), dim=-1)


@variant
@dataclass(frozen=True)
class LinearScaling(RopeScaling):
    """Position interpolation: positions are divided by `factor`."""

    factor: float

    def __post_init__(self) -> None:
        _check_positive(self, "factor")

    def frequencies(self, dim: int, base: float) -> Float[Tensor, " pairs"]:
        return super().frequencies(dim, base) / self.factor


@variant
@dataclass(frozen=True)
class NtkScaling(RopeScaling):
    """NTK-aware scaling: a larger base stretches the slowest pair by `factor` and keeps the fastest."""

    factor: float

    def __post_init__(self) -> None:
        _check_positive(self, "factor")

    def frequencies(self, dim: int, base: float) -> Float[Tensor, " pairs"]:
        return super().frequencies(dim, base * self.factor ** (dim / max(dim - 2, 1)))


@variant
@dataclass(frozen=True)
class Llama3Scaling(RopeScaling):
    """Llama 3: slow pairs are stretched by `factor`, fast pairs are kept, those in between are blended."""

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_length: int = 8192

    def __post_init__(self) -> None:
        _check_positive(self, "factor", "original_max_length")
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor of Llama3Scaling must be below high_freq_factor, got {self.low_freq_factor} and "
                f"{self.high_freq_factor}"
            )

    def frequencies(self, dim: int, base: float) -> Float[Tensor, " pairs"]:
        plain = super().frequencies(dim, base)
        turns = self.original_max_length * plain / (2 * math.pi)  # of each pair within the trained context
        kept = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return kept * plain + (1 - kept) * plain / self.factor


@variant
@dataclass(frozen=True)
class YarnScaling(RopeScaling):
    """YaRN: blends like Llama 3, but linearly in pairs, and sharpens the scores.

    Args:
        beta_fast, beta_slow: turns within the trained context between which pairs are blended.
        attention_factor: factor of cosine and sine; None is 0.1·ln(factor) + 1.
        truncate: round the blended range to whole pairs.
    """

    factor: float
    original_max_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        _check_positive(self, "factor", "original_max_length", "beta_fast", "beta_slow")

    @property
    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return 1.0 if self.factor <= 1 else 0.1 * math.log(self.factor) + 1.0

    def frequencies(self, dim: int, base: float) -> Float[Tensor, " pairs"]:
        def find_pair(turns: float) -> float:
            return dim * math.log(self.original_max_length / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = find_pair(self.beta_fast), find_pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        plain = super().frequencies(dim, base)
        pairs = torch.arange(dim // 2, dtype=torch.float64)
        stretched = ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
        return stretched * plain / self.factor + (1 - stretched) * plain


def _check_positive(scaling: RopeScaling, *names: str) -> None:
    for name in names:
        if getattr(scaling, name) <= 0:
            raise ValueError(f"{name} of {type(scaling).__name__} must be positive, got {getattr(scaling, name)}")
