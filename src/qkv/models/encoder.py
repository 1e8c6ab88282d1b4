"""Encoder: each token sees every other, or, to work in real time, only so far ahead.

Axes: b batch · t tokens · c model width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.models.base import Model, small_normal
from qkv.nn import KVCache
from qkv.nn.block import Block, BlockConfig, Order
from qkv.nn.context import checked_present, chunked_mask
from qkv.nn.embeddings import TokenEmbedding
from qkv.nn.feed_forward import Activation
from qkv.nn.norms import NormKind
from qkv.nn.placement import Placement, Position, named_position
from qkv.nn.position_layers import Positions


@dataclass(frozen=True)
class EncoderConfig:
    """An encoder's sizes and choices.

    vocab: how many tokens it knows; or features: how wide the vectors are that it reads instead (speech).
    chunk: a token sees its own chunk of so many and `left_chunks` before it (None: all before). None sees all.
    ahead: how many chunks after its own a token sees as well, in the first block only: what is said of a chunk waits
        for so many more, however deep the encoder is.
    final_norm: whether the output is normalised once more; for pre-norm blocks, unless said otherwise.
    embedding_norm: whether what the first block reads is normalised (BERT).
    attention_dropout: on the weights of attention, if not `dropout`.
    segments: how many parts a text may have, each with a vector of its own (BERT: 2); 0 is none.
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
    norm_order: Order = "pre"
    norm_eps: float = 1e-5
    position: Position = "sinusoidal"
    final_norm: bool | None = None
    scale_embeddings: bool = False
    chunk_size: int | None = None
    left_chunks: int | None = None
    ahead: int = 0
    dropout: float = 0.0
    bias: bool = True
    embedding_norm: bool = False
    segments: int = 0
    attention_dropout: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "position", named_position(self.position, causal=False))
        if (self.vocab_size is None) == (self.features is None):
            raise ValueError(
                f"an encoder reads tokens (vocab=…) or vectors (features=…), one of the two; got "
                f"vocab={self.vocab_size}, features={self.features}"
            )
        if self.layers < 0 or (self.features is not None and self.features < 1):
            raise ValueError(f"layers are 0 or more, features 1 or more; got {self.layers} and {self.features}")
        if self.chunk_size is None and (self.left_chunks is not None or self.ahead):
            raise ValueError(f"left_chunks={self.left_chunks} and ahead={self.ahead} mean nothing without chunk=…")
        if (self.chunk_size is not None and self.chunk_size < 1) or (self.left_chunks or 0) < 0 or self.ahead < 0:
            raise ValueError(
                f"a chunk holds at least 1 token, left_chunks is 0 or more, or None for all, ahead is 0 or more; got "
                f"chunk={self.chunk_size}, left_chunks={self.left_chunks}, ahead={self.ahead}"
            )

    @property
    def block(self) -> BlockConfig:
        return BlockConfig.of(self)


