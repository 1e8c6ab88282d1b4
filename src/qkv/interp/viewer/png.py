"""PNG figures: all heads, one head, attention over an image, or a table of layers and heads."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv._html import COLOR_SCALE
from qkv.interp.traces import Trace
from qkv.interp.viewer.scene import Panel, Scene

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUERIES, KEYS, QUIET = "#0067a3", "#a34a00", "#5b6470"
LABELS = 80  # tokens along a side up to which each is labeled
MAX_PIXELS = 12000  # pixels along a side
DPI = 160


def draw_heads(scene: Scene) -> bytes:
    """All heads: a row per layer, a small map per head, on one root color scale from 0 to 1."""
    rows, columns = len(scene.panels), max(panel.layer.heads for panel in scene.panels)
    side = max(min(1.3, 40 / max(rows, columns)), 0.35)
    figure = _figure(columns * side + 1.6, rows * side + 0.9)
    cells = figure.subplots(rows, columns, squeeze=False, gridspec_kw={"hspace": 0.12, "wspace": 0.12})
    drawn = None
    for panel, row in zip(scene.panels, cells, strict=True):
        for head, axes in enumerate(row):
            axes.set_axis_off()
            if head >= panel.layer.heads:
                continue
            weights = _map(panel, head, scene.batch, 256)
            drawn = _draw(axes, weights)
            axes.set_title(_caption(panel, head, weights, most=1), fontsize=5, pad=1.5, color=QUIET)
        row[0].text(
            -0.12, 0.5, panel_name(scene, panel), transform=row[0].transAxes, ha="right", va="center", fontsize=6
        )
    for head in range(columns):
        cells[0][head].text(
            0.5, 1.22, f"head {head}", transform=cells[0][head].transAxes, ha="center", fontsize=6, color=QUIET
        )
    _title(figure, _plain(scene.title))
    _legend(figure, drawn, list(cells.flat))
    return _bytes(figure)


def draw_head(scene: Scene, panel: Panel, head: int) -> bytes:
    """One head, large, with its tokens."""
    layer = panel.layer
    figure = _figure(*_size(layer.keys, layer.queries))
    axes = figure.subplots()
    weights = _map(panel, head, scene.batch, 2048)
    drawn = _draw(axes, weights)
    step = max(-(-max(layer.queries, layer.keys) // 2048), 1)
    for axis, place, color in ((axes.yaxis, panel.queries, QUERIES), (axes.xaxis, panel.keys, KEYS)):
        count = layer.queries if axis is axes.yaxis else layer.keys
        every = max(-(-count // LABELS), 1)
        names = scene.axes[place].tokens[:count:every]
        axis.set_ticks([i * every / step for i in range(len(names))], [_plain(name) for name in names])
        axis.set_tick_params(labelsize=7 if count <= 40 else 5, labelcolor=color, length=1)
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", labelrotation=90)
    axes.set_xlabel(f"keys: {_plain(scene.axes[panel.keys].name)}", color=KEYS, fontsize=7)
    axes.set_ylabel(f"queries: {_plain(scene.axes[panel.queries].name)}", color=QUERIES, fontsize=7)
    _legend(figure, drawn, axes)
    kinds = _caption(panel, head, weights)
    title = f"{_plain(scene.title)}: {_plain(panel.name)}, head {head}"
    axes.set_title(title + (f"\n{kinds}" if kinds else ""), fontsize=8)  # above the key labels
    return _bytes(figure)


def draw_overlay(scene: Scene, query: int, panel: Panel | None = None, head: int | None = None) -> bytes:
    """What one token attends to, over the image: for every head or for one; computed maps (rollout) always."""
    assert scene.image is not None
    rows, columns = scene.image.rows, scene.image.columns
    chosen = [each for each in scene.panels if panel is None or each is panel or each.place < 0]
    counts = [1 if head is not None and each.place >= 0 else each.layer.heads for each in chosen]
    wide = max(counts) + 1
    side = 2.4 if wide <= 3 else max(min(1.2, 40 / wide), 0.5)
    figure = _figure(wide * side, len(chosen) * side + 0.5)
    cells = figure.subplots(len(chosen), wide, squeeze=False, gridspec_kw={"hspace": 0.18, "wspace": 0.06})
    pixels, drawn = scene.image.pixels.cpu().numpy(), None
    for each, row in zip(chosen, cells, strict=True):
        heads = [head] if head is not None and each.place >= 0 else range(each.layer.heads)
        for axes in row:
            axes.set_axis_off()
        row[0].imshow(pixels, extent=(0, columns, rows, 0))
        row[0].set_title(panel_name(scene, each), fontsize=6, pad=2)
        for axes, number in zip(row[1:], heads, strict=False):
            weights = Trace([each.layer]).weights(0, number, scene.batch, range(query, query + 1))[0]
            grid = weights[scene.image.special_tokens :].float().unflatten(0, (rows, columns)).cpu()
            axes.imshow(pixels, extent=(0, columns, rows, 0))
            drawn = axes.imshow(
                (grid / grid.max().clamp(min=1e-12)).sqrt().numpy(),
                extent=(0, columns, rows, 0),
                cmap=_color_map(),
                alpha=0.65,
                vmin=0,
                vmax=1,
            )
            named = f"head {number}, " if each.layer.heads > 1 else ""
            axes.set_title(f"{named}to {float(grid.max()):.3f}", fontsize=6, pad=2)
    assert drawn is not None  # there is at least one head
    name = _plain(scene.axes[scene.image.axis].tokens[query])
    _title(figure, f"{_plain(scene.title)}: what “{name}” attends to")
    bar = figure.colorbar(drawn, ax=list(cells.flat), fraction=0.02, pad=0.02, ticks=[0, 0.5, 1])
    bar.ax.set_yticklabels(["0", "¼ of largest", "largest"], fontsize=6)
    return _bytes(figure)


def draw_table(
    table: Sequence[Sequence[float | None]], rows: Sequence[str], columns: Sequence[str], title: str, unit: str
) -> bytes:
    """A table of layers × heads as a heat map with the numbers written in: blue below 0, orange above."""
    most = max((abs(cell) for row in table for cell in row if cell is not None), default=1.0) or 1.0
    values = torch.tensor([[float("nan") if cell is None else cell for cell in row] for row in table])
    figure = _figure(len(columns) * 0.62 + 2.2, len(rows) * 0.34 + 1.2)
    axes = figure.subplots()
    drawn = axes.imshow(values.numpy(), cmap=_diverging_color_map(), vmin=-most, vmax=most, aspect="auto")
    for i, row in enumerate(table):
        for j, cell in enumerate(row):
            if cell is not None:
                axes.text(j, i, f"{cell:.3g}", ha="center", va="center", fontsize=5.5)
    axes.set_xticks(range(len(columns)), columns, fontsize=6)
    axes.set_yticks(range(len(rows)), rows, fontsize=6)
    axes.tick_params(length=0)
    bar = figure.colorbar(drawn, ax=axes, fraction=0.03, pad=0.02)
    bar.ax.tick_params(labelsize=6)
    bar.set_label(unit, fontsize=6)
    axes.set_title(_plain(title), fontsize=8)
    return _bytes(figure)


def panel_name(scene: Scene, panel: Panel) -> str:
    """A layer's number, with its axes where layers have different ones; or the name of a computed map."""
    if panel.place < 0:
        return _plain(panel.name)
    pairs = {(each.queries, each.keys) for each in scene.panels if each.place >= 0}
    if len(pairs) == 1:
        return f"layer {panel.number}"
    names = [scene.axes[place].name for place in (panel.queries, panel.keys)]
    return _plain(names[0] if names[0] == names[1] else " → ".join(names)) + f", layer {panel.number}"


