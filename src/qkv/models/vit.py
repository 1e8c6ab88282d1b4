"""ViT: a picture cut into patches, read as a sequence.

Axes: b batch · t patches (and a class token) · c model width.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.models.base import Model, small_normal
from qkv.models.images import check_images
from qkv.nn.block import Block, BlockConfig, Order
from qkv.nn.dropout import Dropout
from qkv.nn.embeddings import LearnedPositions2D, PatchEmbedding
from qkv.nn.feed_forward import Activation
from qkv.nn.norms import NormKind
from qkv.nn.placement import make_positions
from qkv.nn.shapes import divisors


@dataclass(frozen=True)
class ViTConfig:
    """A ViT's sizes and choices.

    classes: how many there are; 0 leaves the head out, and the call returns what it would have read, (b, width).
    image: side of the square pictures, in pixels. patch: side of a patch.
    head: what the classes are read from: a "cls" token of its own, or the "mean" of all patches.
    position: "learned" for each patch, "learned-2d" for each row and column, "sinusoidal" or "none".
    final_norm: whether the output is normalised once more; for pre-norm blocks, unless said otherwise.
    unfold: cut patches out and multiply, instead of a convolution; the same numbers.
    """

    image_size: int = 32
    patch_size: int = 4
    channels: int = 3
    num_classes: int = 10
    dim: int = 128
    layers: int = 6
    heads: int = 4
    mlp_dim: int | None = None
    activation: Activation = "gelu"
    norm: NormKind = "layer"
    norm_order: Order = "pre"
    norm_eps: float = 1e-5
    pooling: Literal["cls", "mean"] = "cls"
    position: Literal["learned", "learned-2d", "sinusoidal", "none"] = "learned"
    final_norm: bool | None = None
    dropout: float = 0.0
    bias: bool = True
    unfold: bool = False

    def __post_init__(self) -> None:
        if self.patch_size < 1 or self.image_size < 1 or self.image_size % self.patch_size:
            raise ValueError(
                f"pictures of {self.image_size} pixels do not cut into patches of {self.patch_size}; patches that fit: "
                f"{divisors(self.image_size)}"
            )
        if self.pooling not in ("cls", "mean"):
            raise ValueError(f"a ViT reads its classes from 'cls' or 'mean'; got pooling={self.pooling!r}")
        if self.position not in ("learned", "learned-2d", "sinusoidal", "none"):
            raise ValueError(f"a ViT's positions are learned, learned-2d, sinusoidal or none; got {self.position!r}")
        if self.num_classes < 0 or self.layers < 0:
            raise ValueError(f"classes are 0 (no head) or more, layers too; got {self.num_classes} and {self.layers}")

    @property
    def patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    @property
    def block(self) -> BlockConfig:
        return BlockConfig.of(self)


class ViT(Model):
    """Pictures in, logits of classes out.

    >>> model = ViT(ViTConfig(dim=32, layers=2))
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    config_class = ViTConfig

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.patches = PatchEmbedding(config.channels, config.patch_size, config.dim, unfold=config.unfold)
        self.class_token = nn.Parameter(torch.randn(1, 1, config.dim) * 0.02) if config.pooling == "cls" else None
        tokens = config.patches + (config.pooling == "cls")
        side = config.image_size // config.patch_size
        if config.position == "learned-2d":
            self.positions = LearnedPositions2D(side, side, config.dim)
        else:
            self.positions = make_positions(config.position, tokens, config.dim)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config.block) for _ in range(config.layers))
        self.norm = config.block.make_last_norm(config.final_norm)
        self.head = nn.Linear(config.dim, config.num_classes) if config.num_classes else nn.Identity()
        small_normal(self, layers=config.layers)

    def forward(self, images: Float[Tensor, "b channels height width"]) -> Float[Tensor, "b classes"]:
        if self.class_token is None:
            return self.head(self.hidden_states(images).mean(1))
        # in training the last block computes only what the class is read from; otherwise all of it can be looked at
        return self.head(self.hidden_states(images, first=1 if self.training else None)[:, 0])

    def hidden_states(
        self, images: Float[Tensor, "b channels height width"], *, first: int | None = None
    ) -> Float[Tensor, "b t c"]:
        """The class token, if there is one, and the patches, after the last block; or only the first of them."""
        check_images(images, self.config.channels, self.config.image_size, self.patches.convolution.weight.dtype)
        x = self.patches(images)
        if isinstance(self.positions, LearnedPositions2D):
            x = x + self.positions()  # rows and columns place the patches; the class token has no place
        if self.class_token is not None:
            x = torch.cat((self.class_token.expand(len(x), -1, -1), x), dim=1)
        if self.positions is not None and not isinstance(self.positions, LearnedPositions2D):
            x = x + self.positions(torch.arange(x.shape[1], device=x.device))
        x = self.dropout(x)
        for place, block in enumerate(self.blocks, start=1):
            x = block(x, first=first if place == len(self.blocks) else None)
        return self.norm(x)
