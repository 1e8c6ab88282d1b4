"""Pictures from wherever they are: a name, an .npz file, or a folder of one of four kinds."""

from pathlib import Path

from qkv.data.cifar import KINDS, cifar_images, fetch_cifar, is_cifar
from qkv.data.digit_images import digits
from qkv.data.folder_images import folder_images
from qkv.data.idx_images import FASHION, fetch_fashion, idx_images, is_idx
from qkv.data.images import ImageSplits, split
from qkv.data.npz_images import npz_images
from qkv.data.parquet_images import parquet_images
from qkv.data.problems import BadItems

NAMES = ("digits", *KINDS, "fashion-mnist")


def load_images(
    source: str | Path,
    *,
    validation: float = 0.1,
    seed: int = 0,
    size: int | None = None,
    bad_items: BadItems = "refuse",
) -> ImageSplits:
    """Pictures for training, validation and test.

    source: "digits" (ships with qkv), "cifar10", "cifar100", "fashion-mnist" (downloaded), an .npz file,
        a folder of folders, a folder of parquet files, of CIFAR's .bin files or of idx files.
    validation: the share of the training data that is kept apart, by the seed, where the source has no such part.
    size: picture files are scaled and cut to size × size.

    >>> load_images("digits").train.shape
    (1, 8, 8)
    """
    if source == "digits":
        return digits()
    parts, notes = _parts(source, size, bad_items)
    return split(parts, validation=validation, seed=seed, notes=notes)


def _parts(source: str | Path, size: int | None, bad_items: BadItems):
    if isinstance(source, str) and source in KINDS and not Path(source).is_dir():
        return cifar_images(fetch_cifar(source))
    if source == "fashion-mnist" and not Path(source).is_dir():
        return idx_images(fetch_fashion(), FASHION)
    path = Path(source).expanduser()
    if not path.exists():
        raise ValueError(
            f"there is nothing at {source}; pictures come from {', '.join(NAMES)}, an .npz file or a folder"
        )
    if path.is_file():
        if path.suffix.lower() != ".npz":
            raise ValueError(f"{path} is a file, but no .npz file; pictures come from one, or from a folder")
        return npz_images(path)
    if is_cifar(path):
        return cifar_images(path)
    if is_idx(path):
        return idx_images(path)
    if next(path.rglob("*.parquet"), None) is not None:
        return parquet_images(path, size=size, bad_items=bad_items)
    return folder_images(path, size=size, bad_items=bad_items)
