"""Load an image data set: the bundled digits, CIFAR, Fashion-MNIST, an .npz file or a folder."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import torch

from qkv.data.files import BadItems
from qkv.data.images.cifar_mnist import (
    CIFAR_ARCHIVES,
    FASHION_CLASSES,
    detect_cifar,
    download_cifar,
    download_fashion_mnist,
    find_cifar_folder,
    is_idx_folder,
    load_cifar,
    load_idx_images,
)
from qkv.data.images.dataset import Images, ImageSplits, split_images
from qkv.data.images.image_files import load_image_folder, load_parquet_images
from qkv.data.images.npz import load_npz_images

NAMES = ("digits", *CIFAR_ARCHIVES, "fashion-mnist")


def load_images(
    source: str | Path,
    *,
    validation: float = 0.1,
    seed: int = 0,
    size: int | None = None,
    bad_items: BadItems = "error",
) -> ImageSplits:
    """Load images for training, validation and test.

    Args:
        source: "digits" (bundled), "cifar10", "cifar100", "fashion-mnist" (downloaded), an .npz file, a folder with a
            folder per class, or a folder of parquet files, of CIFAR's .bin files or of MNIST's idx files.
        validation: fraction of the training data held out, by the seed, where the source has no such part; 0 holds out
            none, and the test images stand for validation.
        size: resize and crop image files to size × size.
        bad_items: "error" or "skip" for image files that cannot be read.

    >>> load_images("digits").train.shape
    (1, 8, 8)
    """
    if source == "digits":
        return load_digits()
    parts, notes = _load_parts(source, size, bad_items)
    return split_images(parts, validation=validation, seed=seed, notes=notes)


def _load_parts(source: str | Path, size: int | None, bad_items: BadItems) -> tuple[dict[str, Images], tuple[str, ...]]:
    path = Path(source).expanduser()
    if isinstance(source, str) and source in CIFAR_ARCHIVES and not path.is_dir():
        return load_cifar(download_cifar(source)), ()
    if source == "fashion-mnist" and not path.is_dir():
        return load_idx_images(download_fashion_mnist(), FASHION_CLASSES), ()
    if not path.exists():
        raise ValueError(f"there is nothing at {source}; expected {', '.join(NAMES)}, an .npz file or a folder")
    if path.is_file():
        if path.suffix.lower() != ".npz":
            raise ValueError(f"{path} is a file but not an .npz file; expected one, or a folder")
        return load_npz_images(path)
    if detect_cifar(found := find_cifar_folder(path)):
        return load_cifar(found), ()
    if is_idx_folder(path):
        return load_idx_images(path), ()
    if next(path.rglob("*.parquet"), None) is not None:
        return load_parquet_images(path, size=size, bad_items=bad_items)
    return load_image_folder(path, size=size, bad_items=bad_items)


def load_digits() -> ImageSplits:
    """The bundled 8×8 handwritten digits (UCI, CC BY 4.0; `digits/README.md`) in fixed splits of 1,257, 180 and 360.

    >>> parts = load_digits()
    >>> len(parts.train), len(parts.validation), parts.train.shape
    (1257, 180, (1, 8, 8))
    """
    with files("qkv.data.images").joinpath("digits", "digits.npz").open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        images, labels, part = (torch.from_numpy(arrays[name]) for name in ("images", "labels", "part"))
    pixels = (images.float() * (255 / 16)).round().to(torch.uint8)[:, None]
    every = Images(pixels, labels.long(), tuple("0123456789"))
    train, validation, test = (every.take((part == k).nonzero().flatten()) for k in range(3))
    return ImageSplits(train, validation, test)
