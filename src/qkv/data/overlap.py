"""Find overlap between training and test data (leakage) by hashing the items."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


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
