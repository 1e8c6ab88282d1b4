"""CNN: the baseline that sees a picture through small windows.

Axes: b batch.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from qkv.models.base import Model
from qkv.models.images import check_images
from qkv.nn.dropout import Dropout


@dataclass(frozen=True)
class CNNConfig:
    """A CNN's sizes. widths: channels of each stage; a stage is two convolutions and halves the picture."""

    image_size: int = 32
    channels: int = 3
    num_classes: int = 10
    widths: tuple[int, ...] = (64, 128, 256)
    kernel: int = 3
    dropout: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", tuple(self.widths))
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"a kernel is an odd number, so that it has a centre; got {self.kernel}")
        if min(self.channels, self.num_classes, *self.widths, 1) < 1:
            raise ValueError(
                f"channels, classes and widths are at least 1; got {self.channels}, {self.num_classes} and {self.widths}"
            )
        if not self.widths or self.image_size < 2 ** len(self.widths):
            raise ValueError(
                f"each stage halves the picture; {len(self.widths)} stages do not fit a picture of {self.image_size} pixels"
            )


class CNN(Model):
    """Pictures in, logits of classes out.

    >>> import torch
    >>> model = CNN(CNNConfig(widths=(8, 16)))
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    config_class = CNNConfig

    def __init__(self, config: CNNConfig) -> None:
        super().__init__(config)
        stages, before = [], config.channels
        for dim in config.widths:
            stages += [
                *_convolution(before, dim, config.kernel),
                *_convolution(dim, dim, config.kernel),
            ]
            stages.append(nn.MaxPool2d(2))
            before = dim
        self.stages = nn.Sequential(*stages)
        self.dropout = Dropout(config.dropout)
        self.head = nn.Linear(before, config.num_classes)

    def forward(self, images: Float[Tensor, "b channels height width"]) -> Float[Tensor, "b classes"]:
        check_images(images, self.config.channels, self.config.image_size, self.head.weight.dtype)
        return self.head(self.dropout(self.stages(images).mean((2, 3))))


def _convolution(before: int, after: int, kernel: int) -> list[nn.Module]:
    convolution = nn.Conv2d(before, after, kernel, padding=kernel // 2, bias=False)
    return [convolution, nn.BatchNorm2d(after), nn.ReLU()]
