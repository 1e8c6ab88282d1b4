"""Prepare images and audio for a model: resize and normalize an image, compute mel features of a recording."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from qkv.data.images.drawn_digits import prepare_digit, reads_digits
from qkv.data.speech.description import describe_recording
from qkv.data.speech.mel import FeatureNormalization, Mel
from qkv.data.speech.resampling import resample
from qkv.data.speech.wav import Audio, read_audio
from qkv.models import CNN, MLP, Model, Transcriber, ViT

if TYPE_CHECKING:
    from PIL.Image import Image

BICUBIC = 3  # Pillow's number of the resampling filter, as in preprocessor_config.json
BLANK = "–"  # the label of CTC's blank


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """An image as the model sees it.

    image: resized to the model's size, before normalization.
    rows, columns: the grid of its patches. special: the number of tokens before the patches (the class token).
    patch_size: a patch's side in pixels.
    """

    image: Image
    rows: int
    columns: int
    special: int
    patch_size: int

    @property
    def labels(self) -> tuple[str, ...]:
        """A label for each token: "class", then "row,column" of each patch."""
        first = ("class", *(f"special {i}" for i in range(1, self.special)))[: self.special]
        return first + tuple(f"{row},{column}" for row in range(self.rows) for column in range(self.columns))


@dataclass(frozen=True)
class PatchGrid:
    """How a model cuts an image into patches: sizes in pixels, and the number of tokens before the patches."""

    height: int
    width: int
    patch_size: int
    channels: int
    special: int

    @property
    def rows(self) -> int:
        return self.height // self.patch_size

    @property
    def columns(self) -> int:
        return self.width // self.patch_size


def image_grid(model: nn.Module) -> PatchGrid:
    """How an image model cuts images into patches; a ValueError if it does not say."""
    config: Any = getattr(model, "config", None)
    if isinstance(model, ViT):
        size, special = config.image_size, int(config.pooling == "cls")
        return PatchGrid(size, size, config.patch_size, config.channels, special)
    if isinstance(model, CNN | MLP):
        raise ValueError(f"a {type(model).__name__} has no attention to look at; a ViT has")
    config = getattr(config, "vision_config", config)
    size, patch_size = getattr(config, "image_size", None), getattr(config, "patch_size", None)
    sides: Any = size if isinstance(size, list | tuple) else (size, size)
    if isinstance(patch_size, list | tuple) and len(set(patch_size)) == 1:
        patch_size = patch_size[0]
    if not isinstance(patch_size, int) or not all(isinstance(side, int) for side in sides):
        raise ValueError(
            f"this {type(model).__name__} does not say how it cuts images (image_size, patch_size in its config); in "
            "Python use qkv.interp.trace(model, inputs)"
        )
    special = sum(
        parameter.shape[-2] if parameter.ndim == 3 else 1
        for name, parameter in model.named_parameters()
        if name.split(".")[-1] in ("cls_token", "distillation_token", "register_tokens", "class_embedding")
    )
    return PatchGrid(sides[0], sides[1], patch_size, int(getattr(config, "num_channels", 3)), special)


def image_inputs(
    model: nn.Module, source: str | Path | Image, settings: Mapping[str, Any]
) -> tuple[Any, PreparedImage, tuple[str, ...]]:
    """An image model's inputs, the image as it is shown, and notes.

    settings: the content of preprocessor_config.json.
    """
    grid = image_grid(model)
    image, notes = _open_image(source), ()
    modes = {1: "L", 3: "RGB"}
    if grid.channels not in modes:
        raise ValueError(
            f"this model reads images of {grid.channels} channels, which no image file has; in Python use "
            "qkv.interp.trace(model, images)"
        )
    if isinstance(model, ViT) and reads_digits(grid.height, grid.channels, model.config.num_classes):
        image, notes = prepare_digit(image)
    image = image.convert(modes[grid.channels])
    if image.size != (grid.width, grid.height):
        notes += (f"the image of {image.width}×{image.height} pixels was resized to {grid.width}×{grid.height}",)
        resample = settings.get("resample", BICUBIC)
        image = image.resize((grid.width, grid.height), resample if resample in range(6) else BICUBIC)
    pixels, note = _normalize(np.asarray(image), settings, grid.channels)
    tensor = pixels[None].to(next(model.parameters()).dtype)
    inputs: Any = tensor if isinstance(model, Model) else {"pixel_values": tensor}
    return inputs, PreparedImage(image, grid.rows, grid.columns, grid.special, grid.patch_size), notes + note


def _open_image(source: str | Path | Image) -> Image:
    from PIL import Image as Images

    from qkv.data.images.image_files import open_image

    if isinstance(source, Images.Image):
        return source
    path = Path(source).expanduser()
    if not path.is_file():
        raise ValueError(f"there is no file {source}; this model reads an image file (PNG, JPEG, …)")
    try:
        with open_image(path) as image:
            image.load()
            return image
    except (ValueError, OSError, SyntaxError, Images.DecompressionBombError) as error:
        raise ValueError(f"{path} is not an image that can be read: {error}") from None


def _normalize(pixels: np.ndarray, settings: Mapping[str, Any], channels: int) -> tuple[Tensor, tuple[str, ...]]:
    """Pixels 0 to 255 as numbers (channels, height, width) around 0, as the model's settings say; and notes."""
    x = torch.from_numpy(pixels.astype(np.float64)).reshape(*pixels.shape[:2], channels).permute(2, 0, 1)
    x = x * float(settings.get("rescale_factor", 1 / 255)) if settings.get("do_rescale", True) else x
    if not settings.get("do_normalize", True):
        return x, ()
    mean, std = (settings.get(name) for name in ("image_mean", "image_std"))
    notes: tuple[str, ...] = ()
    if mean is None or std is None:
        mean, std = [0.5] * channels, [0.5] * channels
        notes = ("the checkpoint has no preprocessor_config.json: colors were scaled to −1 … 1",)
    try:
        mean, std = (torch.tensor(x, dtype=torch.float64).view(channels, 1, 1) for x in (mean, std))
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"preprocessor_config.json should hold {channels} numbers as image_mean and image_std; got {mean}"
        ) from None
    return (x - mean) / std, notes


