"""What a page holds: a description (JSON) and packed numbers, small enough to be sent around.

A map of few weights is kept whole, as decimals; of a larger one the page keeps a picture of 128 × 128 cells and the
exact eight largest weights of every row. With `full` it also keeps each layer's recipe and computes the rest itself.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

import torch

from qkv.interp.viewer.measure import Measured, measured, step_of
from qkv.interp.viewer.pack import Blob, fixed, squeezed
from qkv.interp.viewer.recipes import recipe_of
from qkv.interp.viewer.scene import Panel, Picture, Scene

SIZE = 128  # cells along the longer side of a pooled map
PATCHES = 256  # of a picture every patch keeps its own cell up to this many
WHOLE = 600_000  # weights in all up to which every one is kept to six decimals
MOST = 2_400_000  # and up to which to four


@dataclass(frozen=True)
class Content:
    """description: JSON. blobs: base64 texts by name; the page unpacks "maps" at once, recipes when needed."""

    description: dict[str, Any]
    blobs: dict[str, str]


def content_of(scene: Scene, *, full: bool = False) -> Content:
    """The scene packed for the page."""
    maps, blobs = Blob(), {}
    whole = scene.cells <= MOST
    places = 6 if scene.cells <= WHOLE else 4 if whole else 5
    panels = []
    for number, panel in enumerate(scene.panels):
        plain = _panel(panel, scene, maps, places, whole)
        if full and not whole:
            blob = Blob()
            plain["recipe"] = recipe_of(panel.layer, scene.batch, blob)
            plain["recipe"]["blob"] = f"recipe-{number}"
            blobs[f"recipe-{number}"] = blob.text()
        panels.append(plain)
    description = {
        "title": scene.title,
        "facts": [list(fact) for fact in scene.facts],
        "axes": [{"name": axis.name, "tokens": list(axis.tokens)} for axis in scene.axes],
        "places": places,
        "panels": panels,
        "picture": None if scene.picture is None else _picture(scene.picture),
    }
    return Content(description, {"maps": maps.text(), **blobs})


def _panel(panel: Panel, scene: Scene, maps: Blob, places: int, whole: bool) -> dict[str, Any]:
    layer = panel.layer
    pictured = scene.picture is not None and max(layer.queries, layer.keys) <= PATCHES
    size = max(layer.queries, layer.keys) if whole or pictured else SIZE
    heads = [measured(layer, head, size, scene.batch) for head in range(layer.heads)]
    plain: dict[str, Any] = {
        "name": panel.name,
        "queries": [panel.queries, layer.queries],
        "keys": [panel.keys, layer.keys],
        "heads": layer.heads,
        "step": step_of(layer, size),
        "derived": panel.place < 0,
        "number": panel.number,
        "place": panel.place,
        "peaks": [round(float(head.picture.max()) if head.picture.numel() else 0.0, 6) for head in heads],
        "entropy": [round(head.entropy, 4) for head in heads],
        "distance": [round(head.distance, 2) for head in heads],
        "first": [round(head.first, 4) for head in heads],
        "types": [[[name, round(score, 3)] for name, score in types] for types in panel.types],
    }
    if whole:
        return plain | {"whole": maps.integers(torch.stack([fixed(head.picture, places) for head in heads]))}
    return plain | _pooled(heads, plain["peaks"], maps, places)


def _pooled(heads: list[Measured], peaks: list[float], maps: Blob, places: int) -> dict[str, Any]:
    cells = torch.stack([squeezed(head.picture, peak) for head, peak in zip(heads, peaks, strict=True)])
    tops = torch.stack([fixed(head.weights, places) for head in heads]).transpose(1, 2)  # heads, ranks, queries
    falls = torch.cat((tops[:, :1], tops[:, :-1] - tops[:, 1:]), dim=1)  # small numbers, which deflate well
    return {
        "cells": maps.integers(cells),
        "top": [heads[0].keys.shape[1]],
        "top_keys": maps.integers(torch.stack([head.keys for head in heads]).transpose(1, 2)),
        "top_weights": maps.integers(falls),
    }


def _picture(picture: Picture) -> dict[str, Any]:
    return {
        "source": f"data:image/png;base64,{png_bytes(picture)}",
        "rows": picture.rows,
        "columns": picture.columns,
        "lead": picture.lead,
        "axis": picture.axis,
    }


def png_bytes(picture: Picture) -> str:
    """The picture as a PNG file in base64."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture.pixels.cpu().numpy()).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode("ascii")
