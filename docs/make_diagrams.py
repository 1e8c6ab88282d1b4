"""Draw the diagrams of docs/courses as SVG: python docs/make_diagrams.py.

Colors follow the text color, so that one file reads on light and dark pages.
"""

from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

FOLDER = Path(__file__).parent / "courses"
FILLS = {
    "input": "#8884",
    "matmul": "#4c78a855",
    "softmax": "#59a14f55",
    "linear": "#f2a93b55",
    "add": "#b07aa155",
    "group": "none",
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
        self.parts.append(f'<rect {place} class="paper"/>')  # hides what is behind the box
        self.parts.append(f'<rect {place} fill="{FILLS[kind]}" stroke="currentColor"/>')
        self.label(x, y, text)

    def label(self, x: float, y: float, text: str, *, size: int = 13, anchor: str = "middle") -> None:
        self.parts.append(
            f'<text x="{x}" y="{y + size * 0.35:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def group(self, left: float, top: float, right: float, bottom: float, text: str) -> None:
        """A dashed frame with a label at its upper left corner."""
        self.parts.append(
            f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" rx="10" fill="none" '
            'stroke="currentColor" stroke-dasharray="5 4"/>'
        )
        self.label(left + 8, top + 12, text, size=12, anchor="start")

    def arrow(self, *points: tuple[float, float]) -> None:
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        self.parts.append(f'<path d="{path}" fill="none" stroke="currentColor" marker-end="url(#tip)"/>')

    def up(self, x: float, start: float, end: float) -> None:
        """An arrow from the top of a box at `start` to the bottom of one at `end`."""
        self.arrow((x, start - HEIGHT / 2), (x, end + HEIGHT / 2 + 2))

    def svg(self) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" font-family="sans-serif" fill="currentColor" role="img">\n'
            f"<title>{escape(self.title)}</title>\n"
            "<style>svg { color: #222 } .paper { fill: #fff } "
            "@media (prefers-color-scheme: dark) { svg { color: #ddd } .paper { fill: #161616 } }</style>\n"
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker></defs>\n' + "\n".join(self.parts) + "\n</svg>\n"
        )


def scaled_dot_product() -> Diagram:
    d = Diagram(430, 400, "Scaled dot-product attention: softmax(QKᵀ/√d + mask) V")
    for x, name, shape in ((80, "Q", "n × d"), (190, "K", "m × d"), (350, "V", "m × t")):
        d.box(x, 370, f"{name}   {shape}", "input", 96)
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
    d.label(245, 20, "H   n × t")
    for y, text in ((310, "n × m"), (145, "rows sum to 1")):
        d.label(218, y, text, size=12, anchor="start")
    return d


def multi_head() -> Diagram:
    d = Diagram(470, 380, "Multi-head attention: h attentions in parallel, concatenated and projected")
    columns = ((110, "Q", "W_Q"), (235, "K", "W_K"), (360, "V", "W_V"))
    for x, name, weight in columns:
        d.box(x, 350, f"{name}   tokens × e", "input", 108)
        for shift in (10, 5, 0):
            d.box(x + shift, 285 - shift, "" if shift else f"{weight}: e × e/h", "linear", 108)
        d.up(x, 350, 285)
        d.arrow((x, 260), (x, 222))
    for shift in (10, 5, 0):
        d.box(235 + shift, 205 - shift, "" if shift else "scaled dot-product attention, h times", "softmax", 360)
    d.box(235, 130, "concatenate   n × e", "matmul", 190)
    d.arrow((235, 178), (235, 147))
    d.box(235, 75, "W_O: e × e", "linear", 190)
    d.up(235, 130, 75)
    d.arrow((235, 60), (235, 34))
    d.label(235, 20, "H   n × e")
    return d


def _sublayers(d: Diagram, x: float, rows: list[tuple[float, str, str]], *, entry: float) -> None:
    """Sublayers from bottom to top, each followed by "add & norm", with its residual connection on the left."""
    below = entry
    for y, text, kind in rows:
        d.box(x, y, text, kind, 190)
        d.box(x, y - 48, "add & layer norm", "add", 190)
        d.arrow((x, below), (x, y + HEIGHT / 2 + 2))
        d.up(x, y, y - 48)
        d.arrow((x, y + 26), (x - 112, y + 26), (x - 112, y - 48), (x - 97, y - 48))
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
    d.group(320, 170, 565, 560, "6 × decoder")
    rows = [
        (505, "causal self-attention", "softmax"),
        (375, "cross-attention", "softmax"),
        (265, "feed-forward", "linear"),
    ]
    _sublayers(d, 450, rows, entry=575)
    d.arrow((160, 342), (160, 290), (300, 290), (300, 375), (353, 375))
    d.label(230, 280, "memory: keys, values", size=12)
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
        (590, "image   3 × 32 × 32", "input"),
        (530, "64 patches of 3·4·4 = 48", "input"),
        (470, "linear patch embedding   64 × 256", "linear"),
        (410, "prepend CLS token   65 × 256", "matmul"),
        (350, "+ learned positions, dropout", "add"),
    ]
    for y, text, kind in rows:
        d.box(x, y, text, kind, 250)
    for (start, *_), (end, *_) in pairwise(rows):
        d.up(x, start, end)
    d.group(60, 145, 370, 322, "6 blocks, pre-norm")
    d.box(x, 275, "x + attention(layer norm(x))", "softmax", 250)
    d.box(x, 190, "x + MLP(layer norm(x))", "linear", 250)
    d.up(x, 350, 275)
    d.up(x, 275, 190)
    d.box(x, 110, "state of the CLS token   256", "matmul", 250)
    d.box(x, 55, "linear head   256 → classes", "linear", 250)
    d.up(x, 190, 110)
    d.up(x, 110, 55)
    d.arrow((x, 40), (x, 26))
    d.label(x, 14, "logits; class = argmax")
    return d


DIAGRAMS = {"scaled-dot-product": scaled_dot_product, "multi-head": multi_head, "transformer": transformer, "vit": vit}


def main() -> None:
    for name, draw in DIAGRAMS.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
