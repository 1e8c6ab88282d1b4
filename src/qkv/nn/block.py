"""Transformer block: self-attention, optional cross-attention and a feed-forward network, with residual connections.

Axes: b batch · t tokens · m memory tokens · c model dim.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.dropout import Dropout
from qkv.nn.feed_forward import Activation, FeedForward
from qkv.nn.kv_cache import LayerKVCache
from qkv.nn.masks import Mask
from qkv.nn.multi_head_attention import AttentionBias, MultiHeadAttention
from qkv.nn.norms import NormKind, make_norm
from qkv.nn.positions import Positions, PositionScheme
from qkv.nn.scores import Dot, Score

NormOrder = Literal["pre", "post"]


@dataclass(frozen=True)
class BlockConfig:
    """The sizes and choices of a transformer block.

    Args:
        norm_order: "pre" is x + f(norm(x)), pre-norm; "post" is norm(x + f(x)), post-norm as published in 2017.
        cross_attention: whether the block also attends to a memory.
        attention_bias: biases of the attention projections, default `bias`; "qkv": all but the output projection.
        dropout: on attention weights, on the hidden features of the MLP, and on each residual branch.
        attention_dropout: on attention weights, default `dropout`; with 0, fused kernels are used in training.
        mlp_dropout: on the hidden features of the MLP, default `dropout`.
    """

    dim: int
    heads: int
    mlp_dim: int
    kv_heads: int | None = None
    head_dim: int | None = None
    activation: Activation = "gelu"
    norm: NormKind = "layer"
    norm_order: NormOrder = "pre"
    norm_eps: float = 1e-5
    dropout: float = 0.0
    attention_dropout: float | None = None
    mlp_dropout: float | None = None
    bias: bool = True
    attention_bias: AttentionBias | None = None
    score: Score = Dot()  # noqa: RUF009  (frozen: safe to share)
    position: PositionScheme | None = None
    cross_attention: bool = False

    def __post_init__(self) -> None:
        if self.norm_order not in ("pre", "post"):
            raise ValueError(f"norm_order must be 'pre' or 'post', got {self.norm_order!r}")

    @classmethod
    def from_model_config(cls, config: Any) -> "BlockConfig":
        """The block of a model: the fields of the same name in its config; mlp_dim defaults to 4·dim."""
        known = {field.name for field in fields(cls)}
        values = {field.name: getattr(config, field.name) for field in fields(config) if field.name in known}
        values["mlp_dim"] = 4 * config.dim if config.mlp_dim is None else config.mlp_dim
        # absolute positions are added before the first block
        values["position"] = config.position if isinstance(config.position, PositionScheme) else None
        return cls(**values)

    def make_norm(self) -> nn.Module:
        return make_norm(self.norm, self.dim, eps=self.norm_eps, bias=self.bias)

    def make_final_norm(self, final_norm: bool | None = None) -> nn.Module:
        """The norm after the last block; by default only pre-norm blocks need one, post-norm blocks end in a norm."""
        if final_norm is None:
            final_norm = self.norm_order == "pre"
        return self.make_norm() if final_norm else nn.Identity()

    def make_attention(self, score: Score, position: PositionScheme | None) -> MultiHeadAttention:
        return MultiHeadAttention(
            self.dim,
            self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            score=score,
            position=position,
            dropout=self.dropout if self.attention_dropout is None else self.attention_dropout,
            bias=self.bias if self.attention_bias is None else self.attention_bias,
        )

    def make_feed_forward(self) -> FeedForward:
        dropout = self.dropout if self.mlp_dropout is None else self.mlp_dropout
        return FeedForward(self.dim, self.mlp_dim, activation=self.activation, dropout=dropout, bias=self.bias)


class Block(nn.Module):
    """One transformer layer.

    >>> import torch
    >>> block = Block(BlockConfig(dim=16, heads=4, mlp_dim=32))
    >>> block(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.norm_order = config.norm_order
        self.attention = config.make_attention(config.score, config.position)
        self.attention_norm = config.make_norm()
        if config.cross_attention:  # no position scheme: distances between two different texts mean nothing
            self.cross_attention = config.make_attention(Dot(), None)
            self.cross_norm = config.make_norm()
        else:
            self.cross_attention = self.cross_norm = None
        self.feed_forward = config.make_feed_forward()
        self.feed_forward_norm = config.make_norm()
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "b t c"],
        memory: Float[Tensor, "b m c"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        memory_mask: Mask | Tensor | None = None,
        positions: Positions | None = None,
        cache: LayerKVCache | None = None,
        memory_cache: LayerKVCache | None = None,
        key_source: Float[Tensor, "b n c"] | None = None,
        num_outputs: int | None = None,
    ) -> Float[Tensor, "b #t c"]:
        """Apply the block.

        Args:
            mask, memory_mask: True = may attend, for self-attention and for cross-attention.
            cache, memory_cache: KV caches of self-attention and of cross-attention.
            key_source: the tokens that give the new keys, where they differ from x (a stream with look-ahead).
            num_outputs: compute only the first so many output tokens; they attend to all tokens.
        """
        self._check_memory(memory, memory_cache)
        if num_outputs is None:
            source = key_source
            if key_source is not None and self.norm_order == "pre":
                source = self.attention_norm(key_source)
            x = self._residual(
                x, self.attention_norm, lambda y: self.attention(y, source, mask=mask, positions=positions, cache=cache)
            )
        else:
            self._check_num_outputs(mask, positions, cache)
            x = self._residual(x, self.attention_norm, lambda y: self.attention(y[:, :num_outputs], y), num_outputs)
        if self.cross_attention is not None and self.cross_norm is not None:
            attend = self.cross_attention
            x = self._residual(x, self.cross_norm, lambda y: attend(y, memory, mask=memory_mask, cache=memory_cache))
        return self._residual(x, self.feed_forward_norm, self.feed_forward)

    def _residual(
        self, x: Tensor, norm: nn.Module, branch: Callable[[Tensor], Tensor], num_outputs: int | None = None
    ) -> Tensor:
        """Residual connection around a branch, pre-norm or post-norm."""
        kept = x if num_outputs is None else x[:, :num_outputs]
        if self.norm_order == "pre":
            return kept + self.dropout(branch(norm(x)))
        return norm(kept + self.dropout(branch(x)))

    def _check_memory(self, memory: Tensor | None, cache: LayerKVCache | None) -> None:
        if self.cross_attention is None and memory is not None:
            raise ValueError("this block takes no memory; use BlockConfig(cross_attention=True)")
        if self.cross_attention is not None and memory is None and not (cache is not None and cache.filled):
            raise ValueError("this block needs a memory: pass memory=, or a memory_cache that holds it")

    def _check_num_outputs(self, *unsupported: object) -> None:
        if self.attention.position is not None or any(value is not None for value in unsupported):
            raise ValueError("num_outputs needs a block without position scheme, mask, positions and cache")
