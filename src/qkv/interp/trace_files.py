"""Save and load a trace: trace.json describes it, trace.safetensors holds queries, keys, masks and weights.

No pickle; the folder is written whole or not at all. A tensor that several layers or steps share is written once.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv import __version__
from qkv._files import atomic_folder, read_json
from qkv.interp.layers import Piece, TracedLayer
from qkv.interp.lazy_weights import DenseWeights, FusedWeights, LazyWeights, RelativeBias
from qkv.models.folder import read_tensors, write_tensors
from qkv.nn.masks import AndMask, BandMask, DenseMask, PaddingMask

DESCRIPTION, TENSORS = "trace.json", "trace.safetensors"
EXPECTED = f"a trace is a folder with {DESCRIPTION} and {TENSORS}"
CLASSES = {
    each.__name__: each
    for each in (TracedLayer, Piece, LazyWeights, DenseWeights, RelativeBias, BandMask, AndMask, DenseMask, PaddingMask)
}
Activations = Mapping[str, tuple[Tensor, ...]]


def write_trace(folder: str | Path, layers: Sequence[TracedLayer], activations: Activations) -> None:
    """Write layers and activations into a folder; a trace already there is replaced."""
    tensors = TensorTable()
    description = {
        "qkv": __version__,
        "layers": [to_plain(layer, tensors) for layer in layers],
        "activations": {name: to_plain(calls, tensors) for name, calls in activations.items()},
    }
    with atomic_folder(folder, (DESCRIPTION, TENSORS), what="trace") as scratch:
        write_tensors(scratch / TENSORS, tensors.by_name)
        (scratch / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")


def read_trace(folder: str | Path) -> tuple[list[TracedLayer], dict[str, tuple[Tensor, ...]]]:
    """The layers and activations that a folder holds."""
    folder = Path(folder)
    description = read_json(folder / DESCRIPTION, expected=EXPECTED)
    tensors, where = read_tensors(folder / TENSORS, expected=EXPECTED), str(folder / DESCRIPTION)
    layers, activations = description.get("layers"), description.get("activations")
    if not isinstance(layers, list) or not isinstance(activations, dict):
        raise ValueError(f'{where}: expected a list "layers" and an object "activations"')
    layers = [from_plain(layer, tensors, where) for layer in layers]
    if not all(isinstance(layer, TracedLayer) for layer in layers):
        raise ValueError(f'{where}: expected only layers in "layers", got something else')
    return layers, {name: from_plain(calls, tensors, where) for name, calls in activations.items()}


class TensorTable:
    """Tensors by the names under which they are written; views of one tensor are written once."""

    def __init__(self) -> None:
        self.by_name: dict[str, Tensor] = {}
        self._names: dict[tuple, str] = {}
        self._alive: list[Tensor] = []  # so that no other tensor reuses the memory of a known one

    def add(self, tensor: Tensor) -> dict[str, Any]:
        """A reference to a tensor: its name, or a range of tokens of another tensor."""
        base = _base_keys(tensor)
        if base is not None and base.shape != tensor.shape:
            start = (tensor.storage_offset() - base.storage_offset()) // tensor.stride(-2)
            return {"tensor": self._name(base), "start": start, "count": tensor.shape[-2]}
        return {"tensor": self._name(tensor)}

    def _name(self, tensor: Tensor) -> str:
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if key not in self._names:
            self._names[key] = str(len(self._names))
            self._alive.append(tensor)
            self.by_name[self._names[key]] = tensor.detach().cpu().clone().contiguous()
        return self._names[key]


def _base_keys(tensor: Tensor) -> Tensor | None:
    """The keys (b, g, s, d) of which `tensor` is a range of tokens, if their memory holds nothing else."""
    if tensor.ndim != 4 or not tensor.numel() or tensor.stride(-1) != 1 or tensor.stride(-2) != tensor.shape[-1]:
        return None
    b, g, _, d = tensor.shape
    s = tensor.stride(1) // d
    if b * g * s * d * tensor.element_size() != tensor.untyped_storage().nbytes():
        return None
    return tensor.as_strided((b, g, s, d), tensor.stride(), 0)


def to_plain(value: Any, tensors: TensorTable) -> Any:
    """A part of a trace as JSON data; its tensors go into `tensors`."""
    if isinstance(value, FusedWeights):
        value = value.lazy
    if isinstance(value, Tensor):
        return tensors.add(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: to_plain(getattr(value, field.name), tensors) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, tuple):
        return [to_plain(item, tensors) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    return value


def from_plain(plain: Any, tensors: Mapping[str, Tensor], where: str) -> Any:
    """The inverse of `to_plain`. A ValueError names what is missing or unknown."""
    if isinstance(plain, list):
        return tuple(from_plain(item, tensors, where) for item in plain)
    if not isinstance(plain, dict):
        return plain
    if "number" in plain:
        return float(plain["number"])
    if "tensor" in plain:
        name, count = plain["tensor"], plain.get("count")
        if name not in tensors:
            raise ValueError(f"{where}: tensor {name!r} is not in {TENSORS}")
        return tensors[name] if count is None else tensors[name].narrow(-2, plain.get("start", 0), count)
    if plain.get("kind") not in CLASSES:
        raise ValueError(f"{where}: unknown kind {plain.get('kind')!r}; known are {', '.join(CLASSES)}")
    kind = CLASSES[plain["kind"]]
    values = {name: from_plain(value, tensors, where) for name, value in plain.items() if name != "kind"}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {kind.__name__} {str(error).split('__init__() ')[-1]}") from None
