"""Prepare a drawn or photographed digit for a model of the bundled 8×8 digits: cut it out, center it, even its stroke.

The bundled digits are white on black, fill the height of the image and have strokes of about the same width. A drawing
is brought to this form: ink is separated from background, also light on dark; the digit is cropped, scaled with its
aspect ratio, centered by its mass and averaged to 8×8.
"""

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from torch import Tensor
from torch.nn import functional as F

SIDE = 8  # of the bundled digits
WORK = 256  # longest side on which ink is found
CANVAS = 64  # side of the box in which the digit is placed before it is averaged
STROKE = 10.0  # width of a stroke on the canvas
LEAST_CONTRAST = 0.12  # between ink and background, where black to white is 1
LEAST_PART = 0.04  # smaller specks are dropped, as a part of the largest piece of ink


def reads_digits(size: int, channels: int, classes: int) -> bool:
    """Whether a model reads images like the bundled digits."""
    return (size, channels, classes) == (SIDE, 1, 10)


def prepare_digit(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """An image of a digit as an 8×8 gray image like the bundled digits, and notes. An 8×8 image is kept as it is."""
    if image.size == (SIDE, SIDE):
        return image.convert("L"), ()
    gray = _to_gray(image)
    light_on_dark, ink = _find_ink(gray)
    mask = _drop_specks(ink > _otsu(ink))
    doubt = _doubt(ink, mask)
    if not bool(mask.any()):
        return Image.new("L", (SIDE, SIDE)), (doubt,)
    canvas = _place(mask)
    blocks = canvas.reshape(SIDE, CANVAS // SIDE, SIDE, CANVAS // SIDE).mean((1, 3))
    pixels = (blocks * 255).round().to(torch.uint8).numpy()
    kind = "light on dark" if light_on_dark else "dark on light"
    note = f"cropped, centered and resized to {SIDE}×{SIDE} pixels, from a digit {kind}"
    return Image.fromarray(pixels), (note, *([doubt] if doubt else []))


def _to_gray(image: Image.Image) -> Tensor:
    """Gray values (h, w) from 0, black, to 1, white; transparent pixels get the color that contrasts with the ink."""
    image = ImageOps.exif_transpose(image)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        pixels = np.asarray(image, dtype=np.float64)
        opaque = pixels[..., 3].sum()
        dark = opaque > 0 and (pixels[..., :3].mean(-1) * pixels[..., 3]).sum() / opaque < 128
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white" if dark else "black"), image)
    if image.mode in ("I", "I;16", "F"):
        values = np.asarray(image, dtype=np.float64)
        image = Image.fromarray((values / max(values.max(), 255) * 255).round().astype(np.uint8))
    image = image.convert("L")
    image.thumbnail((WORK, WORK), Image.Resampling.BOX)
    if min(image.size) > 64:
        image = image.filter(ImageFilter.GaussianBlur(0.7))
    return torch.from_numpy(np.asarray(image, dtype=np.float32) / 255)


def _find_ink(gray: Tensor) -> tuple[bool, Tensor]:
    """Whether the ink is light, and how much ink is at each pixel: the difference from an evenly lit background."""
    border = torch.zeros_like(gray, dtype=torch.bool)
    border[[0, -1]] = True
    border[:, [0, -1]] = True
    rows, columns = torch.meshgrid(*(torch.linspace(-1, 1, n, dtype=torch.float64) for n in gray.shape), indexing="ij")
    terms = torch.stack((torch.ones_like(rows), rows, columns), -1)
    values = gray.double()
    kept = border & ((gray - gray[border].median()).abs() < 0.25)  # not where a stroke touches the border
    plane = terms @ torch.linalg.lstsq(terms[kept], values[kept, None], driver="gelsd").solution[:, 0]
    difference = (values - plane).float()
    lighter, darker = difference.clamp(min=0), (-difference).clamp(min=0)
    light_on_dark = float(lighter.square().sum()) > float(darker.square().sum())
    return light_on_dark, lighter if light_on_dark else darker


def _otsu(values: Tensor) -> float:
    """The threshold between two classes of values with the largest variance between them (Otsu)."""
    counts = torch.histc(values, 256, 0, 1).double()
    levels = (torch.arange(256, dtype=torch.float64) + 0.5) / 256
    below, total = counts.cumsum(0), counts.sum()
    mean_below = (counts * levels).cumsum(0)
    above = total - below
    difference = mean_below / below.clamp(min=1) - (mean_below[-1] - mean_below) / above.clamp(min=1)
    return max(float(levels[(below * above * difference.square()).argmax()]), LEAST_CONTRAST)


def _drop_specks(mask: Tensor) -> Tensor:
    """The mask without pieces that are small beside the largest one."""
    labels = torch.arange(1, mask.numel() + 1, dtype=torch.float32).reshape(mask.shape) * mask
    while True:  # every pixel takes the largest label of its piece
        spread = F.max_pool2d(labels[None], 3, 1, 1)[0] * mask
        if torch.equal(spread, labels):
            break
        labels = spread
    names, areas = labels[mask].unique(return_counts=True)
    if not len(names):
        return mask
    return torch.isin(labels, names[areas >= LEAST_PART * areas.max()]) & mask


def _doubt(ink: Tensor, mask: Tensor) -> str:
    """Why the image is probably no digit; empty if it may be one."""
    start = "the image is probably no digit: "
    if not bool(mask.any()):
        return start + "nothing stands out from the background"
    rows, columns = (mask.any(axis).nonzero()[:, 0] for axis in (1, 0))
    height, width = (int(x[-1] - x[0]) + 1 for x in (rows, columns))
    touching = torch.cat((mask[0], mask[-1], mask[:, 0], mask[:, -1])).float().mean()
    if height < 5:
        return start + f"what stands out is {height} of {mask.shape[0]} pixels high"
    if width > 1.6 * height:
        return start + "it is much wider than high"
    if touching > 0.2:
        return start + "it runs out of the image"
    if _stroke_width(mask) > 0.45 * height and height < 2.5 * width:
        return start + "it is a blot, not a line"
    return ""


def _stroke_width(mask: Tensor) -> float:
    """The mean width of strokes: twice the area per length of the outline."""
    padded = F.pad(mask.float(), (1, 1, 1, 1))
    edges = (padded[1:] != padded[:-1]).sum() + (padded[:, 1:] != padded[:, :-1]).sum()
    return float(2 * mask.sum() / (edges * 0.8).clamp(min=1))  # steps of a slanted line are longer than the line


def _place(mask: Tensor) -> Tensor:
    """The digit on the canvas, 0 to 1: as large as fits, with strokes of STROKE pixels, centered by its mass."""
    rows, columns = (mask.any(axis).nonzero()[:, 0] for axis in (1, 0))
    digit = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].float()
    width = _stroke_width(digit > 0.5) * CANVAS / max(digit.shape)
    grow = max(round((STROKE - width) / 2), 0)
    room = CANVAS - 2 * grow
    scale = room / max(digit.shape)
    size = [max(round(side * scale), 1) for side in digit.shape]
    scaled = F.interpolate(digit[None, None], size, mode="bilinear", antialias=True)[0]
    scaled = F.pad(scaled, (grow,) * 4)
    if grow:
        scaled = F.max_pool2d(scaled, 2 * grow + 1, 1, grow)
    scaled = scaled[0]
    canvas = torch.zeros(CANVAS, CANVAS)
    places = []
    for axis, side in enumerate(scaled.shape):
        weights = scaled.sum(1 - axis)
        center = float((weights * torch.arange(side)).sum() / weights.sum()) + 0.5
        places.append(min(max(round(CANVAS / 2 - center), 0), CANVAS - side))
    canvas[places[0] : places[0] + scaled.shape[0], places[1] : places[1] + scaled.shape[1]] = scaled
    return canvas.clamp(0, 1)
