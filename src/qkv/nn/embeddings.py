"""From tokens and pictures to vectors.

Axes: b batch · t tokens · c model width · p patch side.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.nn.positions import sinusoidal
from qkv.nn.shapes import divisors


class TokenEmbedding(nn.Embedding):
    """A vector for each token of a vocabulary; a token outside it is a ValueError.

    >>> TokenEmbedding(10, 4)(torch.tensor([[1, 9]])).shape
    torch.Size([1, 2, 4])
    """

    def __init__(self, vocab_size: int, dim: int) -> None:
        if vocab_size < 1 or dim < 1:
            raise ValueError(f"a vocabulary and a width are at least 1; got vocab={vocab_size}, width={dim}")
        super().__init__(vocab_size, dim)

    def forward(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t c"]:
        self.check(tokens)
        return super().forward(tokens)

    def check(self, tokens: Tensor) -> None:
        """Raise a ValueError unless tokens are (b, t) whole numbers of the vocabulary."""
        if tokens.ndim != 2:
            raise ValueError(f"tokens are (batch, tokens); got shape {tuple(tokens.shape)}")
        if tokens.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"tokens are whole numbers (int64 or int32); got {tokens.dtype}")
        if tokens.numel() == 0:
            return
        lowest, highest = (int(bound) for bound in tokens.aminmax())
        if lowest < 0 or highest >= self.num_embeddings:
            raise ValueError(
                f"tokens are from 0 to {self.num_embeddings - 1}, the model's vocabulary; "
                f"got from {lowest} to {highest}"
            )


class LearnedPositions(nn.Embedding):
    """A learned vector for each of `length` positions."""

    def __init__(self, length: int, dim: int) -> None:
        if length < 1:
            raise ValueError(f"learned positions are at least 1; got length={length}")
        super().__init__(length, dim)

    def forward(self, positions: Int[Tensor, "*b t"]) -> Float[Tensor, "*b t c"]:
        if positions.numel() and int(positions.max()) >= self.num_embeddings:
            raise ValueError(
                f"this model has learned {self.num_embeddings} positions; got a sequence of "
                f"{int(positions.max()) + 1} tokens. Shorten it, or use positions that need no table (rope, alibi)"
            )
        return super().forward(positions)


class SinusoidalPositions(nn.Module):
    """The sinusoids of 2017, for as many positions as come."""

    like: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("like", torch.empty(0), persistent=False)  # knows the module's dtype

    def forward(self, positions: Int[Tensor, "*b t"]) -> Float[Tensor, "*b t c"]:
        return sinusoidal(positions, self.dim, dtype=self.like.dtype)


class LearnedPositions2D(nn.Module):
    """A learned vector for each row and one for each column of a grid, added."""

    def __init__(self, rows: int, columns: int, dim: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(rows, 1, dim) * 0.02)
        self.columns = nn.Parameter(torch.randn(1, columns, dim) * 0.02)

    def forward(self) -> Float[Tensor, "t c"]:
        return (self.rows + self.columns).flatten(0, 1)


class PatchEmbedding(nn.Module):
    """A picture cut into patches of p×p, each multiplied by one matrix.

    unfold: cut the patches out and multiply, instead of a convolution with stride p; the same numbers.

    >>> PatchEmbedding(3, 4, 16)(torch.randn(2, 3, 8, 8)).shape
    torch.Size([2, 4, 16])
    """

    def __init__(self, channels: int, patch: int, dim: int, *, unfold: bool = False) -> None:
        super().__init__()
        if min(channels, patch, dim) < 1:
            raise ValueError(f"channels, patch and width are at least 1; got {channels}, {patch} and {dim}")
        self.patch, self.unfold = patch, unfold
        self.convolution = nn.Conv2d(channels, dim, kernel_size=patch, stride=patch)

    def forward(self, images: Float[Tensor, "b channels height width"]) -> Float[Tensor, "b t c"]:
        channels = self.convolution.in_channels
        if images.ndim != 4 or images.shape[1] != channels:
            raise ValueError(f"pictures are (b, {channels}, height, width); got {tuple(images.shape)}")
        height, dim = images.shape[-2:]
        if height % self.patch or dim % self.patch:
            raise ValueError(
                f"pictures of {height}×{dim} do not cut into patches of {self.patch}×{self.patch}; patches that "
                f"fit: {divisors(math.gcd(height, dim))}"
            )
        if not self.unfold:
            return self.convolution(images).flatten(2).transpose(1, 2)
        patches = F.unfold(images, self.patch, stride=self.patch).transpose(1, 2)  # features (channel, row, column)
        return F.linear(patches, self.convolution.weight.flatten(1), self.convolution.bias)
