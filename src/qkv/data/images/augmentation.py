"""Image augmentation on batches: random crop, flip, RandAugment, random erasing, mixup and CutMix.

Axes: b batch · c channels · h rows · w columns · k classes.

All randomness comes from a generator, so a batch can be made again. RandAugment uses a subset of the published
operations, each a tensor operation on all images at once; histogram equalization and inversion are left out.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Generator, Tensor

Pixels = Shaped[Tensor, "b c h w"]
Mix = Literal["none", "cutmix", "mixup", "either"]
GEOMETRIC = ("rotate", "shear-x", "shear-y", "translate-x", "translate-y")
COLOR = ("brightness", "contrast", "saturation", "sharpness", "posterize", "solarize")
OPERATIONS = ("identity", *GEOMETRIC, *COLOR)


@dataclass(frozen=True)
class ImageAugment:
    """Augmentation of training images.

    crop: pixels of black padding before a random crop of the original size; 0 for none.
    flip: mirror half of the images horizontally.
    rand_augment: RandAugment's N, the number of operations per image. magnitude: its M, from 0 to 10.
    random_erasing: probability of blanking a rectangle of an image.
    mix: CutMix, mixup, either (one of the two for each batch) or none. mix_alpha: α of their Beta(α, α).
    """

    crop: int = 0
    flip: bool = False
    rand_augment: int = 0
    magnitude: float = 5.0
    random_erasing: float = 0.0
    mix: Mix = "none"
    mix_alpha: float = 1.0

    def __post_init__(self) -> None:
        for name in ("crop", "rand_augment"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not 0 <= self.magnitude <= 10:
            raise ValueError(f"magnitude must be in [0, 10], got {self.magnitude}")
        if not 0 <= self.random_erasing <= 1:
            raise ValueError(f"random_erasing must be a probability in [0, 1], got {self.random_erasing}")
        if self.mix_alpha <= 0:
            raise ValueError(f"mix_alpha must be above 0, got {self.mix_alpha}")
        if self.mix not in ("none", "cutmix", "mixup", "either"):
            raise ValueError(f"mix must be none, cutmix, mixup or either, got {self.mix!r}")

    def transform(self, pixels: Pixels, generator: Generator) -> Pixels:
        """Augment bytes: crop, flip, RandAugment."""
        if self.crop:
            pixels = random_crop(pixels, self.crop, generator)
        if self.flip:
            pixels = random_flip(pixels, generator)
        if self.rand_augment:
            pixels = rand_augment(pixels, self.rand_augment, self.magnitude, generator)
        return pixels

    def erase_and_mix(
        self, images: Float[Tensor, "b c h w"], targets: Int64[Tensor, " b"], classes: int, generator: Generator
    ) -> tuple[Float[Tensor, "b c h w"], Tensor]:
        """Augment normalized images: random erasing, and mixing, which turns targets into class probabilities."""
        if self.random_erasing:
            images = random_erase(images, self.random_erasing, generator)
        if self.mix == "none":
            return images, targets
        use_cutmix = self.mix == "cutmix"
        if self.mix == "either":
            use_cutmix = float(torch.rand((), generator=generator)) < 0.5
        return (cutmix if use_cutmix else mixup)(images, targets, classes, self.mix_alpha, generator)


def random_crop(pixels: Pixels, padding: int, generator: Generator) -> Pixels:
    """Pad images with `padding` black pixels on each side and cut out a random window of the original size."""
    b, _, h, w = pixels.shape
    top, left = torch.randint(0, 2 * padding + 1, (2, b), generator=generator)
    padded = F.pad(pixels, (padding,) * 4)
    windows = padded.unfold(2, h, 1).unfold(3, w, 1)  # a view: (b, c, top, left, h, w)
    return windows[torch.arange(b), :, top, left]


def random_flip(pixels: Pixels, generator: Generator) -> Pixels:
    """Mirror half of the images left to right."""
    mirrored = torch.rand(len(pixels), generator=generator) < 0.5
    return torch.where(mirrored[:, None, None, None], pixels.flip(-1), pixels)


def random_erase(
    images: Float[Tensor, "b c h w"],
    probability: float,
    generator: Generator,
    *,
    area: tuple[float, float] = (0.02, 0.33),
    ratio: float = 3.3,
) -> Float[Tensor, "b c h w"]:
    """Random erasing: set a rectangle to 0, the mean of normalized images, with a probability per image.

    Its fraction of the image is drawn from `area`, its aspect ratio from 1/ratio to ratio. Departure from the paper,
    which draws again where the rectangle does not fit: here it is clipped to the image.
    """
    b, _, h, w = images.shape
    hit, fraction, aspect, y, x = torch.rand(5, b, generator=generator)
    size = (area[0] + (area[1] - area[0]) * fraction) * (h * w)
    aspect = torch.tensor(ratio).log().mul(2 * aspect - 1).exp()
    height, width = (size * aspect).sqrt().round().clamp(1, h), (size / aspect).sqrt().round().clamp(1, w)
    top, left = (y * (h - height + 1)).floor(), (x * (w - width + 1)).floor()
    inside = _rectangle_mask(top, left, height, width, h, w) & (hit < probability)[:, None, None]
    return images.masked_fill(inside[:, None], 0.0)


def mixup(
    images: Float[Tensor, "b c h w"], targets: Int64[Tensor, " b"], classes: int, alpha: float, generator: Generator
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b k"]]:
    """mixup: λ·image + (1 − λ)·another image of the batch, targets likewise; one λ per batch from Beta(α, α)."""
    weight = sample_beta(alpha, generator)
    other = torch.randperm(len(images), generator=generator)
    return images.lerp(images[other], 1 - weight), _mix_targets(targets, other, weight, classes)


def cutmix(
    images: Float[Tensor, "b c h w"], targets: Int64[Tensor, " b"], classes: int, alpha: float, generator: Generator
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b k"]]:
    """CutMix: paste a rectangle from another image of the batch; targets are mixed by the pasted area.

    One rectangle per batch, as published: area 1 − λ of the image, λ from Beta(α, α), its center anywhere.
    """
    h, w = images.shape[-2:]
    side = (1 - sample_beta(alpha, generator)) ** 0.5
    height, width = int(h * side), int(w * side)
    y = int(torch.randint(0, h, (), generator=generator))
    x = int(torch.randint(0, w, (), generator=generator))
    top, left = max(y - height // 2, 0), max(x - width // 2, 0)
    bottom, right = min(y - height // 2 + height, h), min(x - width // 2 + width, w)
    other = torch.randperm(len(images), generator=generator)
    pasted = images.clone()
    pasted[..., top:bottom, left:right] = images[other][..., top:bottom, left:right]
    weight = 1 - max(bottom - top, 0) * max(right - left, 0) / (h * w)
    return pasted, _mix_targets(targets, other, weight, classes)


def _mix_targets(
    targets: Int64[Tensor, " b"], other: Int64[Tensor, " b"], weight: float, classes: int
) -> Float[Tensor, "b k"]:
    """Class probabilities: `weight` on an image's own class, the rest on the other's."""
    own = F.one_hot(targets, classes).to(torch.float32)
    return weight * own + (1 - weight) * own[other]


def sample_beta(alpha: float, generator: Generator) -> float:
    """Draw from Beta(α, α) as a ratio of two Gamma draws, because torch.distributions takes no generator."""
    first, second = torch._standard_gamma(torch.full((2,), alpha, dtype=torch.float64), generator=generator).tolist()
    return first / (first + second) if first + second > 0 else 0.5


def _rectangle_mask(top: Tensor, left: Tensor, height: Tensor, width: Tensor, h: int, w: int) -> Bool[Tensor, "b h w"]:
    """True inside each image's rectangle."""
    rows, columns = torch.arange(h), torch.arange(w)
    inside_rows = (rows >= top[:, None]) & (rows < (top + height)[:, None])
    inside_columns = (columns >= left[:, None]) & (columns < (left + width)[:, None])
    return inside_rows[:, :, None] & inside_columns[:, None, :]


