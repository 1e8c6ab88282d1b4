"""Picture files read by Pillow: one at a time, checked, brought to one size and one number of channels."""

import io
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from qkv.data.problems import BadItems, Problems, one_line

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
MOST_PIXELS = 50_000_000  # of one picture: a small file can claim any size
GREY = ("1", "L", "LA", "I", "I;16", "F")


def read_picture(source: Path | bytes, size: int | None = None) -> np.ndarray:
    """One picture as (h, w), if it is grey, or (h, w, 3); turned as its camera says.

    size: the shorter side is scaled to it, the middle square is cut out; None leaves the picture as it is.
    """
    if not (source if isinstance(source, bytes) else source.stat().st_size):
        raise ValueError("the file is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of large pictures; ours are refused below
            with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as picture:
                if picture.width * picture.height > MOST_PIXELS:
                    raise ValueError(f"{picture.width} × {picture.height} pixels are more than {MOST_PIXELS:,}")
                picture.load()
                picture = ImageOps.exif_transpose(picture)
                picture = _eight_bits(picture)
                if size is not None:
                    picture = ImageOps.fit(picture, (size, size), Image.Resampling.BICUBIC)
                return np.asarray(picture)
    except ValueError:
        raise
    except Exception as error:  # Pillow's readers raise many kinds
        raise ValueError(f"not a picture that can be read ({one_line(error)})") from None


def _eight_bits(picture: Image.Image) -> Image.Image:
    if picture.mode in ("I", "I;16", "F"):  # 16 bits and more: to the range of a byte
        values = np.asarray(picture, dtype=np.float64)
        return Image.fromarray((values / max(values.max(), 255) * 255).round().astype(np.uint8))
    return picture.convert("L" if picture.mode in GREY else "RGB")


def stacked(
    names: list[str],
    read: Callable[[int], np.ndarray],
    *,
    bad_items: BadItems = "refuse",
) -> tuple[Tensor, list[int], tuple[str, ...]]:
    """All pictures as bytes (n, c, h, w); which items they are; notes. `read` gives the picture of one item.

    Pictures that cannot be read, or whose size is not that of most, are named and refused or left out.
    """
    problems = Problems("pictures", bad_items)
    read_in: dict[int, np.ndarray] = {}
    for item, name in enumerate(names):
        try:
            read_in[item] = read(item)
        except (ValueError, OSError) as error:
            problems.add(name, one_line(error))
    sizes = [picture.shape[:2] for picture in read_in.values()]
    usual = max(set(sizes), key=sizes.count) if sizes else (0, 0)
    for item, picture in list(read_in.items()):
        if picture.shape[:2] != usual:
            (h, w), (most_h, most_w) = picture.shape[:2], usual
            problems.add(names[item], f"{w} × {h} pixels where most have {most_w} × {most_h}; give a size to scale to")
            del read_in[item]
    notes = problems.settle(len(names))
    colour = any(picture.ndim == 3 for picture in read_in.values())
    same = [np.stack([p] * 3, -1) if colour and p.ndim == 2 else p for p in read_in.values()]
    pixels = torch.from_numpy(np.stack(same))
    return (pixels.permute(0, 3, 1, 2).contiguous() if colour else pixels[:, None]), list(read_in), notes
