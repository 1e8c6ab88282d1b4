"""Draw the diagrams of docs/courses as SVG: python docs/make_diagrams.py.

Every file has its own white background: an image cannot know whether the page around it is light or dark. The curves
of data-regimes.svg are drawn from data-regimes.json, which has numbers of the claims named in it.
"""

import json
import math
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

from qkv.byhand import example, solve_problem

FOLDER = Path(__file__).parent / "courses"
INK, PAPER, FAINT = "#222222", "#ffffff", "#d8dce0"
FILLS = {
    "input": "#e7e7e7",
    "matmul": "#c9d7e5",
    "softmax": "#cde3ca",
    "linear": "#fbe3be",
    "add": "#e6d7e2",
}
HEIGHT = 30  # of a box


@dataclass
class Diagram:
    """Boxes and arrows; y grows downward, data flows upward."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, text: str, kind: str = "linear", width: float = 130) -> None:
        """A box around its center."""
        place = f'x="{x - width / 2}" y="{y - HEIGHT / 2}" width="{width}" height="{HEIGHT}" rx="6"'
        self.parts.append(f'<rect {place} fill="{FILLS[kind]}" stroke="{INK}"/>')
        self.label(x, y, text)

    def label(self, x: float, y: float, text: str, *, size: int = 13, anchor: str = "middle") -> None:
        self.parts.append(
            f'<text x="{x}" y="{y + size * 0.35:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def group(self, left: float, top: float, right: float, bottom: float, text: str) -> None:
        """A dashed frame with a label at its upper left corner."""
        self.parts.append(
            f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" rx="10" fill="none" '
            f'stroke="{INK}" stroke-dasharray="5 4"/>'
        )
        self.label(left + 8, top + 12, text, size=12, anchor="start")

    def arrow(self, *points: tuple[float, float]) -> None:
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        self.parts.append(f'<path d="{path}" fill="none" stroke="{INK}" marker-end="url(#tip)"/>')

    def up(self, x: float, start: float, end: float) -> None:
        """An arrow from the top of a box at `start` to the bottom of one at `end`."""
        self.arrow((x, start - HEIGHT / 2), (x, end + HEIGHT / 2 + 2))

    def svg(self) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" font-family="sans-serif" fill="{INK}" role="img">\n'
            f"<title>{escape(self.title)}</title>\n"
            f'<rect width="{self.width}" height="{self.height}" rx="8" fill="{PAPER}"/>\n'
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker></defs>\n' + "\n".join(self.parts) + "\n</svg>\n"
        )


def scaled_dot_product() -> Diagram:
    d = Diagram(430, 400, "Scaled dot-product attention: softmax(QKᵀ/√d + mask) V")
    for x, name, shape in ((80, "Q", "n × d"), (190, "K", "m × d"), (350, "V", "m × t")):
        d.box(x, 370, f"{name}: {shape}", "input", 96)
    steps = ((310, "product QKᵀ", "matmul"), (255, "scale 1/√d", "linear"), (200, "mask (optional)", "linear"))
    for y, text, kind in (*steps, (145, "softmax over keys", "softmax")):
        d.box(135, y, text, kind, 150)
    d.arrow((80, 355), (110, 327))
    d.arrow((190, 355), (160, 327))
    for start, end in ((310, 255), (255, 200), (200, 145)):
        d.up(135, start, end)
    d.box(245, 80, "product with V", "matmul", 150)
    d.arrow((135, 130), (135, 80), (168, 80))
    d.arrow((350, 355), (350, 80), (322, 80))
    d.arrow((245, 65), (245, 34))
    d.label(245, 20, "H: n × t")
    for y, text in ((310, "n × m"), (255, "d: width of a query"), (145, "rows sum to 1")):
        d.label(218, y, text, size=12, anchor="start")
    return d


def multi_head() -> Diagram:
    d = Diagram(520, 390, "Multi-head attention in rows: h attentions in parallel, concatenated and projected")
    columns = ((110, "X: n × e", "W_Q"), (260, "M: m × e", "W_K"), (410, "M: m × e", "W_V"))
    for x, tokens, weight in columns:
        d.box(x, 350, tokens, "input", 120)
        for shift in (10, 5, 0):
            d.box(x + shift, 285 - shift, "" if shift else f"{weight}: e × d_h", "linear", 120)
        d.up(x, 350, 285)
        d.arrow((x, 260), (x, 222))
    for x, text in ((110, "Q: n × d_h"), (260, "K: m × d_h"), (410, "V: m × d_h")):
        d.label(x + 6, 241, text, size=12, anchor="start")
    for shift in (10, 5, 0):
        text = "" if shift else "h times: softmax(QKᵀ/√d_h) V, each n × d_h"
        d.box(260 + shift, 205 - shift, text, "softmax", 390)
    d.box(260, 130, "concatenate: n × h·d_h", "matmul", 210)
    d.arrow((260, 178), (260, 147))
    d.box(260, 75, "W_O: h·d_h × e", "linear", 210)
    d.up(260, 130, 75)
    d.arrow((260, 60), (260, 34))
    d.label(260, 20, "H: n × e")
    d.label(8, 381, "tokens are rows; self-attention: M = X", size=12, anchor="start")
    return d


def _sublayers(d: Diagram, x: float, rows: list[tuple[float, str, str]], *, entry: float, side: int = -1) -> None:
    """Sublayers from bottom to top, each followed by "add & norm", with its residual connection on one side."""
    below = entry
    for y, text, kind in rows:
        d.box(x, y, text, kind, 190)
        d.box(x, y - 48, "add & layer norm", "add", 190)
        d.arrow((x, below), (x, y + HEIGHT / 2 + 2))
        d.up(x, y, y - 48)
        beside, edge = x + 112 * side, x + 97 * side
        d.arrow((x, y + 26), (beside, y + 26), (beside, y - 48), (edge, y - 48))
        below = y - 48 - HEIGHT / 2


def transformer() -> Diagram:
    d = Diagram(620, 720, "The Transformer of 2017: post-norm encoder and decoder")
    for x, name, embedding in (
        (160, "source tokens", "embedding × √e"),
        (450, "target tokens, shifted right", "embedding × √e"),
    ):
        d.box(x, 690, name, "input", 200)
        d.box(x, 640, embedding, "linear", 190)
        d.box(x, 590, "+ positions, dropout", "add", 190)
        d.up(x, 690, 640)
        d.up(x, 640, 590)
    d.group(30, 310, 275, 560, "6 × encoder")
    _sublayers(d, 160, [(505, "self-attention", "softmax"), (405, "feed-forward", "linear")], entry=575)
    d.group(320, 170, 580, 560, "6 × decoder")
    rows = [
        (505, "causal self-attention", "softmax"),
        (375, "cross-attention", "softmax"),
        (265, "feed-forward", "linear"),
    ]
    _sublayers(d, 450, rows, entry=575, side=1)  # on the right: the memory comes from the left
    d.arrow((160, 342), (160, 290), (298, 290), (298, 375), (353, 375))
    d.label(290, 280, "memory: keys, values", size=12, anchor="end")
    d.box(450, 120, "linear (shared with embedding)", "linear", 220)
    d.box(450, 70, "softmax", "softmax", 190)
    d.arrow((450, 202), (450, 137))
    d.up(450, 120, 70)
    d.arrow((450, 55), (450, 32))
    d.label(450, 18, "next-token probabilities")
    return d


def vit() -> Diagram:
    d = Diagram(430, 620, "The vision transformer: patches, CLS token, encoder, linear head")
    x = 215
    rows = [
        (590, "image: 3 × 32 × 32", "input"),
        (530, "64 patches of 3·4·4 = 48", "input"),
        (470, "linear patch embedding: 64 × 256", "linear"),
        (410, "prepend the CLS token: 65 × 256", "matmul"),
        (350, "+ learned positions: 65 × 256; dropout", "add"),
    ]
    for y, text, kind in rows:
        d.box(x, y, text, kind, 280)
    for (start, *_), (end, *_) in pairwise(rows):
        d.up(x, start, end)
    d.group(60, 145, 370, 322, "6 blocks, pre-norm")
    d.box(x, 275, "x + attention(layer norm(x))", "softmax", 280)
    d.box(x, 190, "x + MLP(layer norm(x))", "linear", 280)
    d.up(x, 350, 275)
    d.up(x, 275, 190)
    d.box(x, 110, "state of the CLS token: 256", "matmul", 280)
    d.box(x, 55, "linear head: 256 → 100 classes", "linear", 280)
    d.up(x, 190, 110)
    d.up(x, 110, 55)
    d.arrow((x, 40), (x, 26))
    d.label(x, 14, "logits; class = argmax")
    return d


SERIES = {"ViT": "#0072b2", "CNN": "#d55e00"}


def data_regimes() -> Diagram:
    """Accuracy against the number of images, one panel for each data set of data-regimes.json."""
    panels = json.loads((FOLDER / "data-regimes.json").read_text(encoding="utf-8"))
    d = Diagram(250 * len(panels) + 70, 305, "ViT and CNN: test accuracy against the number of training images")
    for place, panel in enumerate(panels):
        _accuracy_panel(d, 75 + 250 * place, panel)
    d.parts.append(
        '<text x="18" y="132" font-size="12" text-anchor="middle" transform="rotate(-90 18 132)">test accuracy</text>'
    )
    for place, (name, color) in enumerate(SERIES.items()):
        x = 80 + 70 * place
        d.parts.append(f'<path d="M{x} 292 h22" stroke="{color}" stroke-width="2.5"/>')
        d.label(x + 28, 292, name, size=12, anchor="start")
    d.label(240, 292, "mean and range over the starts", size=12, anchor="start")
    return d


def _accuracy_panel(d: Diagram, left: float, panel: dict) -> None:
    top, bottom, width = 40, 225, 185
    images = panel["images"]
    low, high = math.log(images[0]), math.log(images[-1])

    def at(count: int, accuracy: float) -> tuple[float, float]:
        x = left + 8 + (width - 16) * (math.log(count) - low) / (high - low)
        return round(x, 1), round(bottom - (bottom - top) * accuracy, 1)

    d.label(left + width / 2, 18, panel["title"], size=13)
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = at(images[0], tick)[1]
        d.parts.append(f'<path d="M{left} {y} h{width}" stroke="{FAINT}"/>')
        d.label(left - 6, y, f"{100 * tick:.0f} %", size=11, anchor="end")
    for count in images:
        d.label(at(count, 0)[0], bottom + 14, f"{count:,}", size=11)
    for name, color in SERIES.items():
        values = panel[name]
        points = [at(count, value[0]) for count, value in zip(images, values, strict=True)]
        line = "M" + " L".join(f"{x} {y}" for x, y in points)
        d.parts.append(f'<path d="{line}" fill="none" stroke="{color}" stroke-width="2.5"/>')
        for (x, y), count, (_, least, most) in zip(points, images, values, strict=True):
            ends = at(count, least)[1], at(count, most)[1]
            d.parts.append(f'<path d="M{x} {ends[0]} V{ends[1]}" stroke="{color}" stroke-width="1.5"/>')
            d.parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{color}"/>')
    d.label(left + width / 2, bottom + 30, "training images (logarithmic)", size=12)
    d.label(left + width / 2, bottom + 47, panel["note"], size=11)


def attention_map() -> Diagram:
    """The weights of the worked example with and without 1/√d, as labeled heat maps."""
    d = Diagram(
        560, 270, "Attention maps of the worked example: rows are queries, columns are keys, each row sums to 1"
    )
    for place, (title, scale) in enumerate((("with 1/√d", None), ("without 1/√d", "1"))):
        weights = worked_weights(scale)
        left, top, size = 95 + 270 * place, 62, 58
        d.label(left + 1.5 * size, 16, title)
        d.label(left + 1.5 * size, 36, "key", size=12)
        for i, row in enumerate(weights):
            d.label(left + (i + 0.5) * size, 52, f"token {i + 1}", size=11)
            d.label(left - 6, top + (i + 0.5) * size, f"token {i + 1}", size=11, anchor="end")
            for j, weight in enumerate(row):
                x, y = left + j * size, top + i * size
                shade, ink = _shade(weight), PAPER if weight > 0.5 else INK
                d.parts.append(
                    f'<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="{shade}" stroke="{PAPER}"/>'
                )
                d.parts.append(
                    f'<text x="{x + size / 2}" y="{y + size / 2 + 4}" font-size="11" text-anchor="middle" '
                    f'fill="{ink}">{_short(weight)}</text>'
                )
        d.label(left - 50, top - 12, "query", size=12, anchor="start")
    d.label(280, 256, "darker is larger; each row sums to 1", size=12)
    return d


def worked_weights(scale: str | None) -> list[list[float]]:
    options = {} if scale is None else {"scale": scale}
    return solve_problem(example("three-tokens", **options)).weights.decimal


def _shade(weight: float) -> str:
    """From light to dark blue; small weights stay visible as light cells."""
    channels = (round(235 + (dark - 235) * weight) for dark in (8, 48, 107))
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def _short(weight: float) -> str:
    return f"{weight:.4f}" if weight >= 5e-5 else f"{weight:.0e}".replace("e-0", "e-")


DIAGRAMS = {
    "scaled-dot-product": scaled_dot_product,
    "multi-head": multi_head,
    "transformer": transformer,
    "vit": vit,
    "data-regimes": data_regimes,
    "attention-map": attention_map,
}


def main() -> None:
    for name, draw in DIAGRAMS.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
