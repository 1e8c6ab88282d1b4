"""RNNSeq2Seq: recurrent encoder-decoder with Bahdanau (additive) attention, a baseline for Seq2Seq.

Axes: b batch · m source tokens · t target tokens · c hidden size.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.models.base import Model
from qkv.models.generation import Translator
from qkv.models.rnn import Cell, Recurrent, RNNCache
from qkv.nn import Additive, Dot, LayerKVCache, LocationAware, MultiHeadAttention, Positions, Score
from qkv.nn.dropout import Dropout
from qkv.nn.embeddings import TokenEmbedding
from qkv.nn.kv_cache import CacheBase, restore_on_error
from qkv.nn.prepare_masks import check_token_mask


@dataclass(frozen=True)
class RNNSeq2SeqConfig:
    """The sizes of an RNNSeq2Seq.

    Args:
        score: score of the decoder's state and the source: Additive (Bahdanau), LocationAware or Dot.
    """

    vocab_size: int
    target_vocab_size: int | None = None
    dim: int = 256
    hidden_size: int = 256
    layers: int = 1
    cell: Cell = "lstm"
    score: Score = Additive(64)  # noqa: RUF009  (frozen: safe to share)
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.hidden_size % 2:
            raise ValueError(f"hidden_size must be even (half forward, half backward), got {self.hidden_size}")
        if not isinstance(self.score, Additive | LocationAware | Dot):
            raise ValueError(f"score must be Additive, LocationAware or Dot, got {type(self.score).__name__}")


class RNNSeq2SeqCache(RNNCache):
    """The decoder's state, and the keys and values of the source."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = LayerKVCache(fixed=True)

    def parts(self) -> list[CacheBase]:
        return [self, self.memory]

    def reorder(self, rows: Tensor) -> None:
        super().reorder(rows)
        self.memory.reorder(rows)


class RNNSeq2Seq(Translator, Model):
    """Recurrent encoder-decoder: source and target in, logits of each next target token out.

    The decoder attends with its state and mixes the result into its output. Unlike Bahdanau's, the result is not fed to
    the next state, so that a whole target is processed at once in training.

    >>> model = RNNSeq2Seq(RNNSeq2SeqConfig(vocab_size=65, dim=16, hidden_size=16))
    >>> model(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])).shape
    torch.Size([1, 2, 65])
    """

    config_class = RNNSeq2SeqConfig

    def __init__(self, config: RNNSeq2SeqConfig) -> None:
        super().__init__(config)
        target_vocab_size = config.vocab_size if config.target_vocab_size is None else config.target_vocab_size
        dim, hidden_size, layers = config.dim, config.hidden_size, config.layers
        self.source_tokens = TokenEmbedding(config.vocab_size, dim)
        self.target_tokens = TokenEmbedding(target_vocab_size, dim)
        self.encoder = Recurrent(config.cell, dim, hidden_size // 2, layers, config.dropout, bidirectional=True)
        self.decoder = Recurrent(config.cell, dim, hidden_size, layers, config.dropout)
        self.attention = MultiHeadAttention(hidden_size, 1, score=config.score)
        self.mix = nn.Linear(2 * hidden_size, hidden_size)
        self.dropout = Dropout(config.dropout)
        self.head = nn.Linear(hidden_size, target_vocab_size)

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
        """Encode the source, forward and backward."""
        x = self.dropout(self.source_tokens(source))
        return self.encoder(x, check_token_mask(token_mask, x))

    def decode(
        self,
        target: Int[Tensor, "b t"],
        memory: Float[Tensor, "b m c"],
        memory_token_mask: Tensor | None = None,
        token_mask: Tensor | None = None,
        cache: RNNSeq2SeqCache | None = None,
    ) -> Float[Tensor, "b t vocab"]:
        """Logits of each next token, given the target so far and the encoded source."""
        x = self.dropout(self.target_tokens(target))
        token_mask, memory_token_mask = check_token_mask(token_mask, x), check_token_mask(memory_token_mask, memory)
        positions = Positions.count(x.shape[1], memory.shape[1], memory_token_mask, x.device, cross=True)
        positions.query_mask = token_mask
        memory_cache = None if cache is None else cache.memory
        with restore_on_error(cache):
            states = self.decoder(x, token_mask, cache)
            context = self.attention(
                states, memory, token_mask=memory_token_mask, positions=positions, cache=memory_cache
            )
        mixed = torch.tanh(self.mix(torch.cat((states, context), dim=-1)))
        return self.head(self.dropout(mixed))

    def new_cache(self) -> RNNSeq2SeqCache:
        return RNNSeq2SeqCache()
