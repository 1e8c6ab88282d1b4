"""Image models as functions of a sequence of tiles, so that the influence map is measured as for tokens.

Axes: b batch · n tiles · c the numbers of one tile.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.calling.signatures import IMAGES, differentiable_outputs, find_image_output
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation
from qkv.check.report import describe_error

GRID = 4  # tiles per side


def image_implementation(
    module: nn.Module, name: str, contract: Contract, dtype: torch.dtype, tried: dict[str, str]
) -> Implementation | None:
    """A model on images (b, channels, height, width) as an implementation, or None if it is not one."""
    names = list(inspect.signature(module.forward).parameters)
    parameter = next((known for known in IMAGES if known in names), None)
    if parameter is None and not _starts_with_convolution(module):
        return None

    def call(x: Tensor) -> Any:
        # a masked autoencoder hides patches by noise: always the same ones
        more = {"noise": _fixed_noise(module, len(x))} if "noise" in names else {}
        if parameter is None or names[0] == parameter:
            return module(x, **more)
        return module(**{parameter: x}, **more)

    for channels, side in image_sizes(module):
        images = torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(3), dtype=dtype)
        words = f"images (b, {channels}, {side}, {side})"
        try:
            out = find_image_output(call(images), 2)
        except Exception as error:
            tried.setdefault(words, describe_error(error))
            continue
        if out is not None:
            return _make_implementation(module, name, words, call, channels, side // GRID, dtype)
        tried.setdefault(words, "no output with a row for each image")
    return None


def _make_implementation(
    module: nn.Module,
    name: str,
    words: str,
    call: Callable[[Tensor], Any],
    channels: int,
    tile: int,
    dtype: torch.dtype,
) -> Implementation:
    def run(x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        out = find_image_output(call(join_tiles(x, channels, tile)), x.shape[0])
        if out is None:
            raise ValueError(f"{name} gave no output with a row for each image")
        return out

    return Implementation(
        name=name,
        level="model",
        how=f"{name}: {words}, changed tile by tile ({GRID} × {GRID} tiles of {tile} × {tile} pixels)",
        run=run,
        dim=channels * tile * tile,
        length=GRID * GRID,
        dtype=dtype,
        module=module,
        all_outputs=lambda x: differentiable_outputs(call(join_tiles(x, channels, tile))),
    )


def join_tiles(x: Tensor, channels: int, tile: int) -> Tensor:
    """Tiles (b, n, c), row by row, as an image (b, channels, height, width).

    >>> join_tiles(torch.arange(16.0).view(1, 16, 1), 1, 1)[0, 0, 1]
    tensor([4., 5., 6., 7.])
    """
    grid = x.unflatten(-1, (channels, tile, tile)).unflatten(1, (GRID, GRID))  # b, row, column, channel, y, x
    return grid.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


def image_sizes(module: nn.Module) -> Iterator[tuple[int, int]]:
    """Channels and side of the images that it may take, likely ones first."""
    config = getattr(module, "config", None)
    channels = [part.in_channels for part in module.modules() if isinstance(part, nn.Conv2d)][:1]
    sides: list[int] = []
    for holder in (config, getattr(config, "vision_config", None), module):
        for name in ("image_size", "img_size", "image", "input_size", "input_resolution"):
            size = getattr(holder, name, None)
            size = size[0] if isinstance(size, tuple | list) and size else size
            if isinstance(size, int):
                sides.append(size)
    for name in ("num_channels", "channels", "in_channels", "in_chans"):
        if isinstance(count := getattr(config, name, None), int):
            channels.append(count)
    staged = any(
        isinstance(getattr(config, name, None), list | tuple) for name in ("depths", "hidden_sizes", "layer_type")
    )
    usual = (128, 32, 224) if staged else (32, 28, 64, 224)  # a pyramid halves its map several times
    for side in dict.fromkeys(side for side in (*sides, *usual) if side % GRID == 0):
        for count in channels[:1] or (3, 1):
            yield count, side


def _fixed_noise(module: nn.Module, batch: int) -> Tensor:
    config = getattr(module, "config", None)
    count = (getattr(config, "image_size", 32) // getattr(config, "patch_size", 8)) ** 2
    return torch.linspace(0, 1, count).expand(batch, -1)


def _starts_with_convolution(module: nn.Module) -> bool:
    """Whether it reads images although no parameter says so: a convolution comes first, and no embedding."""
    parts = [part for part in module.modules() if isinstance(part, nn.Conv2d | nn.Embedding)]
    return bool(parts) and isinstance(parts[0], nn.Conv2d)
