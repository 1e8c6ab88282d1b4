"""Where tokens stand: counting positions, sinusoids, and biases that depend on distance alone.

Axes: b batch · h heads · t queries · s keys · d head width · c model width.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def count_positions(token_mask: Bool[Tensor, "b t"]) -> Int[Tensor, "b t"]:
    """Positions counted over the tokens that are present; a missing token shares its neighbour's number.

    >>> count_positions(torch.tensor([[False, True, False, True]])).tolist()
    [[0, 0, 0, 1]]
    """
    return (token_mask.long().cumsum(-1) - 1).clamp(min=0)


def exact_dtype(device: torch.device) -> torch.dtype:
    """float64 where the device has it: an angle of position 30,000 loses its last three digits in float32."""
    return torch.float32 if device.type == "mps" else torch.float64


def sinusoidal(
    positions: int | Tensor, dim: int, *, base: float = 10000.0, dtype: torch.dtype | None = None
) -> Float[Tensor, "*t c"]:
    """The sinusoids of the 2017 transformer: sin(p·base^(−2i/c)) at feature 2i, cos at 2i + 1.

    `positions` is a length, or a tensor of positions.

    >>> (100 * sinusoidal(2, 4)).int().tolist()
    [[0, 100, 0, 100], [84, 54, 0, 99]]
    """
    if dim < 1:
        raise ValueError(f"sinusoids need a width of at least 1; got {dim}")
    if isinstance(positions, int):
        positions = torch.arange(positions)
    exact = exact_dtype(positions.device)
    pairs = torch.arange(0, dim, 2, dtype=exact, device=positions.device)
    angles = positions[..., None].to(exact) * base ** (-pairs / dim)
    waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
    return waves[..., :dim].to(dtype or torch.get_default_dtype())


class Rotation(NamedTuple):
    """Cosine and sine of every angle: (t, pairs), or (b, 1, t, pairs) where rows stand at different positions."""

    cos: Float[Tensor, "... t pairs"]
    sin: Float[Tensor, "... t pairs"]


@dataclass(frozen=True, eq=False)
class DistanceBias:
    """A lazy bias: `of(distance, rows)` gives (…, h, t, s) for the distances key − query of those rows."""

    of: Callable[[Tensor, range], Tensor]
    queries: Int[Tensor, "*b t"]
    keys: Int[Tensor, "*b s"]

    def tile(self, rows: range, columns: range) -> Float[Tensor, "... h t s"]:
        queries = self.queries[..., rows.start : rows.stop, None]
        keys = self.keys[..., None, columns.start : columns.stop]
        return self.of(keys - queries, rows)

    def dense(self) -> Float[Tensor, "... h t s"]:
        """The whole bias as a tensor."""
        return self.tile(range(self.queries.shape[-1]), range(self.keys.shape[-1]))


class Relative:
    """A position scheme that acts inside attention: it turns queries and keys, or adds a bias, or both.

    `build` gives the scheme as one layer uses it: itself, or a module with parameters for that layer's heads.
    """

    def build(self, heads: int, head_dim: int) -> "Relative":
        return self

    def rotation(self, positions: Tensor, head_dim: int, dtype: torch.dtype) -> Rotation | None:
        """What `turn` needs to know of the positions; computed once and shared by all layers."""
        return None

    def turn(self, x: Float[Tensor, "*b t d"], rotation: Rotation | None) -> Float[Tensor, "*b t d"]:
        """Queries or keys, turned by where they stand."""
        return x

    def bias(
        self, q: Float[Tensor, "b h t d"], queries: Tensor, keys: Tensor, *, scale: float = 1.0
    ) -> DistanceBias | None:
        """What is added to the scores, for queries and keys at these positions: (t,) and (s,), or with b.

        beta: what the layer multiplies q·k by, for a bias that is part of q·k.
        """
        return None


@dataclass(frozen=True)
class Alibi(Relative):
    """Attention with linear biases: −slope·|key − query|, one slope for each head.

    >>> places = torch.arange(3)
    >>> Alibi().bias(torch.zeros(1, 2, 3, 4), places, places).dense()[0].tolist()
    [[0.0, -0.0625, -0.125], [-0.0625, 0.0, -0.0625], [-0.125, -0.0625, 0.0]]
    """

    def bias(self, q: Float[Tensor, "b h t d"], queries: Tensor, keys: Tensor, *, scale: float = 1.0) -> DistanceBias:
        exact = torch.promote_types(q.dtype, torch.float32)  # bfloat16 cannot count beyond 256
        slopes = alibi_slopes(q.shape[1]).to(q.device, exact)[:, None, None]
        return DistanceBias(lambda distance, _: slopes * -distance.abs().unsqueeze(-3), queries, keys)


def alibi_slopes(heads: int) -> Float[Tensor, " h"]:
    """Slopes 2^(−8i/h) for i = 1..h; between powers of two, every other slope of the next power fills up.

    >>> alibi_slopes(3).tolist()
    [0.0625, 0.00390625, 0.25]
    """
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    slopes += [2 ** (-8 * i / (2 * power)) for i in range(1, 2 * power + 1, 2)][: heads - power]
    return torch.tensor(slopes, dtype=torch.float64)


def t5_buckets(
    distance: Int[Tensor, "*shape"], *, buckets: int = 32, limit: int = 128, bidirectional: bool = True
) -> Int[Tensor, "*shape"]:
    """T5's bucket of each distance key − query: one each when near, logarithmically wider up to `limit`.

    >>> t5_buckets(torch.tensor([-200, -8, -1, 0, 1, 200])).tolist()
    [15, 8, 1, 0, 17, 31]
    """
    if bidirectional:
        buckets //= 2
        first, back = (distance > 0) * buckets, distance.abs()
    else:
        first, back = torch.zeros_like(distance), (-distance).clamp(min=0)
    near = buckets // 2
    # float32, as the trained models were: in float64 a distance on a bucket's edge may fall on the other side
    share = torch.log(back.clamp(min=1).float() / near) / math.log(limit / near)
    far = (near + (share * (buckets - near)).long()).clamp(max=buckets - 1)
    return first + torch.where(back < near, back, far)
