"""How a query's interest in a key is computed: by dot product, additively, with a look at the last weights, or
without comparing the two at all.

Axes: b batch · h heads · t queries · s keys · d head width.

Each `Score` is a small description; `MultiHeadAttention` builds the module with its parameters. Those other than
`Dot` have no fused kernel: they return weights.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from qkv.nn.kv_cache import LayerKVCache
from qkv.nn.norms import make_norm
from qkv.nn.position_layers import Positions
from qkv.nn.softmax import soft_choice

Weights = Float[Tensor, "b h t s"]
MaskTile = Bool[Tensor, "..."]


@dataclass(frozen=True)
class Score:
    """What a score needs: how wide its queries and keys are in each head (0: it has none), and its parameters."""

    def query_dim(self, head_dim: int) -> int:
        return head_dim

    def key_dim(self, head_dim: int) -> int:
        return head_dim

    def build(self, heads: int, head_dim: int) -> "Scorer | None":
        raise NotImplementedError

    def norm(self, head_dim: int) -> nn.Module | None:
        """What normalises each head's queries, and another its keys, before they are turned and meet; None: nothing."""
        return None


class Scorer(nn.Module):
    """A score's parameters: from queries, keys and positions to weights."""

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
        return soft_choice(self.scores(q, k, positions), mask)


@dataclass(frozen=True)
class Dot(Score):
    """β q·k; β is d^-½ if not given.

    normalised: queries and keys are first brought to a root mean square of 1 in each head, then scaled by learned
        factors (one vector for the queries of all heads, one for the keys), as in Qwen 3.
    """

    scale: float | None = None
    qk_norm: bool = False
    norm_eps: float = 1e-6

    def build(self, heads: int, head_dim: int) -> None:
        return None

    def norm(self, head_dim: int) -> nn.Module | None:
        return make_norm("rms", head_dim, epsilon=self.norm_eps) if self.qk_norm else None


@dataclass(frozen=True)
class Additive(Score):
    """w·tanh(q + k + b): Bahdanau's score; the layer's projections are its two matrices, `hidden` wide in each head."""

    hidden_dim: int = 64

    def __post_init__(self) -> None:
        _at_least_one("Additive", "hidden_dim", self.hidden_dim)

    def query_dim(self, head_dim: int) -> int:
        return self.hidden_dim

    def key_dim(self, head_dim: int) -> int:
        return self.hidden_dim

    def build(self, heads: int, head_dim: int) -> Scorer:
        return AdditiveScorer(heads, self.hidden_dim)


class AdditiveScorer(Scorer):
    def __init__(self, heads: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(heads, hidden) * hidden**-0.5)
        self.bias = nn.Parameter(torch.zeros(heads, hidden))

    def meet(self, q: Float[Tensor, "b h t d"], k: Float[Tensor, "b h s d"]) -> Float[Tensor, "b h t s"]:
        together = torch.tanh(q[..., :, None, :] + k[..., None, :, :] + self.bias.to(q)[:, None, None])
        return torch.einsum("bhtsd,hd->bhts", together, self.weight.to(q))

    def scores(self, q: Tensor | None, k: Tensor | None, positions: Positions) -> Weights:
        assert q is not None and k is not None
        return self.meet(q, k)


@dataclass(frozen=True)
class LocationAware(Score):
    """w·tanh(q + k + U f + b), where f is a convolution over the last query's weights (Chorowski).

    Queries are therefore worked one after another. Before the first, the last weights are all 0.
    """

    hidden_dim: int = 64
    filters: int = 10
    kernel: int = 31

    def __post_init__(self) -> None:
        _at_least_one("LocationAware", "hidden_dim", self.hidden_dim)
        _at_least_one("LocationAware", "filters", self.filters)
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"LocationAware's kernel is an odd number, so that it has a centre; got {self.kernel}")

    def query_dim(self, head_dim: int) -> int:
        return self.hidden_dim

    def key_dim(self, head_dim: int) -> int:
        return self.hidden_dim

    def build(self, heads: int, head_dim: int) -> Scorer:
        return LocationAwareScorer(self, heads)


