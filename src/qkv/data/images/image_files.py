"""Image files (PNG, JPEG, …) read with Pillow: from a folder per class, or from Hugging Face parquet files."""

import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from qkv._files import read_limited
from qkv.data.files import BadItemLog, BadItems, describe_error
from qkv.data.images.dataset import Images
from qkv.data.images.npz import MAX_CLASSES, PARTS, encode_labels

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "PPM", "TIFF")  # Pillow would start other programs for some formats
MAX_BYTES = 200_000_000
MAX_PIXELS = 50_000_000  # of one image: a small file can claim any size
GRAY_MODES = ("1", "L", "LA", "I", "I;16", "F")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "class")
PARQUET_ROWS = 1024  # rows of a file in memory at a time


def open_image(source: Path | bytes) -> Image.Image:
    """Open an image without decoding its pixels. Only FORMATS are read: for EPS, Pillow would run Ghostscript."""
    content = source if isinstance(source, bytes) else read_limited(source, MAX_BYTES)
    try:
        return Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError:
        raise ValueError(f"not a readable image; expected one of {', '.join(FORMATS)}") from None


def read_image(source: Path | bytes, size: int | None = None) -> np.ndarray:
    """Read one image as (h, w) if it is gray, otherwise (h, w, 3); EXIF orientation is applied.

    size: scale the shorter side to it and cut out the middle square; None keeps the image's size.
    """
    if not (source if isinstance(source, bytes) else source.stat().st_size):
        raise ValueError("the file is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of large images; ours are refused below
            with open_image(source) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise ValueError(f"{image.width} × {image.height} pixels are more than {MAX_PIXELS:,}")
                image.load()
                image = _to_eight_bits(ImageOps.exif_transpose(image))
                if size is not None:
                    image = ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)
                return np.asarray(image)
    except ValueError:
        raise
    except Exception as error:  # Pillow's readers raise many kinds
        raise ValueError(f"not a readable image ({describe_error(error)})") from None


def _to_eight_bits(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "I;16", "F"):  # 16 bits and more: to the range of a byte
        values = np.asarray(image, dtype=np.float64)
        return Image.fromarray((values / max(values.max(), 255) * 255).round().astype(np.uint8))
    return image.convert("L" if image.mode in GRAY_MODES else "RGB")


def stack_images(
    names: list[str], read: Callable[[int], np.ndarray], *, bad_items: BadItems = "error"
) -> tuple[Tensor, list[int], tuple[str, ...]]:
    """Read all images into one tensor of bytes (n, c, h, w); return it with the indices read, and notes.

    read: reads the image at an index. Images that cannot be read, or whose size differs from the most common one, are
    named and raise an error or are skipped.
    """
    log = BadItemLog("images", bad_items)
    images: dict[int, np.ndarray] = {}
    for index, name in enumerate(names):
        try:
            images[index] = read(index)
        except (ValueError, OSError) as error:
            log.add(name, describe_error(error))
    sizes = [image.shape[:2] for image in images.values()]
    common = max(set(sizes), key=sizes.count) if sizes else (0, 0)
    for index, image in list(images.items()):
        if image.shape[:2] != common:
            (h, w), (common_h, common_w) = image.shape[:2], common
            log.add(names[index], f"{w} × {h} pixels where most have {common_w} × {common_h}; set a size to resize to")
            del images[index]
    notes = log.finish(len(names))
    if any(image.ndim == 3 for image in images.values()):
        color = [np.stack([image] * 3, -1) if image.ndim == 2 else image for image in images.values()]
        pixels = torch.from_numpy(np.stack(color)).permute(0, 3, 1, 2).contiguous()
    else:
        pixels = torch.from_numpy(np.stack(list(images.values())))[:, None]
    return pixels, list(images), notes


def load_image_folder(
    folder: str | Path, *, size: int | None = None, bad_items: BadItems = "error"
) -> tuple[dict[str, Images], tuple[str, ...]]:
    """Read a folder with one folder per class; return parts by name, and notes.

    Folders called train, val(idation) and test are parts; otherwise everything is train.
    size: resize and crop images to size × size; with None all images must have one size.
    """
    folder = Path(folder)
    parts = {PARTS[path.name.lower()]: path for path in _subfolders(folder) if path.name.lower() in PARTS}
    if "train" not in parts:
        parts = {"train": folder}
    return _load_parts(parts, lambda path, classes: _load_class_folders(path, classes, size, bad_items))


def _load_class_folders(
    folder: Path, classes: tuple[str, ...] | None, size: int | None, bad_items: BadItems
) -> tuple[Images, tuple[str, ...]]:
    found = {path.name: _image_paths(path) for path in _subfolders(folder)}
    if not any(found.values()):
        raise ValueError(f"{folder}: expected a folder per class with images in it ({', '.join(SUFFIXES)})")
    for name, paths in found.items():
        if not paths:
            raise ValueError(f"{folder / name} has no images; remove it, or add its images")
        if classes is not None and name not in classes:
            raise ValueError(f"{folder / name} is an unknown class; the training data has {', '.join(classes[:10])}")
    classes = tuple(found) if classes is None else classes
    paths = [path for name in found for path in found[name]]
    labels = torch.tensor([classes.index(path.parent.name) for path in paths])
    pixels, used, notes = stack_images(
        [str(path) for path in paths], lambda index: read_image(paths[index], size), bad_items=bad_items
    )
    return Images(pixels, labels[used], classes), notes


