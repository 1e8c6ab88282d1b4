"""Pictures from a folder of folders: the name of a folder is the class of what is in it."""

from pathlib import Path

import torch

from qkv.data.images import Images
from qkv.data.npz_images import PARTS
from qkv.data.picture_files import SUFFIXES, read_picture, stacked
from qkv.data.problems import BadItems


def folder_images(
    folder: str | Path, *, size: int | None = None, bad_items: BadItems = "refuse"
) -> tuple[dict[str, Images], tuple[str, ...]]:
    """Parts by name, and notes. Folders called train, val(idation) and test are parts; otherwise all is train.

    size: pictures are scaled and cut to size × size; None takes them as they are, which then must be alike.
    """
    folder = Path(folder)
    within = subfolders(folder)
    parts = {PARTS[path.name.lower()]: path for path in within if path.name.lower() in PARTS}
    if "train" not in parts:
        parts = {"train": folder}
    images: dict[str, Images] = {}
    notes: list[str] = []
    for part in ("train", "validation", "test"):
        if part in parts:
            known = images["train"].classes if "train" in images else None
            images[part], said = _part(parts[part], known, size, bad_items)
            notes += said
    return images, tuple(notes)


def _part(
    folder: Path, known: tuple[str, ...] | None, size: int | None, bad_items: BadItems
) -> tuple[Images, tuple[str, ...]]:
    found = {path.name: picture_paths(path) for path in subfolders(folder)}
    if len(found) < 1 or not any(found.values()):
        raise ValueError(f"{folder}: expected a folder for each class with pictures in it ({', '.join(SUFFIXES)})")
    for name, paths in found.items():
        if not paths:
            raise ValueError(f"{folder / name} holds no pictures; remove it, or put its pictures in")
        if known is not None and name not in known:
            raise ValueError(f"{folder / name} is an unknown label; the training data has {', '.join(known[:10])}")
    classes = tuple(found) if known is None else known
    paths = [path for name in found for path in found[name]]
    labels = torch.tensor([classes.index(path.parent.name) for path in paths])
    pixels, used, notes = stacked([str(p) for p in paths], lambda i: read_picture(paths[i], size), bad_items=bad_items)
    return Images(pixels, labels[used], classes), notes


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, in alphabetical order; hidden ones are left out."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__")))


def picture_paths(folder: Path) -> list[Path]:
    """The picture files right in a folder."""
    return sorted(
        path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )
