"""Multi-head attention: project, split into heads, attend, join, project.

Axes: b batch · h heads · t queries · s keys · d head width · c model width.
"""

from typing import Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn import masks
from qkv.nn.attention import attend, attention
from qkv.nn.heads import merge_heads, repeat_heads, split_heads
from qkv.nn.kv_cache import LayerKVCache
from qkv.nn.masks import Mask
from qkv.nn.position_layers import Positions
from qkv.nn.positions import Relative
from qkv.nn.scores import Dot, Score
from qkv.nn.shapes import check_dropout, check_mask, divisors

AttentionBias = bool | Literal["qkv"]


class MultiHeadAttention(nn.Module):
    """Attention with `heads` views of its input, for a sequence on itself or on a memory.

    kv_heads: heads of keys and values, each shared by a group of queries' heads; as many as heads if not given.
    head_width: width of each head; width / heads if not given.
    score: how queries meet keys: Dot, Additive, LocationAware, DenseSynthesizer or RandomSynthesizer.
    position: what positions do inside attention: Rope, Alibi, T5Bias, Shaw, or nothing.
    dropout: the probability with which a weight is dropped in training.
    bias: whether the projections add a vector; "qkv": those of queries, keys and values do, the last does not.

    >>> layer = MultiHeadAttention(16, 4)
    >>> layer(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        score: Score = Dot(),  # noqa: B008  (frozen: safe to share)
        position: Relative | None = None,
        dropout: float = 0.0,
        bias: AttentionBias = True,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        _check_sizes(dim, heads, kv_heads, head_dim, score, position)
        check_dropout(dropout)
        if bias not in (True, False, "qkv"):
            raise ValueError(f"bias is True, False or 'qkv'; got {bias!r}")
        self.dim, self.heads, self.kv_heads = dim, heads, kv_heads
        self.head_dim = dim // heads if head_dim is None else head_dim
        self.score, self.dropout = score, dropout
        query_dim, key_dim = score.query_dim(self.head_dim), score.key_dim(self.head_dim)
        inner = bias is not False
        self.to_q = nn.Linear(dim, heads * query_dim, inner) if query_dim else None
        self.to_k = nn.Linear(dim, kv_heads * key_dim, inner) if key_dim else None
        self.to_v = nn.Linear(dim, kv_heads * self.head_dim, inner)
        self.to_out = nn.Linear(heads * self.head_dim, dim, bias is True)
        self.q_norm, self.k_norm = score.norm(self.head_dim), score.norm(self.head_dim)
        self.scorer = score.build(heads, self.head_dim)
        self.position = None if position is None else position.build(heads, self.head_dim)

    @overload
    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        causal: bool = False,
        token_mask: Tensor | None = None,
        positions: Positions | None = None,
        cache: LayerKVCache | None = None,
        return_weights: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        causal: bool = False,
        token_mask: Tensor | None = None,
        positions: Positions | None = None,
        cache: LayerKVCache | None = None,
        return_weights: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...
    def forward(
        self,
        x: Float[Tensor, "b t c"],
        memory: Float[Tensor, "b m c"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        causal: bool = False,
        token_mask: Tensor | None = None,
        positions: Positions | None = None,
        cache: LayerKVCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "b t c"] | tuple[Float[Tensor, "b t c"], Float[Tensor, "b h t s"]]:
        """x attends to `memory`, or to itself.

        allowed: True = may attend; a tensor (t, s) or one that broadcasts to (b, h, t, s), or a lazy `Mask`.
        causal: query i sees keys up to i + (s − t) only.
        present: (b, s), which of all keys exist, those in the cache included.
        positions: where queries and keys stand; counted over the keys present if not given.
        cache: keys and values of earlier calls; x's own are added to it.
        return_weights: also return the weights (b, h, t, s): of each head, before dropout.
        """
        self._check_input("x", x)
        if memory is not None:
            self._check_input("memory", memory)
            if len(memory) != len(x):
                raise ValueError(f"x and memory have one batch size; got {len(x)} and {len(memory)}")
        q = _projected(self.to_q, self.q_norm, x, self.heads)
        q, k, v, positions = self._meet(x, q, memory, token_mask, positions, cache)
        rule = _combined(mask, causal, token_mask, x.shape[1], v.shape[-2])
        out, chosen = self._attend(q, k, v, rule, positions, cache, return_weights)
        out = self.to_out(merge_heads(out))
        return (out, chosen) if return_weights and chosen is not None else out

    def new_cache(self) -> LayerKVCache:
        """An empty cache for this layer, to be handed to calls that continue one another."""
        return LayerKVCache()

    def _meet(
        self,
        x: Tensor,
        q: Tensor | None,
        memory: Tensor | None,
        token_mask: Tensor | None,
        positions: Positions | None,
        cache: LayerKVCache | None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor, Positions]:
        """Queries and all keys and values, turned by their positions."""
        read = cache is not None and cache.filled  # whether the memory was read in an earlier call
        if cache is not None and read:
            k, v = cache.held()
        else:
            source = x if memory is None else memory
            k = _projected(self.to_k, self.k_norm, source, self.kv_heads)
            v = split_heads(self.to_v(source), self.kv_heads)
        cross = read or memory is not None
        new = v.shape[-2]
        s = new + (0 if cache is None or read else cache.length)
        if token_mask is not None:
            _check_token_mask(token_mask, len(x), s)
        if positions is None:
            positions = Positions.counted(x.shape[1], s, token_mask, x.device, cross=cross)
        elif (positions.queries.shape[-1], positions.keys.shape[-1]) != (x.shape[1], s):
            raise ValueError(
                f"positions are those of {x.shape[1]} queries and of {s} keys, those in the cache included; got "
                f"{positions.queries.shape[-1]} and {positions.keys.shape[-1]}"
            )
        if self.position is not None and q is not None and k is not None:
            rotation = positions.rotation(self.position, q.shape[-1], q.dtype)
            q = self.position.turn(q, rotation)
            if cross:
                rotation = self.position.rotation(positions.keys[..., s - new :], q.shape[-1], q.dtype)
            k = k if read else self.position.turn(k, rotation)
        if cache is not None and not read:
            k, v = cache.append(k, v)
        return q, k, v, positions

    def _attend(
        self,
        q: Tensor | None,
        k: Tensor | None,
        v: Tensor,
        rule: Mask | None,
        positions: Positions,
        cache: LayerKVCache | None,
        return_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        dropout_p = self.dropout if self.training else 0.0
        if self.scorer is None:
            assert q is not None and k is not None and isinstance(self.score, Dot)
            scale = self.head_dim**-0.5 if self.score.scale is None else self.score.scale
            bias = None
            if self.position is not None:
                bias = self.position.bias(q, positions.queries, positions.keys, scale=scale)
            if return_weights:
                return attention(q, k, v, scale=scale, mask=rule, bias=bias, dropout_p=dropout_p, return_weights=True)
            return attention(q, k, v, scale=scale, mask=rule, bias=bias, dropout_p=dropout_p), None
        mask = None
        if rule is not None:
            t = positions.queries.shape[-1] if q is None else q.shape[-2]
            check_mask(rule, (v.shape[0], self.heads, t, v.shape[-2]))
            mask = rule.tile(range(t), range(v.shape[-2]), v.device)
        exact = torch.promote_types(v.dtype, torch.float32)  # scores and softmax in float32 at least
        q = None if q is None else q.to(exact)
        k = None if k is None else repeat_heads(k, self.heads).to(exact)
        with torch.autocast(v.device.type, enabled=False):
            chosen = self.scorer(q, k, positions, mask, cache).to(v.dtype)
        chosen = chosen.expand(v.shape[0], *chosen.shape[1:])
        return attend(chosen, v, dropout_p), chosen

    def _check_input(self, name: str, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[-1] != self.dim:
            raise ValueError(f"{name} is (batch, tokens, width={self.dim}); got {tuple(x.shape)}")
        if x.dtype != self.to_v.weight.dtype and not torch.is_autocast_enabled(x.device.type):
            raise ValueError(
                f"{name} and the layer have one dtype; got {x.dtype} for a layer of {self.to_v.weight.dtype}"
            )


def _projected(projection: nn.Module | None, norm: nn.Module | None, x: Tensor, heads: int) -> Tensor | None:
    """Queries or keys of each head, normalised where the score asks for it; None where it has none."""
    if projection is None:
        return None
    split = split_heads(projection(x), heads)
    return split if norm is None else norm(split)


def _check_token_mask(token_mask: Tensor, b: int, s: int) -> None:
    if (
        token_mask.dtype != torch.bool
        or token_mask.ndim != 2
        or len(token_mask) not in (1, b)
        or token_mask.shape[1] != s
    ):
        raise ValueError(
            f"present is a boolean tensor (b, s) = ({b}, {s}), True where a key exists, those in the cache included; "
            f"got {token_mask.dtype} of shape {tuple(token_mask.shape)}"
        )


def _combined(mask: Mask | Tensor | None, causal: bool, token_mask: Tensor | None, t: int, s: int) -> Mask | None:
    if isinstance(mask, Tensor) and mask.ndim == 3:
        raise ValueError(
            f"a mask of three axes {tuple(mask.shape)} could be one for each row or one for each head; "
            "give it four axes: (b, 1, t, s) or (1, h, t, s)"
        )
    parts = [] if mask is None else [masks.as_mask(mask)]
    if causal:
        parts.append(masks.causal(t, s))
    if token_mask is not None:
        parts.append(masks.padding(token_mask))
    return None if not parts else parts[0] if len(parts) == 1 else masks.Both.of(*parts)


def _check_sizes(
    dim: int, heads: int, kv_heads: int, head_dim: int | None, score: Score, position: Relative | None
) -> None:
    if dim < 1 or heads < 1:
        raise ValueError(f"width and heads are at least 1; got width={dim}, heads={heads}")
    if head_dim is None and dim % heads:
        raise ValueError(f"width={dim} does not split into heads={heads}; heads that fit: {divisors(dim)}")
    if head_dim is not None and head_dim < 1:
        raise ValueError(f"head_width is at least 1; got {head_dim}")
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"heads={heads} do not share kv_heads={kv_heads} evenly; kv_heads that fit: {divisors(heads)}")
    if position is not None and not isinstance(score, Dot):
        raise ValueError(
            f"{type(position).__name__} acts on the dot product of queries and keys; "
            f"{type(score).__name__} has none: leave position out"
        )