class Encoder(Model):
    """Tokens (or vectors) in, hidden states out.

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
        self.place = Placement(
            config.position,
            config.max_length,
            config.dim,
            dropout=config.dropout,
            scale=config.scale_embeddings,
            segments=config.segments,
            norm=config.block.make_norm() if config.embedding_norm else None,
        )
        self.blocks = nn.ModuleList(Block(config.block) for _ in range(config.layers))
        self.norm = config.block.make_last_norm(config.final_norm)
        small_normal(self, layers=config.layers)

    def forward(
        self, tokens: Tensor, token_mask: Tensor | None = None, segments: Tensor | None = None
    ) -> Float[Tensor, "b t c"]:
        """tokens (b, t), or vectors (b, t, features). present (b, t): which of them exist. segments (b, t): the part
        of the text that each belongs to; all to the first if not given."""
        config = self.config
        x, heard = self._read(tokens, token_mask, KVCache(), segments)
        positions, token_mask = heard
        mask = chunked_mask(positions, token_mask, config.chunk_size, config.left_chunks)
        first = mask
        if config.ahead:  # the first block alone looks ahead
            first = chunked_mask(positions, token_mask, config.chunk_size, config.left_chunks, config.ahead)
        for index, block in enumerate(self.blocks):
            x = block(x, mask=first if index == 0 else mask, positions=positions)
        return self.norm(x)

    def stream(
        self, tokens: Tensor, state: EncoderState | None = None, *, final: bool = False
    ) -> tuple[Float[Tensor, "b t c"], EncoderState]:
        """Feed a piece of any length; get the hidden states of the chunks it completes, and the state to go on with.

        The states put together equal one call on the whole, to rounding. With `ahead`, those of a chunk come when so
        many chunks after it are complete. `final` closes the last chunk early. The state given stays as it was, so that
        a stream can be continued twice.
        """
        config = self.config
        if config.chunk_size is None:
            raise ValueError("an encoder that sees everything cannot stream; give its config a chunk=…")
        if state is not None and state.closed:
            raise ValueError("this stream was closed by final=True; start a new one with state=None")
        self._check(tokens)
        before = None if state is None else state.waiting
        if before is not None and len(before) != len(tokens):
            raise ValueError(f"this stream has {len(before)} rows; got {len(tokens)}")
        waiting = tokens if before is None else torch.cat((before, tokens), dim=1)
        whole = waiting.shape[1] if final else waiting.shape[1] // config.chunk_size * config.chunk_size
        first, rest = (KVCache(), KVCache()) if state is None else (state.first.copy(), state.rest.copy())
        x, (positions, _) = self._read(waiting[:, :whole], None, first)
        asking = x if state is None else torch.cat((state.asking, x), dim=1)
        ready = asking.shape[1] if final else max(asking.shape[1] - config.ahead * config.chunk_size, 0)
        hidden = self._go_on(asking[:, :ready], x, positions, first, rest)
        asking = asking[:, ready:]
        if config.left_chunks is not None:
            kept = config.left_chunks * config.chunk_size
            first.drop(first.length - asking.shape[1] - kept)
            rest.drop(rest.length - kept)
        return hidden, EncoderState(first, rest, asking, waiting[:, whole:], closed=final)

    def _read(
        self, tokens: Tensor, token_mask: Tensor | None, cache: KVCache, segments: Tensor | None = None
    ) -> tuple[Tensor, tuple[Positions, Tensor | None]]:
        """What the first block reads; where it stands, and which of all tokens heard so far exist."""
        if self.config.vocab_size is None:  # a table of tokens checks them itself
            self._check(tokens)
        x = self.tokens(tokens)
        positions = cache.advance(x.shape[1], checked_present(token_mask, x), x.device)
        return self.place(x, positions, segments), (positions, cache.token_mask)

    def _go_on(self, x: Tensor, latest: Tensor, positions: Positions, first: KVCache, rest: KVCache) -> Tensor:
        """The hidden states of x. The first block hears `latest`, which may run ahead of x; the others hear x."""
        config = self.config
        keys = positions.keys
        start = rest.dropped + rest.length - first.dropped  # as many were answered before
        asked = Positions(keys[start : start + x.shape[1]], keys)
        mask = chunked_mask(asked, None, config.chunk_size, config.left_chunks, config.ahead)
        positions = rest.advance(x.shape[1], None, x.device)
        later = chunked_mask(positions, None, config.chunk_size, config.left_chunks)
        for index, block in enumerate(self.blocks):
            if index == 0:
                x = block(x, mask=mask, positions=asked, cache=first.layer(0), latest=latest)
            else:
                x = block(x, mask=later, positions=positions, cache=rest.layer(index))
        return self.norm(x)

    def _check(self, tokens: Tensor) -> None:
        if isinstance(self.tokens, TokenEmbedding):
            self.tokens.check(tokens)
            return
        if tokens.ndim != 3 or tokens.shape[-1] != self.config.features:
            raise ValueError(
                f"this encoder reads vectors of shape (batch, tokens, {self.config.features}); got "
                f"{tuple(tokens.shape)}"
            )
        dtype = self.tokens.weight.dtype
        if tokens.dtype != dtype and not torch.is_autocast_enabled(tokens.device.type):
            raise ValueError(f"this encoder reads vectors of {dtype}; got {tokens.dtype}")


@dataclass(frozen=True)
class EncoderState:
    """Where a stream stands: keys and values still visible to the first block and to the rest, what the first block was
    given and has not answered yet, and input that waits for its chunk."""

    first: KVCache
    rest: KVCache
    asking: Tensor
    waiting: Tensor
    closed: bool = False
