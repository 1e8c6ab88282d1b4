"""CIFAR-10 and CIFAR-100 from their binary files: one or two labels, then 3 × 32 × 32 bytes. Never the pickles."""

import os
import tarfile
import tempfile
from pathlib import Path

import torch

from qkv.data.download import cache_folder, download
from qkv.data.images import Images
from qkv.data.problems import one_line
from qkv.data.reading import read_lines

PIXELS = 3 * 32 * 32
# address, checksum, folder in the archive; training files, test file, bytes of labels, file of names
KINDS = {
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
FILES = {
    "cifar10": ([f"data_batch_{k}.bin" for k in range(1, 6)], "test_batch.bin", 1, "batches.meta.txt", 10),
    "cifar100": (["train.bin"], "test.bin", 2, "fine_label_names.txt", 100),
}


def is_cifar(folder: Path) -> str | None:
    """Which of the two a folder holds, if any."""
    return next((kind for kind, files in FILES.items() if (folder / files[0][0]).is_file()), None)


def fetch_cifar(kind: str) -> Path:
    """The folder with the binary files, downloaded to the cache folder where it is not there yet."""
    url, checksum, inner = KINDS[kind]
    folder = cache_folder() / inner
    if is_cifar(folder) == kind and (folder / FILES[kind][1]).is_file():
        return folder
    archive = download(url, checksum)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, filter="data")
        except (tarfile.TarError, EOFError) as error:
            raise ValueError(f"{archive} cannot be unpacked: {one_line(error)}") from None
        if not folder.exists():
            os.replace(Path(scratch) / inner, folder)
    return folder


def cifar_images(folder: str | Path) -> tuple[dict[str, Images], tuple[str, ...]]:
    """Train and test from a folder of binary files. CIFAR-100's labels are the fine ones."""
    folder = Path(folder)
    kind = is_cifar(folder)
    if kind is None:
        raise ValueError(f"{folder} holds neither data_batch_1.bin (CIFAR-10) nor train.bin (CIFAR-100)")
    train, test, labels, names, count = FILES[kind]
    missing = [name for name in (*train, test) if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} lacks {', '.join(missing)} of {kind}")
    classes = tuple(map(str, range(count)))
    if (folder / names).is_file():
        told = tuple(line.strip() for line in read_lines(folder / names) if line.strip())
        classes = told if len(told) == count else classes
    return {
        "train": read_records([folder / name for name in train], labels, classes),
        "test": read_records([folder / test], labels, classes),
    }, ()


def read_records(paths: list[Path], labels: int, classes: tuple[str, ...]) -> Images:
    """Pictures from files of records; the last byte of labels counts."""
    parts = []
    for path in paths:
        content = path.read_bytes()
        if not content or len(content) % (labels + PIXELS):
            raise ValueError(
                f"{path} is damaged: {len(content):,} bytes are no whole number of records of {labels + PIXELS} bytes"
            )
        parts.append(torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, labels + PIXELS))
        told = parts[-1][:, labels - 1]
        if int(told.max()) >= len(classes):
            record = int(told.argmax())
            raise ValueError(
                f"{path}, record {record}: unknown label {int(told[record])}; known are 0 … {len(classes) - 1}"
            )
    records = torch.cat(parts)
    pixels = records[:, labels:].reshape(-1, 3, 32, 32).contiguous()
    return Images(pixels, records[:, labels - 1].long(), classes)
