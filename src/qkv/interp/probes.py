"""Variations of an input that tell what a head attends to: the same tokens shuffled, or repeated."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from qkv.interp.images import grid_of
from qkv.interp.run import Inputs, read_tokens, replaced_tokens
from qkv.interp.texts import limit_of


def shuffled(model: nn.Module, inputs: Inputs, count: int, seed: int = 0) -> list[Inputs]:
    """Copies of an input with its tokens, or the patches of its picture, in another order; the first token stays."""
    generator = torch.Generator().manual_seed(seed)
    tokens = read_tokens(inputs)
    if tokens is not None and tokens.shape[1] > 2:
        return [replaced_tokens(inputs, _mixed(tokens, generator)) for _ in range(count)]
    picture = _pixels(inputs)
    if picture is None:
        return []
    try:
        grid = grid_of(model)
    except ValueError:
        return []
    return [_again(inputs, picture, _mixed_patches(picture, grid.patch, generator)) for _ in range(count)]


def repeated(model: nn.Module, inputs: Inputs) -> Inputs | None:
    """The input's tokens and, after them, all but the first once more; None where there are too few or no room.

    A text too long to be read twice is cut to half of what the model reads.
    """
    tokens = read_tokens(inputs)
    alone = isinstance(inputs, Tensor) or (isinstance(inputs, Mapping) and len(inputs) == 1)
    if tokens is None or not alone:
        return None
    limit = limit_of(model)
    most = tokens.shape[1] if limit is None else min(tokens.shape[1], (limit + 1) // 2)
    if most < 5:
        return None
    tokens = tokens[:, :most]
    return replaced_tokens(inputs, torch.cat((tokens, tokens[:, 1:]), dim=1))


def _mixed(tokens: Tensor, generator: torch.Generator) -> Tensor:
    order = 1 + torch.randperm(tokens.shape[1] - 1, generator=generator)
    return torch.cat((tokens[:, :1], tokens[:, order.to(tokens.device)]), dim=1)


def _pixels(inputs: Inputs) -> Tensor | None:
    given = inputs.get("pixel_values") if isinstance(inputs, Mapping) else inputs
    return given if isinstance(given, Tensor) and given.ndim == 4 and given.is_floating_point() else None


def _again(inputs: Inputs, old: Tensor, new: Tensor) -> Inputs:
    return (
        {name: new if value is old else value for name, value in inputs.items()} if isinstance(inputs, Mapping) else new
    )


def _mixed_patches(picture: Tensor, patch: int, generator: torch.Generator) -> Tensor:
    rows, columns = picture.shape[-2] // patch, picture.shape[-1] // patch
    patches = torch.nn.functional.unfold(picture, patch, stride=patch)
    order = torch.randperm(rows * columns, generator=generator).to(picture.device)
    return torch.nn.functional.fold(patches[..., order], picture.shape[-2:], patch, stride=patch)
