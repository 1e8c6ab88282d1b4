"""Multi-head attention: project, split into heads, attend, merge, project. Grouped-query attention, KV cache.

Axes: b batch · h heads · t queries · s keys · d head dim · c model dim.
"""

from typing import Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn import masks
from qkv.nn.argument_names import explain_names
from qkv.nn.attention import apply_weights, attention
from qkv.nn.kv_cache import LayerKVCache
from qkv.nn.masks import Mask
from qkv.nn.positions import Positions, PositionScheme
from qkv.nn.quantized import Int8Linear
from qkv.nn.scores import Dot, Score
from qkv.nn.shapes import check_dropout, check_mask, divisors, merge_heads, repeat_heads, split_heads

LAYER_NAMES = {  # of torch.nn.MultiheadAttention
    "embed_dim": "dim=",
    "num_heads": "heads=",
    "causal": "causal= in the call: layer(x, causal=True)",
    "batch_first": "nothing: inputs are always (batch, tokens, dim)",
    "add_zero_attn": "nothing: there is no such option",
}
CALL_NAMES = {
    "attn_mask": "mask=; True = may attend",
    "is_causal": "causal=",
    "need_weights": "return_weights=",
    "key_padding_mask": "token_mask=; True for real tokens",
}
THREE_INPUTS = (
    "MultiHeadAttention computes queries, keys and values itself: write layer(x), or layer(x, memory) for "
    "cross-attention; qkv.attention(q, k, v) takes three tensors"
)
AttentionBias = bool | Literal["qkv"]


