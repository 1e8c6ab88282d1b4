"""Variations of an input that tell what a head attends to: the same tokens shuffled, or repeated."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.look.pictures import grid_of
from qkv.look.run import Inputs, read_tokens, replaced_tokens
from qkv.look.texts import limit_of

LONGEST = 128  # tokens of a probe before they are repeated


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


def repeated_probe(model: nn.Module, inputs: Inputs, seed: int = 0) -> Inputs | None:
    """The first token, then the input's other tokens shuffled, twice; None where there are too few or no room.

    Tokens that come several times are taken once, so that nothing but the repetition tells what comes next.
    """
    tokens = read_tokens(inputs)
    if tokens is None or not isinstance(inputs, Tensor | dict) or (isinstance(inputs, dict) and len(inputs) > 1):
        return None
    generator = torch.Generator().manual_seed(seed)
    first, rest = tokens[:1, :1], tokens[0, 1:].unique()
    limit = limit_of(model)
    room = LONGEST if limit is None else min(LONGEST, (limit - 1) // 2)
    rest = rest[torch.randperm(len(rest), generator=generator)][:room]
    if len(rest) < 4:
        return None
    return replaced_tokens(inputs, torch.cat((first, rest[None], rest[None]), dim=1))


def _mixed(tokens: Tensor, generator: torch.Generator) -> Tensor:
    order = 1 + torch.randperm(tokens.shape[1] - 1, generator=generator)
    return torch.cat((tokens[:, :1], tokens[:, order.to(tokens.device)]), dim=1)


def _pixels(inputs: Inputs) -> Tensor | None:
    given = inputs.get("pixel_values") if isinstance(inputs, dict) else inputs
    return given if isinstance(given, Tensor) and given.ndim == 4 and given.is_floating_point() else None


def _again(inputs: Inputs, old: Tensor, new: Tensor) -> Inputs:
    return {name: new if value is old else value for name, value in inputs.items()} if isinstance(inputs, dict) else new


def _mixed_patches(picture: Tensor, patch: int, generator: torch.Generator) -> Tensor:
    rows, columns = picture.shape[-2] // patch, picture.shape[-1] // patch
    patches = torch.nn.functional.unfold(picture, patch, stride=patch)
    order = torch.randperm(rows * columns, generator=generator).to(picture.device)
    return torch.nn.functional.fold(patches[..., order], picture.shape[-2:], patch, stride=patch)
