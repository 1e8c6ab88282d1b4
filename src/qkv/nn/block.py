"""The block: attention to itself, perhaps attention to a memory, a feed-forward network; each with a way around it.

Axes: b batch · t tokens · m memory tokens · c model width.
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
from qkv.nn.position_layers import Positions
from qkv.nn.positions import Relative
from qkv.nn.scores import Dot, Score

Order = Literal["pre", "post"]


@dataclass(frozen=True)
class BlockConfig:
    """What a block is made of.

    order: "pre" normalises what a part reads, x + part(norm(x)); "post", as published in 2017, what it leaves
        behind, norm(x + part(x)).
    cross: whether the block also attends to a memory.
    attention_bias: whether attention's projections add a vector, if not as the others do; "qkv": its last does not.
    dropout: on the weights of attention, on the hidden features, and on what each part adds.
    attention_dropout: on the weights of attention, if not as on the others; without any, fused kernels serve training.
    """

    dim: int
    heads: int
    mlp_dim: int
    kv_heads: int | None = None
    head_dim: int | None = None
    activation: Activation = "gelu"
    norm: NormKind = "layer"
    norm_order: Order = "pre"
    norm_eps: float = 1e-5
    dropout: float = 0.0
    attention_dropout: float | None = None
    bias: bool = True
    attention_bias: AttentionBias | None = None
    score: Score = Dot()  # noqa: RUF009  (frozen: safe to share)
    position: Relative | None = None
    cross: bool = False

    def __post_init__(self) -> None:
        if self.norm_order not in ("pre", "post"):
            raise ValueError(f"a block normalises 'pre' or 'post'; got order={self.norm_order!r}")

    @classmethod
    def of(cls, config: Any) -> "BlockConfig":
        """The block that a model's config describes: its fields of the same name; hidden is 4·width if not given."""
        known = {field.name for field in fields(cls)}
        values = {field.name: getattr(config, field.name) for field in fields(config) if field.name in known}
        values["mlp_dim"] = 4 * config.dim if config.mlp_dim is None else config.mlp_dim
        # absolute positions are added before the first block
        values["position"] = config.position if isinstance(config.position, Relative) else None
        return cls(**values)

    def make_norm(self) -> nn.Module:
        return make_norm(self.norm, self.dim, epsilon=self.norm_eps, bias=self.bias)

    def make_last_norm(self, wanted: bool | None = None) -> nn.Module:
        """What follows the last block: unless said otherwise, a norm after pre-norm blocks; others end in one."""
        return self.make_norm() if (self.norm_order == "pre" if wanted is None else wanted) else nn.Identity()

    def make_feed_forward(self) -> FeedForward:
        return FeedForward(self.dim, self.mlp_dim, activation=self.activation, dropout=self.dropout, bias=self.bias)


class Block(nn.Module):
    """One layer of a transformer.

    >>> import torch
    >>> block = Block(BlockConfig(dim=16, heads=4, mlp_dim=32))
    >>> block(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.order = config.norm_order
        self.attention = _attention(config, config.score, config.position)
        self.attention_norm = config.make_norm()
        if config.cross:  # positions say how far apart two tokens of one text are: nothing across two texts
            self.cross_attention = _attention(config, Dot(), None)
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
        latest: Float[Tensor, "b n c"] | None = None,
        first: int | None = None,
    ) -> Float[Tensor, "b #t c"]:
        """latest: the tokens that bring new keys, where they are not x itself but run ahead of it (a stream that looks
            ahead).
        first: compute only the first so many tokens of the output; they attend to all tokens.
        """
        self._check_memory(memory, memory_cache)
        if first is None:
            source = self.attention_norm(latest) if latest is not None and self.order == "pre" else latest
            x = self._add(
                x,
                self.attention_norm,
                lambda y: self.attention(y, source, mask=mask, positions=positions, cache=cache),
            )
        else:
            self._check_first(mask, positions, cache)
            x = self._add(x, self.attention_norm, lambda y: self.attention(y[:, :first], y), first)
        if self.cross_attention is not None and self.cross_norm is not None:
            attend = self.cross_attention
            x = self._add(x, self.cross_norm, lambda y: attend(y, memory, mask=memory_mask, cache=memory_cache))
        return self._add(x, self.feed_forward_norm, self.feed_forward)

    def _check_memory(self, memory: Tensor | None, held: LayerKVCache | None) -> None:
        if self.cross_attention is None and memory is not None:
            raise ValueError("this block attends to no memory, yet one was given; BlockConfig(cross=True) has one")
        if self.cross_attention is not None and memory is None and not (held is not None and held.filled):
            raise ValueError("this block attends to a memory; none was given, and memory_cache holds none")

    def _check_first(self, *unwanted: object) -> None:
        if self.attention.position is not None or any(given is not None for given in unwanted):
            raise ValueError("first= is for blocks in which all tokens see each other: no mask, positions or cache")

    def _add(self, x: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor], first: int | None = None) -> Tensor:
        kept = x if first is None else x[:, :first]
        if self.order == "pre":
            return kept + self.dropout(part(norm(x)))
        return norm(kept + self.dropout(part(x)))


def _attention(config: BlockConfig, score: Score, position: Relative | None) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.dim,
        config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        score=score,
        position=position,
        dropout=config.dropout if config.attention_dropout is None else config.attention_dropout,
        bias=config.bias if config.attention_bias is None else config.attention_bias,
    )
