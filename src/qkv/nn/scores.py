"""Attention scores: dot product, additive (Bahdanau), location-aware (Chorowski), dense and random synthesizer.

Axes: b batch · h heads · t queries · s keys · d head dim.

A `Score` is a small frozen description; `MultiHeadAttention` builds the module with its parameters (a `Scorer`). All
scores but `Dot` have no fused kernel: they return weights.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from qkv._config import variant
from qkv.nn.attention import masked_softmax
from qkv.nn.kv_cache import LayerKVCache
from qkv.nn.norms import make_norm
from qkv.nn.positions import Positions

Weights = Float[Tensor, "b h t s"]
MaskTile = Bool[Tensor, "..."]


@dataclass(frozen=True)
class Score:
    """How a query scores a key: the dims of both per head (0 where the score uses none), and the parameters."""

    def query_dim(self, head_dim: int) -> int:
        return head_dim

    def key_dim(self, head_dim: int) -> int:
        return head_dim

    def build(self, heads: int, head_dim: int) -> "Scorer | None":
        raise NotImplementedError

    def norm(self, head_dim: int) -> nn.Module | None:
        """A normalization of each head's queries (and a second one of its keys), or None."""
        return None


class Scorer(nn.Module):
    """The parameters of a score: from queries, keys and positions to attention weights."""

    def scores(self, q: Tensor | None, k: Tensor | None, positions: Positions) -> Weights:
        raise NotImplementedError

    def forward(
        self,
        q: Float[Tensor, "b h t d"] | None,
        k: Float[Tensor, "b h s d"] | None,
        positions: Positions,
        mask: MaskTile | None,
        cache: LayerKVCache | None,
    ) -> Weights:
        return masked_softmax(self.scores(q, k, positions), mask)


@variant
@dataclass(frozen=True)
class Dot(Score):
    """Scaled dot product: scale · q·k.

    Args:
        scale: default d^-½.
        qk_norm: apply RMSNorm to each head's queries and keys first, with learned factors (one vector for the queries
            of all heads, one for the keys), as in Qwen 3.
    """

    scale: float | None = None
    qk_norm: bool = False
    norm_eps: float = 1e-6

    def build(self, heads: int, head_dim: int) -> None:
        return None

    def norm(self, head_dim: int) -> nn.Module | None:
        return make_norm("rms", head_dim, eps=self.norm_eps) if self.qk_norm else None


@variant
@dataclass(frozen=True)
class Additive(Score):
    """Bahdanau's additive score: w·tanh(q + k + b).

    The layer's projections are its two matrices, each `hidden_dim` wide per head.
    """

    hidden_dim: int = 64

    def __post_init__(self) -> None:
        _check_at_least_one(self, "hidden_dim")

    def query_dim(self, head_dim: int) -> int:
        return self.hidden_dim

    def key_dim(self, head_dim: int) -> int:
        return self.hidden_dim

    def build(self, heads: int, head_dim: int) -> Scorer:
        return AdditiveScorer(heads, self.hidden_dim)


class AdditiveScorer(Scorer):
    def __init__(self, heads: int, hidden_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(heads, hidden_dim) * hidden_dim**-0.5)
        self.bias = nn.Parameter(torch.zeros(heads, hidden_dim))

    def score_pairs(self, q: Float[Tensor, "b h t d"], k: Float[Tensor, "b h s d"]) -> Float[Tensor, "b h t s"]:
        hidden = torch.tanh(q[..., :, None, :] + k[..., None, :, :] + self.bias.to(q)[:, None, None])
        return torch.einsum("bhtsd,hd->bhts", hidden, self.weight.to(q))

    def scores(self, q: Tensor | None, k: Tensor | None, positions: Positions) -> Weights:
        assert q is not None and k is not None
        return self.score_pairs(q, k)


@variant
@dataclass(frozen=True)
class LocationAware(Score):
    """Chorowski's location-aware score: w·tanh(q + k + U f + b), f a convolution over the previous query's weights.

    Queries are therefore processed one after another. Before the first query the weights are all 0.
    """

    hidden_dim: int = 64
    filters: int = 10
    kernel_size: int = 31

    def __post_init__(self) -> None:
        _check_at_least_one(self, "hidden_dim", "filters")
        if self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size of LocationAware must be odd (it has a center), got {self.kernel_size}")

    def query_dim(self, head_dim: int) -> int:
        return self.hidden_dim

    def key_dim(self, head_dim: int) -> int:
        return self.hidden_dim

    def build(self, heads: int, head_dim: int) -> Scorer:
        return LocationAwareScorer(self, heads)


