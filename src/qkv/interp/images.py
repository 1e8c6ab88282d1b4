"""From a picture's file to what a model reads, and the grid of patches it is cut into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from qkv.models import CNN, MLP, Model, ViT

if TYPE_CHECKING:
    from PIL.Image import Image

# Pillow's numbers for ways of resizing, as preprocessor_config.json uses them
NEAREST, BICUBIC = 0, 3


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture as the model sees it.

    image: resized to the model's size, before normalisation.
    rows, columns: the grid of its patches. special: how many tokens stand before the patches (the class token).
    patch: a patch's side in pixels.
    """

    image: Image
    rows: int
    columns: int
    special: int
    patch: int

    @property
    def names(self) -> tuple[str, ...]:
        """What the tokens are called: the class token, then each patch by its row and column."""
        first = ("class", *(f"special {i}" for i in range(1, self.special)))[: self.special]
        return first + tuple(f"{row},{column}" for row in range(self.rows) for column in range(self.columns))


@dataclass(frozen=True)
class Grid:
    """How a model cuts a picture: the sides of picture and patch in pixels, and the tokens before the patches."""

    height: int
    width: int
    patch: int
    channels: int
    special: int

    @property
    def rows(self) -> int:
        return self.height // self.patch

    @property
    def columns(self) -> int:
        return self.width // self.patch


def grid_of(model: nn.Module) -> Grid:
    """How a model of pictures cuts them; a ValueError if it does not say."""
    config: Any = getattr(model, "config", None)
    if isinstance(model, ViT):
        return Grid(
            config.image_size, config.image_size, config.patch_size, config.channels, int(config.pooling == "cls")
        )
    if isinstance(model, CNN | MLP):
        raise ValueError(f"a {type(model).__name__} has no attention to look at; of pictures, a ViT has")
    config = getattr(config, "vision_config", config)
    size, patch = getattr(config, "image_size", None), getattr(config, "patch_size", None)
    sides: Any = size if isinstance(size, list | tuple) else (size, size)
    patch = patch[0] if isinstance(patch, list | tuple) and len(set(patch)) == 1 else patch
    if not isinstance(patch, int) or not all(isinstance(side, int) for side in sides):
        raise ValueError(
            f"this {type(model).__name__} does not say how it cuts pictures (image_size, patch_size in its config); in "
            "Python it can be looked at with qkv.interp.at(model, inputs)"
        )
    special = sum(
        parameter.shape[-2] if parameter.ndim == 3 else 1
        for name, parameter in model.named_parameters()
        if name.split(".")[-1] in ("cls_token", "distillation_token", "register_tokens", "class_embedding")
    )
    return Grid(sides[0], sides[1], patch, int(getattr(config, "num_channels", 3)), special)


def picture_inputs(
    model: nn.Module, given: str | Path | Image, settings: Mapping[str, Any]
) -> tuple[Any, Picture, tuple[str, ...]]:
    """A picture as the model reads it, as it is shown, and what was done to it."""
    grid = grid_of(model)
    image, notes = _opened(given), ()
    modes = {1: "L", 3: "RGB"}
    if grid.channels not in modes:
        raise ValueError(
            f"this model reads pictures of {grid.channels} channels, which no file of a picture has; in Python it can "
            "be looked at with qkv.interp.at(model, pictures)"
        )
    image = image.convert(modes[grid.channels])
    if image.size != (grid.width, grid.height):
        notes += (f"the picture of {image.width}×{image.height} pixels was resized to {grid.width}×{grid.height}",)
        way = settings.get("resample", BICUBIC)
        image = image.resize((grid.width, grid.height), way if way in range(6) else BICUBIC)
    pixels, note = _normalised(np.asarray(image), settings, grid.channels)
    tensor = pixels[None].to(next(model.parameters()).dtype)
    inputs: Any = tensor if isinstance(model, Model) else {"pixel_values": tensor}
    return inputs, Picture(image, grid.rows, grid.columns, grid.special, grid.patch), notes + note


def _opened(given: str | Path | Image) -> Image:
    from PIL import Image as Images
    from PIL import UnidentifiedImageError

    if isinstance(given, Images.Image):
        return given
    path = Path(given).expanduser()
    if not path.is_file():
        raise ValueError(f"there is no file {given}; this model reads the file of a picture (PNG, JPEG, …)")
    try:
        with Images.open(path) as image:
            image.load()
            return image
    except (UnidentifiedImageError, OSError, SyntaxError, Images.DecompressionBombError) as error:
        raise ValueError(f"{path} is not a picture that can be read: {error}") from None


def _normalised(pixels: np.ndarray, settings: Mapping[str, Any], channels: int) -> tuple[Tensor, tuple[str, ...]]:
    """Pixels from 0 to 255 as numbers (channels, height, width) around 0, as the model's settings say."""
    x = torch.from_numpy(pixels.astype(np.float64)).reshape(*pixels.shape[:2], channels).permute(2, 0, 1)
    x = x * float(settings.get("rescale_factor", 1 / 255)) if settings.get("do_rescale", True) else x
    if not settings.get("do_normalize", True):
        return x, ()
    mean, deviation = (settings.get(name) for name in ("image_mean", "image_std"))
    note: tuple[str, ...] = ()
    if mean is None or deviation is None:
        mean, deviation = [0.5] * channels, [0.5] * channels
        note = ("the checkpoint has no preprocessor_config.json: colours were brought to −1 … 1",)
    try:
        mean, deviation = (torch.tensor(x, dtype=torch.float64).view(channels, 1, 1) for x in (mean, deviation))
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"preprocessor_config.json should hold {channels} numbers as image_mean and image_std; got {mean}"
        ) from None
    return (x - mean) / deviation, note
