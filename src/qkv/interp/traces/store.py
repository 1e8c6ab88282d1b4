"""A trace's folder: trace.json says what was recorded, trace.safetensors holds queries, keys, masks and weights.

Never a pickle; whole or not at all. A tensor that several layers or steps share is written once.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file
from torch import Tensor

from qkv import __version__
from qkv._folders import whole_folder
from qkv.interp.traces.layer import Layer, Piece
from qkv.interp.traces.lazy_weights import ByDistance, Derived, Recipe, Written
from qkv.models.folder import read_json, read_tensors
from qkv.nn.masks import Band, Both, Dense, PaddingMask

if TYPE_CHECKING:
    from qkv.interp.traces.trace import Trace

TEXT, TENSORS = "trace.json", "trace.safetensors"
NEEDED = f"a trace is a folder with {TEXT} and {TENSORS}"
KINDS = {kind.__name__: kind for kind in (Layer, Piece, Recipe, Written, ByDistance, Band, Both, Dense, PaddingMask)}


def save(trace: Trace, target: str | Path) -> None:
    """Write a trace's folder; an older trace's folder of the same name is replaced."""
    tensors = Tensors()
    described = {
        "qkv": __version__,
        "layers": [to_plain(layer, tensors) for layer in trace.layers],
        "activations": {name: to_plain(calls, tensors) for name, calls in trace.activations.items()},
    }

    with whole_folder(target, (TEXT, TENSORS), what="trace") as scratch:
        save_file(tensors.named, scratch / TENSORS)
        (scratch / TEXT).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


def load(source: str | Path) -> Trace:
    """The trace that a folder holds."""
    from qkv.interp.traces.trace import Trace

    source = Path(source)
    described = read_json(source / TEXT, needed=NEEDED)
    tensors, where = read_tensors(source / TENSORS, needed=NEEDED), str(source / TEXT)
    layers, activations = described.get("layers"), described.get("activations")
    if not isinstance(layers, list) or not isinstance(activations, dict):
        raise ValueError(f"{where} should have a list of layers and an object of activations")
    found = [from_plain(layer, tensors, where) for layer in layers]
    if not all(isinstance(layer, Layer) for layer in found):
        raise ValueError(f"{where} lists something other than layers among its layers")
    return Trace(found, {name: from_plain(calls, tensors, where) for name, calls in activations.items()})


class Tensors:
    """Tensors by the names under which they are written."""

    def __init__(self) -> None:
        self.named: dict[str, Tensor] = {}
        self._known: dict[tuple, str] = {}
        self._alive: list[Tensor] = []  # so that no other tensor takes the memory of one that is known

    def put(self, tensor: Tensor) -> dict[str, Any]:
        """Where a tensor is found again: its name, or a run of another's tokens."""
        whole = _whole(tensor)
        if whole is not None and whole.shape != tensor.shape:
            start = (tensor.storage_offset() - whole.storage_offset()) // tensor.stride(-2)
            return {"tensor": self._name(whole), "start": start, "count": tensor.shape[-2]}
        return {"tensor": self._name(tensor)}

    def _name(self, tensor: Tensor) -> str:
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if key not in self._known:
            self._known[key] = str(len(self._known))
            self._alive.append(tensor)
            self.named[self._known[key]] = tensor.detach().cpu().clone().contiguous()
        return self._known[key]


def _whole(tensor: Tensor) -> Tensor | None:
    """The keys (b, g, s, d) that these are a run of, if their memory holds nothing else."""
    if tensor.ndim != 4 or not tensor.numel() or tensor.stride(-1) != 1 or tensor.stride(-2) != tensor.shape[-1]:
        return None
    b, g, _, d = tensor.shape
    s = tensor.stride(1) // d
    if b * g * s * d * tensor.element_size() != tensor.untyped_storage().nbytes():
        return None
    return tensor.as_strided((b, g, s, d), tensor.stride(), 0)


def to_plain(value: Any, tensors: Tensors) -> Any:
    """A part of a trace as JSON holds it."""
    if isinstance(value, Derived):
        value = value.recipe
    if isinstance(value, Tensor):
        return tensors.put(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: to_plain(getattr(value, field.name), tensors) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, tuple):
        return [to_plain(item, tensors) for item in value]
    return {"number": str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def from_plain(plain: Any, tensors: dict[str, Tensor], where: str) -> Any:
    """The inverse of `to_plain`; a ValueError names what is missing or unknown."""
    if isinstance(plain, list):
        return tuple(from_plain(item, tensors, where) for item in plain)
    if not isinstance(plain, dict):
        return plain
    if "number" in plain:
        return float(plain["number"])
    if "tensor" in plain:
        name = plain["tensor"]
        if name not in tensors:
            raise ValueError(f"{where} names a tensor {name!r} that {TENSORS} does not hold")
        start, count = plain.get("start", 0), plain.get("count")
        return tensors[name] if count is None else tensors[name].narrow(-2, start, count)
    if plain.get("kind") not in KINDS:
        raise ValueError(f"{where} holds something of kind {plain.get('kind')!r}; known are {', '.join(KINDS)}")
    kind = KINDS[plain["kind"]]
    values = {name: from_plain(value, tensors, where) for name, value in plain.items() if name != "kind"}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {kind.__name__} {str(error).split('__init__() ')[-1]}") from None
