"""CIFAR-10, CIFAR-100 and (Fashion-)MNIST: download and read their binary files. Pickles are never read."""

import gzip
import math
import os
import struct
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.data.download import cache_folder, download
from qkv.data.files import describe_error, read_lines
from qkv.data.images.dataset import Images

CIFAR_BYTES = 3 * 32 * 32  # of an image
CIFAR_ARCHIVES = {  # address, checksum, folder in the archive
    "cifar10": (
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        "cifar-10-batches-bin",
    ),
    "cifar100": (
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "md5:03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-binary",
    ),
}


class CifarLayout(NamedTuple):
    """The files of one CIFAR data set; each record is `label_bytes` labels and then the pixels."""

    train: tuple[str, ...]
    test: str
    label_bytes: int
    class_names: str
    num_classes: int
    num_coarse: int = 0  # CIFAR-100's first label byte: one of 20 superclasses


CIFAR_LAYOUTS = {
    "cifar10": CifarLayout(
        tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin", 1, "batches.meta.txt", 10
    ),
    "cifar100": CifarLayout(("train.bin",), "test.bin", 2, "fine_label_names.txt", 100, 20),
}

_CIFAR100_FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
CIFAR100_CLASSES = tuple(_CIFAR100_FINE.split())

IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
IDX_MAX_BYTES = 4 << 30
FASHION_CLASSES = (
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
FASHION_SOURCE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
FASHION_DEBIAN = Path("/usr/share/datasets/fashion-mnist")
FASHION_CHECKSUMS = {
    "train-images-idx3-ubyte": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "md5:25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "md5:bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "md5:bb300cfdad3c16e7a12a480ee83cd310",
}


def detect_cifar(folder: Path) -> str | None:
    """Which CIFAR data set a folder holds: "cifar10", "cifar100" or None."""
    return next(
        (
            kind
            for kind, layout in CIFAR_LAYOUTS.items()
            if (folder / layout.train[0]).is_file() or (folder / layout.test).is_file()
        ),
        None,
    )


def find_cifar_folder(folder: Path) -> Path:
    """The folder of binary files: this one, or the only unpacked archive in it."""
    inner = [folder / name for _, _, name in CIFAR_ARCHIVES.values() if detect_cifar(folder / name)]
    return inner[0] if len(inner) == 1 and detect_cifar(folder) is None else folder


def download_cifar(kind: str) -> Path:
    """The folder with the binary files, downloaded to the cache folder if necessary."""
    url, checksum, inner = CIFAR_ARCHIVES[kind]
    folder = cache_folder() / inner
    if detect_cifar(folder) == kind and (folder / CIFAR_LAYOUTS[kind].test).is_file():
        return folder
    archive = download(url, checksum)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, filter="data")
        except (tarfile.TarError, EOFError) as error:
            raise ValueError(f"{archive} cannot be unpacked: {describe_error(error)}") from None
        if not folder.exists():
            os.replace(Path(scratch) / inner, folder)
    return folder


def load_cifar(folder: str | Path) -> dict[str, Images]:
    """Read train and test from a folder of binary files. CIFAR-100's labels are the fine ones."""
    folder = Path(folder)
    kind = detect_cifar(folder)
    if kind is None:
        raise ValueError(f"{folder} has neither data_batch_1.bin (CIFAR-10) nor train.bin (CIFAR-100)")
    layout = CIFAR_LAYOUTS[kind]
    missing = [name for name in (*layout.train, layout.test) if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} lacks {', '.join(missing)} of {kind}")
    classes, coarse = tuple(map(str, range(layout.num_classes))), layout.num_coarse
    if (folder / layout.class_names).is_file():
        names = tuple(line.strip() for line in read_lines(folder / layout.class_names) if line.strip())
        classes = names if len(names) == layout.num_classes else classes
    return {
        "train": read_cifar_records([folder / name for name in layout.train], layout.label_bytes, classes, coarse),
        "test": read_cifar_records([folder / layout.test], layout.label_bytes, classes, coarse),
    }


