"""Pictures from a folder as the Hugging Face hub keeps data sets: parquet files of pictures and labels."""

import json
from pathlib import Path
from typing import Any

import torch

from qkv.data.images import Images
from qkv.data.npz_images import MOST_CLASSES, PARTS, named_labels
from qkv.data.picture_files import read_picture, stacked
from qkv.data.problems import BadItems, one_line

LABELS = ("label", "labels", "fine_label", "target", "class")
ROWS = 1024  # rows of a file in memory at a time


def parquet_images(
    folder: str | Path, *, size: int | None = None, bad_items: BadItems = "refuse"
) -> tuple[dict[str, Images], tuple[str, ...]]:
    """Parts by name, and notes. A file's part is the word its name begins with: train-00000-of-00001.parquet."""
    files: dict[str, list[Path]] = {}
    for path in sorted(Path(folder).rglob("*.parquet")):
        files.setdefault(_part_of(path), []).append(path)
    if "train" not in files:
        raise ValueError(f"{folder} holds no training data: expected a file such as train-00000-of-00001.parquet")
    images: dict[str, Images] = {}
    notes: list[str] = []
    for part, paths in files.items():
        if part != "train":
            continue
        images[part], said = _read(paths, None, size, bad_items)
        notes += said
    for part in ("validation", "test"):
        if part in files:
            images[part], said = _read(files[part], images["train"].classes, size, bad_items)
            notes += said
    return images, tuple(notes)


def _part_of(path: Path) -> str:
    for word in (path.stem.split("-")[0].lower(), path.parent.name.lower()):
        if word in PARTS:
            return PARTS[word]
    return "train"


def _read(
    paths: list[Path], known: tuple[str, ...] | None, size: int | None, bad_items: BadItems
) -> tuple[Images, tuple[str, ...]]:
    pictures: list[bytes | None] = []
    labels: list[Any] = []
    names: list[str] = []
    classes: tuple[str, ...] | None = None
    for path in paths:
        found, told, classes = _columns(path)
        names += [f"{path}, row {row}" for row in range(1, len(found) + 1)]
        pictures += found
        labels += told
    if not pictures:
        raise ValueError(f"{paths[0]} has no rows")
    numbers, classes = _numbered(labels, names, known if known is not None else classes)
    pixels, used, notes = stacked(names, lambda i: read_picture(pictures[i] or b"", size), bad_items=bad_items)
    return Images(pixels, numbers[used], classes), notes


def _columns(path: Path) -> tuple[list[bytes | None], list[Any], tuple[str, ...] | None]:
    """Bytes and labels of one file, and the names of the classes where it states them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError(f"{path} is a parquet file; to read it install pyarrow: pip install 'qkv[hf]'") from None
    try:
        file = pyarrow.parquet.ParquetFile(path)
        with file:
            schema = file.schema_arrow
            picture, label = _picture_column(schema, path), _label_column(schema, path)
            pictures: list[bytes | None] = []
            labels: list[Any] = []
            for batch in file.iter_batches(ROWS, columns=[picture, label]):
                values = batch.column(batch.schema.get_field_index(picture)).to_pylist()
                pictures += [value["bytes"] if isinstance(value, dict) else value for value in values]
                labels += batch.column(batch.schema.get_field_index(label)).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} is damaged or no parquet file: {one_line(error)}") from None
    return pictures, labels, _class_names(schema, label)


def _picture_column(schema: Any, path: Path) -> str:
    import pyarrow.types as types

    def holds_bytes(kind: Any) -> bool:
        return types.is_binary(kind) or types.is_large_binary(kind)

    for field in schema:
        inner = field.type.field("bytes").type if _has_bytes(field.type) else field.type
        if holds_bytes(inner):
            return field.name
    raise ValueError(f"{path}: expected a column with the bytes of pictures; got {', '.join(schema.names)}")


def _has_bytes(kind: Any) -> bool:
    import pyarrow.types as types

    return types.is_struct(kind) and kind.get_field_index("bytes") >= 0


def _label_column(schema: Any, path: Path) -> str:
    for name in LABELS:
        if name in schema.names:
            return name
    raise ValueError(f"{path}: expected a column called {' or '.join(LABELS)}; got {', '.join(schema.names)}")


def _class_names(schema: Any, label: str) -> tuple[str, ...] | None:
    """The names of the classes, from the description that the datasets library leaves in the file."""
    try:
        described = json.loads((schema.metadata or {})[b"huggingface"])
        return tuple(map(str, described["info"]["features"][label]["names"]))
    except (KeyError, ValueError, TypeError):
        return None


def _numbered(
    labels: list[Any], names: list[str], classes: tuple[str, ...] | None
) -> tuple[torch.Tensor, tuple[str, ...]]:
    if all(isinstance(label, str) for label in labels):
        return named_labels(labels, names[0].split(", row")[0], classes)
    most = len(classes) if classes is not None else MOST_CLASSES
    for label, name in zip(labels, names, strict=True):
        if not isinstance(label, int) or not 0 <= label < most:
            raise ValueError(f"{name} has the unknown label {label!r}; expected a number from 0 to {most - 1}")
    return torch.tensor(labels), classes or tuple(map(str, range(max(labels) + 1)))
