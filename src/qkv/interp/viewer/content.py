"""What an exported page holds: a description (JSON) and packed numbers.

A map with few weights is stored whole, as decimals. A larger one is max-pooled to 128 × 128 cells, with the eight
largest weights of every row stored exactly. With `full`, queries and keys are stored too, and the page computes rows.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.interp.head_types import clearest_place
from qkv.interp.layers import TracedLayer
from qkv.interp.traces import pool_weights
from qkv.interp.viewer.pack import Blob, pack_lazy_weights, quantize_root, to_decimals
from qkv.interp.viewer.scene import Panel, PatchImage, Scene, Types

POOLED_SIZE = 128  # cells along the longer side of a pooled map
MAX_PATCHES = 256  # maps over an image are not pooled up to this many patches
SIX_DECIMALS = 600_000  # weights in all up to which every one is stored to six decimals
FOUR_DECIMALS = 2_400_000  # and up to which to four
TOP = 8  # largest weights of a row that are stored exactly


@dataclass(frozen=True)
class PageContent:
    """description: JSON. blobs: base64 texts by name; the page unpacks "maps" at once, the others when needed."""

    description: dict[str, Any]
    blobs: dict[str, str]


@dataclass(frozen=True, eq=False)
class HeadSummary:
    """What a page stores of one head.

    map: max-pooled; all weights where the step is 1. keys, weights: the largest of every row.
    entropy, distance, first: means over the queries that attend to anything.
    """

    map: Float[Tensor, "rows columns"]
    keys: Int[Tensor, "t k"]
    weights: Float[Tensor, "t k"]
    entropy: float
    distance: float
    first: float


def pack_scene(scene: Scene, *, full: bool = False) -> PageContent:
    """The scene packed for the page. full: also pack queries and keys where the maps are pooled."""
    maps, blobs = Blob(), {}
    exact = scene.num_weights <= FOUR_DECIMALS
    digits = 6 if scene.num_weights <= SIX_DECIMALS else 4
    if not exact:
        digits = 5
    panels = []
    for number, panel in enumerate(scene.panels):
        packed = _pack_panel(panel, scene, maps, digits, exact)
        if full and not exact:
            blob, name = Blob(), f"lazy-{number}"
            packed["lazy"] = pack_lazy_weights(panel.layer, scene.batch, blob) | {"blob": name}
            blobs[name] = blob.to_base64()
        panels.append(packed)
    description = {
        "title": scene.title,
        "facts": [list(fact) for fact in scene.facts],
        "axes": [{"name": axis.name, "tokens": list(axis.tokens)} for axis in scene.axes],
        "digits": digits,
        "panels": panels,
        "first": _first_shown(panels),
        "image": None if scene.image is None else _pack_image(scene.image),
    }
    return PageContent(description, {"maps": maps.to_base64(), **blobs})


def _first_shown(panels: list[dict[str, Any]]) -> list[int]:
    """The packed panel and the head that the page opens on: the most informative head."""
    heads = [(number, head) for number, panel in enumerate(panels) for head in range(len(panel["types"]))]
    if not heads:
        return [0, 0]
    types: list[Types] = [tuple((name, score) for name, score in panels[i]["types"][j]) for i, j in heads]
    place = clearest_place(types)
    if place is not None and types[place][0][0] != "uniform":
        return list(heads[place])
    # no head has a telling type: the sharpest map that has weights shows most
    sharpest = [(panels[i]["entropy"][j], i, j) for i, j in heads if panels[i]["peaks"][j] > 0]
    return list(min(sharpest)[1:]) if sharpest else [0, 0]


def _pack_panel(panel: Panel, scene: Scene, maps: Blob, digits: int, exact: bool) -> dict[str, Any]:
    layer = panel.layer
    longest = max(layer.queries, layer.keys)
    unpooled = exact or (scene.image is not None and longest <= MAX_PATCHES)
    size = longest if unpooled else POOLED_SIZE
    heads = [summarize_head(layer, head, size, scene.batch) for head in range(layer.heads)]
    packed: dict[str, Any] = {
        "name": panel.name,
        "queries": [panel.queries, layer.queries],
        "keys": [panel.keys, layer.keys],
        "heads": layer.heads,
        "step": pooling_step(layer, size),
        "derived": panel.place < 0,
        "number": panel.number,
        "place": panel.place,
        "peaks": [round(float(head.map.max()) if head.map.numel() else 0.0, 6) for head in heads],
        "entropy": [round(head.entropy, 4) for head in heads],
        "distance": [round(head.distance, 2) for head in heads],
        "first": [round(head.first, 4) for head in heads],
        "types": [_pack_types(types, head) for types, head in zip(panel.types, heads, strict=bool(panel.types))],
    }
    if exact:
        return packed | {"exact": maps.integers(torch.stack([to_decimals(head.map, digits) for head in heads]))}
    cells = torch.stack([quantize_root(head.map, peak) for head, peak in zip(heads, packed["peaks"], strict=True)])
    tops = torch.stack([to_decimals(head.weights, digits) for head in heads]).transpose(1, 2)  # heads, ranks, queries
    differences = torch.cat((tops[:, :1], tops[:, :-1] - tops[:, 1:]), dim=1)  # small numbers, which compress well
    return packed | {
        "cells": maps.integers(cells),
        "top": [heads[0].keys.shape[1]],
        "top_keys": maps.integers(torch.stack([head.keys for head in heads]).transpose(1, 2)),
        "top_weights": maps.integers(differences),
    }


def _pack_types(types: Types, head: HeadSummary) -> list[list[Any]]:
    """The types of a head; none if all weights that the page shows of it are 0, as of an ablated head."""
    return [[name, round(score, 3)] for name, score in types] if head.map.any() else []


def _pack_image(image: PatchImage) -> dict[str, Any]:
    return {
        "source": f"data:image/png;base64,{to_png(image)}",
        "rows": image.rows,
        "columns": image.columns,
        "special": image.special_tokens,
        "axis": image.axis,
    }


def to_png(image: PatchImage) -> str:
    """The image as a PNG file in base64."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image.pixels.cpu().numpy()).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode("ascii")


