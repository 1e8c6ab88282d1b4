"""Files that are whole: written with their checksum on the way, brought to the disk, listed in a manifest written last.

Tensors are safetensors (an 8-byte length, a JSON header, the bytes), written here piece by piece so that the checksum
needs no second reading and a full disk is an OSError at the piece that did not fit.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MANIFEST = "manifest.json"
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


class Writer:
    """Writes files into one folder and remembers their sizes and checksums."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: dict[str, dict[str, Any]] = {}

    def bytes(self, name: str, pieces: Iterable[Any]) -> None:
        digest, size = hashlib.sha256(), 0
        with (self.folder / name).open("wb") as file:
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
                size += len(piece)
            file.flush()
            os.fsync(file.fileno())
        self.written[name] = {"bytes": size, "sha256": digest.hexdigest()}

    def json(self, name: str, value: object) -> None:
        self.bytes(name, [(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()])

    def tensors(self, name: str, tensors: dict[str, Tensor]) -> None:
        self.bytes(name, safetensors_pieces(tensors))

    def manifest(self) -> None:
        """Say what was written; a folder without this is not whole."""
        self.json(MANIFEST, {"files": self.written})


def safetensors_pieces(tensors: dict[str, Tensor]) -> Iterable[Any]:
    """The bytes of a safetensors file: the header, then each tensor."""
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors begin at a multiple of 8
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        if tensor.numel():
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            yield flat.view(torch.uint8).numpy().data


def damage(folder: Path) -> str | None:
    """What is wrong with a folder that a manifest describes; None if it is whole."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        listed = {name: (entry["bytes"], entry["sha256"]) for name, entry in files.items()}
    except FileNotFoundError:
        return f"it has no {MANIFEST}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"its {MANIFEST} is damaged"
    for name, (size, digest) in listed.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                return f"the SHA-256 of {name} is not that of what was written"
    return None