def read_cifar_records(paths: list[Path], label_bytes: int, classes: tuple[str, ...], num_coarse: int = 0) -> Images:
    """Read images from files of records; the last label byte counts, a coarse label before it is only checked."""
    record_bytes = label_bytes + CIFAR_BYTES
    parts = []
    for path in paths:
        content = path.read_bytes()
        if not content or len(content) % record_bytes:
            raise ValueError(
                f"{path} is damaged: {len(content):,} bytes is not a whole number of records of {record_bytes} bytes"
            )
        parts.append(torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, record_bytes))
        for column, count, name in ((label_bytes - 1, len(classes), "label"), (0, num_coarse, "coarse label")):
            labels = parts[-1][:, column]
            if count and int(labels.max()) >= count:
                record = int(labels.argmax())
                raise ValueError(
                    f"{path}, record {record}: unknown {name} {int(labels[record])}; {name}s are 0 … {count - 1}"
                )
    records = torch.cat(parts)
    pixels = records[:, label_bytes:].reshape(-1, 3, 32, 32).contiguous()
    return Images(pixels, records[:, label_bytes - 1].long(), classes)


def download_fashion_mnist() -> Path:
    """The folder with Fashion-MNIST: Debian's package, or downloaded to the cache folder."""
    if is_idx_folder(FASHION_DEBIAN):
        return FASHION_DEBIAN
    folder = cache_folder() / "fashion-mnist"
    for name, checksum in FASHION_CHECKSUMS.items():
        download(f"{FASHION_SOURCE}/{name}.gz", checksum, folder / f"{name}.gz")
    return folder


def is_idx_folder(folder: Path) -> bool:
    """Whether a folder holds MNIST's idx files, packed by gzip or not."""
    return _find_idx(folder, IDX_FILES["train"][0]) is not None


def load_idx_images(folder: str | Path, classes: tuple[str, ...] | None = None) -> dict[str, Images]:
    """Read train and test from a folder of idx files; classes are numbered if no names are given."""
    folder, parts = Path(folder), {}
    for part, (image_file, label_file) in IDX_FILES.items():
        if part == "test" and _find_idx(folder, image_file) is None:
            continue
        pixels = read_idx(_require_idx(folder, image_file), 3)
        labels = read_idx(_require_idx(folder, label_file), 1).long()
        if len(pixels) != len(labels):
            raise ValueError(f"{folder}: {image_file} has {len(pixels)} images, {label_file} {len(labels)} labels")
        if classes is None:
            classes = tuple(map(str, range(int(labels.max()) + 1)))
        if int(labels.max()) >= len(classes):
            item = int(labels.argmax())
            raise ValueError(f"{folder / label_file}: item {item} has the unknown label {int(labels[item])}")
        parts[part] = Images(pixels[:, None], labels, classes)
    return parts


def read_idx(path: Path, axes: int) -> Tensor:
    """Read an idx file of bytes with that many axes."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            header = file.read(4 + 4 * axes)
            if len(header) < 4 + 4 * axes or header[:4] != bytes([0, 0, 8, axes]):
                raise ValueError(f"{path} is not an idx file of bytes with {axes} axes")
            shape = struct.unpack(f">{axes}I", header[4:])
            size = math.prod(shape)
            if not 0 < size <= IDX_MAX_BYTES:
                raise ValueError(f"{path} claims {' × '.join(map(str, shape))} bytes; expected 1 to {IDX_MAX_BYTES:,}")
            content = file.read(size)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {describe_error(error)}") from None
    if len(content) != size:
        raise ValueError(f"{path} is cut short: its header says {size:,} bytes, got {len(content):,}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(shape)


def _find_idx(folder: Path, name: str) -> Path | None:
    return next((folder / (name + end) for end in ("", ".gz") if (folder / (name + end)).is_file()), None)


def _require_idx(folder: Path, name: str) -> Path:
    path = _find_idx(folder, name)
    if path is None:
        raise ValueError(f"{folder} has no {name} (or {name}.gz)")
    return path
