"""Perceiver: a long text is pressed into a few latents, worked on there, and brought back to its tokens.

Axes: b batch · t tokens · m latents · c model width.

Down-project: latents attend to tokens. Blocks: latents attend to latents. Up-project: tokens attend to latents.
To stay a language model, latent k stands at a position, sees tokens up to it and latents up to itself, and is seen
by tokens from it on.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.models.base import Model, small_normal
from qkv.models.generate import LanguageModel
from qkv.nn import MultiHeadAttention, masks
from qkv.nn.block import Block, BlockConfig, Order
from qkv.nn.context import causal_context
from qkv.nn.dropout import Dropout
from qkv.nn.embeddings import TokenEmbedding
from qkv.nn.feed_forward import Activation
from qkv.nn.masks import Mask
from qkv.nn.norms import NormKind
from qkv.nn.placement import Placement


@dataclass(frozen=True)
class PerceiverConfig:
    """A Perceiver's sizes and choices.

    layers: all of them: one down-projection, layers − 2 blocks on the latents, one up-projection.
    latents: how many there are.
    coverage: where the latents stand: "even", spread over the whole length; or "course", latent k at position k, as
        in the course's version, where tokens beyond the last latent are read by none.
    """

    vocab_size: int
    max_length: int = 128
    dim: int = 256
    layers: int = 4
    heads: int = 8
    latents: int = 32
    coverage: Literal["even", "course"] = "even"
    mlp_dim: int | None = None
    activation: Activation = "gelu"
    norm: NormKind = "layer"
    norm_order: Order = "pre"
    norm_eps: float = 1e-5
    position: Literal["learned", "sinusoidal"] = "learned"
    dropout: float = 0.0
    bias: bool = True

    def __post_init__(self) -> None:
        if self.layers < 2:
            raise ValueError(f"a Perceiver has a layer down and a layer up, so at least 2; got layers={self.layers}")
        if not 1 <= self.latents <= self.max_length:
            raise ValueError(f"latents are from 1 to the length {self.max_length}; got {self.latents}")
        if self.coverage not in ("even", "course") or self.position not in ("learned", "sinusoidal"):
            raise ValueError(
                f"coverage is 'even' or 'course' and position 'learned' or 'sinusoidal'; got {self.coverage!r} and "
                f"{self.position!r}"
            )

    @property
    def block(self) -> BlockConfig:
        return BlockConfig.of(self)

    @property
    def places(self) -> list[int]:
        """The position at which each latent stands."""
        if self.coverage == "course":
            return list(range(self.latents))
        return [(k + 1) * self.max_length // self.latents - 1 for k in range(self.latents)]


class Perceiver(LanguageModel, Model):
    """Tokens in, logits of each next token out.

    >>> model = Perceiver(PerceiverConfig(vocab_size=65, dim=32, heads=4, latents=8))
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 65])
    """

    config_class = PerceiverConfig
    places: Tensor

    def __init__(self, config: PerceiverConfig) -> None:
        super().__init__(config)
        self.tokens = TokenEmbedding(config.vocab_size, config.dim)
        self.place = Placement(config.position, config.max_length, config.dim, dropout=config.dropout)
        self.latents = nn.Parameter(torch.randn(1, config.latents, config.dim) * 0.02)
        self.down = Exchange(config.block)
        self.blocks = nn.ModuleList(Block(config.block) for _ in range(config.layers - 2))
        self.up = Exchange(config.block)
        self.norm = config.block.make_last_norm()
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.register_buffer("places", torch.tensor(config.places), persistent=False)
        small_normal(self, layers=config.layers)

    def forward(self, tokens: Int[Tensor, "b t"], token_mask: Tensor | None = None) -> Float[Tensor, "b t vocab"]:
        """present (b, t): which tokens exist."""
        return self.head(self.hidden_states(tokens, token_mask))

    def hidden_states(
        self, tokens: Int[Tensor, "b t"], token_mask: Tensor | None = None, cache: None = None
    ) -> Float[Tensor, "b t c"]:
        """What the output projection reads."""
        x = self.tokens(tokens)
        positions, _ = causal_context(x, token_mask, None)
        x = self.place(x, positions)
        latents = self.latents.expand(len(x), -1, -1)
        where = positions.queries
        if where.numel() and int(where.max()) >= self.config.max_length:
            raise ValueError(
                f"this model has latents for {self.config.max_length} positions; got a sequence of {int(where.max()) + 1}"
            )
        reads = masks.band_over_positions(self.places, where, right=0)  # a latent reads tokens up to its place
        if token_mask is not None:
            reads = reads & masks.padding(token_mask)
        seen = masks.band_over_positions(where, self.places, right=0)  # a token sees latents up to its own
        latents = self.down(latents, x, mask=reads)
        for block in self.blocks:
            latents = block(latents, mask=masks.causal(self.config.latents))
        return self.norm(self.up(x, latents, mask=seen))

    @property
    def limit(self) -> int | None:
        return self.config.max_length


class Exchange(nn.Module):
    """A block without attention to itself: one sequence reads another, then the feed-forward network."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.order = config.norm_order
        self.attention = MultiHeadAttention(config.dim, config.heads, dropout=config.dropout, bias=config.bias)
        self.feed_forward = config.make_feed_forward()
        self.attention_norm, self.memory_norm, self.feed_forward_norm = (config.make_norm() for _ in range(3))
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "b t c"], memory: Float[Tensor, "b m c"], *, mask: Mask
    ) -> Float[Tensor, "b t c"]:
        memory = self.memory_norm(memory)
        if self.order == "pre":
            x = x + self.dropout(self.attention(self.attention_norm(x), memory, mask=mask))
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, memory, mask=mask)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
