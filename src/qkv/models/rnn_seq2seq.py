"""RNNSeq2Seq: the encoder–decoder before transformers; attention is all that is borrowed from them.

Axes: b batch · m source tokens · t target tokens · c hidden width.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.models.base import Model
from qkv.models.rnn import Cell, Recurrent, RNNCache
from qkv.models.translate import Translator
from qkv.nn import Additive, Dot, LayerKVCache, LocationAware, MultiHeadAttention, Positions, Score
from qkv.nn.context import checked_present
from qkv.nn.dropout import Dropout
from qkv.nn.embeddings import TokenEmbedding
from qkv.nn.kv_cache import Held, undone_on_failure


@dataclass(frozen=True)
class RNNSeq2SeqConfig:
    """An RNNSeq2Seq's sizes.

    score: how the decoder's state meets the source: Additive (Bahdanau), LocationAware or Dot.
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
            raise ValueError(f"half of hidden reads forwards, half backwards, so it is even; got {self.hidden_size}")
        if not isinstance(self.score, Additive | LocationAware | Dot):
            raise ValueError(f"a source is met by Additive, LocationAware or Dot; got {type(self.score).__name__}")


class RNNSeq2SeqCache(RNNCache):
    """The decoder's state, and the source's keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = LayerKVCache(fixed=True)

    def parts(self) -> list[Held]:
        return [self, self.memory]

    def reorder(self, rows: Tensor) -> None:
        super().reorder(rows)
        self.memory.select(rows)


class RNNSeq2Seq(Translator, Model):
    """Source and target in, logits of each next target token out.

    The decoder attends with its state and mixes what it finds into its output; unlike Bahdanau's, what it finds is not
    fed to its next state, so that a whole target is attended at once in training.

    >>> model = RNNSeq2Seq(RNNSeq2SeqConfig(vocab_size=65, dim=16, hidden_size=16))
    >>> model(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])).shape
    torch.Size([1, 2, 65])
    """

    config_class = RNNSeq2SeqConfig

    def __init__(self, config: RNNSeq2SeqConfig) -> None:
        super().__init__(config)
        target_vocab = config.vocab_size if config.target_vocab_size is None else config.target_vocab_size
        self.source_tokens = TokenEmbedding(config.vocab_size, config.dim)
        self.target_tokens = TokenEmbedding(target_vocab, config.dim)
        half = config.hidden_size // 2
        self.encoder = Recurrent(config.cell, config.dim, half, config.layers, config.dropout, both=True)
        self.decoder = Recurrent(config.cell, config.dim, config.hidden_size, config.layers, config.dropout)
        self.attention = MultiHeadAttention(config.hidden_size, 1, score=config.score)
        self.mix = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.dropout = Dropout(config.dropout)
        self.head = nn.Linear(config.hidden_size, target_vocab)

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
        """The source, read forwards and backwards."""
        x = self.dropout(self.source_tokens(source))
        return self.encoder(x, checked_present(token_mask, x))

    def decode(
        self,
        target: Int[Tensor, "b t"],
        memory: Float[Tensor, "b m c"],
        memory_token_mask: Tensor | None = None,
        token_mask: Tensor | None = None,
        cache: RNNSeq2SeqCache | None = None,
    ) -> Float[Tensor, "b t vocab"]:
        """Logits of each next token, given the target so far and the source as it was read."""
        x = self.dropout(self.target_tokens(target))
        token_mask, memory_token_mask = checked_present(token_mask, x), checked_present(memory_token_mask, memory)
        positions = Positions.counted(x.shape[1], memory.shape[1], memory_token_mask, x.device, cross=True)
        positions.asking = token_mask
        held = None if cache is None else cache.memory
        with undone_on_failure(cache):
            states = self.decoder(x, token_mask, cache)
            found = self.attention(states, memory, token_mask=memory_token_mask, positions=positions, cache=held)
        mixed = torch.tanh(self.mix(torch.cat((states, found), dim=-1)))
        return self.head(self.dropout(mixed))

    def new_cache(self) -> RNNSeq2SeqCache:
        return RNNSeq2SeqCache()
