"""Figures as data, drawn as SVG by matplotlib: lines, bars, heatmaps, histograms. Change plot colors here.

The palette is safe for color-blind readers. Queries, keys, values and outputs each keep one color; a closed form is a
dashed line, a wrong answer vermilion; weights use the cividis colormap. matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Real = float | int

INK = "#1b1f24"  # replaced by the page's text color, so that a figure is readable on light, dark and paper
FAINT = "#8d939b"
COLORS = {  # Okabe and Ito's palette
    "query": "#0072B2",
    "key": "#E69F00",
    "value": "#009E73",
    "output": "#CC79A7",
    "wrong": "#D55E00",
    "other": "#56B4E9",
    "formula": FAINT,
}
ORDER = ("output", "query", "value", "key", "other", "wrong")
MARKS = "osD^vP"


@dataclass(frozen=True)
class FigurePanel:
    """One pair of axes. roles: which series is drawn in which color of `COLORS`; others take the next free color."""

    title: str
    xlabel: str = ""
    ylabel: str = ""
    roles: Mapping[str, str] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class Lines(FigurePanel):
    """Curves over x; a series in the role "formula" is dashed."""

    x: Sequence[Real] = ()
    series: Mapping[str, Sequence[Real]] = field(default_factory=dict)
    logx: bool = False
    logy: bool = False


@dataclass(frozen=True)
class Curves(FigurePanel):
    """Curves with their own x: for each label one or several (x, y), all in its color.

    legend_outside: put the legend to the right of the axes.
    """

    series: Mapping[str, Sequence[tuple[Sequence[Real], Sequence[Real]]]] = field(default_factory=dict)
    logx: bool = False
    legend_outside: bool = False


@dataclass(frozen=True)
class Bars(FigurePanel):
    """Groups of bars: a group for each label, a bar for each series. level: a horizontal line, for example chance."""

    labels: Sequence[str] = ()
    series: Mapping[str, Sequence[Real]] = field(default_factory=dict)
    level: tuple[Real, str] | None = None
    logy: bool = False


@dataclass(frozen=True)
class Heatmap(FigurePanel):
    """A matrix of weights, influence or counts. vmax: the top of the color scale. labels: names of rows and columns."""

    matrix: Sequence[Sequence[Real]] = ()
    vmax: Real | None = None
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class Histogram(FigurePanel):
    """The distribution of samples."""

    samples: Mapping[str, Sequence[Real]] = field(default_factory=dict)
    bins: int = 40


TITLE_CHARACTERS = 12  # per inch


def draw_svg(panels: Sequence[FigurePanel], *, name: str = "claim", width: Real = 3.7) -> str:
    """Draw the panels side by side as SVG without a background; element ids start with `name`.

    width: of each panel, in inches.
    """
    import matplotlib as mpl

    mpl.use("svg", force=False)
    from matplotlib.figure import Figure

    style: Any = {
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "axes.linewidth": 0.7,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "axes.titlesize": 9.5,
        "axes.titlelocation": "left",
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(width * max(len(panels), 1), 2.75), layout="constrained")
        engine: Any = figure.get_layout_engine()
        engine.set(w_pad=0.12)
        for index, panel in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), index + 1)
            _draw_panel(axes, panel, round(TITLE_CHARACTERS * float(width)))
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "qkv"})
    return _embed(buffer.getvalue(), name)


def _draw_panel(axes: Any, panel: FigurePanel, title_width: int) -> None:
    """title_width: characters of a line of the title; a longer one is broken, because its end would be cut off."""
    axes.set_title(typeset(textwrap.fill(panel.title, title_width)), pad=8)
    axes.set_xlabel(typeset(panel.xlabel))
    axes.set_ylabel(typeset(panel.ylabel))
    if isinstance(panel, Lines):
        _lines(axes, panel)
    elif isinstance(panel, Curves):
        _curves(axes, panel)
    elif isinstance(panel, Bars):
        _bars(axes, panel)
    elif isinstance(panel, Heatmap):
        _heatmap(axes, panel)
    elif isinstance(panel, Histogram):
        for label, samples in panel.samples.items():
            axes.hist(
                samples, bins=panel.bins, alpha=0.65, label=typeset(label), color=_color(panel, label, panel.samples)
            )
    shown = [label for label in axes.get_legend_handles_labels()[1] if label]
    if shown and (len(shown) > 1 or not isinstance(panel, Bars)):
        outside = isinstance(panel, Curves) and panel.legend_outside
        where: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.0)} if outside else {"loc": "best"}
        axes.legend(handlelength=1.8, borderaxespad=0.2, **where)


def typeset(text: str) -> str:
    """Write subscripts and superscripts as matplotlib math; names with an underscore stay as they are.

    >>> typeset("‖h − v_j‖ ≤ e^(−margin)"), typeset("kv_heads")
    ('‖h − v$_{\\\\mathrm{j}}$‖ ≤ e$^{\\\\mathrm{−margin}}$', 'kv_heads')
    """
    if "$" in text:
        return text.replace("$", r"\$")
    text = re.sub(r"(?<=[^\W_])_([^\W_])(?![^\W_]{2})", r"$_{\\mathrm{\1}}$", text)
    return re.sub(r"\^(?:\(([^()]*)\)|(\w))", lambda found: f"$^{{\\mathrm{{{found[1] or found[2]}}}}}$", text)


def _lines(axes: Any, panel: Lines) -> None:
    mark_every = max(1, len(panel.x) // 8)
    for index, (label, values) in enumerate(panel.series.items()):
        formula = panel.roles.get(label) == "formula"
        axes.plot(
            panel.x,
            values,
            label=typeset(label),
            color=_color(panel, label, panel.series),
            linestyle="--" if formula else "-",
            linewidth=1.4,
            marker=None if formula else MARKS[index % len(MARKS)],
            markersize=4,
            markevery=mark_every,
        )
    axes.set_xscale("log" if panel.logx else "linear")
    axes.set_yscale("log" if panel.logy else "linear")


def _curves(axes: Any, panel: Curves) -> None:
    for index, (label, curves) in enumerate(panel.series.items()):
        for number, (x, y) in enumerate(curves):
            axes.plot(
                x,
                y,
                label=None if number else typeset(label),
                color=_color(panel, label, panel.series),
                linewidth=1.4,
                marker=MARKS[index % len(MARKS)],
                markersize=4,
                markevery=max(1, len(x) // 8),
            )
    if panel.logx:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(lambda value, place: "")  # powers of ten are enough


def _bars(axes: Any, panel: Bars) -> None:
    groups = len(panel.series)
    width = 0.8 / max(groups, 1)
    for index, (label, values) in enumerate(panel.series.items()):
        places = [i + (index - (groups - 1) / 2) * width for i in range(len(values))]
        axes.bar(places, values, width * 0.92, label=typeset(label), color=_color(panel, label, panel.series))
    long = max((len(label) for label in panel.labels), default=0) * len(panel.labels) > 42
    turned: dict[str, Any] = {"rotation": 30, "ha": "right"} if long else {}
    axes.set_xticks(range(len(panel.labels)), [typeset(label) for label in panel.labels], **turned)
    if panel.level is not None:
        height, text = panel.level
        axes.axhline(height, color=FAINT, linestyle="--", linewidth=1, label=typeset(text))
    if panel.logy:
        axes.set_yscale("log")


def _heatmap(axes: Any, panel: Heatmap) -> None:
    shown = axes.imshow(panel.matrix, cmap="cividis", vmin=0, vmax=panel.vmax, interpolation="nearest", aspect="auto")
    bar = axes.figure.colorbar(shown, ax=axes, fraction=0.05, pad=0.02)
    bar.outline.set_linewidth(0.5)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
    if panel.labels:
        turned = 90 if max(map(len, panel.labels)) > 2 else 0
        axes.set_xticks(range(len(panel.labels)), panel.labels, rotation=turned)
        axes.set_yticks(range(len(panel.labels)), panel.labels)
        return
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.get_major_locator().set_params(integer=True)


def _color(panel: FigurePanel, label: str, labels: Mapping[str, Any]) -> str:
    if label in panel.roles:
        return COLORS[panel.roles[label]]
    free = [role for role in ORDER if role not in panel.roles.values()] or list(ORDER)
    rest = [other for other in labels if other not in panel.roles]
    return COLORS[free[rest.index(label) % len(free)]]


def _embed(svg: str, name: str) -> str:
    """Make the SVG fit into a page: no prologue, flexible size, the page's text color, unique ids."""
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor").strip()
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    width = re.search(r'width="([\d.]+)pt"', svg)
    points = float(width.group(1)) if width else 270.0
    svg = re.sub(r'width="[\d.]+pt"', f'style="width:100%;max-width:{points * 1.25:.0f}px"', svg, count=1)
    svg = re.sub(r'id="([^"]+)"', rf'id="{name}-\1"', svg)
    return re.sub(r'(url\(#|href="#)', rf"\1{name}-", svg)
