"""Pictures from an .npz file: which array is what is guessed from its name and shape, and said.

Axes: n pictures · c channels · h rows · w columns.
"""

import math
import re
from pathlib import Path

import numpy as np
import torch

from qkv.data.arrays import read_npz
from qkv.data.images import Images

ROLES = {
    "pictures": ("x", "image", "images", "data", "pixels", "inputs", "features", "pictures"),
    "labels": ("y", "label", "labels", "target", "targets", "classes", "lables"),
    "names": ("names", "classnames", "labelnames"),
}
PARTS = {"train": "train", "training": "train", "test": "test", "val": "validation", "valid": "validation"}
PARTS["validation"] = "validation"
MOST_CLASSES = 10_000


def npz_images(path: str | Path) -> tuple[dict[str, Images], tuple[str, ...]]:
    """Parts by name (train, test, …), and notes that say which array was taken for what.

    Understood are x_train/y_train/x_test/y_test, train_images/train_labels, images/labels and the like.
    """
    arrays = read_npz(path)
    found: dict[tuple[str, str], str] = {}
    for name in arrays:
        role, part = role_of(name)
        if role is not None:
            found[role, part] = name
    parts = {part for role, part in found if role == "pictures"}
    if "train" not in parts:
        raise ValueError(
            f"{path}: expected arrays such as x_train and y_train, or images and labels; got {', '.join(arrays)}"
        )
    names = arrays[found["names", "train"]] if ("names", "train") in found else None
    images, classes, notes = {}, None, []
    for part in ("train", "validation", "test"):
        if part not in parts:
            continue
        of_pictures, of_labels = found["pictures", part], found.get(("labels", part))
        if of_labels is None:
            raise ValueError(f"{path}: {of_pictures} has no labels beside it; got {', '.join(arrays)}")
        pixels = pixels_of(arrays[of_pictures], f"{path}, array {of_pictures}")
        labels, classes = labels_of(arrays[of_labels], f"{path}, array {of_labels}", classes, names)
        if len(pixels) != len(labels):
            raise ValueError(f"{path}: {of_pictures} has {len(pixels)} pictures, {of_labels} {len(labels)} labels")
        images[part] = Images(pixels, labels, classes)
        notes.append(f"{part}: {of_pictures} {tuple(arrays[of_pictures].shape)} with {of_labels}")
    return images, tuple(notes)


def role_of(name: str) -> tuple[str | None, str]:
    """What an array is taken for, by its name: pictures, labels or names; and of which part.

    >>> role_of("x_train"), role_of("test_labels"), role_of("images")
    (('pictures', 'train'), ('labels', 'test'), ('pictures', 'train'))
    """
    lower = name.lower()
    word = re.search(r"train(ing)?|test|val(id(ation)?)?", lower)
    part = PARTS[word.group()] if word else "train"
    rest = re.sub(r"[^a-z]", "", lower.replace(word.group(), "", 1) if word else lower)
    return next((role for role, words in ROLES.items() if rest in words), None), part


def pixels_of(array: np.ndarray, where: str) -> torch.Tensor:
    """Pictures as bytes (n, c, h, w), whatever the order of their axes and the kind of their numbers."""
    if array.ndim == 2 and math.isqrt(array.shape[1]) ** 2 == array.shape[1]:
        array = array.reshape(len(array), math.isqrt(array.shape[1]), -1)
    if array.ndim == 3:
        array = array[:, None]
    elif (
        array.ndim == 4
        and array.shape[3] in (1, 3, 4)
        and not (array.shape[1] in (1, 3) and array.shape[2] == array.shape[3])
    ):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in (1, 3, 4) or 0 in array.shape:
        raise ValueError(
            f"{where}: pictures are (n, h, w), (n, h, w, channels) or (n, channels, h, w) with 1 or 3 channels; got "
            f"{tuple(array.shape)}"
        )
    return torch.from_numpy(np.array(_bytes(array[:, :3], where)))  # a fourth channel is transparency


def _bytes(array: np.ndarray, where: str) -> np.ndarray:
    if array.dtype == np.uint8:
        return array
    if array.dtype == bool:
        return array.astype(np.uint8) * 255
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{where}: pixels are numbers; got {array.dtype}")
    low, high = array.min(), array.max()
    if array.dtype.kind == "f" and low >= 0 and high <= 1:
        return np.round(array * 255).astype(np.uint8)
    if low >= 0 and high <= 255:  # NaN fails every comparison
        return np.round(array).astype(np.uint8)
    raise ValueError(f"{where}: pixels are from 0 to 255, or from 0 to 1; got from {low} to {high}")


def labels_of(
    array: np.ndarray, where: str, classes: tuple[str, ...] | None, names: np.ndarray | None = None
) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Labels as numbers, and what the classes are called; `classes` are those of the training data, if known."""
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if array.ndim == 2 and array.dtype.kind in "iufb" and (array.sum(1) == 1).all() and (array.max(1) == 1).all():
        array = array.argmax(1)  # one column for each class
    if array.ndim != 1 or not len(array):
        raise ValueError(f"{where}: labels are one for each picture; got {tuple(array.shape)}")
    if array.dtype.kind in "US":
        return named_labels(
            [str(value, "utf-8") if isinstance(value, bytes) else str(value) for value in array], where, classes
        )
    if array.dtype.kind not in "iufb" or not (array == np.floor(array)).all():
        raise ValueError(f"{where}: labels are whole numbers or words; got {array.dtype}")
    labels = array.astype(np.int64)
    if classes is None:
        count = int(labels.max()) + 1 if names is None else len(names)
        if count > MOST_CLASSES:
            raise ValueError(f"{where}: labels are 0 … classes − 1; got up to {count - 1}")
        classes = tuple(map(str, range(count) if names is None else names.tolist()))
    outside = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(outside):
        raise ValueError(
            f"{where}: item {outside[0]} has the unknown label {labels[outside[0]]}; known are 0 … {len(classes) - 1}"
        )
    return torch.from_numpy(labels), classes


def named_labels(words: list[str], where: str, classes: tuple[str, ...] | None) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Labels that are words, as numbers in alphabetical order."""
    classes = tuple(sorted(set(words))) if classes is None else classes
    number = {name: k for k, name in enumerate(classes)}
    for item, word in enumerate(words):
        if word not in number:
            raise ValueError(
                f"{where}: item {item} has the unknown label {word!r}; known are {', '.join(classes[:10])}"
            )
    return torch.tensor([number[word] for word in words]), classes
