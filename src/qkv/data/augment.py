"""Pictures changed at random, a batch at a time: each operation is a few tensor operations for all pictures together.

Axes: b batch · c channels · h rows · w columns · k classes.

Randomness comes from a generator alone, so that a batch can be made again.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Generator, Tensor

from qkv.data.rand_augment import rand_augment

Pictures = Shaped[Tensor, "b c h w"]
Mix = Literal["none", "cutmix", "mixup", "either"]


@dataclass(frozen=True)
class Augment:
    """How training pictures are changed.

    crop: pixels of black border from which a picture of the same size is cut again; 0 leaves it.
    flip: whether half of the pictures are mirrored.
    operations, strength: RandAugment's two numbers: how many changes for each picture, and how strong, 0 to 10.
    erase: the chance that a rectangle of a picture is blanked.
    mix: CutMix, MixUp, either (one of the two for each batch), or none; alpha is the Beta distribution's number.
    """

    crop: int = 0
    flip: bool = False
    operations: int = 0
    strength: float = 5.0
    erase: float = 0.0
    mix: Mix = "none"
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if self.crop < 0 or self.operations < 0 or not 0 <= self.strength <= 10:
            raise ValueError(
                f"crop and operations are 0 or more and strength is from 0 to 10; got {self.crop}, {self.operations} "
                f"and {self.strength}"
            )
        if not 0 <= self.erase <= 1 or self.alpha <= 0:
            raise ValueError(f"erase is a chance and alpha above 0; got {self.erase} and {self.alpha}")
        if self.mix not in ("none", "cutmix", "mixup", "either"):
            raise ValueError(f"mix is none, cutmix, mixup or either; got {self.mix!r}")

    def shapes(self, pictures: Pictures, generator: Generator) -> Pictures:
        """What is done to bytes: crop, flip, RandAugment."""
        if self.crop:
            pictures = random_crop(pictures, self.crop, generator)
        if self.flip:
            pictures = random_flip(pictures, generator)
        if self.operations:
            pictures = rand_augment(pictures, self.operations, self.strength, generator)
        return pictures

    def mixes(
        self, pictures: Float[Tensor, "b c h w"], targets: Int64[Tensor, " b"], classes: int, generator: Generator
    ) -> tuple[Float[Tensor, "b c h w"], Tensor]:
        """What is done to normalised pictures: erasing, and mixing, which makes the targets shares of classes."""
        if self.erase:
            pictures = random_erase(pictures, self.erase, generator)
        if self.mix == "none":
            return pictures, targets
        kind = self.mix
        if kind == "either":
            kind = "cutmix" if float(torch.rand((), generator=generator)) < 0.5 else "mixup"
        return (cutmix if kind == "cutmix" else mixup)(pictures, targets, classes, self.alpha, generator)


def random_crop(pictures: Pictures, border: int, generator: Generator) -> Pictures:
    """A picture of the same size cut at random out of the one with `border` black pixels around it."""
    b, _, h, w = pictures.shape
    top, left = torch.randint(0, 2 * border + 1, (2, b), generator=generator)
    wide = F.pad(pictures, (border,) * 4)
    everywhere = wide.unfold(2, h, 1).unfold(3, w, 1)  # a view: (b, c, where it starts ↓, →, h, w)
    return everywhere[torch.arange(b), :, top, left]


def random_flip(pictures: Pictures, generator: Generator) -> Pictures:
    """Half of the pictures mirrored left to right."""
    mirrored = torch.rand(len(pictures), generator=generator) < 0.5
    return torch.where(mirrored[:, None, None, None], pictures.flip(-1), pictures)


def random_erase(
    pictures: Float[Tensor, "b c h w"],
    chance: float,
    generator: Generator,
    *,
    area: tuple[float, float] = (0.02, 0.33),
    ratio: float = 3.3,
) -> Float[Tensor, "b c h w"]:
    """A rectangle of `chance` of the pictures set to 0, the mean of normalised ones.

    Its share of the picture is drawn from `area`, its height to width from 1/ratio to ratio. (The paper tries again
    where it does not fit; here it is clipped to the picture, which draws no more numbers for one picture than another.)
    """
    b, _, h, w = pictures.shape
    hit, share, aspect, y, x = torch.rand(5, b, generator=generator)
    size = (area[0] + (area[1] - area[0]) * share) * (h * w)
    aspect = torch.tensor(ratio).log().mul(2 * aspect - 1).exp()
    tall, wide = (size * aspect).sqrt().round().clamp(1, h), (size / aspect).sqrt().round().clamp(1, w)
    top, left = (y * (h - tall + 1)).floor(), (x * (w - wide + 1)).floor()
    inside = rectangles(top, left, tall, wide, h, w) & (hit < chance)[:, None, None]
    return pictures.masked_fill(inside[:, None], 0.0)


def mixup(
    pictures: Float[Tensor, "b c h w"], targets: Int64[Tensor, " b"], classes: int, alpha: float, generator: Generator
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b k"]]:
    """λ·picture + (1 − λ)·another of the batch, and the targets likewise; λ from Beta(α, α), one for the batch."""
    share = beta(alpha, generator)
    other = torch.randperm(len(pictures), generator=generator)
    return pictures.lerp(pictures[other], 1 - share), shared_targets(targets, other, share, classes)


def cutmix(
    pictures: Float[Tensor, "b c h w"], targets: Int64[Tensor, " b"], classes: int, alpha: float, generator: Generator
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b k"]]:
    """A rectangle pasted from another picture of the batch; targets are shared by area, as it was clipped.

    One rectangle for the batch, as published: area 1 − λ of the picture, λ from Beta(α, α), its centre anywhere.
    """
    h, w = pictures.shape[-2:]
    side = (1 - beta(alpha, generator)) ** 0.5
    tall, wide = int(h * side), int(w * side)
    y = int(torch.randint(0, h, (), generator=generator))
    x = int(torch.randint(0, w, (), generator=generator))
    top, left = max(y - tall // 2, 0), max(x - wide // 2, 0)
    bottom, right = min(y - tall // 2 + tall, h), min(x - wide // 2 + wide, w)
    other = torch.randperm(len(pictures), generator=generator)
    pasted = pictures.clone()
    pasted[..., top:bottom, left:right] = pictures[other][..., top:bottom, left:right]
    share = 1 - max(bottom - top, 0) * max(right - left, 0) / (h * w)
    return pasted, shared_targets(targets, other, share, classes)


def shared_targets(
    targets: Int64[Tensor, " b"], other: Int64[Tensor, " b"], share: float, classes: int
) -> Float[Tensor, "b k"]:
    """`share` of each one's own class, the rest of the other's."""
    own = F.one_hot(targets, classes).to(torch.float32)
    return share * own + (1 - share) * own[other]


def beta(alpha: float, generator: Generator) -> float:
    """A number from Beta(α, α). (torch's distributions take no generator: two Gamma numbers do it.)"""
    first, second = torch._standard_gamma(torch.full((2,), alpha, dtype=torch.float64), generator=generator).tolist()
    return first / (first + second) if first + second > 0 else 0.5


def rectangles(top: Tensor, left: Tensor, tall: Tensor, wide: Tensor, h: int, w: int) -> Bool[Tensor, "b h w"]:
    """Where each picture's rectangle is."""
    rows, columns = torch.arange(h), torch.arange(w)
    inside_rows = (rows >= top[:, None]) & (rows < (top + tall)[:, None])
    inside_columns = (columns >= left[:, None]) & (columns < (left + wide)[:, None])
    return inside_rows[:, :, None] & inside_columns[:, None, :]
