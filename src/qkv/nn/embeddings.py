"""Embeddings: tokens, learned and sinusoidal positions, image patches (ViT) and a convolutional stem for speech.

Axes: b batch · t tokens · c model dim · p patch size · n frames · f frequency bands.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.nn.dropout import Dropout
from qkv.nn.positions import Alibi, Positions, PositionScheme, Shaw, T5Bias, sinusoidal
from qkv.nn.rope import Rope
from qkv.nn.shapes import divisors

Position = Literal["learned", "sinusoidal", "none", "rope", "alibi", "t5", "shaw"] | PositionScheme

ABSOLUTE = ("learned", "sinusoidal", "none")


class TokenEmbedding(nn.Embedding):
    """A learned vector for each token; a token outside the vocabulary raises a ValueError.

    >>> TokenEmbedding(10, 4)(torch.tensor([[1, 9]])).shape
    torch.Size([1, 2, 4])
    """

    def __init__(self, vocab_size: int, dim: int) -> None:
        if vocab_size < 1 or dim < 1:
            raise ValueError(f"vocab_size and dim must be at least 1, got vocab_size={vocab_size}, dim={dim}")
        super().__init__(vocab_size, dim)

    def forward(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t c"]:
        self.check(tokens)
        return super().forward(tokens)

    def check(self, tokens: Tensor) -> None:
        """Raise a ValueError unless tokens are integers (b, t) of the vocabulary."""
        if tokens.ndim != 2:
            raise ValueError(f"tokens must be (batch, tokens), got shape {tuple(tokens.shape)}")
        if tokens.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"tokens must be integers (int64 or int32), got {tokens.dtype}")
        if tokens.numel() == 0:
            return
        lowest, highest = (int(bound) for bound in tokens.aminmax())
        if lowest < 0 or highest >= self.num_embeddings:
            raise ValueError(
                f"tokens must be from 0 to {self.num_embeddings - 1} (the vocabulary), got {lowest} to {highest}"
            )


class LearnedPositions(nn.Embedding):
    """A learned vector for each of `max_length` positions."""

    def __init__(self, max_length: int, dim: int) -> None:
        if max_length < 1:
            raise ValueError(f"max_length of learned positions must be at least 1, got max_length={max_length}")
        super().__init__(max_length, dim)

    def forward(self, positions: Int[Tensor, "*b t"]) -> Float[Tensor, "*b t c"]:
        if positions.numel() and int(positions.max()) >= self.num_embeddings:
            raise ValueError(
                f"this model has learned {self.num_embeddings} positions, got a sequence of "
                f"{int(positions.max()) + 1} tokens; shorten it, or use positions without a table (rope, alibi)"
            )
        return super().forward(positions)


class SinusoidalPositions(nn.Module):
    """The sinusoidal position vectors of 2017, for any number of positions."""

    like: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("like", torch.empty(0), persistent=False)  # has the module's dtype

    def forward(self, positions: Int[Tensor, "*b t"]) -> Float[Tensor, "*b t c"]:
        return sinusoidal(positions, self.dim, dtype=self.like.dtype)


class LearnedPositions2D(nn.Module):
    """A learned vector for each row and each column of a grid, added."""

    def __init__(self, rows: int, columns: int, dim: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(rows, 1, dim) * 0.02)
        self.columns = nn.Parameter(torch.randn(1, columns, dim) * 0.02)

    def forward(self) -> Float[Tensor, "t c"]:
        return (self.rows + self.columns).flatten(0, 1)


def get_position(position: Position, *, causal: bool) -> Position:
    """The position scheme of that name: "rope" is Rope(), and so on; absolute positions keep their name."""
    if isinstance(position, PositionScheme) or position in ABSOLUTE:
        return position
    schemes = {"rope": Rope(), "alibi": Alibi(), "t5": T5Bias(bidirectional=not causal), "shaw": Shaw()}
    if position not in schemes:
        names = ", ".join([*ABSOLUTE, *schemes])
        raise ValueError(f"position must be one of {names}, or a scheme such as Rope(), got {position!r}")
    return schemes[position]


def make_position_table(position: Position, max_length: int, dim: int) -> nn.Module | None:
    """The module of absolute positions; None where positions act inside attention, or not at all."""
    if position == "learned":
        return LearnedPositions(max_length, dim)
    return SinusoidalPositions(dim) if position == "sinusoidal" else None


class PositionEmbedding(nn.Module):
    """Add absolute positions (and segments) to token vectors, then dropout.

    Args:
        scale_embeddings: multiply the token vectors by √dim first, as in 2017.
        num_segments: number of segments of a text (BERT's two sentences), each with a learned vector; 0 is none.
        norm: normalizes the sum (BERT, BART).
    """

    def __init__(
        self,
        position: Position,
        max_length: int,
        dim: int,
        *,
        dropout: float = 0.0,
        scale_embeddings: bool = False,
        num_segments: int = 0,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.positions = make_position_table(position, max_length, dim)
        self.segments = TokenEmbedding(num_segments, dim) if num_segments else None
        self.norm = norm
        self.factor = dim**0.5 if scale_embeddings else 1.0
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "b t c"], positions: Positions, segments: Int[Tensor, "b t"] | None = None
    ) -> Float[Tensor, "b t c"]:
        """Add positions and segments to the token vectors x.

        Args:
            segments: the segment of each token, default 0.
        """
        if self.factor != 1.0:
            x = x * self.factor
        if self.positions is not None:
            x = x + self.positions(positions.queries)
        if self.segments is not None:
            x = x + (self.segments.weight[0] if segments is None else self.segments(segments))
        elif segments is not None:
            raise ValueError("this model has no segments; set num_segments=2 in its config, or omit segments")
        return self.dropout(x if self.norm is None else self.norm(x))


class PatchEmbedding(nn.Module):
    """Cut an image into p×p patches and project each (ViT).

    Args:
        unfold: cut and multiply instead of a convolution with stride p; the same numbers.

    >>> PatchEmbedding(3, 4, 16)(torch.randn(2, 3, 8, 8)).shape
    torch.Size([2, 4, 16])
    """

    def __init__(self, channels: int, patch_size: int, dim: int, *, unfold: bool = False) -> None:
        super().__init__()
        if min(channels, patch_size, dim) < 1:
            raise ValueError(f"channels, patch_size and dim must be at least 1, got {channels}, {patch_size} and {dim}")
        self.patch_size, self.unfold = patch_size, unfold
        self.convolution = nn.Conv2d(channels, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Float[Tensor, "b channels height width"]) -> Float[Tensor, "b t c"]:
        channels, size = self.convolution.in_channels, self.patch_size
        if images.ndim != 4 or images.shape[1] != channels:
            raise ValueError(f"images must be (b, {channels}, height, width), got {tuple(images.shape)}")
        height, width = images.shape[-2:]
        if height % size or width % size:
            raise ValueError(
                f"images of {height}×{width} cannot be cut into patches of {size}×{size}; try patch_size in "
                f"{divisors(math.gcd(height, width))}"
            )
        if not self.unfold:
            return self.convolution(images).flatten(2).transpose(1, 2)
        patches = F.unfold(images, size, stride=size).transpose(1, 2)  # features (channel, row, column)
        return F.linear(patches, self.convolution.weight.flatten(1), self.convolution.bias)


class ConvStem(nn.Module):
    """Convolutional stem for speech: two convolutions over time and frequency; one token per `frames_per_token` frames.

    A token's window is its own frames and `context_frames` before them. It equals the convolutions of that window
    alone, so that a stream can be cut anywhere. Weights are shared over frequency, so a higher voice gives nearly the
    same features. Both convolutions halve the bands, the second also halves the frames.

    >>> ConvStem(bands=40, frames_per_token=4, context_frames=8, channels=16)(torch.randn(2, 8 + 20, 40)).shape
    torch.Size([2, 5, 1280])
    """

    def __init__(self, bands: int, frames_per_token: int, context_frames: int, channels: int) -> None:
        super().__init__()
        self.stride = frames_per_token // 2  # of the tokens, in frames of the second convolution
        self.window, _ = conv_stem_shape(bands, frames_per_token, context_frames, channels)
        self.first = nn.Conv2d(1, channels, (3, 5), stride=(1, 2), padding=(0, 2))
        self.second = nn.Conv2d(channels, 2 * channels, (3, 3), stride=(2, 2), padding=(0, 1))

    def forward(self, frames: Float[Tensor, "b n f"]) -> Float[Tensor, "b t stem"]:
        """Token features from the context frames followed by `frames_per_token` frames for each token."""
        features = F.gelu(self.second(F.gelu(self.first(frames[:, None]))))
        return features.permute(0, 2, 1, 3).flatten(2).unfold(1, self.window, self.stride).flatten(2)


def conv_stem_shape(bands: int, frames_per_token: int, context_frames: int, channels: int) -> tuple[int, int]:
    """The output frames of the second convolution that make a token, and the features of each.

    >>> conv_stem_shape(bands=40, frames_per_token=4, context_frames=8, channels=16)
    (4, 320)
    """
    frames = frames_per_token + context_frames
    if channels < 1 or frames_per_token < 2 or frames_per_token % 2 or frames < 5:
        raise ValueError(
            "a convolutional stem needs 1 channel or more, an even frames_per_token, and frames_per_token + "
            f"context_frames of at least 5, got conv_channels={channels}, frames_per_token={frames_per_token}, "
            f"context_frames={context_frames}; conv_channels=0 is a model without convolutions"
        )
    return (frames - 5) // 2 + 1, 2 * channels * -(-bands // 4)
