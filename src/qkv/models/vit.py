"""ViT: vision transformer, an image cut into patches that are read as a sequence.

Axes: b batch · t patches (and a class token) · c model dim.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.models.base import Model, check_images, init_attention_like_pytorch, init_weights
from qkv.nn.block import Block, BlockConfig, NormOrder
from qkv.nn.dropout import Dropout
from qkv.nn.embeddings import LearnedPositions2D, PatchEmbedding, make_position_table
from qkv.nn.feed_forward import Activation
from qkv.nn.norms import NormKind
from qkv.nn.shapes import divisors


@dataclass(frozen=True)
class ViTConfig:
    """The sizes and choices of a ViT.

    Args:
        image_size, patch_size: sides of the square images and patches, in pixels.
        num_classes: 0 leaves the head out; the call then returns the pooled features (b, dim).
        pooling: what the head reads: "cls", a class token, or "mean", the mean of all patches.
        position: "learned" per patch, "learned-2d" per row and column, "sinusoidal" or "none".
        final_norm: norm after the last block; by default only for pre-norm blocks.
        unfold: cut patches and multiply instead of a convolution; the same numbers.
        init: initial weights: "gpt2", normal with a standard deviation of 0.02, or "pytorch", those of
            `torch.nn.Linear` and `torch.nn.MultiheadAttention`, with a class token and positions from N(0, 1).
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
    norm_order: NormOrder = "pre"
    norm_eps: float = 1e-5
    pooling: Literal["cls", "mean"] = "cls"
    position: Literal["learned", "learned-2d", "sinusoidal", "none"] = "learned"
    final_norm: bool | None = None
    dropout: float = 0.0
    bias: bool = True
    unfold: bool = False
    init: Literal["gpt2", "pytorch"] = "gpt2"

    def __post_init__(self) -> None:
        if self.patch_size < 1 or self.image_size < 1 or self.image_size % self.patch_size:
            raise ValueError(
                f"image_size={self.image_size} is not divisible by patch_size={self.patch_size}; try patch_size in "
                f"{divisors(self.image_size)}"
            )
        if self.pooling not in ("cls", "mean"):
            raise ValueError(f"pooling must be 'cls' or 'mean', got {self.pooling!r}")
        if self.position not in ("learned", "learned-2d", "sinusoidal", "none"):
            raise ValueError(f"position must be learned, learned-2d, sinusoidal or none, got {self.position!r}")
        if self.init not in ("gpt2", "pytorch"):
            raise ValueError(f"init must be 'gpt2' or 'pytorch', got {self.init!r}")
        if self.num_classes < 0 or self.layers < 0:
            raise ValueError(
                f"num_classes (0: no head) and layers must be 0 or more, got {self.num_classes} and {self.layers}"
            )

    @property
    def side(self) -> int:
        """Number of patches along a side of the image."""
        return self.image_size // self.patch_size

    @property
    def num_patches(self) -> int:
        return self.side**2

    @property
    def block(self) -> BlockConfig:
        return BlockConfig.from_model_config(self)


class ViT(Model):
    """Vision transformer: images in, class logits out.

    >>> model = ViT(ViTConfig(dim=32, layers=2))
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    config_class = ViTConfig

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.patches = PatchEmbedding(config.channels, config.patch_size, config.dim, unfold=config.unfold)
        class_tokens = 1 if config.pooling == "cls" else 0
        class_token_std = 0.02 if config.init == "gpt2" else 1.0
        self.class_token = nn.Parameter(torch.randn(1, 1, config.dim) * class_token_std) if class_tokens else None
        if config.position == "learned-2d":
            self.positions = LearnedPositions2D(config.side, config.side, config.dim)
        else:
            self.positions = make_position_table(config.position, config.num_patches + class_tokens, config.dim)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config.block) for _ in range(config.layers))
        self.norm = config.block.make_final_norm(config.final_norm)
        self.head = nn.Linear(config.dim, config.num_classes) if config.num_classes else nn.Identity()
        if config.init == "gpt2":
            init_weights(self, layers=config.layers)
        else:
            init_attention_like_pytorch(self)

    def forward(
        self, images: Float[Tensor, "b channels height width"], patches: Int[Tensor, " kept"] | None = None
    ) -> Float[Tensor, "b classes"]:
        """Class logits.

        Args:
            patches: the patches that the model sees of every image, by number (patch dropout); None for all.
        """
        if self.class_token is None:
            return self.head(self.hidden_states(images, patches=patches).mean(1))
        # in training the last block computes the class token only; otherwise all tokens, for inspection
        return self.head(self.hidden_states(images, patches=patches, num_outputs=1 if self.training else None)[:, 0])

    def hidden_states(
        self,
        images: Float[Tensor, "b channels height width"],
        *,
        patches: Int[Tensor, " kept"] | None = None,
        num_outputs: int | None = None,
    ) -> Float[Tensor, "b t c"]:
        """The class token, if there is one, and the patches after the last block.

        Args:
            patches: the patches that the model sees of every image, by number; None for all.
            num_outputs: compute only the first so many tokens of the last block.
        """
        check_images(images, self.config.channels, self.config.image_size, self.patches.convolution.weight.dtype)
        x = self.patches(images)
        if isinstance(self.positions, LearnedPositions2D):
            x = x + self.positions()  # the class token has no row and column
        if self.class_token is not None:
            x = torch.cat((self.class_token.expand(len(x), -1, -1), x), dim=1)
        if self.positions is not None and not isinstance(self.positions, LearnedPositions2D):
            x = x + self.positions(torch.arange(x.shape[1], device=x.device))
        if patches is not None:
            tokens = x.shape[1] - self.config.num_patches  # the class token
            x = torch.cat((x[:, :tokens], x[:, tokens:].index_select(1, patches)), dim=1)
        x = self.dropout(x)
        for number, block in enumerate(self.blocks, start=1):
            x = block(x, num_outputs=num_outputs if number == len(self.blocks) else None)
        return self.norm(x)
