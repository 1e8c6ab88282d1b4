"""Seq2Seq: encoder-decoder transformer of 2017 (also BART), with cross-attention and KV cache.

Axes: b batch · m source tokens · t target tokens · c model dim.
"""

from dataclasses import dataclass, replace

from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.models.base import Model
from qkv.models.generation import Translator
from qkv.nn import KVCache, T5Bias, masks
from qkv.nn.block import Block, BlockConfig, NormOrder
from qkv.nn.embeddings import Position, PositionEmbedding, TokenEmbedding, get_position
from qkv.nn.feed_forward import Activation
from qkv.nn.kv_cache import restore_on_error
from qkv.nn.norms import NormKind
from qkv.nn.positions import PositionScheme
from qkv.nn.prepare_masks import check_token_mask, prepare_causal, prepare_chunked


@dataclass(frozen=True)
class Seq2SeqConfig:
    """The sizes and choices of a Seq2Seq; the defaults are the published ones except for the sizes.

    Args:
        target_vocab_size: default vocab_size; then source and target may share one embedding (`tie_embeddings`).
        norm_order: "post" as published; "pre" trains without warm-up.
        final_norm: norm after the last block of encoder and decoder; by default only for pre-norm blocks.
        embedding_norm: norm before the first block of encoder and decoder (BART).
        head_bias: whether the output projection has a bias (BART).
        tie_embeddings: source, target and output share one embedding, as published.
        scale_embeddings: multiply token vectors by √dim, as published.
        attention_dropout, mlp_dropout: on attention weights and on the hidden features of the MLP, default `dropout`;
            0 as published: there dropout is on residual branches and embeddings only.
    """

    vocab_size: int
    target_vocab_size: int | None = None
    max_length: int = 512
    dim: int = 256
    encoder_layers: int = 3
    decoder_layers: int = 3
    heads: int = 8
    mlp_dim: int | None = None
    activation: Activation = "relu"
    norm: NormKind = "layer"
    norm_order: NormOrder = "post"
    norm_eps: float = 1e-5
    position: Position = "sinusoidal"
    final_norm: bool | None = None
    dropout: float = 0.1
    bias: bool = True
    tie_embeddings: bool = True
    scale_embeddings: bool = True
    embedding_norm: bool = False
    head_bias: bool = False
    attention_dropout: float | None = None
    mlp_dropout: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "position", get_position(self.position, causal=True))
        if min(self.encoder_layers, self.decoder_layers) < 0:
            raise ValueError(f"layers must be 0 or more, got {self.encoder_layers} and {self.decoder_layers}")
        if self.tie_embeddings and self.target_vocab_size not in (None, self.vocab_size):
            raise ValueError(
                f"source and target can share one embedding only with one vocabulary, got vocab_size={self.vocab_size} "
                f"and target_vocab_size={self.target_vocab_size}; set tie_embeddings=False"
            )

    @property
    def block(self) -> BlockConfig:
        return BlockConfig.from_model_config(self)


class Seq2Seq(Translator, Model):
    """Encoder-decoder transformer: source and target in, logits of each next target token out.

    >>> import torch
    >>> model = Seq2Seq(Seq2SeqConfig(vocab_size=65, dim=32, heads=4))
    >>> model(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])).shape
    torch.Size([1, 2, 65])
    """

    config_class = Seq2SeqConfig

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__(config)
        target_vocab_size = config.vocab_size if config.target_vocab_size is None else config.target_vocab_size
        self.source_tokens = TokenEmbedding(config.vocab_size, config.dim)
        self.target_tokens = self.source_tokens
        if not config.tie_embeddings:
            self.target_tokens = TokenEmbedding(target_vocab_size, config.dim)
        self.source_position_embedding, self.target_position_embedding = (
            self._make_position_embedding(config) for _ in range(2)
        )
        encoder = replace(config.block, position=_set_direction(config.block.position, bidirectional=True))
        decoder = replace(config.block, position=_set_direction(config.block.position, bidirectional=False))
        decoder = replace(decoder, cross_attention=True)
        self.encoder = nn.ModuleList(Block(encoder) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(Block(decoder) for _ in range(config.decoder_layers))
        self.encoder_norm, self.decoder_norm = (config.block.make_final_norm(config.final_norm) for _ in range(2))
        self.head = nn.Linear(config.dim, target_vocab_size, bias=config.head_bias)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
        for embedding in (self.source_tokens, self.target_tokens):
            nn.init.normal_(embedding.weight, std=config.dim**-0.5)
        if config.tie_embeddings:
            self.head.weight = self.source_tokens.weight

    def forward(
        self,
        source: Int[Tensor, "b m"],
        target: Int[Tensor, "b t"],
        source_token_mask: Tensor | None = None,
        target_token_mask: Tensor | None = None,
    ) -> Float[Tensor, "b t vocab"]:
        """Logits of each next target token. The token masks (b, m) and (b, t) are True for real tokens."""
        memory = self.encode(source, source_token_mask)
        return self.decode(target, memory, source_token_mask, target_token_mask)

    def encode(self, source: Int[Tensor, "b m"], token_mask: Tensor | None = None) -> Float[Tensor, "b m c"]:
        """Encode the source: the memory that the decoder attends to."""
        x = self.source_tokens(source)
        positions, mask = prepare_chunked(x, token_mask, None, None, None)
        x = self.source_position_embedding(x, positions)
        for block in self.encoder:
            x = block(x, mask=mask, positions=positions)
        return self.encoder_norm(x)

    def decode(
        self,
        target: Int[Tensor, "b t"],
        memory: Float[Tensor, "b m c"],
        memory_token_mask: Tensor | None = None,
        token_mask: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "b t vocab"]:
        """Logits of each next token, given the target so far and the encoded source."""
        x = self.target_tokens(target)
        memory_token_mask = check_token_mask(memory_token_mask, memory)
        memory_mask = None if memory_token_mask is None else masks.padding(memory_token_mask)
        with restore_on_error(cache):
            positions, mask = prepare_causal(x, token_mask, cache)
            x = self.target_position_embedding(x, positions)
            for index, block in enumerate(self.decoder):
                x = block(
                    x,
                    memory,
                    mask=mask,
                    memory_mask=memory_mask,
                    positions=positions,
                    cache=None if cache is None else cache.layer(index),
                    memory_cache=None if cache is None else cache.layer(("memory", index), fixed=True),
                )
        return self.head(self.decoder_norm(x))

    def new_cache(self) -> KVCache:
        return KVCache()

    @property
    def max_positions(self) -> int | None:
        """The longest sequence that the model has positions for; None is without limit."""
        return self.config.max_length if self.config.position == "learned" else None

    @staticmethod
    def _make_position_embedding(config: Seq2SeqConfig) -> PositionEmbedding:
        return PositionEmbedding(
            config.position,
            config.max_length,
            config.dim,
            dropout=config.dropout,
            scale_embeddings=config.scale_embeddings,
            norm=config.block.make_norm() if config.embedding_norm else None,
        )


def _set_direction(position: PositionScheme | None, *, bidirectional: bool) -> PositionScheme | None:
    """T5's bias has buckets for distances ahead in the encoder only."""
    return replace(position, bidirectional=bidirectional) if isinstance(position, T5Bias) else position
