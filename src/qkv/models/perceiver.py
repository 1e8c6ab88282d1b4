"""Perceiver: language model that compresses a text into a few latents, processes them and expands to tokens again.

Axes: b batch · t tokens · m latents · c model dim.

Down-projection: latents attend to tokens. Blocks: latents attend to latents. Up-projection: tokens attend to latents.
To stay causal, each latent has a position: it sees tokens up to there and latents up to itself, and tokens from there
on see it.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.models.base import Model, init_weights
from qkv.models.generation import LanguageModel
from qkv.nn import MultiHeadAttention, masks
from qkv.nn.block import Block, BlockConfig, NormOrder
from qkv.nn.dropout import Dropout
from qkv.nn.embeddings import PositionEmbedding, TokenEmbedding
from qkv.nn.feed_forward import Activation
from qkv.nn.masks import Mask
from qkv.nn.norms import NormKind
from qkv.nn.prepare_masks import prepare_causal


@dataclass(frozen=True)
class PerceiverConfig:
    """The sizes and choices of a Perceiver.

    Args:
        layers: one down-projection, layers − 2 blocks on the latents, one up-projection.
        coverage: positions of the latents: "even" spreads them over max_length; "prefix" puts latent k at position k,
            as CS224N A5 does, so that no latent reads the tokens beyond the last one.
    """

    vocab_size: int
    max_length: int = 128
    dim: int = 256
    layers: int = 4
    heads: int = 8
    num_latents: int = 32
    coverage: Literal["even", "prefix"] = "even"
    mlp_dim: int | None = None
    activation: Activation = "gelu"
    norm: NormKind = "layer"
    norm_order: NormOrder = "pre"
    norm_eps: float = 1e-5
    position: Literal["learned", "sinusoidal"] = "learned"
    dropout: float = 0.0
    bias: bool = True

    def __post_init__(self) -> None:
        if self.layers < 2:
            raise ValueError(f"layers of a Perceiver must be at least 2 (one down, one up), got layers={self.layers}")
        if not 1 <= self.num_latents <= self.max_length:
            raise ValueError(f"num_latents must be from 1 to max_length={self.max_length}, got {self.num_latents}")
        if self.coverage not in ("even", "prefix"):
            raise ValueError(f"coverage must be 'even' or 'prefix', got {self.coverage!r}")
        if self.position not in ("learned", "sinusoidal"):
            raise ValueError(f"position of a Perceiver must be 'learned' or 'sinusoidal', got {self.position!r}")

    @property
    def block(self) -> BlockConfig:
        return BlockConfig.from_model_config(self)

    @property
    def latent_positions(self) -> list[int]:
        """The position of each latent."""
        if self.coverage == "prefix":
            return list(range(self.num_latents))
        return [(k + 1) * self.max_length // self.num_latents - 1 for k in range(self.num_latents)]


class Perceiver(LanguageModel, Model):
    """Perceiver language model: tokens in, logits of each next token out.

    >>> model = Perceiver(PerceiverConfig(vocab_size=65, dim=32, heads=4, num_latents=8))
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 65])
    """

    config_class = PerceiverConfig
    latent_positions: Tensor

    def __init__(self, config: PerceiverConfig) -> None:
        super().__init__(config)
        self.tokens = TokenEmbedding(config.vocab_size, config.dim)
        self.position_embedding = PositionEmbedding(
            config.position, config.max_length, config.dim, dropout=config.dropout
        )
        self.latents = nn.Parameter(torch.randn(1, config.num_latents, config.dim) * 0.02)
        self.down = CrossBlock(config.block)
        self.blocks = nn.ModuleList(Block(config.block) for _ in range(config.layers - 2))
        self.up = CrossBlock(config.block)
        self.norm = config.block.make_final_norm()
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.register_buffer("latent_positions", torch.tensor(config.latent_positions), persistent=False)
        init_weights(self, layers=config.layers)

    def forward(self, tokens: Int[Tensor, "b t"], token_mask: Tensor | None = None) -> Float[Tensor, "b t vocab"]:
        """Logits of each next token; token_mask (b, t) is True for real tokens."""
        return self.head(self.hidden_states(tokens, token_mask))

    def hidden_states(
        self, tokens: Int[Tensor, "b t"], token_mask: Tensor | None = None, cache: None = None
    ) -> Float[Tensor, "b t c"]:
        """The input of the output projection. A Perceiver has no cache."""
        x = self.tokens(tokens)
        positions, _ = prepare_causal(x, token_mask, None)
        x = self.position_embedding(x, positions)
        token_positions = positions.queries
        if token_positions.numel() and int(token_positions.max()) >= self.config.max_length:
            raise ValueError(
                f"this model has latents for {self.config.max_length} positions, got a sequence of "
                f"{int(token_positions.max()) + 1}"
            )
        down_mask = masks.position_band(self.latent_positions, token_positions, right=0)  # tokens up to the latent
        if token_mask is not None:
            down_mask = down_mask & masks.padding(token_mask)
        up_mask = masks.position_band(token_positions, self.latent_positions, right=0)  # latents up to the token
        latents = self.down(self.latents.expand(len(x), -1, -1), x, mask=down_mask)
        for block in self.blocks:
            latents = block(latents, mask=masks.causal(self.config.num_latents))
        return self.norm(self.up(x, latents, mask=up_mask))

    @property
    def max_positions(self) -> int | None:
        return self.config.max_length


class CrossBlock(nn.Module):
    """A block without self-attention: cross-attention from one sequence to another, then the feed-forward network."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.norm_order = config.norm_order
        self.attention = MultiHeadAttention(config.dim, config.heads, dropout=config.dropout, bias=config.bias)
        self.feed_forward = config.make_feed_forward()
        self.attention_norm, self.memory_norm, self.feed_forward_norm = (config.make_norm() for _ in range(3))
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "b t c"], memory: Float[Tensor, "b m c"], *, mask: Mask
    ) -> Float[Tensor, "b t c"]:
        memory = self.memory_norm(memory)
        if self.norm_order == "pre":
            x = x + self.dropout(self.attention(self.attention_norm(x), memory, mask=mask))
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, memory, mask=mask)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
