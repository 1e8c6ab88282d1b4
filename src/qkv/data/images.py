"""Pictures in memory, as bytes, with their classes; and how they are split.

Axes: n pictures · c channels · h rows · w columns.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from qkv.data.order import held_out


@dataclass(frozen=True)
class Images:
    """Pictures as bytes, the class of each, and what the classes are called."""

    pixels: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.pixels) != len(self.labels):
            raise ValueError(f"each picture has one label; got {len(self.pixels)} pictures, {len(self.labels)} labels")
        if not len(self.pixels):
            raise ValueError("a set of pictures has at least one; got none")
        outside = ((self.labels < 0) | (self.labels >= len(self.classes))).nonzero().flatten()
        if len(outside):
            first = int(outside[0])
            raise ValueError(
                f"picture {first} has the unknown label {int(self.labels[first])}; known are 0 … "
                f"{len(self.classes) - 1}"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, rows: Tensor) -> "Images":
        """These pictures only."""
        return Images(self.pixels[rows], self.labels[rows], self.classes)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, rows, columns."""
        c, h, w = self.pixels.shape[1:]
        return c, h, w


@dataclass(frozen=True)
class ImageSplits:
    """What is trained on, what is looked at on the way, and what is touched once, at the end.

    notes: what was guessed, cut or left out on the way; a command shows them.
    """

    train: Images
    validation: Images
    test: Images | None
    notes: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes

    def called(self, names: tuple[str, ...]) -> "ImageSplits":
        """The same with these names, if there are as many and the classes are only counted (0, 1, 2, …)."""
        if len(names) != len(self.classes) or self.classes != tuple(map(str, range(len(names)))):
            return self
        return replace(
            self,
            train=replace(self.train, classes=names),
            validation=replace(self.validation, classes=names),
            test=None if self.test is None else replace(self.test, classes=names),
        )


def split(
    parts: dict[str, Images], *, validation: float = 0.1, seed: int = 0, notes: tuple[str, ...] = ()
) -> ImageSplits:
    """Parts by name (train, and perhaps validation and test); those that are missing are cut from train by the seed."""
    train, said = parts["train"], list(notes)
    for name in ("test", "validation"):
        if name not in parts:
            kept, apart = held_out(len(train), validation, seed + (name == "test"))
            parts = {**parts, name: train.take(apart)}
            train = train.take(kept)
            said.append(f"{name}: {len(apart):,} pictures cut from the training data by seed {seed}")
    for name in ("validation", "test"):
        if parts[name].shape != train.shape:
            raise ValueError(f"pictures of train are {train.shape}, of {name} {parts[name].shape}; they must agree")
    return ImageSplits(train, parts["validation"], parts["test"], tuple(said))


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of each channel, of pixels from 0 to 1."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, images: Images) -> "Normalisation":
        """As the training data has them.

        >>> images = Images(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1), torch.tensor([0, 0]), ("a",))
        >>> Normalisation.of(images)
        Normalisation(mean=(0.5,), deviation=(0.5,))
        """
        means, deviations = [], []
        for channel in images.pixels.unbind(1):
            counts = torch.bincount(channel.flatten().int(), minlength=256).double()  # exact, and quick
            levels, total = torch.arange(256, dtype=torch.float64) / 255, counts.sum()
            mean = (counts @ levels) / total
            variance = (counts @ (levels - mean).square()) / total
            means.append(float(mean))
            deviations.append(float(variance.sqrt()) or 1.0)  # a channel of one colour stays as it is
        return cls(tuple(means), tuple(deviations))

    def __call__(self, pictures: Tensor) -> Tensor:
        """(…, c, h, w), from 0 to 1, to mean 0 and deviation 1."""
        mean, deviation = (pictures.new_tensor(values)[:, None, None] for values in (self.mean, self.deviation))
        return (pictures - mean) / deviation
