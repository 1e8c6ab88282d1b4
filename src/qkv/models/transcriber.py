"""Transcriber: speech recognition with a streaming encoder and CTC.

Axes: b batch · n frames · t tokens (several frames each) · f features of a frame.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models.base import Model, init_weights
from qkv.models.encoder import Encoder, EncoderConfig, EncoderState
from qkv.nn.embeddings import ConvStem, Position, conv_stem_shape
from qkv.nn.feed_forward import Activation

BLANK = 0  # the CTC blank: no label


@dataclass(frozen=True)
class TranscriberConfig:
    """The sizes and choices of a transcriber.

    Args:
        features: dim of a frame (log-mel bands).
        num_labels: number of labels, including the CTC blank (0).
        frames_per_token: frames that make a token.
        context_frames: frames before its own that a token also sees; it sees none after them.
        conv_channels: channels of the first of two convolutions over time and frequency, the second has twice as many;
            0 is no convolutions.
        chunk_size, left_chunks, lookahead_chunks: how far attention sees, in tokens and chunks (see EncoderConfig);
            chunk_size=None sees everything.
        attention_dropout: on attention weights, default `dropout`.
    """

    features: int = 40
    num_labels: int = 11
    frames_per_token: int = 4
    context_frames: int = 0
    conv_channels: int = 0
    dim: int = 128
    layers: int = 4
    heads: int = 4
    mlp_dim: int | None = None
    activation: Activation = "gelu"
    position: Position = "rope"
    chunk_size: int | None = None
    left_chunks: int | None = None
    lookahead_chunks: int = 0
    dropout: float = 0.1
    attention_dropout: float | None = None

    def __post_init__(self) -> None:
        if self.num_labels < 2 or self.frames_per_token < 1 or self.context_frames < 0 or self.conv_channels < 0:
            raise ValueError(
                "num_labels must be at least 2 (a blank and one more), frames_per_token at least 1, context_frames and "
                f"conv_channels 0 or more, got {self.num_labels}, {self.frames_per_token}, {self.context_frames} and "
                f"{self.conv_channels}"
            )
        self.encoder  # noqa: B018  (raises if the encoder's sizes do not fit)

    @property
    def token_dim(self) -> int:
        """Dim of a token before the encoder."""
        if self.conv_channels:
            return math.prod(
                conv_stem_shape(self.features, self.frames_per_token, self.context_frames, self.conv_channels)
            )
        return self.features * (self.frames_per_token + self.context_frames)

    @property
    def encoder(self) -> EncoderConfig:
        return EncoderConfig(
            features=self.token_dim,
            dim=self.dim,
            layers=self.layers,
            heads=self.heads,
            mlp_dim=self.mlp_dim,
            activation=self.activation,
            position=self.position,
            chunk_size=self.chunk_size,
            left_chunks=self.left_chunks,
            lookahead_chunks=self.lookahead_chunks,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
        )


class Transcriber(Model):
    """Speech recognizer: frames in, CTC logits out, one row per `frames_per_token` frames; the end is padded with 0.

    >>> model = Transcriber(TranscriberConfig(features=8, dim=16, heads=2, layers=1))
    >>> model(torch.randn(2, 30, 8)).shape
    torch.Size([2, 8, 11])
    """

    config_class = TranscriberConfig

    def __init__(self, config: TranscriberConfig) -> None:
        super().__init__(config)
        self.stem = None
        if config.conv_channels:
            self.stem = ConvStem(config.features, config.frames_per_token, config.context_frames, config.conv_channels)
        self.encoder = Encoder(config.encoder)
        self.head = nn.Linear(config.dim, config.num_labels)
        init_weights(self, layers=config.layers)

    def forward(
        self, frames: Float[Tensor, "b n f"], token_mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b t labels"]:
        """Logits of the labels.

        Args:
            token_mask: True for real frames; a token is real if one of its frames is.
        """
        tokens = self.embed_frames(frames, token_mask)
        if token_mask is not None:
            size = self.config.frames_per_token
            padded = F.pad(token_mask, (0, -token_mask.shape[1] % size))
            token_mask = padded.unflatten(1, (-1, size)).any(-1)
        return self.head(self.encoder(tokens, token_mask))

    def stream(
        self, frames: Float[Tensor, "b n f"], state: StreamState | None = None, *, final: bool = False
    ) -> tuple[Float[Tensor, "b t labels"], StreamState]:
        """Feed a piece of any length; return the logits of the chunks it completes, and the new state.

        The logits of all pieces equal one call on the whole input, to rounding.
        """
        size, context = self.config.frames_per_token, self.config.context_frames
        before = self._silence(frames, context) if state is None else state.frames
        waiting = torch.cat((before, frames), dim=1)
        new = waiting.shape[1] - context
        complete = new if final else new // size * size
        tokens = self.embed_frames(waiting[:, context : context + complete], None, waiting[:, :context])
        encoder_state = None if state is None else state.encoder
        hidden, encoder_state = self.encoder.stream(tokens, encoder_state, final=final)
        return self.head(hidden), StreamState(encoder_state, waiting[:, complete:])

    def embed_frames(
        self, frames: Tensor, token_mask: Tensor | None, before: Tensor | None = None
    ) -> Float[Tensor, "b t token"]:
        """Tokens from frames: several frames and their context stacked, or the features of the stem.

        Args:
            before: the context frames before the first frame, default silence (0).
        """
        if frames.ndim != 3 or frames.shape[-1] != self.config.features:
            raise ValueError(
                f"frames must have shape (batch, frames, {self.config.features}), got {tuple(frames.shape)}"
            )
        size, context = self.config.frames_per_token, self.config.context_frames
        if token_mask is not None:
            frames = frames.masked_fill(~token_mask[..., None], 0.0)
        frames = F.pad(frames, (0, 0, 0, -frames.shape[1] % size))
        if frames.shape[1] == 0:
            return frames.new_zeros(len(frames), 0, self.config.token_dim)
        before = self._silence(frames, context) if before is None else before
        frames = torch.cat((before, frames), dim=1)
        if self.stem is not None:
            return self.stem(frames)
        return frames.unfold(1, size + context, size).mT.flatten(2)

    @staticmethod
    def _silence(frames: Tensor, count: int) -> Tensor:
        return frames.new_zeros(len(frames), count, frames.shape[-1])

    def count_tokens(self, lengths: Tensor) -> Tensor:
        """The number of tokens (rows of logits) for these numbers of frames."""
        return -(-lengths // self.config.frames_per_token)


@dataclass(frozen=True)
class StreamState:
    """The state of a stream: the encoder's state, and frames that wait for their token, after their context."""

    encoder: EncoderState
    frames: Tensor


def ctc_greedy_decode(logits: Float[Tensor, "b t labels"], lengths: Int[Tensor, " b"] | None = None) -> list[list[int]]:
    """Greedy CTC decoding: the most likely label of each token, repetitions merged, blanks removed.

    Args:
        lengths: number of tokens of each row, default all.

    >>> labels = torch.tensor([[0, 3, 3, 0, 3, 1]])
    >>> ctc_greedy_decode(F.one_hot(labels, 4).float())
    [[3, 3, 1]]
    """
    best = logits.argmax(-1)
    before = F.pad(best, (1, 0), value=BLANK)[:, :-1]
    kept = (best != BLANK) & (best != before)
    if lengths is not None:
        kept &= torch.arange(best.shape[1], device=best.device) < lengths[:, None]
    return [row[mask].tolist() for row, mask in zip(best, kept, strict=True)]