def pooling_step(layer: TracedLayer, size: int) -> int:
    """How many queries and keys one cell of a map of at most size × size stands for."""
    return max(-(-max(layer.queries, layer.keys) // size), 1)


@torch.no_grad()
def summarize_head(layer: TracedLayer, head: int, size: int, batch: int = 0) -> HeadSummary:
    """One pass over a head's map: the map pooled to size × size, the largest weights of every row, and means.

    >>> import qkv
    >>> with qkv.interp.record() as trace:
    ...     out = qkv.attention(*torch.ones(3, 1, 2, 4, 8), causal=True)
    >>> found = summarize_head(trace.layer(0), 1, size=2)
    >>> found.map.round(decimals=2).tolist(), found.weights[0].tolist(), round(found.first, 4)
    ([[1.0, 0.0], [0.33000001311302185, 0.33000001311302185]], [1.0, 0.0, 0.0, 0.0], 0.5208)
    """
    step, k = pooling_step(layer, size), min(TOP, layer.keys)
    map_ = torch.zeros(-(-layer.queries // step), -(-layer.keys // step))
    top_keys, top_weights = torch.zeros(layer.queries, k, dtype=torch.long), torch.zeros(layer.queries, k)
    attending, entropy, distance, first = 0.0, 0.0, 0.0, 0.0
    shift = layer.keys - layer.queries
    for rows, weights, columns in layer.tiles(batch, head, range(layer.queries), multiple=step):
        weights = weights.float().cpu()
        cells = pool_weights(weights, rows.start, columns.start, step, "max")
        top, left = rows.start // step, columns.start // step
        part = map_[top : top + cells.shape[0], left : left + cells.shape[1]]
        part.copy_(torch.maximum(part, cells))
        _store_top(weights, columns, top_keys[rows.start : rows.stop], top_weights[rows.start : rows.stop])
        positions = torch.arange(rows.start, rows.stop)[:, None] + shift
        distances = (torch.arange(columns.start, columns.stop)[None, :] - positions).abs().float()
        attending += float((weights.sum(-1) > 0).sum())
        entropy += float(torch.special.entr(weights).sum())
        distance += float((weights * distances).sum())
        first += float(weights[:, 0].sum()) if columns and columns.start == 0 else 0.0
    count = max(attending, 1.0)
    return HeadSummary(map_, top_keys, top_weights, entropy / count, distance / count, first / count)


def _store_top(weights: Tensor, columns: range, keys: Tensor, tops: Tensor) -> None:
    """Write the largest weights of each row and their keys."""
    k = min(keys.shape[1], len(columns))
    values, found = weights.topk(k, dim=-1) if k else (weights[:, :0], weights[:, :0].long())
    tops[:, :k] = values
    keys[:, :k] = found + columns.start