def _caption(panel: Panel, head: int, weights: Tensor, most: int | None = None) -> str:
    """The types of a head, the first `most`; of a head without any weight, as after an ablation, that it has none."""
    if not weights.any():
        return "all weights are 0"
    types = panel.types[head][:most] if panel.types else ()
    return " · ".join(f"{kind} {score:.2f}" for kind, score in types)


def _map(panel: Panel, head: int, batch: int, size: int) -> Tensor:
    return Trace([panel.layer]).map(0, head, size, batch)


def _draw(axes: Any, weights: Tensor) -> Any:
    from matplotlib.colors import PowerNorm

    norm = PowerNorm(0.5, 0, 1)
    return axes.imshow(weights.float().cpu().numpy(), cmap=_color_map(), norm=norm, interpolation="nearest")


def _color_map() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("weights", list(COLOR_SCALE))


def _diverging_color_map() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    colors = LinearSegmentedColormap.from_list("cost", ["#62b8ee", "#ffffff", "#f2a65a"])
    return colors.with_extremes(bad="#eceff2")


def _legend(figure: Any, drawn: Any, axes: Any) -> None:
    bar = figure.colorbar(drawn, ax=axes, fraction=0.025, pad=0.02, ticks=[0, 0.05, 0.25, 0.5, 1])
    bar.ax.tick_params(labelsize=6)
    bar.ax.set_yticklabels(["0", "0.05", "0.25", "0.5", "1"])
    bar.set_label("weight", fontsize=6)


def _title(figure: Figure, text: str) -> None:
    """A title right above the maps, however many there are. Call it before the legend, which takes space from them."""
    high = figure.get_figheight()
    figure.subplots_adjust(top=1 - 0.55 / high)
    figure.suptitle(text, fontsize=9, y=1 - 0.1 / high)


def _size(columns: int, rows: int) -> tuple[float, float]:
    side = max(min(0.22, 10 / max(columns, rows)), 1e-4)
    return max(columns * side, 2.5) + 2.2, max(rows * side, 2.5) + 1.6


def _figure(wide: float, high: float) -> Figure:
    from matplotlib.figure import Figure

    most = MAX_PIXELS / DPI
    return Figure(figsize=(min(wide, most), min(high, most)), dpi=DPI)


def _plain(text: str) -> str:
    """A text without mathtext, with whitespace made visible where there is nothing else."""
    shown = text.strip() or "".join({"\n": "⏎", "\t": "⇥"}.get(letter, "␣") for letter in text) or "∅"
    shown = "".join(letter if letter.isprintable() else "·" for letter in shown)
    return (shown if len(shown) <= 60 else shown[:59] + "…").replace("$", r"\$")


def _bytes(figure: Figure) -> bytes:
    import logging
    import warnings

    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # letters that no installed font has are drawn as boxes
        logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
        figure.savefig(file, format="png", bbox_inches="tight", facecolor="white")
    return file.getvalue()