class MultiHeadAttention(nn.Module):
    """Multi-head self-attention or cross-attention.

    Args:
        dim: the model dim c.
        kv_heads: number of key and value heads, default `heads`. Fewer is grouped-query attention (GQA): each is shared
            by a group of query heads; 1 is multi-query attention.
        head_dim: default dim / heads.
        score: Dot, Additive, LocationAware, DenseSynthesizer or RandomSynthesizer.
        position: position encoding inside attention: Rope, Alibi, T5Bias, Shaw, or None.
        dropout: probability with which an attention weight is dropped in training.
        bias: whether the projections have biases; "qkv": those of queries, keys and values have, the output has none.

    Call it as layer(x) for self-attention, layer(x, memory) for cross-attention, with causal=True, mask=, token_mask=,
    cache= or return_weights=True; see `forward`.

    >>> layer = MultiHeadAttention(16, 4)
    >>> layer(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    @explain_names(LAYER_NAMES)
    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        score: Score = Dot(),  # noqa: B008  (frozen: safe to share)
        position: PositionScheme | None = None,
        dropout: float = 0.0,
        bias: AttentionBias = True,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        _check_sizes(dim, heads, kv_heads, head_dim, score, position)
        check_dropout(dropout)
        if bias not in (True, False, "qkv"):
            raise ValueError(f"bias must be True, False or 'qkv', got {bias!r}")
        self.dim, self.heads, self.kv_heads = dim, heads, kv_heads
        self.head_dim = dim // heads if head_dim is None else head_dim
        self.score, self.dropout = score, dropout
        query_dim, key_dim = score.query_dim(self.head_dim), score.key_dim(self.head_dim)
        qkv_bias = bias is not False
        self.to_q = nn.Linear(dim, heads * query_dim, qkv_bias) if query_dim else None
        self.to_k = nn.Linear(dim, kv_heads * key_dim, qkv_bias) if key_dim else None
        self.to_v = nn.Linear(dim, kv_heads * self.head_dim, qkv_bias)
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
    @explain_names(CALL_NAMES, most=3, too_many=THREE_INPUTS)
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
        """Attend from x to `memory` (cross-attention), or to x itself.

        Args:
            mask: True = may attend; a tensor (t, s) or one that broadcasts to (b, h, t, s), or a lazy `Mask`.
            causal: query i sees keys up to i + (s − t) only.
            token_mask: (b, s), True for real tokens, for all keys including cached ones.
            positions: positions of queries and keys; by default counted over the real tokens.
            cache: keys and values of earlier calls; those of this call are appended.
            return_weights: also return the weights (b, h, t, s), per head and before dropout.
        """
        self._check_input("x", x)
        if memory is not None:
            self._check_input("memory", memory)
            if len(memory) != len(x):
                raise ValueError(f"x and memory must have the same batch size, got {len(x)} and {len(memory)}")
        q, k, v, positions = self._project(x, memory, token_mask, positions, cache)
        rule = _combine_masks(mask, causal, token_mask, x.shape[1], v.shape[-2])
        out, weights = self._attend(q, k, v, rule, positions, cache, return_weights)
        out = self.to_out(merge_heads(out))
        return (out, weights) if return_weights and weights is not None else out

    def new_cache(self) -> LayerKVCache:
        """An empty KV cache for this layer, to pass to successive calls."""
        return LayerKVCache()

    def _project(
        self,
        x: Tensor,
        memory: Tensor | None,
        token_mask: Tensor | None,
        positions: Positions | None,
        cache: LayerKVCache | None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor, Positions]:
        """Queries and all keys and values, rotated by their positions."""
        q = _project_heads(self.to_q, self.q_norm, x, self.heads)
        filled = cache is not None and cache.filled  # an earlier call computed the memory's keys
        if cache is not None and filled:
            k, v = cache.get()
        else:
            source = x if memory is None else memory
            k = _project_heads(self.to_k, self.k_norm, source, self.kv_heads)
            v = split_heads(self.to_v(source), self.kv_heads)
        cross = filled or memory is not None
        new = v.shape[-2]
        s = new + (0 if cache is None or filled else cache.length)
        if token_mask is not None:
            _check_token_mask(token_mask, len(x), s)
        if positions is None:
            positions = Positions.count(x.shape[1], s, token_mask, x.device, cross=cross)
        elif (positions.queries.shape[-1], positions.keys.shape[-1]) != (x.shape[1], s):
            raise ValueError(
                f"positions must be those of {x.shape[1]} queries and {s} keys, including cached ones, got "
                f"{positions.queries.shape[-1]} and {positions.keys.shape[-1]}"
            )
        if self.position is not None and q is not None and k is not None:
            rotation = positions.rotation(self.position, q.shape[-1], q.dtype)
            q = self.position.rotate(q, rotation)
            if cross:
                rotation = self.position.rotation(positions.keys[..., s - new :], q.shape[-1], q.dtype)
            k = k if filled else self.position.rotate(k, rotation)
        if cache is not None and not filled:
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
                return attention(q, k, v, rule, bias=bias, scale=scale, dropout_p=dropout_p, return_weights=True)
            return attention(q, k, v, rule, bias=bias, scale=scale, dropout_p=dropout_p), None
        mask = None
        if rule is not None:
            t = positions.queries.shape[-1] if q is None else q.shape[-2]
            check_mask(rule, (v.shape[0], self.heads, t, v.shape[-2]))
            mask = rule.tile(range(t), range(v.shape[-2]), v.device)
        exact = torch.promote_types(v.dtype, torch.float32)  # scores and softmax are at least float32
        q = None if q is None else q.to(exact)
        k = None if k is None else repeat_heads(k, self.heads).to(exact)
        with torch.autocast(v.device.type, enabled=False):
            weights = self.scorer(q, k, positions, mask, cache).to(v.dtype)
        weights = weights.expand(v.shape[0], *weights.shape[1:])
        return apply_weights(weights, v, dropout_p), weights

    def _check_input(self, name: str, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[-1] != self.dim:
            raise ValueError(f"{name} must be (batch, tokens, dim={self.dim}), got {tuple(x.shape)}")
        dtype = self.to_v.scale.dtype if isinstance(self.to_v, Int8Linear) else self.to_v.weight.dtype
        if x.dtype != dtype and not torch.is_autocast_enabled(x.device.type):
            raise ValueError(f"{name} must have the layer's dtype {dtype}, got {x.dtype}")


def _project_heads(projection: nn.Module | None, norm: nn.Module | None, x: Tensor, heads: int) -> Tensor | None:
    """Queries or keys per head, normalized if the score asks for it; None if the score uses none."""
    if projection is None:
        return None
    split = split_heads(projection(x), heads)
    return split if norm is None else norm(split)


def _combine_masks(mask: Mask | Tensor | None, causal: bool, token_mask: Tensor | None, t: int, s: int) -> Mask | None:
    if isinstance(mask, Tensor) and mask.ndim == 3:
        raise ValueError(
            f"a mask of three axes {tuple(mask.shape)} is ambiguous: one per row or one per head; give it four axes, "
            "(b, 1, t, s) or (1, h, t, s)"
        )
    parts = [] if mask is None else [masks.as_mask(mask)]
    if causal:
        parts.append(masks.causal(t, s))
    if token_mask is not None:
        parts.append(masks.padding(token_mask))
    if len(parts) > 1:
        return masks.AndMask.of(*parts)
    return parts[0] if parts else None


def _check_token_mask(token_mask: Tensor, b: int, s: int) -> None:
    fits = token_mask.ndim == 2 and len(token_mask) in (1, b) and token_mask.shape[1] == s
    if token_mask.dtype != torch.bool or not fits:
        raise ValueError(
            f"token_mask must be a boolean tensor (b, s) = ({b}, {s}), True for real tokens, including cached ones, "
            f"got {token_mask.dtype} of shape {tuple(token_mask.shape)}"
        )


def _check_sizes(
    dim: int, heads: int, kv_heads: int, head_dim: int | None, score: Score, position: PositionScheme | None
) -> None:
    if dim < 1 or heads < 1:
        raise ValueError(f"dim and heads must be at least 1, got dim={dim}, heads={heads}")
    if head_dim is None and dim % heads:
        raise ValueError(f"dim={dim} is not divisible by heads={heads}; try heads in {divisors(dim)}")
    if head_dim is not None and head_dim < 1:
        raise ValueError(f"head_dim must be at least 1, got {head_dim}")
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"heads={heads} is not divisible by kv_heads={kv_heads}; try kv_heads in {divisors(heads)}")
    if position is not None and not isinstance(score, Dot):
        raise ValueError(
            f"{type(position).__name__} acts on the dot product of queries and keys, which {type(score).__name__} does "
            "not use; omit position"
        )
