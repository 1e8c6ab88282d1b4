"""Transcriber: speech in, words out, while it is still being spoken if it is told how far it may look ahead.

Axes: b batch · n frames · t tokens (several frames each) · f features of a frame.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models.base import Model, small_normal
from qkv.models.encoder import Encoder, EncoderConfig, EncoderState
from qkv.nn.feed_forward import Activation
from qkv.nn.placement import Position
from qkv.nn.speech_embedding import SoundStem, stem_shape

BLANK = 0  # the label that says nothing: it stands between two words, and where nothing is said


@dataclass(frozen=True)
class TranscriberConfig:
    """A transcriber's sizes and choices.

    features: how wide a frame of sound is. stack: how many frames make a token.
    context: how many frames before its own a token hears as well; it hears none after them.
    channels: of the first of two convolutions over time and bands, the second has twice as many; 0: no convolutions.
    labels: how many there are, the blank (0) included.
    chunk, left_chunks, ahead: how far attention sees, in tokens and chunks; see EncoderConfig. chunk=None hears it all.
    attention_dropout: on the weights of attention, if not `dropout`.
    """

    features: int = 40
    labels: int = 11
    stack: int = 4
    context: int = 0
    channels: int = 0
    dim: int = 128
    layers: int = 4
    heads: int = 4
    mlp_dim: int | None = None
    activation: Activation = "gelu"
    position: Position = "rope"
    chunk_size: int | None = None
    left_chunks: int | None = None
    ahead: int = 0
    dropout: float = 0.1
    attention_dropout: float | None = None

    def __post_init__(self) -> None:
        if self.labels < 2 or self.stack < 1 or self.context < 0 or self.channels < 0:
            raise ValueError(
                f"labels are a blank and at least one more, a token is at least one frame, its context and its "
                f"channels 0 or more; got {self.labels}, {self.stack}, {self.context} and {self.channels}"
            )
        self.encoder  # noqa: B018  (an error in its sizes is told here)

    @property
    def heard(self) -> int:
        """How wide a token is before the encoder."""
        sizes = self.features, self.stack, self.context
        return (
            math.prod(stem_shape(*sizes, self.channels))
            if self.channels
            else self.features * (self.stack + self.context)
        )

    @property
    def encoder(self) -> EncoderConfig:
        return EncoderConfig(
            features=self.heard,
            dim=self.dim,
            layers=self.layers,
            heads=self.heads,
            mlp_dim=self.mlp_dim,
            activation=self.activation,
            position=self.position,
            chunk_size=self.chunk_size,
            left_chunks=self.left_chunks,
            ahead=self.ahead,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
        )


class Transcriber(Model):
    """Frames in, logits of labels out: one row for every `stack` frames, the last one filled up with silence (0).

    >>> model = Transcriber(TranscriberConfig(features=8, dim=16, heads=2, layers=1))
    >>> model(torch.randn(2, 30, 8)).shape
    torch.Size([2, 8, 11])
    """

    config_class = TranscriberConfig

    def __init__(self, config: TranscriberConfig) -> None:
        super().__init__(config)
        sizes = config.features, config.stack, config.context
        self.stem = SoundStem(*sizes, config.channels) if config.channels else None
        self.encoder = Encoder(config.encoder)
        self.head = nn.Linear(config.dim, config.labels)
        small_normal(self, layers=config.layers)

    def forward(
        self, frames: Float[Tensor, "b n f"], token_mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b t labels"]:
        """present: which frames exist; a token does if one of its frames does."""
        tokens = self.stacked(frames, token_mask)
        if token_mask is not None:
            missing = -token_mask.shape[1] % self.config.stack
            token_mask = nn.functional.pad(token_mask, (0, missing)).unflatten(1, (-1, self.config.stack)).any(-1)
        return self.head(self.encoder(tokens, token_mask))

    def stream(
        self, frames: Float[Tensor, "b n f"], state: StreamState | None = None, *, final: bool = False
    ) -> tuple[Float[Tensor, "b t labels"], StreamState]:
        """Feed a piece of any length; get the logits of the chunks it completes, and the state to go on with.

        The logits put together equal one call on the whole, to rounding.
        """
        stack, context = self.config.stack, self.config.context
        before = self._silence(frames, context) if state is None else state.frames
        waiting = torch.cat((before, frames), dim=1)
        new = waiting.shape[1] - context
        whole = new if final else new // stack * stack
        inner = None if state is None else state.encoder
        tokens = self.stacked(waiting[:, context : context + whole], None, waiting[:, :context])
        hidden, inner = self.encoder.stream(tokens, inner, final=final)
        return self.head(hidden), StreamState(inner, waiting[:, whole:])

    def stacked(
        self, frames: Tensor, token_mask: Tensor | None, before: Tensor | None = None
    ) -> Float[Tensor, "b t stacked"]:
        """Several frames as one token, with those before them or what the stem finds in them; what is not there is
        silence, 0."""
        if frames.ndim != 3 or frames.shape[-1] != self.config.features:
            raise ValueError(
                f"this transcriber hears frames of shape (batch, frames, {self.config.features}); got "
                f"{tuple(frames.shape)}"
            )
        stack, context = self.config.stack, self.config.context
        if token_mask is not None:
            frames = frames.masked_fill(~token_mask[..., None], 0.0)
        frames = nn.functional.pad(frames, (0, 0, 0, -frames.shape[1] % stack))
        if frames.shape[1] == 0:
            return frames.new_zeros(len(frames), 0, self.config.heard)
        before = self._silence(frames, context) if before is None else before
        heard = torch.cat((before, frames), dim=1)
        return heard.unfold(1, stack + context, stack).mT.flatten(2) if self.stem is None else self.stem(heard)

    @staticmethod
    def _silence(frames: Tensor, count: int) -> Tensor:
        return frames.new_zeros(len(frames), count, frames.shape[-1])

    def frames(self, lengths: Tensor) -> Tensor:
        """How many rows of logits so many frames of sound have."""
        return -(-lengths // self.config.stack)


@dataclass(frozen=True)
class StreamState:
    """Where a stream stands: the encoder's state, and frames that wait for their token, after their context."""

    encoder: EncoderState
    frames: Tensor


def read_out(logits: Float[Tensor, "b t labels"], lengths: Int[Tensor, " b"] | None = None) -> list[list[int]]:
    """The labels said: the likeliest of each token, repetitions joined, blanks left out. lengths: in tokens.

    >>> said = torch.tensor([[0, 3, 3, 0, 3, 1]])
    >>> read_out(nn.functional.one_hot(said, 4).float())
    [[3, 3, 1]]
    """
    best = logits.argmax(-1)
    before = nn.functional.pad(best, (1, 0), value=BLANK)[:, :-1]
    spoken = (best != BLANK) & (best != before)
    if lengths is not None:
        spoken &= torch.arange(best.shape[1], device=best.device) < lengths[:, None]
    return [row[flags].tolist() for row, flags in zip(best, spoken, strict=True)]
