"""CNN: convolutional image classifier, a baseline for ViT.

Axes: b batch.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from qkv.models.base import Model, check_images
from qkv.nn.dropout import Dropout


@dataclass(frozen=True)
class CNNConfig:
    """The sizes of a CNN.

    Args:
        stage_channels: channels of each stage; a stage is two convolutions and halves the image.
    """

    image_size: int = 32
    channels: int = 3
    num_classes: int = 10
    stage_channels: tuple[int, ...] = (64, 128, 256)
    kernel_size: int = 3
    dropout: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "stage_channels", tuple(self.stage_channels))
        if self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd (it has a center), got {self.kernel_size}")
        if min(self.channels, self.num_classes, *self.stage_channels, 1) < 1:
            raise ValueError(
                f"channels, num_classes and stage_channels must be at least 1, got {self.channels}, "
                f"{self.num_classes} and {self.stage_channels}"
            )
        if not self.stage_channels or self.image_size < 2 ** len(self.stage_channels):
            raise ValueError(
                f"each stage halves the image: {len(self.stage_channels)} stages do not fit "
                f"image_size={self.image_size}"
            )


class CNN(Model):
    """Convolutional network: images in, class logits out.

    >>> import torch
    >>> model = CNN(CNNConfig(stage_channels=(8, 16)))
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    config_class = CNNConfig

    def __init__(self, config: CNNConfig) -> None:
        super().__init__(config)
        stages, before = [], config.channels
        for after in config.stage_channels:
            stages += _make_convolution(before, after, config.kernel_size)
            stages += _make_convolution(after, after, config.kernel_size)
            stages.append(nn.MaxPool2d(2))
            before = after
        self.stages = nn.Sequential(*stages)
        self.dropout = Dropout(config.dropout)
        self.head = nn.Linear(before, config.num_classes)

    def forward(self, images: Float[Tensor, "b channels height width"]) -> Float[Tensor, "b classes"]:
        check_images(images, self.config.channels, self.config.image_size, self.head.weight.dtype)
        return self.head(self.dropout(self.stages(images).mean((2, 3))))


def _make_convolution(before: int, after: int, kernel_size: int) -> list[nn.Module]:
    convolution = nn.Conv2d(before, after, kernel_size, padding=kernel_size // 2, bias=False)
    return [convolution, nn.BatchNorm2d(after), nn.ReLU()]
