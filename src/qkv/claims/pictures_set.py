"""A small set of pictures made in code: ten digits, drawn anywhere, with noise. No download."""

from functools import cache

import torch
from torch import Tensor

SIDE, GLYPH, CLASSES = 20, 14, 10
GLYPHS = (  # five by seven, a row a word
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00110 01000 10000 11111",
    "11110 00001 00001 01110 00001 00001 11110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)


@cache
def glyphs() -> Tensor:
    """The ten digits, stretched: (10, GLYPH, GLYPH)."""
    small = torch.tensor([[[float(cell) for cell in row] for row in glyph.split()] for glyph in GLYPHS])
    return torch.nn.functional.interpolate(small[:, None], size=(GLYPH, GLYPH), mode="bilinear")[:, 0]


def digits(count: int, generator: torch.Generator, *, noise: float = 0.25) -> tuple[Tensor, Tensor]:
    """Pictures (count, 1, 20, 20) with mean near 0, and their digits."""
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    shapes = glyphs()[labels]
    height, width = shapes.shape[1:]
    images = torch.zeros(count, SIDE, SIDE)
    down = torch.randint(0, SIDE - GLYPH + 1, (count,), generator=generator)
    right = torch.randint(0, SIDE - GLYPH + 1, (count,), generator=generator)
    rows = down[:, None, None] + torch.arange(height)[None, :, None]
    columns = right[:, None, None] + torch.arange(width)[None, None, :]
    images[torch.arange(count)[:, None, None], rows, columns] = shapes
    strength = 0.75 + 0.5 * torch.rand(count, 1, 1, generator=generator)
    images = images * strength + noise * torch.randn(images.shape, generator=generator)
    return images[:, None] - 0.25, labels
