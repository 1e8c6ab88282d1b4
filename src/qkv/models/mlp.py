"""MLP: fully connected image classifier, a baseline for ViT.

Axes: b batch.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from qkv.models.base import Model, check_images
from qkv.nn.dropout import Dropout


@dataclass(frozen=True)
class MLPConfig:
    """The sizes of an MLP."""

    image_size: int = 32
    channels: int = 3
    num_classes: int = 10
    hidden_sizes: tuple[int, ...] = (512, 512)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden_sizes", tuple(self.hidden_sizes))
        if min(self.image_size, self.channels, self.num_classes, *self.hidden_sizes) < 1:
            raise ValueError(
                f"image_size, channels, num_classes and hidden_sizes must be at least 1, got {self.image_size}, "
                f"{self.channels}, {self.num_classes} and {self.hidden_sizes}"
            )


class MLP(Model):
    """Multilayer perceptron on all pixels: images in, class logits out.

    >>> import torch
    >>> model = MLP(MLPConfig(hidden_sizes=(16,)))
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    config_class = MLPConfig

    def __init__(self, config: MLPConfig) -> None:
        super().__init__(config)
        layers, before = [], config.channels * config.image_size**2
        for size in config.hidden_sizes:
            layers += [nn.Linear(before, size), nn.ReLU(), Dropout(config.dropout)]
            before = size
        self.layers = nn.Sequential(nn.Flatten(), *layers)
        self.head = nn.Linear(before, config.num_classes)

    def forward(self, images: Float[Tensor, "b channels height width"]) -> Float[Tensor, "b classes"]:
        check_images(images, self.config.channels, self.config.image_size, self.head.weight.dtype)
        return self.head(self.layers(images))
