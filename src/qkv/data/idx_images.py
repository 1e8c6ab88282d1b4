"""Pictures in the format of MNIST: idx files of bytes, packed by gzip or not. Fashion-MNIST is fetched or found."""

import gzip
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from qkv.data.download import cache_folder, download
from qkv.data.images import Images
from qkv.data.problems import one_line

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
FASHION = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
SOURCE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
CHECKSUMS = {
    "train-images-idx3-ubyte": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "md5:25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "md5:bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "md5:bb300cfdad3c16e7a12a480ee83cd310",
}
LARGEST = 4 << 30


def fetch_fashion() -> Path:
    """The folder with Fashion-MNIST: Debian's, or downloaded to the cache folder."""
    if is_idx(DEBIAN):
        return DEBIAN
    folder = cache_folder() / "fashion-mnist"
    for name, checksum in CHECKSUMS.items():
        download(f"{SOURCE}/{name}.gz", checksum, folder / f"{name}.gz")
    return folder


def is_idx(folder: Path) -> bool:
    """Whether a folder holds idx files."""
    return any((folder / (FILES["train"][0] + end)).is_file() for end in ("", ".gz"))


def idx_images(folder: str | Path, classes: tuple[str, ...] | None = None) -> tuple[dict[str, Images], tuple[str, ...]]:
    """Train and test from a folder of idx files; classes are numbers where no names are given."""
    folder, parts = Path(folder), {}
    for part, (pictures, labels) in FILES.items():
        if part == "test" and not any((folder / (pictures + end)).is_file() for end in ("", ".gz")):
            continue
        pixels, told = read_idx(_found(folder, pictures), 3), read_idx(_found(folder, labels), 1).long()
        if len(pixels) != len(told):
            raise ValueError(f"{folder}: {pictures} has {len(pixels)} pictures, {labels} {len(told)} labels")
        if classes is None:
            classes = tuple(map(str, range(int(told.max()) + 1)))
        if int(told.max()) >= len(classes):
            item = int(told.argmax())
            raise ValueError(f"{folder / labels}: item {item} has the unknown label {int(told[item])}")
        parts[part] = Images(pixels[:, None], told, classes)
    return parts, ()


def read_idx(path: Path, axes: int) -> Tensor:
    """An idx file of bytes with so many axes."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            head = file.read(4 + 4 * axes)
            if len(head) < 4 + 4 * axes or head[:4] != bytes([0, 0, 8, axes]):
                raise ValueError(f"{path} is no idx file of bytes with {axes} axes")
            shape = struct.unpack(f">{axes}I", head[4:])
            size = 1
            for side in shape:
                size *= side
            if not 0 < size <= LARGEST:
                raise ValueError(f"{path} claims {' × '.join(map(str, shape))} bytes; expected 1 to {LARGEST:,}")
            content = file.read(size)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {one_line(error)}") from None
    if len(content) != size:
        raise ValueError(f"{path} is cut short: {size:,} bytes were announced; got {len(content):,}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(shape)


def _found(folder: Path, name: str) -> Path:
    for end in ("", ".gz"):
        if (folder / (name + end)).is_file():
            return folder / (name + end)
    raise ValueError(f"{folder} has no {name} (or {name}.gz)")
