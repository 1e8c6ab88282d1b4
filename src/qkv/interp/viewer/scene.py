"""What a page shows: maps with their tokens, head types and, for a picture, where its patches lie.

A scene is data; `qkv.interp.viewer.html`, `png` and the notebook draw it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from qkv.interp.traces.layer import Layer, Piece
from qkv.interp.traces.lazy_weights import Written
from qkv.interp.traces.trace import Trace

Types = tuple[tuple[str, float], ...]  # the types of one head, each with its score, the surest first


@dataclass(frozen=True)
class Axis:
    """The tokens along a map's rows or columns: a text, or the patches of a picture."""

    name: str
    tokens: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Panel:
    """One layer's maps: whose rows are the tokens of one axis, and whose columns those of another.

    place: the layer's place in its trace; -1 if it was computed from the maps (rollout, …).
    number: its place among the layers of the same axes, for people.
    types: for each head its types; empty if they were not asked for.
    """

    name: str
    layer: Layer
    queries: int
    keys: int
    place: int = -1
    number: int = 0
    types: tuple[Types, ...] = ()


@dataclass(frozen=True, eq=False)
class Picture:
    """The picture that a model was shown, cut into rows × columns patches.

    axis: the axis whose tokens the patches are; `lead` of them come before the patches (a class token).
    """

    pixels: UInt8[Tensor, "height width 3"]
    rows: int
    columns: int
    lead: int
    axis: int = 0


@dataclass(frozen=True, eq=False)
class Scene:
    """All that a page shows.

    facts: what stands under the title, each with its name: the model, its prediction, …
    batch: the row of the batch that is shown.
    """

    title: str
    axes: tuple[Axis, ...]
    panels: tuple[Panel, ...]
    facts: tuple[tuple[str, str], ...] = ()
    picture: Picture | None = None
    batch: int = 0

    def _repr_html_(self) -> str:
        from qkv.interp.viewer.notebook import frame

        return frame(self)

    @property
    def cells(self) -> int:
        """How many weights there are in all."""
        return sum(panel.layer.heads * panel.layer.queries * panel.layer.keys for panel in self.panels)


def scene_of(
    trace: Trace,
    tokens: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    *,
    title: str = "Attention",
    batch: int = 0,
    types: Sequence[Sequence[Types]] | None = None,
    facts: Sequence[tuple[str, str]] = (),
    picture: Picture | None = None,
) -> Scene:
    """The scene of a trace.

    tokens: the texts of the tokens; for an encoder–decoder {"source": …, "target": …}. Without them, their places.
    types: for each layer and head its types.
    """
    if not trace.layers:
        trace.layer(0)  # says that there are none, and why that may be
    given = {"text": tokens} if tokens is not None and not isinstance(tokens, Mapping) else dict(tokens or {})
    axes = [Axis(name, tuple(texts)) for name, texts in given.items()]
    panels = []
    for place, layer in enumerate(trace.layers):
        rows, columns = _axis_of(axes, layer, "rows"), _axis_of(axes, layer, "columns")
        named = tuple(types[place]) if types is not None else ()
        panels.append(Panel(layer.name, layer, rows, columns, place, types=named))
    return Scene(title, tuple(axes), _grouped(panels), tuple(facts), picture, batch)


def _grouped(panels: Sequence[Panel]) -> tuple[Panel, ...]:
    """Panels of the same axes together, in the order of the first of each, numbered within them."""
    groups: dict[tuple[int, int], list[Panel]] = {}
    for panel in panels:
        group = groups.setdefault((panel.queries, panel.keys), [])
        group.append(replace(panel, number=len(group)))
    return tuple(panel for group in groups.values() for panel in group)


def with_map(
    scene: Scene, name: str, weights: Float[Tensor, "*h t s"], *, queries: int = 0, keys: int | None = None
) -> Scene:
    """The scene with maps of another kind added: rollout, norm-weighted attention, …"""
    maps = weights if weights.ndim == 3 else weights[None]
    layer = Layer.of(name, (Piece(0, 0, Written(maps[None].expand(scene.batch + 1, *maps.shape))),), cross=None)
    panel = Panel(name, layer, queries, queries if keys is None else keys)
    return replace(scene, panels=(*scene.panels, panel))


def _axis_of(axes: list[Axis], layer: Layer, side: str) -> int:
    """The axis of a layer's rows or columns; one of bare places is added if none fits."""
    size = layer.queries if side == "rows" else layer.keys
    fits = [place for place, axis in enumerate(axes) if len(axis.tokens) == size]
    named = {axes[place].name: place for place in fits}
    if len(fits) > 1 and {"source", "target"} <= set(named):
        inside = re.search(r"(^|\.)encoder\.", layer.name) is not None
        from_source = side == "columns" if layer.cross else inside
        return named["source" if from_source else "target"]
    if fits:
        return fits[0]
    axes.append(Axis(f"{size} places", tuple(str(place) for place in range(size))))
    return len(axes) - 1


def pixels_of(image: Float[Tensor, "3 height width"]) -> UInt8[Tensor, "height width 3"]:
    """A picture of any range of values as bytes: its darkest value black, its brightest white."""
    low, high = image.amin(), image.amax()
    return ((image - low) / (high - low).clamp(min=1e-9) * 255).round().to(torch.uint8).permute(1, 2, 0)
