"""RNN: recurrent language model (plain RNN, GRU, LSTM), a baseline for GPT.

Axes: b batch · t tokens · c hidden size.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qkv.models.base import Model
from qkv.models.generation import LanguageModel
from qkv.nn.dropout import Dropout
from qkv.nn.embeddings import TokenEmbedding
from qkv.nn.kv_cache import CacheBase
from qkv.nn.prepare_masks import check_token_mask

Cell = Literal["rnn", "gru", "lstm"]
CELLS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class RNNCache(CacheBase):
    """The recurrent state after the last token: (layers, b, c), or two of them for an LSTM."""

    def __init__(self) -> None:
        self.state: tuple[Tensor, ...] | None = None

    def reorder(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        if self.state is not None:
            self.state = tuple(part.index_select(1, rows) for part in self.state)


class Recurrent(nn.Module):
    """A stack of recurrent layers that skips padding and can continue from a state."""

    def __init__(
        self, cell: Cell, dim: int, hidden_size: int, layers: int, dropout: float, bidirectional: bool = False
    ) -> None:
        super().__init__()
        if cell not in CELLS:
            raise ValueError(f"cell must be one of {', '.join(CELLS)}, got {cell!r}")
        if layers < 1 or hidden_size < 1:
            raise ValueError(f"layers and hidden_size must be at least 1, got {layers} and {hidden_size}")
        between = dropout if layers > 1 else 0.0
        self.stack = CELLS[cell](
            dim, hidden_size, layers, batch_first=True, dropout=between, bidirectional=bidirectional
        )

    def forward(
        self, x: Float[Tensor, "b t dim"], token_mask: Tensor | None = None, cache: RNNCache | None = None
    ) -> Float[Tensor, "b t c"]:
        state = None if cache is None else cache.state
        start = state[0] if state is not None and len(state) == 1 else state
        if state is not None and state[0].shape[1] != len(x):
            raise ValueError(f"the cache has {state[0].shape[1]} rows, got {len(x)}")
        if x.shape[1] == 0:
            return x.new_zeros(len(x), 0, self.stack.hidden_size * (1 + self.stack.bidirectional))
        if token_mask is None:
            out, end = self.stack(x, start)
        else:
            out, end = self._run_packed(x, token_mask, start)
        if cache is not None:
            cache.state = tuple(end) if isinstance(end, tuple) else (end,)
        return out

    def _run_packed(self, x: Tensor, token_mask: Tensor, start: Any) -> tuple[Tensor, Any]:
        """Move the real tokens to the front, run over them, and move the outputs back."""
        order = (~token_mask).long().sort(dim=1, stable=True).indices
        lengths = token_mask.sum(1).clamp(min=1)  # packing refuses empty rows: their result is undone below
        front = x.gather(1, order[..., None].expand_as(x))
        packed = pack_padded_sequence(front, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, end = self.stack(packed, start)
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        out = torch.zeros_like(out).scatter(1, order[..., None].expand_as(out), out)
        return out.masked_fill(~token_mask[..., None], 0.0), _keep_empty_rows(start, end, ~token_mask.any(1))


def _keep_empty_rows(start: Any, end: Any, empty: Tensor) -> Any:
    """The end state, but the start state in rows without any real token."""
    if isinstance(end, tuple):
        starts = (None,) * len(end) if start is None else start
        return tuple(_keep_empty_rows(before, after, empty) for before, after in zip(starts, end, strict=True))
    return torch.where(empty[:, None], torch.zeros_like(end) if start is None else start, end)


@dataclass(frozen=True)
class RNNConfig:
    """The sizes of an RNN.

    Args:
        dim: of the token embedding.
        hidden_size: of the recurrent state.
        cell: "rnn" (plain), "gru" or "lstm".
    """

    vocab_size: int
    dim: int = 256
    hidden_size: int = 256
    layers: int = 2
    cell: Cell = "lstm"
    dropout: float = 0.0


class RNN(LanguageModel, Model):
    """Recurrent language model: tokens in, logits of each next token out.

    >>> model = RNN(RNNConfig(vocab_size=65, dim=16, hidden_size=16))
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 65])
    """

    config_class = RNNConfig

    def __init__(self, config: RNNConfig) -> None:
        super().__init__(config)
        self.tokens = TokenEmbedding(config.vocab_size, config.dim)
        self.recurrent = Recurrent(config.cell, config.dim, config.hidden_size, config.layers, config.dropout)
        self.dropout = Dropout(config.dropout)
        self.head = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(
        self, tokens: Int[Tensor, "b t"], token_mask: Tensor | None = None, cache: RNNCache | None = None
    ) -> Float[Tensor, "b t vocab"]:
        """Logits of each next token.

        Args:
            token_mask: (b, t), True for real tokens.
            cache: the recurrent state after earlier calls.
        """
        return self.head(self.hidden_states(tokens, token_mask, cache))

    def hidden_states(
        self, tokens: Int[Tensor, "b t"], token_mask: Tensor | None = None, cache: RNNCache | None = None
    ) -> Float[Tensor, "b t c"]:
        """The input of the output projection."""
        x = self.tokens(tokens)
        return self.dropout(self.recurrent(self.dropout(x), check_token_mask(token_mask, x), cache))

    def new_cache(self) -> RNNCache:
        return RNNCache()
