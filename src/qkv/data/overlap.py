"""Find overlap between training and test data (leakage): equal items by hashing, near-identical images by distance."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

BLOCK = 500  # images that are compared at a time
TOLERANCE = 10.0  # of 255: a copy that was compressed, sharpened or shifted in color a little


@dataclass(frozen=True)
class Overlap:
    """Items of another part that are in the training data too.

    indices: their indices in the other part. total: number of items there. train_duplicates: items that the training
    data holds more than once.
    """

    indices: tuple[int, ...]
    total: int
    train_duplicates: int

    @property
    def fraction(self) -> float:
        return len(self.indices) / max(self.total, 1)

    def __str__(self) -> str:
        if not self.indices:
            return f"none of {self.total:,} items is in the training data"
        return (
            f"{len(self.indices):,} of {self.total:,} items ({self.fraction:.1%}) are also in the training data, first "
            f"item {self.indices[0]}"
        )


def find_overlap(train: Iterable[Any], other: Iterable[Any]) -> Overlap:
    """Find the items of `other` that are in `train`. Items are texts, tensors, numbers, or tuples of them.

    >>> print(find_overlap(["a", "b", "c"], ["d", "b"]))
    1 of 2 items (50.0%) are also in the training data, first item 1
    """
    train_hashes = [fingerprint(item) for item in train]
    distinct = set(train_hashes)
    other_hashes = [fingerprint(item) for item in other]
    indices = tuple(index for index, item in enumerate(other_hashes) if item in distinct)
    return Overlap(indices, len(other_hashes), len(train_hashes) - len(distinct))


def find_near_copies(
    train: UInt8[Tensor, "n c h w"], other: UInt8[Tensor, "m c h w"], *, tolerance: float = TOLERANCE
) -> dict[int, int]:
    """Find the images of `other` that are nearly one of `train`, or its mirror image: for each the nearest one.

    tolerance: root mean square of the difference of bytes, at most.

    Averaging blocks of pixels makes no difference larger, so small images are compared first, and only those within the
    tolerance in full.
    """
    found: dict[int, tuple[float, int]] = {}
    for pixels in (train, train.flip(-1)):
        small, limit = _shrink(pixels), 1.01 * tolerance + 0.1  # rounding
        norms = small.square().sum(-1)
        for begin in range(0, len(other), BLOCK):
            queries = _shrink(other[begin : begin + BLOCK])
            squares = norms + queries.square().sum(-1, keepdim=True) - 2 * queries @ small.mT
            near = (squares.clamp(min=0) / small.shape[-1]).sqrt() <= limit
            for row, column in near.nonzero().tolist():
                difference = other[begin + row].double() - pixels[column].double()
                distance = float(difference.square().mean().sqrt())
                if distance <= min(tolerance, found.get(begin + row, (tolerance, 0))[0]):
                    found[begin + row] = (distance, column)
    return {index: nearest for index, (_, nearest) in sorted(found.items())}


def _shrink(pixels: UInt8[Tensor, "n c h w"]) -> Tensor:
    """Means of 4×4 pixels (or of all, in smaller images), flat, about 0."""
    size = min(4, *pixels.shape[-2:])
    height, width = (side // size * size for side in pixels.shape[-2:])
    return F.avg_pool2d(pixels[..., :height, :width].float() - 128, size).flatten(1)


def fingerprint(item: Any) -> bytes:
    """A 16-byte hash that differs where items differ."""
    digest = hashlib.blake2b(digest_size=16)
    _update(digest, item)
    return digest.digest()


def _update(digest: Any, item: Any) -> None:
    if isinstance(item, tuple | list):
        digest.update(f"({len(item)}".encode())
        for part in item:
            _update(digest, part)
        return
    if isinstance(item, Tensor):
        kind, content = f"{item.dtype}{tuple(item.shape)}", item.detach().cpu().contiguous().numpy().tobytes()
    elif isinstance(item, bytes):
        kind, content = "bytes", item
    elif isinstance(item, str | int | float | bool) or item is None:
        kind, content = type(item).__name__, str(item).encode("utf-8")
    else:
        raise ValueError(f"items must be texts, bytes, tensors, numbers, or tuples of them, got {type(item).__name__}")
    digest.update(f"[{kind}:{len(content)}:".encode())
    digest.update(content)
