"""Arrays from an .npz file, read so that a hostile one does no harm: no pickles, and sizes known beforehand."""

import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from qkv.data.problems import one_line

LARGEST = 4 << 30  # bytes that an archive may unpack to
SUSPECT = 64 << 20  # from this size on, a ratio that no data has is a bomb
RATIO = 100


def read_npz(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, by name."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            _check_sizes(path, entries)
            return {entry.filename.removesuffix(".npy"): _array(path, archive, entry) for entry in entries}
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged or no .npz file: {one_line(error)}") from None


def _check_sizes(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    whole, stored = sum(e.file_size for e in entries), sum(e.compress_size for e in entries)
    if not entries:
        raise ValueError(f"{path} holds no arrays")
    if whole > LARGEST:
        raise ValueError(f"{path} would unpack to {whole:,} bytes; at most {LARGEST:,} are read into memory")
    if whole > SUSPECT and whole > RATIO * stored:
        raise ValueError(
            f"{path} would unpack {stored:,} bytes to {whole:,}, {whole // max(stored, 1)} times as many: refused as a "
            "zip bomb; save it with np.savez if it is real"
        )


def _array(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """One array. Its header says how large it is; the archive must agree before anything is unpacked."""
    where = f"{path}, array {entry.filename.removesuffix('.npy')}"
    with archive.open(entry) as file:
        try:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(file)
        except (ValueError, OverflowError, SyntaxError) as error:
            raise ValueError(f"{where} is no array: {one_line(error)}") from None
        if dtype.hasobject:
            raise ValueError(f"{where} holds Python objects, which means a pickle: refused; save it as numbers or text")
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if size > entry.file_size or min(shape, default=0) < 0:
            raise ValueError(f"{where} is cut short: {shape} of {dtype} are {size:,} bytes; got {entry.file_size:,}")
        content = file.read(size)
    if len(content) != size:
        raise ValueError(f"{where} is cut short: {shape} of {dtype} are {size:,} bytes; got {len(content):,}")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")
