"""Labeled images in memory: train/validation/test splits, normalization, and batches with augmentation.

Axes: n images · b batch · c channels · h rows · w columns · k classes.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from qkv.data.batches import Batch, batch_indices, epoch_order, generator_for, split_indices
from qkv.data.images.augmentation import ImageAugment
from qkv.data.overlap import find_overlap

AUGMENT_STREAM, PATCH_STREAM = 3, 4  # of randomness


@dataclass(frozen=True)
class Images:
    """Images as bytes, the label of each, and the names of the classes."""

    pixels: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.pixels) != len(self.labels):
            raise ValueError(f"expected one label per image, got {len(self.pixels)} images, {len(self.labels)} labels")
        if not len(self.pixels):
            raise ValueError("expected at least one image, got none")
        unknown = ((self.labels < 0) | (self.labels >= len(self.classes))).nonzero().flatten()
        if len(unknown):
            first = int(unknown[0])
            raise ValueError(
                f"image {first} has the unknown label {int(self.labels[first])}; labels are 0 … {len(self.classes) - 1}"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, indices: Tensor) -> "Images":
        """The images at these indices."""
        return Images(self.pixels[indices], self.labels[indices], self.classes)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, rows, columns) of an image."""
        c, h, w = self.pixels.shape[1:]
        return c, h, w


@dataclass(frozen=True)
class ImageSplits:
    """Images for training, for validation during training, and for one test at the end.

    validation: without a validation split these are the test images, and `validates_on_test` is true.

    notes: what was guessed, split or skipped while loading; commands print them.
    """

    train: Images
    validation: Images
    test: Images | None
    notes: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes

    @property
    def validates_on_test(self) -> bool:
        """Whether there is no validation split: the test images are evaluated during training."""
        return self.test is not None and self.validation.pixels is self.test.pixels

    def with_class_names(self, names: tuple[str, ...]) -> "ImageSplits":
        """The same with these names, if their number fits and the classes are only numbered (0, 1, 2, …)."""
        if len(names) != len(self.classes) or self.classes != tuple(map(str, range(len(names)))):
            return self
        return replace(
            self,
            train=replace(self.train, classes=names),
            validation=replace(self.validation, classes=names),
            test=None if self.test is None else replace(self.test, classes=names),
        )


def split_images(
    parts: dict[str, Images], *, validation: float = 0.1, seed: int = 0, notes: tuple[str, ...] = ()
) -> ImageSplits:
    """Complete parts by name ("train", perhaps "validation" and "test"): missing ones are split off the training data.

    validation: the fraction of the training images for each missing part; `seed` chooses them. With 0 all images are
        for training and the test images stand for validation.
    """
    train, all_notes = parts["train"], list(notes)
    if validation == 0 and "validation" not in parts:
        if "test" not in parts:
            raise ValueError("validation=0 evaluates the test images during training, but the data has no test part")
        parts = {**parts, "validation": parts["test"]}
        all_notes.append(f"validation: none; all {len(train):,} training images are trained on")
    for name in ("test", "validation"):
        if name not in parts:
            kept, held_out = split_indices(len(train), validation, seed + (name == "test"))
            kept, held_out, moved = keep_copies_together(train.pixels, kept, held_out)
            parts = {**parts, name: train.take(held_out)}
            train = train.take(kept)
            copies = f"; {moved} more are copies of training images and stay there" if moved else ""
            all_notes.append(f"{name}: {len(held_out):,} images split off the training data with seed {seed}{copies}")
    for name in ("validation", "test"):
        if parts[name].shape != train.shape:
            raise ValueError(f"images must have one shape, got {train.shape} in train, {parts[name].shape} in {name}")
    return ImageSplits(train, parts["validation"], parts["test"], tuple(all_notes))


