"""Images from an .npz file: the role of each array is guessed from its name and shape, and reported in notes.

Axes: n images · c channels · h rows · w columns.
"""

import math
import re
from pathlib import Path

import numpy as np
import torch

from qkv.data.files import read_npz
from qkv.data.images.dataset import Images

ROLES = {
    "images": ("x", "image", "images", "data", "pixels", "inputs", "features", "pictures"),
    "labels": ("y", "label", "labels", "target", "targets", "classes", "lables"),
    "names": ("names", "classnames", "labelnames"),
}
PARTS = {"train": "train", "training": "train", "test": "test", "val": "validation", "valid": "validation"}
PARTS["validation"] = "validation"
MAX_CLASSES = 10_000


def load_npz_images(path: str | Path) -> tuple[dict[str, Images], tuple[str, ...]]:
    """Read parts by name (train, test, …), and notes that say which array was used as what.

    Recognized names: x_train/y_train/x_test/y_test, train_images/train_labels, images/labels and the like.
    """
    arrays = read_npz(path)
    found: dict[tuple[str, str], str] = {}
    for name in arrays:
        role, part = guess_role(name)
        if role is not None:
            found[role, part] = name
    parts = {part for role, part in found if role == "images"}
    if "train" not in parts:
        raise ValueError(
            f"{path}: expected arrays such as x_train and y_train, or images and labels, got {', '.join(arrays)}"
        )
    names = arrays[found["names", "train"]] if ("names", "train") in found else None
    images, classes, notes = {}, None, []
    for part in ("train", "validation", "test"):
        if part not in parts:
            continue
        image_array, label_array = found["images", part], found.get(("labels", part))
        if label_array is None:
            raise ValueError(f"{path}: there are no labels for {image_array}; got {', '.join(arrays)}")
        pixels = to_pixels(arrays[image_array], f"{path}, array {image_array}")
        labels, classes = to_labels(arrays[label_array], f"{path}, array {label_array}", classes, names)
        if len(pixels) != len(labels):
            raise ValueError(f"{path}: {image_array} has {len(pixels)} images, {label_array} {len(labels)} labels")
        images[part] = Images(pixels, labels, classes)
        notes.append(f"{part}: {image_array} {tuple(arrays[image_array].shape)} with {label_array}")
    return images, tuple(notes)


def guess_role(name: str) -> tuple[str | None, str]:
    """Guess from an array's name its role (images, labels or names) and its part.

    >>> guess_role("x_train"), guess_role("test_labels"), guess_role("images")
    (('images', 'train'), ('labels', 'test'), ('images', 'train'))
    """
    lower = name.lower()
    word = re.search(r"train(ing)?|test|val(id(ation)?)?", lower)
    part = PARTS[word.group()] if word else "train"
    rest = re.sub(r"[^a-z]", "", lower.replace(word.group(), "", 1) if word else lower)
    return next((role for role, words in ROLES.items() if rest in words), None), part


def to_pixels(array: np.ndarray, where: str) -> torch.Tensor:
    """Convert images to bytes (n, c, h, w), whatever the order of their axes and their dtype."""
    if array.ndim == 2 and math.isqrt(array.shape[1]) ** 2 == array.shape[1]:
        array = array.reshape(len(array), math.isqrt(array.shape[1]), -1)
    if array.ndim == 3:
        array = array[:, None]
    elif _is_channels_last(array.shape):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in (1, 3, 4) or 0 in array.shape:
        raise ValueError(
            f"{where}: images must be (n, h, w), (n, h, w, channels) or (n, channels, h, w) with 1 or 3 channels, got "
            f"{tuple(array.shape)}"
        )
    return torch.from_numpy(np.array(_to_bytes(array[:, :3], where)))  # a fourth channel is transparency


def _is_channels_last(shape: tuple[int, ...]) -> bool:
    if len(shape) != 4 or shape[3] not in (1, 3, 4):
        return False
    return not (shape[1] in (1, 3) and shape[2] == shape[3])


def _to_bytes(array: np.ndarray, where: str) -> np.ndarray:
    if array.dtype == np.uint8:
        return array
    if array.dtype == bool:
        return array.astype(np.uint8) * 255
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{where}: pixels must be numbers, got {array.dtype}")
    low, high = array.min(), array.max()
    if array.dtype.kind == "f" and low >= 0 and high <= 1:
        return np.round(array * 255).astype(np.uint8)
    if low >= 0 and high <= 255:  # NaN fails every comparison
        return np.round(array).astype(np.uint8)
    raise ValueError(f"{where}: pixels must be in [0, 255] or [0, 1], got {low} to {high}")


def to_labels(
    array: np.ndarray, where: str, classes: tuple[str, ...] | None, names: np.ndarray | None = None
) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Convert labels to numbers, and name the classes. classes: those of the training data, if known."""
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if array.ndim == 2 and array.dtype.kind in "iufb" and (array.sum(1) == 1).all() and (array.max(1) == 1).all():
        array = array.argmax(1)  # one-hot
    if array.ndim != 1 or not len(array):
        raise ValueError(f"{where}: expected one label per image, got {tuple(array.shape)}")
    if array.dtype.kind in "US":
        words = [str(value, "utf-8") if isinstance(value, bytes) else str(value) for value in array]
        return encode_labels(words, where, classes)
    if array.dtype.kind not in "iufb" or not (array == np.floor(array)).all():
        raise ValueError(f"{where}: labels must be whole numbers or words, got {array.dtype}")
    labels = array.astype(np.int64)
    if classes is None:
        count = int(labels.max()) + 1 if names is None else len(names)
        if count > MAX_CLASSES:
            raise ValueError(f"{where}: labels must be 0 … classes − 1, got up to {count - 1}")
        classes = tuple(map(str, range(count) if names is None else names.tolist()))
    unknown = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(unknown):
        raise ValueError(
            f"{where}: item {unknown[0]} has the unknown label {labels[unknown[0]]}; labels are 0 … {len(classes) - 1}"
        )
    return torch.from_numpy(labels), classes


def encode_labels(
    words: list[str], where: str, classes: tuple[str, ...] | None
) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Number labels that are words, in alphabetical order."""
    classes = tuple(sorted(set(words))) if classes is None else classes
    number = {name: k for k, name in enumerate(classes)}
    for item, word in enumerate(words):
        if word not in number:
            raise ValueError(
                f"{where}: item {item} has the unknown label {word!r}; labels are {', '.join(classes[:10])}"
            )
    return torch.tensor([number[word] for word in words]), classes
