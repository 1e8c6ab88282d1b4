"""Position encodings: sinusoids, ALiBi, T5's relative bias, Shaw's relative keys. (RoPE is in rope.py.)

Axes: b batch · h heads · t queries · s keys · d head dim · c model dim.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv._config import variant


def sinusoidal(
    positions: int | Tensor, dim: int, *, base: float = 10000.0, dtype: torch.dtype | None = None
) -> Float[Tensor, "*t c"]:
    """Sinusoidal position vectors of the 2017 transformer: sin(p·base^(−2i/c)) at feature 2i, cos at 2i + 1.

    Args:
        positions: a length, or a tensor of positions.
        dim: the model dim c.

    >>> (100 * sinusoidal(2, 4)).int().tolist()
    [[0, 100, 0, 100], [84, 54, 0, 99]]
    """
    if dim < 1:
        raise ValueError(f"the dim of sinusoids must be at least 1, got {dim}")
    if isinstance(positions, int):
        positions = torch.arange(positions)
    exact = get_angle_dtype(positions.device)
    pairs = torch.arange(0, dim, 2, dtype=exact, device=positions.device)
    angles = positions[..., None].to(exact) * base ** (-pairs / dim)
    waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
    return waves[..., :dim].to(dtype or torch.get_default_dtype())


def get_angle_dtype(device: torch.device) -> torch.dtype:
    """float64 where the device has it: in float32 the angle of position 30,000 loses its last three digits."""
    return torch.float32 if device.type == "mps" else torch.float64


def count_positions(token_mask: Bool[Tensor, "b t"]) -> Int[Tensor, "b t"]:
    """Positions counted over real tokens; padding takes the position of the token before it.

    >>> count_positions(torch.tensor([[False, True, False, True]])).tolist()
    [[0, 0, 0, 1]]
    """
    return (token_mask.long().cumsum(-1) - 1).clamp(min=0)


class Rotation(NamedTuple):
    """Cosine and sine of every angle: (t, pairs), or (b, 1, t, pairs) where rows have different positions."""

    cos: Float[Tensor, "... t pairs"]
    sin: Float[Tensor, "... t pairs"]


@dataclass(frozen=True, eq=False)
class DistanceBias:
    """A lazy bias that depends on distance: `of(distance, rows)` gives (…, h, t, s) for distances key − query."""

    of: Callable[[Tensor, range], Tensor]
    queries: Int[Tensor, "*b t"]
    keys: Int[Tensor, "*b s"]

    def tile(self, rows: range, columns: range) -> Float[Tensor, "... h t s"]:
        queries = self.queries[..., rows.start : rows.stop, None]
        keys = self.keys[..., None, columns.start : columns.stop]
        return self.of(keys - queries, rows)

    def to_dense(self) -> Float[Tensor, "... h t s"]:
        """The whole bias as a tensor."""
        return self.tile(range(self.queries.shape[-1]), range(self.keys.shape[-1]))


class PositionScheme:
    """A position encoding inside attention: it rotates queries and keys, adds a bias to the scores, or both.

    `build` gives the scheme for one layer: itself, or a module with parameters for that layer's heads.
    """

    def build(self, heads: int, head_dim: int) -> "PositionScheme":
        return self

    def rotation(self, positions: Tensor, head_dim: int, dtype: torch.dtype) -> Rotation | None:
        """The angles that `rotate` needs; computed once and shared by all layers."""
        return None

    def rotate(self, x: Float[Tensor, "*b t d"], rotation: Rotation | None) -> Float[Tensor, "*b t d"]:
        """Rotate queries or keys by their positions."""
        return x

    def bias(
        self, q: Float[Tensor, "b h t d"], queries: Tensor, keys: Tensor, *, scale: float = 1.0
    ) -> DistanceBias | None:
        """The bias added to the scores.

        Args:
            queries, keys: positions (t,) and (s,), or (b, t) and (b, s).
            scale: what the layer multiplies q·k by, for a bias that is part of q·k.
        """
        return None


class Positions:
    """Positions of the queries and keys of one call: (t,) and (s,), or (b, t) and (b, s) where rows differ.

    Tables made from positions (RoPE's angles) are computed once and shared by all layers.

    Args:
        query_mask: (b, t), which queries are real tokens, for scores that use the previous query; None is all.
    """

    def __init__(self, queries: Tensor, keys: Tensor | None = None, query_mask: Tensor | None = None) -> None:
        self.queries = queries
        self.keys = queries if keys is None else keys
        self.query_mask = query_mask
        self._tables: dict[object, Rotation | None] = {}

    @classmethod
    def count(
        cls, t: int, s: int, token_mask: Tensor | None, device: torch.device, *, cross: bool = False
    ) -> "Positions":
        """Count positions over real tokens. The queries are the last t of s tokens, or t other tokens (cross)."""
        keys = torch.arange(s, device=device) if token_mask is None else count_positions(token_mask)
        if cross:
            return cls(torch.arange(t, device=device), keys)
        return cls(keys[..., s - t :], keys, None if token_mask is None else token_mask[:, s - t :])

    def rotation(self, scheme: PositionScheme, head_dim: int, dtype: torch.dtype) -> Rotation | None:
        """The scheme's angles for the queries."""
        key = (scheme, head_dim, dtype)
        if key not in self._tables:
            self._tables[key] = scheme.rotation(self.queries, head_dim, dtype)
        return self._tables[key]


# ALiBi.


def alibi_slopes(heads: int) -> Float[Tensor, " h"]:
    """Slopes 2^(−8i/h) for i = 1..h; between powers of two, every other slope of the next power is added.

    >>> alibi_slopes(3).tolist()
    [0.0625, 0.00390625, 0.25]
    """
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    slopes += [2 ** (-8 * i / (2 * power)) for i in range(1, 2 * power + 1, 2)][: heads - power]
    return torch.tensor(slopes, dtype=torch.float64)


@variant
@dataclass(frozen=True)
class Alibi(PositionScheme):
    """ALiBi, attention with linear biases: −slope·|key − query|, one slope per head.

    >>> positions = torch.arange(3)
    >>> Alibi().bias(torch.zeros(1, 2, 3, 4), positions, positions).to_dense()[0].tolist()
    [[0.0, -0.0625, -0.125], [-0.0625, 0.0, -0.0625], [-0.125, -0.0625, 0.0]]
    """

    def bias(self, q: Float[Tensor, "b h t d"], queries: Tensor, keys: Tensor, *, scale: float = 1.0) -> DistanceBias:
        exact = torch.promote_types(q.dtype, torch.float32)  # bfloat16 cannot count beyond 256
        slopes = alibi_slopes(q.shape[1]).to(q.device, exact)[:, None, None]
        return DistanceBias(lambda distance, _: slopes * -distance.abs().unsqueeze(-3), queries, keys)


# T5.


def t5_buckets(
    distance: Int[Tensor, "*shape"], *, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
) -> Int[Tensor, "*shape"]:
    """T5's bucket of each distance key − query: one bucket each when near, logarithmic up to `max_distance`.

    >>> t5_buckets(torch.tensor([-200, -8, -1, 0, 1, 200])).tolist()
    [15, 8, 1, 0, 17, 31]
    """
    if bidirectional:
        num_buckets //= 2
        first, back = (distance > 0) * num_buckets, distance.abs()
    else:
        first, back = torch.zeros_like(distance), (-distance).clamp(min=0)
    near = num_buckets // 2
    # float32, as the published models were trained: in float64 a distance on a bucket's edge may fall on the other side
    fraction = torch.log(back.clamp(min=1).float() / near) / math.log(max_distance / near)
    far = (near + (fraction * (num_buckets - near)).long()).clamp(max=num_buckets - 1)
    return first + torch.where(back < near, back, far)


@variant
@dataclass(frozen=True)
class T5Bias(PositionScheme):
    """T5's relative position bias: one learned number for each head and each bucket of distances.

    Args:
        bidirectional: whether distances ahead have their own buckets; False for a causal layer.
    """

    num_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True

    def __post_init__(self) -> None:
        if self.num_buckets < 4 or self.num_buckets % 2 or self.max_distance <= self.num_buckets // 2:
            raise ValueError(
                f"T5Bias needs an even num_buckets of at least 4 and max_distance above half of it, got "
                f"num_buckets={self.num_buckets}, max_distance={self.max_distance}"
            )

    def build(self, heads: int, head_dim: int) -> PositionScheme:
        return T5BiasTable(self, heads)


class T5BiasTable(nn.Module, PositionScheme):
    """The parameters of a T5Bias: a table of buckets × heads."""

    def __init__(self, scheme: T5Bias, heads: int) -> None:
        super().__init__()
        self.scheme = scheme
        self.table = nn.Embedding(scheme.num_buckets, heads)

    def bias(self, q: Float[Tensor, "b h t d"], queries: Tensor, keys: Tensor, *, scale: float = 1.0) -> DistanceBias:
        scheme = self.scheme

        def of(distance: Tensor, _: range) -> Tensor:
            buckets = t5_buckets(
                distance,
                num_buckets=scheme.num_buckets,
                max_distance=scheme.max_distance,
                bidirectional=scheme.bidirectional,
            )
            return self.table(buckets).movedim(-1, -3)

        return DistanceBias(of, queries, keys)


# Shaw et al.


@variant
@dataclass(frozen=True)
class Shaw(PositionScheme):
    """Shaw's relative keys: a learned vector for each distance up to `max_distance` is added to the key.

    As in the paper, but without its vectors for the values (the paper found no gain from them).
    """

    max_distance: int = 16

    def __post_init__(self) -> None:
        if self.max_distance < 1:
            raise ValueError(f"max_distance of Shaw must be at least 1, got {self.max_distance}")

    def build(self, heads: int, head_dim: int) -> PositionScheme:
        return ShawTable(self, head_dim)


class ShawTable(nn.Module, PositionScheme):
    """The parameters of a Shaw scheme: a vector for each distance from −max_distance to max_distance."""

    def __init__(self, scheme: Shaw, head_dim: int) -> None:
        super().__init__()
        self.scheme = scheme
        self.vectors = nn.Parameter(torch.randn(2 * scheme.max_distance + 1, head_dim) * head_dim**-0.5)

    def bias(self, q: Float[Tensor, "b h t d"], queries: Tensor, keys: Tensor, *, scale: float = 1.0) -> DistanceBias:
        limit = self.scheme.max_distance
        scores = scale * (q @ self.vectors.mT)  # of each query with each distance

        def of(distance: Tensor, rows: range) -> Tensor:
            index = distance.clamp(-limit, limit) + limit
            index = index.unsqueeze(-3).expand(*scores.shape[:2], *index.shape[-2:])
            return scores[..., rows.start : rows.stop, :].gather(-1, index)

        return DistanceBias(of, queries, keys)