def keep_copies_together(pixels: Tensor, kept: Tensor, held_out: Tensor) -> tuple[Tensor, Tensor, int]:
    """Move held-out images that are identical to a training image back to training; also returns how many.

    If all of them are, nothing is moved.
    """
    overlap = find_overlap((pixels[row] for row in kept), (pixels[row] for row in held_out))
    if not overlap.indices or len(overlap.indices) == len(held_out):
        return kept, held_out, 0
    copies = torch.zeros(len(held_out), dtype=torch.bool)
    copies[list(overlap.indices)] = True
    return torch.cat((kept, held_out[copies])).sort().values, held_out[~copies], int(copies.sum())


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of each channel, for pixels in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def from_images(cls, images: Images) -> "Normalization":
        """Compute them over training images.

        >>> images = Images(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1), torch.tensor([0, 0]), ("a",))
        >>> Normalization.from_images(images)
        Normalization(mean=(0.5,), std=(0.5,))
        """
        means, stds = [], []
        for channel in images.pixels.unbind(1):
            counts = torch.bincount(channel.flatten().int(), minlength=256).double()  # exact, and fast
            levels, total = torch.arange(256, dtype=torch.float64) / 255, counts.sum()
            mean = (counts @ levels) / total
            variance = (counts @ (levels - mean).square()) / total
            means.append(float(mean))
            stds.append(float(variance.sqrt()) or 1.0)  # a constant channel is not scaled
        return cls(tuple(means), tuple(stds))

    def __call__(self, images: Tensor) -> Tensor:
        """Normalize images (…, c, h, w) in [0, 1] to mean 0 and standard deviation 1."""
        mean, std = (images.new_tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (images - mean) / std


class ImageBatches:
    """Batches of `images` (b, c, h, w) float32 and `targets`: labels (b,), or class probabilities (b, k) after mixing.

    The order follows from (seed, epoch), the augmentation from (seed, epoch, index).

    Args:
        batch_size: images per batch; the last batch of an epoch is smaller, or left out with drop_last.
        normalization: of the training data, for every part; computed from `images` if not given.
        augment: data augmentation; None for validation and test.
    """

    def __init__(
        self,
        images: Images,
        batch_size: int,
        *,
        seed: int = 0,
        normalization: Normalization | None = None,
        augment: ImageAugment | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        if batch_size < 1 or (drop_last and len(images) < batch_size):
            raise ValueError(f"batch_size must be from 1 to the number of images, {len(images)}, got {batch_size}")
        self.images, self.batch_size, self.seed = images, batch_size, seed
        self.normalization = Normalization.from_images(images) if normalization is None else normalization
        self.augment, self.shuffle, self.drop_last = augment, shuffle, drop_last

    def num_batches(self, epoch: int) -> int:
        """Number of batches in the epoch."""
        whole, rest = divmod(len(self.images), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at that index."""
        order = epoch_order(len(self.images), self.seed, epoch, shuffle=self.shuffle)
        rows = batch_indices(order, self.batch_size, index)
        pixels, targets = self.images.pixels[rows], self.images.labels[rows]
        if self.augment is None:
            return {"images": self.normalization(pixels.to(torch.float32) / 255), "targets": targets}
        generator = generator_for(self.seed, AUGMENT_STREAM, epoch, index)
        pixels = self.augment.transform(pixels, generator)
        images = self.normalization(pixels.to(torch.float32) / 255)
        images, targets = self.augment.erase_and_mix(images, targets, len(self.images.classes), generator)
        return {"images": images, "targets": targets}


class PatchDropout:
    """Batches of which a share shows the model a random part of the patches only: `patches` (b, kept), by number.

    A step on half of the patches costs less than half, and no two epochs show the same image. As PatchDropout (Liu et
    al., 2022), except that all images of a batch keep the same patches: attention then needs one bias for all of them.
    Which batches and patches follows from (seed, epoch, index).

    Args:
        num_patches: of an image.
        dropped: share of the patches that is left out.
        share: of the batches; the others show all patches, as evaluation does.
    """

    def __init__(self, batches: ImageBatches, num_patches: int, dropped: float, share: float) -> None:
        if not 0 <= dropped < 1 or not 0 <= share <= 1:
            raise ValueError(
                f"patch_dropout must be in [0, 1) and patch_dropout_batches in [0, 1], got {dropped} and {share}"
            )
        self.batches, self.num_patches, self.share = batches, num_patches, share
        self.kept = max(round((1 - dropped) * num_patches), 1)

    def num_batches(self, epoch: int) -> int:
        """Number of batches in the epoch."""
        return self.batches.num_batches(epoch)

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at that index."""
        batch = self.batches.batch(epoch, index)
        generator = generator_for(self.batches.seed, PATCH_STREAM, epoch, index)
        if self.kept == self.num_patches or float(torch.rand((), generator=generator)) >= self.share:
            return batch
        order = torch.randperm(self.num_patches, generator=generator)
        return {**batch, "patches": order[: self.kept].sort().values.repeat(len(batch["targets"]), 1)}