def _subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, in alphabetical order, without hidden ones."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__")))


def _image_paths(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )


def load_parquet_images(
    folder: str | Path, *, size: int | None = None, bad_items: BadItems = "error"
) -> tuple[dict[str, Images], tuple[str, ...]]:
    """Read a folder of parquet files as on the Hugging Face hub; return parts by name, and notes.

    A file's part is the first word of its name: train-00000-of-00001.parquet.
    """
    files: dict[str, list[Path]] = {}
    for path in sorted(Path(folder).rglob("*.parquet")):
        files.setdefault(_parquet_part(path), []).append(path)
    if "train" not in files:
        raise ValueError(f"{folder} has no training data: expected a file such as train-00000-of-00001.parquet")
    return _load_parts(files, lambda paths, classes: _load_parquet_files(paths, classes, size, bad_items))


def _load_parts(
    sources: dict[str, Any], load: Callable[[Any, tuple[str, ...] | None], tuple[Images, tuple[str, ...]]]
) -> tuple[dict[str, Images], tuple[str, ...]]:
    """Load the training part first; its classes are those of the other parts."""
    images: dict[str, Images] = {}
    all_notes: list[str] = []
    for part in ("train", "validation", "test"):
        if part in sources:
            classes = images["train"].classes if images else None
            images[part], notes = load(sources[part], classes)
            all_notes += notes
    return images, tuple(all_notes)


def _parquet_part(path: Path) -> str:
    for word in (path.stem.split("-")[0].lower(), path.parent.name.lower()):
        if word in PARTS:
            return PARTS[word]
    return "train"


def _load_parquet_files(
    paths: list[Path], train_classes: tuple[str, ...] | None, size: int | None, bad_items: BadItems
) -> tuple[Images, tuple[str, ...]]:
    encoded: list[bytes | None] = []
    labels: list[Any] = []
    names: list[str] = []
    classes: tuple[str, ...] | None = None
    for path in paths:
        file_images, file_labels, classes = _read_parquet(path)
        names += [f"{path}, row {row}" for row in range(1, len(file_images) + 1)]
        encoded += file_images
        labels += file_labels
    if not encoded:
        raise ValueError(f"{paths[0]} has no rows")
    numbers, classes = _number_labels(labels, names, train_classes if train_classes is not None else classes)
    pixels, used, notes = stack_images(
        names, lambda index: read_image(encoded[index] or b"", size), bad_items=bad_items
    )
    return Images(pixels, numbers[used], classes), notes


def _read_parquet(path: Path) -> tuple[list[bytes | None], list[Any], tuple[str, ...] | None]:
    """Encoded images and labels of one file, and the names of the classes where it states them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError(f"{path} is a parquet file; to read it install pyarrow: pip install 'qkv[hf]'") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            image_column, label_column = _find_image_column(schema, path), _find_label_column(schema, path)
            images: list[bytes | None] = []
            labels: list[Any] = []
            for batch in file.iter_batches(PARQUET_ROWS, columns=[image_column, label_column]):
                values = batch.column(batch.schema.get_field_index(image_column)).to_pylist()
                images += [value["bytes"] if isinstance(value, dict) else value for value in values]
                labels += batch.column(batch.schema.get_field_index(label_column)).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} is damaged or not a parquet file: {describe_error(error)}") from None
    return images, labels, _class_names(schema, label_column)


def _find_image_column(schema: Any, path: Path) -> str:
    """The first column of bytes, or of structs with a field `bytes`."""
    import pyarrow.types as types

    for field in schema:
        kind = field.type
        if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            kind = kind.field("bytes").type
        if types.is_binary(kind) or types.is_large_binary(kind):
            return field.name
    raise ValueError(f"{path}: expected a column with the bytes of images, got {', '.join(schema.names)}")


def _find_label_column(schema: Any, path: Path) -> str:
    for name in LABEL_COLUMNS:
        if name in schema.names:
            return name
    raise ValueError(f"{path}: expected a column called {' or '.join(LABEL_COLUMNS)}, got {', '.join(schema.names)}")


def _class_names(schema: Any, label_column: str) -> tuple[str, ...] | None:
    """Class names from the metadata that the datasets library writes into the file."""
    try:
        metadata = json.loads((schema.metadata or {})[b"huggingface"])
        return tuple(map(str, metadata["info"]["features"][label_column]["names"]))
    except (KeyError, ValueError, TypeError):
        return None


def _number_labels(
    labels: list[Any], names: list[str], classes: tuple[str, ...] | None
) -> tuple[torch.Tensor, tuple[str, ...]]:
    if all(isinstance(label, str) for label in labels):
        return encode_labels(labels, names[0].split(", row")[0], classes)
    count = len(classes) if classes is not None else MAX_CLASSES
    for label, name in zip(labels, names, strict=True):
        if not isinstance(label, int) or not 0 <= label < count:
            raise ValueError(f"{name} has the unknown label {label!r}; expected a number from 0 to {count - 1}")
    return torch.tensor(labels), classes or tuple(map(str, range(max(labels) + 1)))
