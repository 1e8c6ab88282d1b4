"""Numbers packed for the exported page: integers as planes of bytes, deflated, in base64; and lazy weights.

All first bytes stand together, then all second bytes: similar bytes stand side by side and compress well.
web/src/viewer/exported/unpack.ts reads them, lazy_weights.ts computes rows from queries and keys.
Axes: h heads · g key heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.interp.layers import Piece, TracedLayer
from qkv.interp.lazy_weights import DenseWeights, FusedWeights, LazyWeights, RelativeBias
from qkv.nn.masks import AndMask, BandMask, DenseMask, Mask

MAX_INTEGER = 8191  # queries and keys as 14-bit integers: more exact than half floats, and they compress better
MAX_BYTES = 8 << 20  # that one layer's stored weights, bias or mask may take before they are left out


class Blob:
    """Bytes that grow; each addition returns where it stands: [offset, count, bytes per number]."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def integers(self, values: Tensor) -> list[int]:
        """Integers of 0 or more, in as many planes of bytes as the largest needs."""
        flat = values.detach().flatten().cpu().to(torch.int64).numpy().astype(np.uint32)
        planes = max((int(flat.max(initial=0)).bit_length() + 7) // 8, 1)
        split = flat.astype("<u4").view(np.uint8).reshape(-1, 4)
        return self._add(np.ascontiguousarray(split[:, :planes].T).tobytes(), flat.size, planes)

    def signed(self, values: Tensor) -> list[int]:
        """Integers from -32,768 to 32,767, in two planes."""
        flat = values.detach().flatten().cpu().to(torch.int16).numpy().astype("<i2")
        return self._add(np.ascontiguousarray(flat.view(np.uint8).reshape(-1, 2).T).tobytes(), flat.size, 2)

    def floats(self, values: Tensor) -> list[int]:
        """Float32 numbers."""
        flat = values.detach().flatten().cpu().to(torch.float32).numpy().astype("<f4")
        return self._add(np.ascontiguousarray(flat.view(np.uint8).reshape(-1, 4).T).tobytes(), flat.size, 4)

    def bits(self, values: Tensor) -> list[int]:
        """Booleans, eight per byte."""
        packed = np.packbits(values.detach().flatten().cpu().numpy(), bitorder="little")
        return self._add(packed.tobytes(), values.numel(), 0)

    def _add(self, content: bytes, count: int, planes: int) -> list[int]:
        where = [self._size, count, planes]
        self._parts.append(content)
        self._size += len(content)
        return where

    def to_base64(self) -> str:
        """All of it, deflated, in base64."""
        return base64.b64encode(zlib.compress(b"".join(self._parts), 6)).decode("ascii")


def to_decimals(weights: Tensor, digits: int) -> Tensor:
    """Weights as integers of 10^-digits, so that the page shows exactly the digits that rounding gives."""
    return (weights.double() * 10**digits).round().to(torch.int64)


def quantize_root(weights: Tensor, peak: float) -> Tensor:
    """Weights as integers up to 127 on a root scale, which keeps small differences: 127 √(w / peak)."""
    return (weights / max(peak, 1e-30)).clamp(0, 1).sqrt().mul(127).round().to(torch.uint8)


class _TooLargeError(Exception):
    """Something without a rule that would make the page too large; the message is the reason shown to the reader."""


def pack_lazy_weights(layer: TracedLayer, batch: int, blob: Blob) -> dict[str, Any]:
    """Queries, keys and rules from which the page computes the layer's weights; or "why" it cannot."""
    try:
        shared: dict[tuple, list] = {}
        return {"pieces": [_pack_piece(piece, layer, batch, blob, shared) for piece in layer.pieces]}
    except _TooLargeError as reason:
        return {"why": str(reason)}


def _pack_piece(piece: Piece, layer: TracedLayer, batch: int, blob: Blob, shared: dict[tuple, list]) -> dict[str, Any]:
    source = piece.source.lazy if isinstance(piece.source, FusedWeights) else piece.source
    t, s = source.shape[2:]
    packed: dict[str, Any] = {"row": piece.row, "column": piece.column, "t": t, "s": s}
    if isinstance(source, DenseWeights):
        _check_size(2 * layer.heads * t * s, "its weights, which cannot be computed,")
        return packed | {"weights": blob.integers((source.weights[batch].double() * 65535).round())}
    queries, keys = source.queries[batch] * _scale(source, batch), source.keys[batch]
    packed |= {"width": queries.shape[-1], "groups": keys.shape[0], "q": _pack_vectors(queries, blob)}
    known = (keys.data_ptr(), keys.stride(), keys.shape)  # several pieces may share their keys
    if known not in shared:
        shared[known] = _pack_vectors(keys, blob)
    packed["k"] = shared[known]
    packed["floor"] = None if math.isinf(source.mask_value) else source.mask_value
    packed["softcap"] = source.softcap
    packed["mask"] = [_pack_mask(part, t, s, batch, blob) for part in _mask_parts(source.mask)]
    packed["bias"] = None if source.bias is None else _pack_bias(source.bias, batch, blob)
    if source.sink is not None:
        sink = _batch_row(source.sink, batch)
        packed["sink"] = {"heads": sink.shape[0], "rows": sink.shape[1], "at": blob.floats(sink)}
    return packed


def _pack_vectors(x: Tensor, blob: Blob) -> list:
    """Vectors (h, t, d) as 14-bit integers with one factor per vector."""
    x = x.float()
    factor = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / MAX_INTEGER
    return [blob.signed((x / factor).round()), blob.floats(factor)]


def _scale(source: LazyWeights, batch: int) -> Tensor | float:
    """What the queries are multiplied by; a scale that differs between keys cannot be multiplied into them."""
    if not isinstance(source.scale, Tensor):
        return source.scale
    scale = _batch_row(source.scale, batch)
    if scale.shape[-1] > 1:
        raise _TooLargeError("its scale differs between keys")
    return scale


def _batch_row(x: Tensor, batch: int) -> Tensor:
    """One batch row, (h, t, s), of a tensor that broadcasts to (b, h, t, s)."""
    x = x.reshape(*[1] * (4 - x.ndim), *x.shape)
    return x[batch if x.shape[0] > 1 else 0]


def _mask_parts(mask: Mask | None) -> tuple[Mask, ...]:
    if mask is None:
        return ()
    return mask.parts if isinstance(mask, AndMask) else (mask,)


def _pack_mask(mask: Mask, t: int, s: int, batch: int, blob: Blob) -> dict[str, Any]:
    """A band as its rule; any other mask as bits, once for all queries or heads where they are the same."""
    if isinstance(mask, BandMask):
        return {"left": mask.left, "right": mask.right, "shift": mask.s - mask.t}
    rows = 1 if mask.shape[0] is None else t
    heads = mask.mask.shape[-3] if isinstance(mask, DenseMask) and mask.mask.ndim > 2 else 1
    _check_size(heads * rows * s // 8, "its mask, which has no rule,")
    dense = _batch_row(mask.tile(range(t), range(s)), batch)
    dense = dense.expand(dense.shape[0], dense.shape[1], s)
    return {"heads": dense.shape[0], "rows": dense.shape[1], "at": blob.bits(dense)}


def _pack_bias(bias: Tensor | RelativeBias, batch: int, blob: Blob) -> dict[str, Any]:
    if isinstance(bias, RelativeBias):
        table = _batch_row(bias.table.reshape(*bias.table.shape[:-1], 1, -1), batch)
        return {"heads": table.shape[0], "distance": bias.t - 1, "size": table.shape[-1], "at": blob.floats(table)}
    dense = _batch_row(bias, batch)
    _check_size(4 * dense.numel(), "its bias, which has no rule,")
    heads, rows, columns = dense.shape
    return {"heads": heads, "rows": rows, "columns": columns, "at": blob.floats(dense)}


def _check_size(size: int, what: str) -> None:
    if size > MAX_BYTES:
        raise _TooLargeError(f"{what} would take {size / 1e6:.0f} MB")
