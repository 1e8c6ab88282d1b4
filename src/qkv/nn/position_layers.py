"""Position schemes with parameters, and the positions that all layers of a model share.

Axes: b batch · h heads · t queries · s keys · d head width.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.positions import DistanceBias, Relative, Rotation, count_positions, t5_buckets


class Positions:
    """Where queries and keys stand: (t,) and (s,), or (b, t) and (b, s) where rows differ.

    asking: which queries exist (b, t), for scores that look back at the query before; None is all of them.
    Tables made from positions (the angles of a Rope) are computed once and shared by all layers.
    """

    def __init__(self, queries: Tensor, keys: Tensor | None = None, asking: Tensor | None = None) -> None:
        self.queries = queries
        self.keys = queries if keys is None else keys
        self.asking = asking
        self._tables: dict[object, Rotation | None] = {}

    @classmethod
    def counted(
        cls, t: int, s: int, token_mask: Tensor | None, device: torch.device, *, cross: bool = False
    ) -> "Positions":
        """The last t of s tokens ask, or t others (cross); keys are counted over those that are present."""
        keys = torch.arange(s, device=device) if token_mask is None else count_positions(token_mask)
        if cross:
            return cls(torch.arange(t, device=device), keys)
        return cls(keys[..., s - t :], keys, None if token_mask is None else token_mask[:, s - t :])

    def rotation(self, scheme: Relative, head_dim: int, dtype: torch.dtype) -> Rotation | None:
        """The scheme's table for the queries."""
        key = (scheme, head_dim, dtype)
        if key not in self._tables:
            self._tables[key] = scheme.rotation(self.queries, head_dim, dtype)
        return self._tables[key]


@dataclass(frozen=True)
class T5Bias(Relative):
    """T5's learned bias: one number for each head and each bucket of distances.

    bidirectional: whether distances ahead have buckets of their own; False for a causal layer.
    """

    buckets: int = 32
    limit: int = 128
    bidirectional: bool = True

    def __post_init__(self) -> None:
        if self.buckets < 4 or self.buckets % 2 or self.limit <= self.buckets // 2:
            raise ValueError(
                f"T5Bias takes an even number of buckets from 4 and a limit above half of it; got "
                f"buckets={self.buckets}, limit={self.limit}"
            )

    def build(self, heads: int, head_dim: int) -> Relative:
        return T5BiasTable(self, heads)


@dataclass(frozen=True)
class Shaw(Relative):
    """Shaw's relative keys: a learned vector for each distance up to `limit` is added to the key.

    As in the paper, except that its vectors for the values are left out (it found no gain from them).
    """

    limit: int = 16

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError(f"Shaw's limit is a distance of at least 1; got {self.limit}")

    def build(self, heads: int, head_dim: int) -> Relative:
        return ShawTable(self, head_dim)


class T5BiasTable(nn.Module, Relative):
    """The parameters of a T5Bias."""

    def __init__(self, scheme: T5Bias, heads: int) -> None:
        super().__init__()
        self.scheme = scheme
        self.table = nn.Embedding(scheme.buckets, heads)

    def bias(self, q: Float[Tensor, "b h t d"], queries: Tensor, keys: Tensor, *, scale: float = 1.0) -> DistanceBias:
        def of(distance: Tensor, _: range) -> Tensor:
            scheme = self.scheme
            buckets = t5_buckets(
                distance, buckets=scheme.buckets, limit=scheme.limit, bidirectional=scheme.bidirectional
            )
            return self.table(buckets).movedim(-1, -3)

        return DistanceBias(of, queries, keys)


class ShawTable(nn.Module, Relative):
    """The parameters of a Shaw scheme: a vector for each distance from −limit to limit."""

    def __init__(self, scheme: Shaw, head_dim: int) -> None:
        super().__init__()
        self.scheme = scheme
        self.vectors = nn.Parameter(torch.randn(2 * scheme.limit + 1, head_dim) * head_dim**-0.5)

    def bias(self, q: Float[Tensor, "b h t d"], queries: Tensor, keys: Tensor, *, scale: float = 1.0) -> DistanceBias:
        limit = self.scheme.limit
        met = scale * (q @ self.vectors.mT)  # each query's score with each distance

        def of(distance: Tensor, rows: range) -> Tensor:
            index = distance.clamp(-limit, limit) + limit
            index = index.unsqueeze(-3).expand(*met.shape[:2], *index.shape[-2:])
            return met[..., rows.start : rows.stop, :].gather(-1, index)

        return DistanceBias(of, queries, keys)
