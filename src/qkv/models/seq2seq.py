"""Seq2Seq: the encoder–decoder of 2017; the decoder sees its own past and all of the source.

Axes: b batch · m source tokens · t target tokens · c model width.
"""

from dataclasses import dataclass, replace

from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.models.base import Model
from qkv.models.translate import Translator
from qkv.nn import KVCache, T5Bias, masks
from qkv.nn.block import Block, BlockConfig, Order
from qkv.nn.context import causal_context, checked_present, chunked_context
from qkv.nn.embeddings import TokenEmbedding
from qkv.nn.feed_forward import Activation
from qkv.nn.kv_cache import undone_on_failure
from qkv.nn.norms import NormKind
from qkv.nn.placement import Placement, Position, named_position
from qkv.nn.positions import Relative


@dataclass(frozen=True)
class Seq2SeqConfig:
    """A Seq2Seq's sizes and choices; as published but for the sizes.

    target_vocab: as large as the source's if not given; then the two may share one table (`tied`).
    order: "post" as published; "pre" trains without warm-up.
    final_norm: a norm after the last block of encoder and decoder; for pre-norm blocks, unless said otherwise.
    embedding_norm: whether what the first block of encoder and decoder reads is normalised (BART).
    head_bias: whether the output adds a number for each token (BART).
    tied: source, target and output share one table of token vectors, as published.
    scale: token vectors are multiplied by √width, as published.
    attention_dropout: on the weights of attention, if not `dropout`.
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
    norm_order: Order = "post"
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "position", named_position(self.position, causal=True))
        if min(self.encoder_layers, self.decoder_layers) < 0:
            raise ValueError(f"layers are 0 or more; got {self.encoder_layers} and {self.decoder_layers}")
        if self.tie_embeddings and self.target_vocab_size not in (None, self.vocab_size):
            raise ValueError(
                f"source and target share one table only if they share a vocabulary; got vocab={self.vocab_size} and "
                f"target_vocab={self.target_vocab_size}: say tied=False"
            )

    @property
    def block(self) -> BlockConfig:
        return BlockConfig.of(self)


class Seq2Seq(Translator, Model):
    """Source and target in, logits of each next target token out.

    >>> import torch
    >>> model = Seq2Seq(Seq2SeqConfig(vocab_size=65, dim=32, heads=4))
    >>> model(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])).shape
    torch.Size([1, 2, 65])
    """

    config_class = Seq2SeqConfig

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__(config)
        target_vocab = config.vocab_size if config.target_vocab_size is None else config.target_vocab_size
        self.source_tokens = TokenEmbedding(config.vocab_size, config.dim)
        self.target_tokens = self.source_tokens if config.tie_embeddings else TokenEmbedding(target_vocab, config.dim)
        self.source_place = self._placement(config)
        self.target_place = self._placement(config)
        encoder = replace(config.block, position=_facing(config.block.position, both=True))
        decoder = replace(config.block, position=_facing(config.block.position, both=False), cross=True)
        self.encoder = nn.ModuleList(Block(encoder) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(Block(decoder) for _ in range(config.decoder_layers))
        self.encoder_norm, self.decoder_norm = (config.block.make_last_norm(config.final_norm) for _ in range(2))
        self.head = nn.Linear(config.dim, target_vocab, bias=config.head_bias)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
        for table in (self.source_tokens, self.target_tokens):
            nn.init.normal_(table.weight, std=config.dim**-0.5)
        if config.tie_embeddings:
            self.head.weight = self.source_tokens.weight

    def forward(
        self,
        source: Int[Tensor, "b m"],
        target: Int[Tensor, "b t"],
        source_token_mask: Tensor | None = None,
        target_token_mask: Tensor | None = None,
    ) -> Float[Tensor, "b t vocab"]:
        memory = self.encode(source, source_token_mask)
        return self.decode(target, memory, source_token_mask, target_token_mask)

    def encode(self, source: Int[Tensor, "b m"], token_mask: Tensor | None = None) -> Float[Tensor, "b m c"]:
        """The source, read: what the decoder attends to."""
        x = self.source_tokens(source)
        positions, mask = chunked_context(x, token_mask, None, None, None)
        x = self.source_place(x, positions)
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
        """Logits of each next token, given the target so far and the source as it was read."""
        x = self.target_tokens(target)
        memory_token_mask = checked_present(memory_token_mask, memory)
        visible = None if memory_token_mask is None else masks.padding(memory_token_mask)
        with undone_on_failure(cache):
            positions, mask = causal_context(x, token_mask, cache)
            x = self.target_place(x, positions)
            for index, block in enumerate(self.decoder):
                x = block(
                    x,
                    memory,
                    mask=mask,
                    memory_mask=visible,
                    positions=positions,
                    cache=None if cache is None else cache.layer(index),
                    memory_cache=None if cache is None else cache.layer(("memory", index), fixed=True),
                )
        return self.head(self.decoder_norm(x))

    def new_cache(self) -> KVCache:
        return KVCache()

    @property
    def limit(self) -> int | None:
        """The longest sequence that the model knows positions for; None if there is no such limit."""
        return self.config.max_length if self.config.position == "learned" else None

    @staticmethod
    def _placement(config: Seq2SeqConfig) -> Placement:
        return Placement(
            config.position,
            config.max_length,
            config.dim,
            dropout=config.dropout,
            scale=config.scale_embeddings,
            norm=config.block.make_norm() if config.embedding_norm else None,
        )


def _facing(position: Relative | None, *, both: bool) -> Relative | None:
    """T5 keeps buckets for distances ahead where something is ahead: in the encoder."""
    return replace(position, bidirectional=both) if isinstance(position, T5Bias) else position
