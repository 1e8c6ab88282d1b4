"""The 8×8 handwritten digits that ship with qkv (UCI, CC BY 4.0; `digits/README.md`)."""

from importlib.resources import files

import numpy as np
import torch

from qkv.data.images import Images, ImageSplits


def digits() -> ImageSplits:
    """1,257 pictures for training, 180 for validation, 360 for test; the parts are fixed.

    >>> parts = digits()
    >>> len(parts.train), len(parts.validation), parts.train.shape
    (1257, 180, (1, 8, 8))
    """
    with files("qkv.data.digits").joinpath("digits.npz").open("rb") as file:
        held = np.load(file, allow_pickle=False)
        images, labels, part = (torch.from_numpy(held[name]) for name in ("images", "labels", "part"))
    pixels = (images.float() * (255 / 16)).round().to(torch.uint8)[:, None]
    whole = Images(pixels, labels.long(), tuple("0123456789"))
    train, validation, test = (whole.take((part == k).nonzero().flatten()) for k in range(3))
    return ImageSplits(train, validation, test)
