"""RandAugment for a batch: each picture gets a few changes, drawn from one list, all of one strength.

Axes: b batch · c channels · h rows · w columns.

A subset of the published list, chosen so that each is a tensor operation: those that move pixels are one sampling of
all pictures together, those that change colours are one formula each. Left out: histogram equalisation, inversion.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Generator, Tensor

MOVES = ("rotate", "shear-x", "shear-y", "translate-x", "translate-y")
COLOURS = ("brightness", "contrast", "saturation", "sharpness", "posterise", "solarise")
KINDS = ("identity", *MOVES, *COLOURS)


def rand_augment(
    pictures: Shaped[Tensor, "b c h w"], operations: int, strength: float, generator: Generator
) -> Shaped[Tensor, "b c h w"]:
    """`operations` changes of each picture (bytes), drawn from KINDS, of `strength` from 0 to 10, up or down."""
    x = pictures.to(torch.float32) / 255
    for _ in range(operations):
        kind = torch.randint(0, len(KINDS), (len(x),), generator=generator)
        sign = torch.randint(0, 2, (len(x),), generator=generator) * 2 - 1
        amount = sign * (strength / 10)
        rows = ((kind >= 1) & (kind <= len(MOVES))).nonzero().flatten()
        if len(rows):
            x[rows] = _moved(x[rows], kind[rows], amount[rows])
        for name in COLOURS:
            rows = (kind == KINDS.index(name)).nonzero().flatten()
            if len(rows):
                x[rows] = CHANGES[name](x[rows], amount[rows, None, None, None]).clamp(0, 1)
    return (x * 255).round().to(torch.uint8)


def _moved(x: Float[Tensor, "b c h w"], kind: Tensor, amount: Tensor) -> Float[Tensor, "b c h w"]:
    """Rotations up to 30°, shears up to 0.3, shifts up to 0.45 of the width: one affine sampling; black comes in."""
    angle = torch.where(kind == KINDS.index("rotate"), amount * (torch.pi / 6), 0.0)
    cos, sin = angle.cos(), angle.sin()
    only = {
        name: torch.where(kind == KINDS.index(name), amount * most, 0.0)
        for name, most in (("shear-x", 0.3), ("shear-y", 0.3), ("translate-x", 0.9), ("translate-y", 0.9))
    }
    h, w = x.shape[-2:]
    rows = ((2 * torch.arange(h) + 1) / h - 1)[:, None]  # the centres of pixels, from −1 to 1
    columns = (2 * torch.arange(w) + 1) / w - 1
    terms = (cos, only["shear-x"] - sin, only["translate-x"], only["shear-y"] + sin, cos)
    xx, xy, xs, yx, yy = (term[:, None, None] for term in terms)
    ys = only["translate-y"][:, None, None]
    grid = torch.stack((xx * columns + xy * rows + xs, yx * columns + yy * rows + ys), -1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _grey(x: Tensor) -> Tensor:
    """Luma, in every channel."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True).expand_as(x)
    return (x * x.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True).expand_as(x)


def _blurred(x: Tensor) -> Tensor:
    """The mean of 3×3 pixels, the middle one five times as heavy; the border stays."""
    if min(x.shape[-2:]) < 3:
        return x
    kernel = torch.ones(x.shape[1], 1, 3, 3)
    kernel[..., 1, 1] = 5.0
    blurred = x.clone()
    blurred[..., 1:-1, 1:-1] = F.conv2d(x, kernel / 13, groups=x.shape[1])
    return blurred


def _posterised(x: Tensor, amount: Tensor) -> Tensor:
    """Up to four of a byte's eight bits dropped."""
    step = 2 ** (4 * amount.abs()).round()
    return ((x * 255).round() / step).floor() * step / 255


CHANGES = {
    "brightness": lambda x, a: x * (1 + 0.9 * a),
    "contrast": lambda x, a: torch.lerp(_grey(x).mean((1, 2, 3), keepdim=True).expand_as(x), x, 1 + 0.9 * a),
    "saturation": lambda x, a: torch.lerp(_grey(x), x, 1 + 0.9 * a),
    "sharpness": lambda x, a: torch.lerp(_blurred(x), x, 1 + 0.9 * a),
    "posterise": _posterised,
    "solarise": lambda x, a: torch.where(x > 1 - a.abs(), 1 - x, x),
}
