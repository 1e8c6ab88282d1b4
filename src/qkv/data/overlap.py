"""Whether something that was trained on stands in another part of the data: found by hashes of the items."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Overlap:
    """Which items of the other part stand in the training data too.

    places: their numbers in the other part. total: how many items that has. repeated: items that stand twice in the
    training data itself.
    """

    places: tuple[int, ...]
    total: int
    repeated: int

    @property
    def share(self) -> float:
        return len(self.places) / max(self.total, 1)

    def __str__(self) -> str:
        if not self.places:
            return f"none of {self.total:,} items stands in the training data"
        return (
            f"{len(self.places):,} of {self.total:,} items ({self.share:.1%}) stand in the training data too, first "
            f"item {self.places[0]}"
        )


def overlap(train: Iterable[Any], other: Iterable[Any]) -> Overlap:
    """What two parts of a data set share. Items are texts, tensors, numbers, or tuples of them.

    >>> print(overlap(["a", "b", "c"], ["d", "b"]))
    1 of 2 items (50.0%) stand in the training data too, first item 1
    """
    seen: set[bytes] = set()
    count = 0
    for item in train:
        seen.add(fingerprint(item))
        count += 1
    total, places = 0, []
    for number, item in enumerate(other):
        total += 1
        if fingerprint(item) in seen:
            places.append(number)
    return Overlap(tuple(places), total, count - len(seen))


def fingerprint(item: Any) -> bytes:
    """16 bytes that differ where items differ."""
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest, item)
    return digest.digest()


def _feed(digest: Any, item: Any) -> None:
    if isinstance(item, tuple | list):
        digest.update(f"({len(item)}".encode())
        for part in item:
            _feed(digest, part)
        return
    if isinstance(item, Tensor):
        described, content = f"{item.dtype}{tuple(item.shape)}", item.detach().cpu().contiguous().numpy().tobytes()
    elif isinstance(item, bytes):
        described, content = "bytes", item
    elif isinstance(item, str | int | float | bool) or item is None:
        described, content = type(item).__name__, str(item).encode("utf-8")
    else:
        raise ValueError(f"items are texts, bytes, tensors, numbers, or tuples of them; got {type(item).__name__}")
    digest.update(f"[{described}:{len(content)}:".encode())
    digest.update(content)