def audio_inputs(
    model: nn.Module, source: str | Path | Audio
) -> tuple[Tensor, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """A transcriber's features (1, n, f), the labels of its tokens (their seconds), its output labels, and notes."""
    purpose = _read_purpose(model)
    mel = Mel(**purpose["mel"])
    audio = source if isinstance(source, Audio) else read_audio(Path(source).expanduser())
    notes = describe_recording(audio, mel.sample_rate)
    audio = resample(audio, mel.sample_rate)
    features = FeatureNormalization(tuple(purpose["mean"]), tuple(purpose["std"]))(mel(audio.samples))
    if not len(features):
        raise ValueError(f"the recording is shorter than {mel.window} s, one frame of the model's input")
    assert isinstance(model, Transcriber)
    step = token_seconds(model)
    labels = tuple(f"{token * step:.2f} s" for token in range(-(-len(features) // model.config.frames_per_token)))
    words = (BLANK, *map(str, purpose["words"]))
    return features[None].to(next(model.parameters()).dtype), labels, words, notes


def token_seconds(model: Transcriber) -> float:
    """The duration of one token of a transcriber."""
    return model.config.frames_per_token * Mel(**_read_purpose(model)["mel"]).hop


def _read_purpose(model: nn.Module) -> dict[str, Any]:
    """How audio becomes features, as `qkv train` stored it."""
    try:
        purpose = json.loads(getattr(model, "extra_files", {}).get("purpose.json", b"{}"))
    except ValueError:
        purpose = {}
    if not isinstance(purpose, dict) or not {"mel", "mean", "std", "words"} <= set(purpose):
        raise ValueError(
            f"this {type(model).__name__} does not say how audio becomes features (purpose.json with mel, mean, std, "
            "words); in Python use qkv.interp.trace(model, features)"
        )
    return purpose
