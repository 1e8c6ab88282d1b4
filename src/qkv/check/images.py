"""Models on images, as functions of a sequence of tiles: who moves whom is then measured as for tokens.

Axes: b batch · n tiles · c the numbers of one tile.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.contract import Contract
from qkv.check.finding import told
from qkv.check.names import IMAGES
from qkv.check.outputs import every, picture_output
from qkv.check.subject import Subject

GRID = 4  # tiles a side


def image_subject(
    module: nn.Module, name: str, contract: Contract, dtype: torch.dtype, tried: dict[str, str]
) -> Subject | None:
    """A model on images (b, channels, height, width) as a subject, or None if it is none."""
    names = list(inspect.signature(module.forward).parameters)
    named = next((known for known in IMAGES if known in names), None)
    if named is None and not _sees(module):
        return None

    def call(x: Tensor) -> Any:
        more = (
            {"noise": _order(module, len(x))} if "noise" in names else {}
        )  # which patches are hidden: always the same
        return module(x, **more) if named is None or names[0] == named else module(**{named: x}, **more)

    for channels, side in sizes(module):
        images = torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(3), dtype=dtype)
        words = f"images (b, {channels}, {side}, {side})"
        try:
            out = picture_output(call(images), 2)
        except Exception as error:
            tried.setdefault(words, told(error))
            continue
        if out is not None:
            return _subject(module, name, words, call, channels, side, dtype)
        tried.setdefault(words, "no output with a row for each image")
    return None


def _subject(
    module: nn.Module,
    name: str,
    words: str,
    call: Callable[[Tensor], Any],
    channels: int,
    side: int,
    dtype: torch.dtype,
) -> Subject:
    tile = side // GRID

    def run(x: Tensor, present: Tensor | None = None) -> Tensor:
        out = picture_output(call(from_tiles(x, channels, tile)), x.shape[0])
        if out is None:
            raise ValueError(f"{name} gave no output with a row for each image")
        return out

    return Subject(
        name=name,
        level="model",
        how=f"{name}: {words}, changed tile by tile ({GRID} × {GRID} tiles of {tile} × {tile} pixels)",
        run=run,
        width=channels * tile * tile,
        length=GRID * GRID,
        dtype=dtype,
        module=module,
        every=lambda x: every(call(from_tiles(x, channels, tile))),
    )


def from_tiles(x: Tensor, channels: int, tile: int) -> Tensor:
    """Tiles (b, n, c) laid out row by row as an image (b, channels, height, width).

    >>> from_tiles(torch.arange(16.0).view(1, 16, 1), 1, 1)[0, 0, 1]
    tensor([4., 5., 6., 7.])
    """
    grid = x.unflatten(-1, (channels, tile, tile)).unflatten(1, (GRID, GRID))  # b, row, column, channel, y, x
    return grid.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


def sizes(module: nn.Module) -> Iterator[tuple[int, int]]:
    """Channels and side of the images that it may take, likeliest first."""
    config = getattr(module, "config", None)
    channels = [part.in_channels for part in module.modules() if isinstance(part, nn.Conv2d)][:1]
    sides: list[int] = []
    for holder in (config, getattr(config, "vision_config", None), module):
        for known in ("image_size", "img_size", "image", "input_size", "input_resolution"):
            size = getattr(holder, known, None)
            size = size[0] if isinstance(size, tuple | list) and size else size
            if isinstance(size, int):
                sides.append(size)
    for known in ("num_channels", "channels", "in_channels", "in_chans"):
        if isinstance(count := getattr(config, known, None), int):
            channels.append(count)
    stages = any(
        isinstance(getattr(config, known, None), list | tuple) for known in ("depths", "hidden_sizes", "layer_type")
    )
    usual = (128, 32, 224) if stages else (32, 28, 64, 224)  # a pyramid halves its map several times
    for side in dict.fromkeys(side for side in (*sides, *usual) if side % GRID == 0):
        for count in dict.fromkeys((*channels[:1], 3, 1) if not channels else channels[:1]):
            yield count, side


def _order(module: nn.Module, batch: int) -> Tensor:
    config = getattr(module, "config", None)
    count = (getattr(config, "image_size", 32) // getattr(config, "patch_size", 8)) ** 2
    return torch.linspace(0, 1, count).expand(batch, -1)


def _sees(module: nn.Module) -> bool:
    """Whether it reads images though no parameter says so: a first convolution, and no table of tokens."""
    parts = [part for part in module.modules() if isinstance(part, nn.Conv2d | nn.Embedding)]
    return bool(parts) and isinstance(parts[0], nn.Conv2d)