def rand_augment(pixels: Pixels, operations: int, magnitude: float, generator: Generator) -> Pixels:
    """RandAugment on bytes: `operations` random OPERATIONS per image, of `magnitude` 0 to 10, with random sign."""
    x = pixels.to(torch.float32) / 255
    for _ in range(operations):
        chosen = torch.randint(0, len(OPERATIONS), (len(x),), generator=generator)
        sign = torch.randint(0, 2, (len(x),), generator=generator) * 2 - 1
        amount = sign * (magnitude / 10)
        rows = ((chosen >= 1) & (chosen <= len(GEOMETRIC))).nonzero().flatten()
        if len(rows):
            x[rows] = _affine(x[rows], chosen[rows], amount[rows])
        for name in COLOR:
            rows = (chosen == OPERATIONS.index(name)).nonzero().flatten()
            if len(rows):
                x[rows] = COLOR_OPERATIONS[name](x[rows], amount[rows, None, None, None]).clamp(0, 1)
    return (x * 255).round().to(torch.uint8)


def _affine(x: Float[Tensor, "b c h w"], chosen: Tensor, amount: Tensor) -> Float[Tensor, "b c h w"]:
    """Rotate up to 30°, shear up to 0.3 or translate up to 0.45 of the width, as one sampling; borders become black."""
    angle = torch.where(chosen == OPERATIONS.index("rotate"), amount * (torch.pi / 6), 0.0)
    cos, sin = angle.cos(), angle.sin()
    shift = {
        name: torch.where(chosen == OPERATIONS.index(name), amount * most, 0.0)
        for name, most in (("shear-x", 0.3), ("shear-y", 0.3), ("translate-x", 0.9), ("translate-y", 0.9))
    }
    h, w = x.shape[-2:]
    rows = ((2 * torch.arange(h) + 1) / h - 1)[:, None]  # pixel centers, from −1 to 1
    columns = (2 * torch.arange(w) + 1) / w - 1
    terms = (cos, shift["shear-x"] - sin, shift["translate-x"], shift["shear-y"] + sin, cos, shift["translate-y"])
    xx, xy, dx, yx, yy, dy = (term[:, None, None] for term in terms)
    grid = torch.stack((xx * columns + xy * rows + dx, yx * columns + yy * rows + dy), -1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _grayscale(x: Tensor) -> Tensor:
    """Luma, in every channel."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True).expand_as(x)
    return (x * x.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True).expand_as(x)


def _blur(x: Tensor) -> Tensor:
    """Weighted mean of 3×3 pixels, the center with weight 5; border pixels stay."""
    if min(x.shape[-2:]) < 3:
        return x
    kernel = torch.ones(x.shape[1], 1, 3, 3)
    kernel[..., 1, 1] = 5.0
    blurred = x.clone()
    blurred[..., 1:-1, 1:-1] = F.conv2d(x, kernel / 13, groups=x.shape[1])
    return blurred


def _posterize(x: Tensor, amount: Tensor) -> Tensor:
    """Drop up to four of a byte's eight bits."""
    step = 2 ** (4 * amount.abs()).round()
    return ((x * 255).round() / step).floor() * step / 255


COLOR_OPERATIONS = {
    "brightness": lambda x, a: x * (1 + 0.9 * a),
    "contrast": lambda x, a: torch.lerp(_grayscale(x).mean((1, 2, 3), keepdim=True).expand_as(x), x, 1 + 0.9 * a),
    "saturation": lambda x, a: torch.lerp(_grayscale(x), x, 1 + 0.9 * a),
    "sharpness": lambda x, a: torch.lerp(_blur(x), x, 1 + 0.9 * a),
    "posterize": _posterize,
    "solarize": lambda x, a: torch.where(x > 1 - a.abs(), 1 - x, x),
}
