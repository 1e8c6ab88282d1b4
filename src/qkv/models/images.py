"""What a picture must look like to a model."""

import torch
from torch import Tensor


def check_images(images: Tensor, channels: int, side: int, dtype: torch.dtype) -> None:
    """Raise a ValueError unless images are (b, channels, side, side) and of the model's dtype."""
    if images.ndim != 4 or tuple(images.shape[1:]) != (channels, side, side):
        raise ValueError(
            f"this model reads pictures of shape (batch, {channels}, {side}, {side}); got {tuple(images.shape)}"
        )
    if not images.is_floating_point():
        raise ValueError(f"pictures are floating numbers; got {images.dtype}: divide bytes by 255 and normalise first")
    if images.dtype != dtype and not torch.is_autocast_enabled(images.device.type):
        raise ValueError(f"this model reads pictures of {dtype}; got {images.dtype}")
