"""A layer's score recipe for the page: queries and keys in fourteen bits, and the rules, so that it computes any row.

Axes: h heads · g heads of keys · t queries · s keys · d head width.

The scale is multiplied into the queries. A vector is kept as whole numbers of fourteen bits and one factor, which is
more exact than half floats and smaller.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from qkv.interp.traces.layer import Layer, Piece
from qkv.interp.traces.lazy_weights import ByDistance, Derived, Recipe, Written
from qkv.interp.viewer.pack import Blob
from qkv.nn.masks import Band, Both, Dense, Mask

LIMIT = 8191  # the largest whole number: fourteen bits deflate to less than half floats take
MOST = 8 << 20  # bytes that one layer's written weights, bias or mask may take before they are left out


def recipe_of(layer: Layer, batch: int, blob: Blob) -> dict[str, Any]:
    """What the page computes the layer's weights from; or, under "why", the reason that it cannot."""
    try:
        shared: dict[tuple, list] = {}
        return {"pieces": [_piece(piece, layer, batch, blob, shared) for piece in layer.pieces]}
    except TooLarge as reason:
        return {"why": str(reason)}


class TooLarge(Exception):  # noqa: N818 - the reason is shown to a reader, it is no error
    """Something that has no rule and would make the page too large."""


def _piece(piece: Piece, layer: Layer, batch: int, blob: Blob, shared: dict[tuple, list]) -> dict[str, Any]:
    source = piece.source.recipe if isinstance(piece.source, Derived) else piece.source
    t, s = source.shape[2:]
    plain: dict[str, Any] = {"row": piece.row, "column": piece.column, "t": t, "s": s}
    if isinstance(source, Written):
        _affordable(2 * layer.heads * t * s, "its weights, which have no recipe")
        return plain | {"weights": blob.integers((source.weights[batch].double() * 65535).round())}
    queries, keys = source.queries[batch], source.keys[batch]
    queries = queries * _scale(source, batch)
    plain |= {"width": queries.shape[-1], "groups": keys.shape[0], "q": _vectors(queries, blob)}
    known = (keys.data_ptr(), keys.stride(), keys.shape)
    plain["k"] = shared.setdefault(known, []) or shared[known]
    if not shared[known]:
        shared[known].extend(_vectors(keys, blob))
    plain["floor"] = None if math.isinf(source.floor) else source.floor
    plain["softcap"] = source.softcap
    plain["mask"] = [_mask(part, t, s, batch, blob) for part in _parts(source.mask)]
    plain["bias"] = None if source.bias is None else _bias(source.bias, batch, blob)
    if source.sink is not None:
        sink = _row_of(source.sink, batch)
        plain["sink"] = {"heads": sink.shape[0], "rows": sink.shape[1], "at": blob.floats(sink)}
    return plain


def _vectors(x: Tensor, blob: Blob) -> list:
    """Vectors (h, t, d) as whole numbers and one factor each."""
    x = x.float()
    factor = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / LIMIT
    return [blob.signed((x / factor).round()), blob.floats(factor)]


def _scale(source: Recipe, batch: int) -> Tensor | float:
    """What queries are multiplied by; a scale that differs from key to key cannot be multiplied into them."""
    if not isinstance(source.scale, Tensor):
        return source.scale
    scale = _row_of(source.scale, batch)
    if scale.shape[-1] > 1:
        raise TooLarge("its scale differs from key to key")
    return scale


def _row_of(x: Tensor, batch: int) -> Tensor:
    """One row of the batch, (h, t, s), of a tensor whose missing or single axes stand for all."""
    x = x.reshape(*[1] * (4 - x.ndim), *x.shape)
    return x[batch if x.shape[0] > 1 else 0]


def _parts(mask: Mask | None) -> tuple[Mask, ...]:
    return () if mask is None else mask.parts if isinstance(mask, Both) else (mask,)


def _mask(mask: Mask, t: int, s: int, batch: int, blob: Blob) -> dict[str, Any]:
    """A band as its rule; any other mask as bits, for one query or head where all are alike."""
    if isinstance(mask, Band):
        return {"left": mask.left, "right": mask.right, "shift": mask.s - mask.t}
    rows = 1 if mask.shape[0] is None else t
    heads = mask.mask.shape[-3] if isinstance(mask, Dense) and mask.mask.ndim > 2 else 1
    _affordable(heads * rows * s // 8, "its mask, which has no rule")
    allowed = _row_of(mask.tile(range(t), range(s)), batch)
    allowed = allowed.expand(allowed.shape[0], allowed.shape[1], s)
    return {"heads": allowed.shape[0], "rows": allowed.shape[1], "at": blob.bits(allowed)}


def _bias(bias: Tensor | ByDistance, batch: int, blob: Blob) -> dict[str, Any]:
    if isinstance(bias, ByDistance):
        table = _row_of(bias.table.reshape(*bias.table.shape[:-1], 1, -1), batch)
        return {"heads": table.shape[0], "distance": bias.t - 1, "size": table.shape[-1], "at": blob.floats(table)}
    written = _row_of(bias, batch)
    _affordable(4 * written.numel(), "its bias, which has no rule")
    heads, rows, columns = written.shape
    return {"heads": heads, "rows": rows, "columns": columns, "at": blob.floats(written)}


def _affordable(size: int, what: str) -> None:
    if size > MOST:
        raise TooLarge(f"{what}, would take {size / 1e6:.0f} MB")
