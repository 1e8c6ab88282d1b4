"""Encoder: bidirectional transformer encoder (BERT-style), or chunked attention for streaming.

Axes: b batch · t tokens · c model dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.models.base import Model, init_weights
from qkv.nn import KVCache
from qkv.nn.block import Block, BlockConfig, NormOrder
from qkv.nn.embeddings import Position, PositionEmbedding, TokenEmbedding, get_position
from qkv.nn.feed_forward import Activation
from qkv.nn.masks import Mask
from qkv.nn.norms import NormKind
from qkv.nn.positions import Positions
from qkv.nn.prepare_masks import check_token_mask, make_chunked_mask


@dataclass(frozen=True)
class EncoderConfig:
    """The sizes and choices of an encoder.

    Args:
        vocab_size: number of tokens; or features: dim of the input vectors (speech). One of the two.
        chunk_size: a token sees its own chunk of so many tokens and `left_chunks` before it (None: all); None sees all.
        lookahead_chunks: chunks after its own that a token sees too, in the first block only: the output of a chunk
            waits for so many more chunks, however deep the encoder is.
        final_norm: norm after the last block; by default only for pre-norm blocks.
        embedding_norm: norm before the first block (BERT).
        attention_dropout: on attention weights, default `dropout`.
        num_segments: number of segments of a text, each with a learned vector (BERT: 2); 0 is none.
    """

    vocab_size: int | None = None
    features: int | None = None
    max_length: int = 512
    dim: int = 256
    layers: int = 4
    heads: int = 8
    mlp_dim: int | None = None
    activation: Activation = "gelu"
    norm: NormKind = "layer"
    norm_order: NormOrder = "pre"
    norm_eps: float = 1e-5
    position: Position = "sinusoidal"
    final_norm: bool | None = None
    scale_embeddings: bool = False
    chunk_size: int | None = None
    left_chunks: int | None = None
    lookahead_chunks: int = 0
    dropout: float = 0.0
    bias: bool = True
    embedding_norm: bool = False
    num_segments: int = 0
    attention_dropout: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "position", get_position(self.position, causal=False))
        if (self.vocab_size is None) == (self.features is None):
            raise ValueError(
                f"an encoder reads tokens (vocab_size=…) or vectors (features=…), one of the two, got "
                f"vocab_size={self.vocab_size}, features={self.features}"
            )
        if self.layers < 0 or (self.features is not None and self.features < 1):
            raise ValueError(f"layers must be 0 or more, features 1 or more, got {self.layers} and {self.features}")
        self._check_chunks()

    def _check_chunks(self) -> None:
        chunk_size, left, ahead = self.chunk_size, self.left_chunks, self.lookahead_chunks
        if chunk_size is None and (left is not None or ahead):
            raise ValueError(f"left_chunks={left} and lookahead_chunks={ahead} have no effect without chunk_size=…")
        if (chunk_size is not None and chunk_size < 1) or (left or 0) < 0 or ahead < 0:
            raise ValueError(
                f"chunk_size must be at least 1, left_chunks 0 or more (or None for all), lookahead_chunks 0 or more, "
                f"got chunk_size={chunk_size}, left_chunks={left}, lookahead_chunks={ahead}"
            )

    @property
    def block(self) -> BlockConfig:
        return BlockConfig.from_model_config(self)


class Encoder(Model):
    """Transformer encoder: tokens (or vectors) in, hidden states out.

    >>> model = Encoder(EncoderConfig(vocab_size=65, dim=32, layers=2, heads=4))
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 32])
    """

    config_class = EncoderConfig

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        if config.vocab_size is not None:
            self.tokens = TokenEmbedding(config.vocab_size, config.dim)
        else:
            self.tokens = nn.Linear(config.features or 0, config.dim)
        self.position_embedding = PositionEmbedding(
            config.position,
            config.max_length,
            config.dim,
            dropout=config.dropout,
            scale_embeddings=config.scale_embeddings,
            num_segments=config.num_segments,
            norm=config.block.make_norm() if config.embedding_norm else None,
        )
        self.blocks = nn.ModuleList(Block(config.block) for _ in range(config.layers))
        self.norm = config.block.make_final_norm(config.final_norm)
        init_weights(self, layers=config.layers)

    def forward(
        self, tokens: Tensor, token_mask: Tensor | None = None, segments: Tensor | None = None
    ) -> Float[Tensor, "b t c"]:
        """Hidden states after the last block.

        Args:
            tokens: (b, t), or vectors (b, t, features).
            token_mask: (b, t), True for real tokens.
            segments: (b, t), the segment of each token, default 0.
        """
        cache = KVCache()
        x, positions = self._embed(tokens, token_mask, cache, segments)
        mask = self._make_mask(positions, cache.token_mask)
        first_mask = mask
        if self.config.lookahead_chunks:
            first_mask = self._make_mask(positions, cache.token_mask, self.config.lookahead_chunks)
        for index, block in enumerate(self.blocks):
            x = block(x, mask=first_mask if index == 0 else mask, positions=positions)
        return self.norm(x)

    def stream(
        self, tokens: Tensor, state: EncoderState | None = None, *, final: bool = False
    ) -> tuple[Float[Tensor, "b t c"], EncoderState]:
        """Feed a piece of any length; return the hidden states of the chunks it completes, and the new state.

        The hidden states of all pieces equal one call on the whole input, to rounding. With look-ahead, those of a
        chunk come when so many chunks after it are complete. The given state is not changed, so that a stream can be
        continued twice from one state.

        Args:
            final: whether this is the last piece; it closes the last chunk early.
        """
        config = self.config
        if config.chunk_size is None:
            raise ValueError("an encoder with full attention cannot stream; set chunk_size=… in its config")
        if state is not None and state.closed:
            raise ValueError("this stream was closed by final=True; start a new one with state=None")
        self._check(tokens)
        before = None if state is None else state.waiting
        if before is not None and len(before) != len(tokens):
            raise ValueError(f"this stream has {len(before)} rows, got {len(tokens)}")
        waiting = tokens if before is None else torch.cat((before, tokens), dim=1)
        complete = waiting.shape[1] if final else waiting.shape[1] // config.chunk_size * config.chunk_size
        first, rest = (KVCache(), KVCache()) if state is None else (state.first.copy(), state.rest.copy())
        x, positions = self._embed(waiting[:, :complete], None, first)
        pending = x if state is None else torch.cat((state.pending, x), dim=1)
        lookahead = config.lookahead_chunks * config.chunk_size
        ready = pending.shape[1] if final else max(pending.shape[1] - lookahead, 0)
        hidden = self._stream_blocks(pending[:, :ready], x, positions, first, rest)
        pending = pending[:, ready:]
        if config.left_chunks is not None:
            kept = config.left_chunks * config.chunk_size
            first.drop(first.length - pending.shape[1] - kept)
            rest.drop(rest.length - kept)
        return hidden, EncoderState(first, rest, pending, waiting[:, complete:], closed=final)

    def _embed(
        self, tokens: Tensor, token_mask: Tensor | None, cache: KVCache, segments: Tensor | None = None
    ) -> tuple[Tensor, Positions]:
        """The input of the first block and its positions; the cache is advanced."""
        if self.config.vocab_size is None:  # TokenEmbedding checks its input itself
            self._check(tokens)
        x = self.tokens(tokens)
        positions = cache.advance(x.shape[1], check_token_mask(token_mask, x), x.device)
        return self.position_embedding(x, positions, segments), positions

    def _make_mask(self, positions: Positions, token_mask: Tensor | None, right_chunks: int = 0) -> Mask | None:
        return make_chunked_mask(positions, token_mask, self.config.chunk_size, self.config.left_chunks, right_chunks)

    def _stream_blocks(
        self, x: Tensor, new: Tensor, positions: Positions, first: KVCache, rest: KVCache
    ) -> Float[Tensor, "b t c"]:
        """The hidden states of x. The first block gets its keys from `new`, which may be ahead of x."""
        keys = positions.keys
        start = rest.dropped + rest.length - first.dropped  # number of tokens answered before
        first_positions = Positions(keys[start : start + x.shape[1]], keys)
        first_mask = self._make_mask(first_positions, None, self.config.lookahead_chunks)
        positions = rest.advance(x.shape[1], None, x.device)
        mask = self._make_mask(positions, None)
        for index, block in enumerate(self.blocks):
            if index == 0:
                x = block(x, mask=first_mask, positions=first_positions, cache=first.layer(0), key_source=new)
            else:
                x = block(x, mask=mask, positions=positions, cache=rest.layer(index))
        return self.norm(x)

    def _check(self, tokens: Tensor) -> None:
        if isinstance(self.tokens, TokenEmbedding):
            self.tokens.check(tokens)
            return
        if tokens.ndim != 3 or tokens.shape[-1] != self.config.features:
            raise ValueError(
                f"this encoder reads vectors of shape (batch, tokens, {self.config.features}), got "
                f"{tuple(tokens.shape)}"
            )
        dtype = self.tokens.weight.dtype
        if tokens.dtype != dtype and not torch.is_autocast_enabled(tokens.device.type):
            raise ValueError(f"this encoder reads vectors of {dtype}, got {tokens.dtype}")


@dataclass(frozen=True)
class EncoderState:
    """The state of a stream.

    Args:
        first, rest: KV caches of the first block and of the others.
        pending: inputs of the first block whose outputs wait for the look-ahead.
        waiting: input that waits for its chunk to be complete.
    """

    first: KVCache
    rest: KVCache
    pending: Tensor
    waiting: Tensor
    closed: bool = False
