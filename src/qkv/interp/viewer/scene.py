"""Scenes: what the viewer shows, as data: maps with their tokens, head types and, for an image, its patches.

`qkv.interp.viewer.page` and `png` draw a scene.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from qkv.interp.attribution import patch_grid
from qkv.interp.head_types import HeadTypes, Types
from qkv.interp.inputs import PreparedInput
from qkv.interp.layers import Piece, TracedLayer
from qkv.interp.lazy_weights import DenseWeights
from qkv.interp.traces import Trace

AXIS_NAMES = {"text": "text", "pair": "target", "image": "patches", "audio": "audio"}


@dataclass(frozen=True)
class Axis:
    """The tokens along a map's rows or columns: a text, or the patches of an image."""

    name: str
    tokens: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Panel:
    """One layer's maps.

    queries, keys: the axes of the rows and columns.
    place: the layer's index in its trace; -1 if it was computed from the maps (rollout, ...).
    number: its index among the layers with the same axes.
    types: the head types of each head; empty if heads were not classified.
    """

    name: str
    layer: TracedLayer
    queries: int
    keys: int
    place: int = -1
    number: int = 0
    types: tuple[Types, ...] = ()


@dataclass(frozen=True, eq=False)
class PatchImage:
    """The image that a model was given, cut into rows × columns patches.

    axis: the axis whose tokens are the patches. special_tokens: how many tokens come before them (a class token).
    """

    pixels: UInt8[Tensor, "height width 3"]
    rows: int
    columns: int
    special_tokens: int
    axis: int = 0


@dataclass(frozen=True, eq=False)
class Scene:
    """Everything that a page shows.

    facts: name and text of the lines under the title: the model, its prediction, ...
    batch: the batch row that is shown.
    """

    title: str
    axes: tuple[Axis, ...]
    panels: tuple[Panel, ...]
    facts: tuple[tuple[str, str], ...] = ()
    image: PatchImage | None = None
    batch: int = 0

    def _repr_html_(self) -> str:
        from qkv.interp.viewer.page import render_iframe

        return render_iframe(self)

    @property
    def num_weights(self) -> int:
        """The number of attention weights in all maps."""
        return sum(panel.layer.heads * panel.layer.queries * panel.layer.keys for panel in self.panels)


def make_scene(
    trace: Trace,
    tokens: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    *,
    title: str = "Attention",
    batch: int = 0,
    types: Sequence[Sequence[Types]] | None = None,
    facts: Sequence[tuple[str, str]] = (),
    image: PatchImage | None = None,
) -> Scene:
    """The scene of a trace.

    Args:
        tokens: the texts of the tokens; for an encoder-decoder {"source": [...], "target": [...]}. Default: positions.
        types: the head types of each layer and head.
        facts: name and text of the lines under the title.
    """
    if not trace.layers:
        trace.layer(0)  # raises, and says why there may be none
    given = {"text": tokens} if tokens is not None and not isinstance(tokens, Mapping) else dict(tokens or {})
    axes = [Axis(name, tuple(texts)) for name, texts in given.items()]
    panels = []
    for place, layer in enumerate(trace.layers):
        rows, columns = _find_axis(axes, layer, "rows"), _find_axis(axes, layer, "columns")
        named = tuple(types[place]) if types is not None else ()
        panels.append(Panel(layer.name, layer, rows, columns, place, types=named))
    return Scene(title, tuple(axes), _group(panels), tuple(facts), image, batch)


def _group(panels: Sequence[Panel]) -> tuple[Panel, ...]:
    """Panels with the same axes together, in the order of the first of each, numbered within their group."""
    groups: dict[tuple[int, int], list[Panel]] = {}
    for panel in panels:
        group = groups.setdefault((panel.queries, panel.keys), [])
        group.append(replace(panel, number=len(group)))
    return tuple(panel for group in groups.values() for panel in group)


def add_map(
    scene: Scene, name: str, weights: Float[Tensor, "*h t s"], *, queries: int = 0, keys: int | None = None
) -> Scene:
    """The scene with computed maps added: rollout, norm-weighted attention, ..."""
    maps = weights if weights.ndim == 3 else weights[None]
    layer = TracedLayer.from_pieces(
        name, (Piece(0, 0, DenseWeights(maps[None].expand(scene.batch + 1, *maps.shape))),), cross=None
    )
    panel = Panel(name, layer, queries, queries if keys is None else keys)
    return replace(scene, panels=(*scene.panels, panel))


def _find_axis(axes: list[Axis], layer: TracedLayer, side: str) -> int:
    """The axis of a layer's rows or columns; one with bare positions is added if none fits."""
    size = layer.queries if side == "rows" else layer.keys
    fits = [place for place, axis in enumerate(axes) if len(axis.tokens) == size]
    named = {axes[place].name: place for place in fits}
    if len(fits) > 1 and {"source", "target"} <= set(named):
        inside = re.search(r"(^|\.)encoder\.", layer.name) is not None
        from_source = side == "columns" if layer.cross else inside
        return named["source" if from_source else "target"]
    if fits:
        return fits[0]
    axes.append(Axis(f"{size} positions", tuple(str(place) for place in range(size))))
    return len(axes) - 1


def to_pixels(image: Float[Tensor, "3 height width"]) -> UInt8[Tensor, "height width 3"]:
    """An image of any range of values as bytes: its smallest value is black, its largest white."""
    low, high = image.amin(), image.amax()
    return ((image - low) / (high - low).clamp(min=1e-9) * 255).round().to(torch.uint8).permute(1, 2, 0)


def make_look_scene(
    subject: PreparedInput,
    trace: Trace,
    heads: HeadTypes | None = None,
    *,
    facts: Sequence[tuple[str, str]] = (),
    title: str | None = None,
) -> Scene:
    """The scene of a model and its input, with head types where they were computed."""
    tokens = {AXIS_NAMES[subject.kind]: subject.tokens}
    tokens = {"source": subject.source, **tokens} if subject.source else tokens
    return make_scene(
        trace,
        tokens,
        title=title or subject.checkpoint.rstrip("/").split("/")[-1],
        types=None if heads is None else collect_head_types(heads),
        facts=facts,
        image=make_patch_image(subject, trace),
    )


def collect_head_types(heads: HeadTypes) -> list[list[Types]]:
    """The types of each layer and head that reach their thresholds, the head's own type first."""
    found: list[list[Types]] = [[] for _ in heads.names]
    for head in heads.heads:
        found[head.layer].append(head.types)
    return found


def make_patch_image(subject: PreparedInput, trace: Trace) -> PatchImage | None:
    """The input image, if every layer attends over all of its patches."""
    if subject.image is None:
        return None
    try:
        patch_grid(subject.model, trace)
    except ValueError:
        return None
    pixels = torch.from_numpy(np.array(subject.image.image.convert("RGB")))
    return PatchImage(pixels, subject.image.rows, subject.image.columns, subject.image.special)


def combine_scenes(scene: Scene, other: Scene, name: str) -> Scene:
    """Two scenes in one: the other's maps follow, and its axes carry its name."""
    shift = len(scene.axes)
    axes = tuple(Axis(f"{axis.name} · {name}", axis.tokens) for axis in other.axes)
    panels = tuple(replace(panel, queries=panel.queries + shift, keys=panel.keys + shift) for panel in other.panels)
    return replace(scene, axes=(*scene.axes, *axes), panels=(*scene.panels, *panels))
