"""MLP: the baseline that reads all pixels at once, each with a weight of its own.

Axes: b batch.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from qkv.models.base import Model
from qkv.models.images import check_images
from qkv.nn.dropout import Dropout


@dataclass(frozen=True)
class MLPConfig:
    """An MLP's sizes. widths: of its hidden layers."""

    image: int = 32
    channels: int = 3
    classes: int = 10
    widths: tuple[int, ...] = (512, 512)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", tuple(self.widths))
        if min(self.image, self.channels, self.classes, *self.widths) < 1:
            raise ValueError(
                f"image, channels, classes and widths are at least 1; got {self.image}, {self.channels}, "
                f"{self.classes} and {self.widths}"
            )


class MLP(Model):
    """Pictures in, logits of classes out.

    >>> import torch
    >>> model = MLP(MLPConfig(widths=(16,)))
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    config_class = MLPConfig

    def __init__(self, config: MLPConfig) -> None:
        super().__init__(config)
        layers, before = [], config.channels * config.image**2
        for width in config.widths:
            layers += [nn.Linear(before, width), nn.ReLU(), Dropout(config.dropout)]
            before = width
        self.layers = nn.Sequential(nn.Flatten(), *layers)
        self.head = nn.Linear(before, config.classes)

    def forward(self, images: Float[Tensor, "b channels height width"]) -> Float[Tensor, "b classes"]:
        check_images(images, self.config.channels, self.config.image, self.head.weight.dtype)
        return self.head(self.layers(images))
