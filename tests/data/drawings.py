"""Digits drawn with Pillow as a person would with a mouse: polylines of round points, in several styles."""

import math

import numpy as np
from PIL import Image, ImageDraw

Points = list[tuple[float, float]]


def arc(x: float, y: float, rx: float, ry: float, start: float, end: float) -> Points:
    """Points of an ellipse from one angle to another; 0 is right, 90 is down."""
    angles = [math.radians(start + (end - start) * i / 40) for i in range(41)]
    return [(x + rx * math.cos(a), y + ry * math.sin(a)) for a in angles]


STROKES: dict[int, list[Points]] = {  # in a box of width 0.6 and height 1
    0: [arc(0.3, 0.5, 0.29, 0.5, -80, 280)],
    1: [[(0.12, 0.22), (0.34, 0.0), (0.33, 1.0)]],
    2: [[*arc(0.3, 0.27, 0.27, 0.27, 190, 385), (0.02, 0.98), (0.6, 0.97)]],
    3: [arc(0.26, 0.25, 0.28, 0.25, 200, 440) + arc(0.26, 0.73, 0.32, 0.27, 275, 515)],
    4: [[(0.4, 0.0), (0.02, 0.62), (0.62, 0.6)], [(0.45, 0.3), (0.42, 1.0)]],
    5: [[(0.55, 0.02), (0.1, 0.0), (0.07, 0.43), *arc(0.27, 0.68, 0.3, 0.3, 230, 500)]],
    6: [[(0.48, 0.0), (0.2, 0.3), *arc(0.3, 0.7, 0.28, 0.29, 185, 545)]],
    7: [[(0.0, 0.04), (0.58, 0.0), (0.22, 1.0)]],
    8: [arc(0.3, 0.25, 0.23, 0.24, 90, 450) + arc(0.3, 0.74, 0.28, 0.26, 270, 630)],
    9: [[*arc(0.29, 0.28, 0.27, 0.27, 0, 360), (0.56, 0.3), (0.46, 1.0)]],
}
STYLES = ("plain", "thin", "thick", "small and off-center", "light on dark", "slanted", "on a photo")


def draw_digit(digit: int, style: str, side: int = 280) -> Image.Image:
    """A drawing of a digit."""
    size, left, top, width = 0.62 * side, 0.3 * side, 0.18 * side, side * 0.06
    width = {"thin": 2.0, "thick": side * 0.11, "small and off-center": 6.0}.get(style, width)
    if style == "small and off-center":
        size, left, top = 0.3 * side, 0.63 * side, 0.08 * side
    slant = 0.2 if style == "slanted" else 0.0
    ink, paper = (245, 12) if style == "light on dark" else (20, 255)
    if style == "on a photo":
        rows, columns = np.mgrid[0:side, 0:side] / side
        lit = 150 + 60 * columns + 30 * rows + np.random.default_rng(digit).normal(0, 6, (side, side))
        image, ink = Image.fromarray(lit.clip(0, 255).astype(np.uint8)).convert("RGB"), 50
    else:
        image = Image.new("RGB", (side, side), (paper,) * 3)
    pen = ImageDraw.Draw(image)
    for stroke in STROKES[digit]:
        places = [(left + size * (x + slant * (0.5 - y)), top + size * y) for x, y in stroke]
        pen.line(places, fill=(ink,) * 3, width=round(width), joint="curve")
        for x, y in places:
            pen.ellipse((x - width / 2, y - width / 2, x + width / 2, y + width / 2), fill=(ink,) * 3)
    return image