class LocationAwareScorer(AdditiveScorer):
    def __init__(self, score: LocationAware, heads: int) -> None:
        super().__init__(heads, score.hidden_dim)
        shape = (heads * score.filters, 1, score.kernel_size)
        self.filters = nn.Parameter(torch.randn(shape) * score.kernel_size**-0.5)
        self.to_hidden = nn.Parameter(torch.randn(heads, score.filters, score.hidden_dim) * score.filters**-0.5)

    def location_features(self, last: Float[Tensor, "b h s"], keys: Tensor) -> Float[Tensor, "b h s d"]:
        """Convolve the previous weights over neighboring positions; padding between two tokens is skipped."""
        heads, kernel_size = last.shape[1], self.filters.shape[-1]
        if last.shape[-1] == 0:  # conv1d refuses empty rows
            return last.new_zeros(*last.shape, self.to_hidden.shape[-1])
        order = (keys - keys[:, :1])[:, None].expand_as(last) if keys.ndim == 2 else None
        if order is not None:
            last = torch.zeros_like(last).scatter_add(-1, order, last)
        features = nn.functional.conv1d(last, self.filters.to(last), padding=kernel_size // 2, groups=heads)
        features = features.unflatten(1, (heads, -1))
        if order is not None:
            features = features.gather(-1, order[:, :, None].expand_as(features))
        return torch.einsum("bhfs,hfd->bhsd", features, self.to_hidden.to(features))

    def forward(
        self,
        q: Tensor | None,
        k: Tensor | None,
        positions: Positions,
        mask: MaskTile | None,
        cache: LayerKVCache | None,
    ) -> Weights:
        assert q is not None and k is not None
        last = q.new_zeros(*k.shape[:-1])
        if cache is not None and cache.weights is not None:
            cached = cache.weights
            last = torch.cat((cached, last[..., cached.shape[-1] :]), dim=-1)
        steps = []
        for i in range(q.shape[-2]):
            row = mask
            if mask is not None and mask.shape[-2] > 1:
                row = mask[..., i : i + 1, :]
            scores = self.score_pairs(q[..., i : i + 1, :], k + self.location_features(last, positions.keys))
            steps.append(masked_softmax(scores, row))
            weights = steps[-1].squeeze(-2)
            if positions.query_mask is None:
                last = weights
            else:  # padding leaves the previous weights unchanged
                last = torch.where(positions.query_mask[:, None, i : i + 1], weights, last)
        if cache is not None:
            cache.weights = last
        return torch.cat(steps, dim=-2) if steps else last[..., None, :][..., :0, :]


@variant
@dataclass(frozen=True)
class DenseSynthesizer(Score):
    """Dense synthesizer: relu(q) W + b. Each query predicts its scores for `max_length` positions, without any key.

    Args:
        shared: one W and b for all heads, as in CS224N A5; False is one for each head, as in the paper.
    """

    max_length: int
    shared: bool = True

    def __post_init__(self) -> None:
        _check_at_least_one(self, "max_length")

    def key_dim(self, head_dim: int) -> int:
        return 0

    def build(self, heads: int, head_dim: int) -> Scorer:
        return DenseSynthesizerScorer(self, heads, head_dim)


class DenseSynthesizerScorer(Scorer):
    def __init__(self, score: DenseSynthesizer, heads: int, head_dim: int) -> None:
        super().__init__()
        tables = 1 if score.shared else heads
        self.weight = nn.Parameter(torch.empty(tables, head_dim, score.max_length).uniform_(-0.001, 0.001))
        self.bias = nn.Parameter(torch.zeros(tables, 1, score.max_length))

    def scores(self, q: Tensor | None, k: Tensor | None, positions: Positions) -> Weights:
        assert q is not None
        _check_max_length("dense", positions.keys, self.weight.shape[-1])
        return _select_keys(q.relu() @ self.weight.to(q) + self.bias.to(q), positions.keys)


@variant
@dataclass(frozen=True)
class RandomSynthesizer(Score):
    """Random synthesizer: a table of scores for each pair of positions up to `max_length`, the same for every text.

    Args:
        trainable: whether training changes the table.
        std: deviation of the initial scores.
    """

    max_length: int
    trainable: bool = True
    std: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        _check_at_least_one(self, "max_length")

    def query_dim(self, head_dim: int) -> int:
        return 0

    def key_dim(self, head_dim: int) -> int:
        return 0

    def build(self, heads: int, head_dim: int) -> Scorer:
        return RandomSynthesizerScorer(self, heads)


class RandomSynthesizerScorer(Scorer):
    def __init__(self, score: RandomSynthesizer, heads: int) -> None:
        super().__init__()
        table = torch.randn(heads, score.max_length, score.max_length) * score.std
        self.table = nn.Parameter(table, requires_grad=score.trainable)

    def scores(self, q: Tensor | None, k: Tensor | None, positions: Positions) -> Weights:
        queries, max_length = positions.queries, self.table.shape[-1]
        _check_max_length("random", positions.keys, max_length)
        _check_max_length("random", queries, max_length)
        table = self.table.to(torch.promote_types(self.table.dtype, torch.float32))
        rows = table[:, queries]  # (h, t, max_length), or (h, b, t, max_length)
        rows = rows[None] if queries.ndim == 1 else rows.transpose(0, 1)
        return _select_keys(rows, positions.keys)


def _select_keys(scores: Float[Tensor, "b h t length"], keys: Tensor) -> Float[Tensor, "b h t s"]:
    """The scores at the keys' positions, (s,) or (b, s)."""
    if keys.ndim == 1:
        return scores[..., keys]
    index = keys[:, None, None, :].expand(-1, scores.shape[1], scores.shape[2], -1)
    return scores.expand(keys.shape[0], -1, -1, -1).gather(-1, index)


def _check_max_length(kind: str, positions: Tensor, max_length: int) -> None:
    if positions.numel() and int(positions.max()) >= max_length:
        raise ValueError(
            f"this {kind} synthesizer has scores for {max_length} positions, got a sequence of "
            f"{int(positions.max()) + 1}"
        )


def _check_at_least_one(score: Score, *names: str) -> None:
    for name in names:
        if getattr(score, name) < 1:
            raise ValueError(f"{name} of {type(score).__name__} must be at least 1, got {getattr(score, name)}")