class LocationAwareScorer(AdditiveScorer):
    def __init__(self, score: LocationAware, heads: int) -> None:
        super().__init__(heads, score.hidden_dim)
        shape = (heads * score.filters, 1, score.kernel)
        self.filters = nn.Parameter(torch.randn(shape) * score.kernel**-0.5)
        self.to_hidden = nn.Parameter(torch.randn(heads, score.filters, score.hidden_dim) * score.filters**-0.5)

    def features(self, last: Float[Tensor, "b h s"], keys: Tensor) -> Float[Tensor, "b h s d"]:
        """What the last weights look like around each key; neighbours are next in position, across holes."""
        heads, kernel = last.shape[1], self.filters.shape[-1]
        if last.shape[-1] == 0:  # a convolution takes no empty rows
            return last.new_zeros(*last.shape, self.to_hidden.shape[-1])
        order = (keys - keys[:, :1])[:, None].expand_as(last) if keys.ndim == 2 else None
        if order is not None:
            last = torch.zeros_like(last).scatter_add(-1, order, last)
        seen = nn.functional.conv1d(last, self.filters.to(last), padding=kernel // 2, groups=heads)
        seen = seen.unflatten(1, (heads, -1))
        if order is not None:
            seen = seen.gather(-1, order[:, :, None].expand_as(seen))
        return torch.einsum("bhfs,hfd->bhsd", seen, self.to_hidden.to(seen))

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
            held = cache.weights
            last = torch.cat((held, last[..., held.shape[-1] :]), dim=-1)
        steps = []
        for i in range(q.shape[-2]):
            rows = None if mask is None else mask if mask.shape[-2] == 1 else mask[..., i : i + 1, :]
            scores = self.meet(q[..., i : i + 1, :], k + self.features(last, positions.keys))
            steps.append(soft_choice(scores, rows))
            now = steps[-1].squeeze(-2)
            asks = None if positions.asking is None else positions.asking[:, None, i : i + 1]
            last = now if asks is None else torch.where(asks, now, last)  # padding leaves no trace
        if cache is not None:
            cache.weights = last
        return torch.cat(steps, dim=-2) if steps else last[..., None, :][..., :0, :]


@dataclass(frozen=True)
class DenseSynthesizer(Score):
    """relu(q) W + b: each query predicts its score for each of `length` positions, without seeing any key.

    W and b are shared by the heads, as in the course's version; the paper has one for each head (shared=False).
    """

    max_length: int
    shared: bool = True

    def __post_init__(self) -> None:
        _at_least_one("DenseSynthesizer", "max_length", self.max_length)

    def key_dim(self, head_dim: int) -> int:
        return 0

    def build(self, heads: int, head_dim: int) -> Scorer:
        return DenseSynthesizerScorer(self, heads, head_dim)


class DenseSynthesizerScorer(Scorer):
    def __init__(self, score: DenseSynthesizer, heads: int, head_dim: int) -> None:
        super().__init__()
        tables = (1 if score.shared else heads,)
        self.weight = nn.Parameter(torch.empty(*tables, head_dim, score.max_length).uniform_(-0.001, 0.001))
        self.bias = nn.Parameter(torch.zeros(*tables, 1, score.max_length))

    def scores(self, q: Tensor | None, k: Tensor | None, positions: Positions) -> Weights:
        assert q is not None
        _check_length("dense", positions.keys, self.weight.shape[-1])
        everywhere = q.relu() @ self.weight.to(q) + self.bias.to(q)
        return _columns(everywhere, positions.keys)


@dataclass(frozen=True)
class RandomSynthesizer(Score):
    """A table of scores for each pair of positions up to `length`, the same for every text.

    learned: whether training changes the table.
    """

    max_length: int
    learned: bool = True
    std: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        _at_least_one("RandomSynthesizer", "max_length", self.max_length)

    def query_dim(self, head_dim: int) -> int:
        return 0

    def key_dim(self, head_dim: int) -> int:
        return 0

    def build(self, heads: int, head_dim: int) -> Scorer:
        return RandomSynthesizerScorer(self, heads)


class RandomSynthesizerScorer(Scorer):
    def __init__(self, score: RandomSynthesizer, heads: int) -> None:
        super().__init__()
        drawn = torch.randn(heads, score.max_length, score.max_length) * score.std
        self.table = nn.Parameter(drawn, requires_grad=score.learned)

    def scores(self, q: Tensor | None, k: Tensor | None, positions: Positions) -> Weights:
        _check_length("random", positions.keys, self.table.shape[-1])
        _check_length("random", positions.queries, self.table.shape[-1])
        queries = positions.queries
        rows = self.table.to(torch.promote_types(self.table.dtype, torch.float32))[
            :, queries
        ]  # (h, t, length), or (h, b, t, length)
        rows = rows[None] if queries.ndim == 1 else rows.transpose(0, 1)
        return _columns(rows, positions.keys)


def _columns(scores: Float[Tensor, "b h t length"], keys: Tensor) -> Float[Tensor, "b h t s"]:
    """The scores of the keys, which stand at positions (s,) or (b, s)."""
    if keys.ndim == 1:
        return scores[..., keys]
    index = keys[:, None, None, :].expand(-1, scores.shape[1], scores.shape[2], -1)
    return scores.expand(keys.shape[0], -1, -1, -1).gather(-1, index)


def _check_length(kind: str, positions: Tensor, length: int) -> None:
    if positions.numel() and int(positions.max()) >= length:
        raise ValueError(
            f"this {kind} synthesizer has scores for {length} positions; got a sequence of {int(positions.max()) + 1}"
        )


def _at_least_one(score: str, name: str, number: int) -> None:
    if number < 1:
        raise ValueError(f"{score} takes {name} of at least 1; got {number}")
