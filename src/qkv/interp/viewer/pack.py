"""Numbers packed for a page: integers as planes of bytes, put one behind the other, deflated, and written in base64.

The first bytes of all numbers stand together, then the second, so that what is alike stands side by side and deflates
well. The page reads them with `unpack.js`.
"""

from __future__ import annotations

import base64
import zlib

import numpy as np
import torch
from torch import Tensor


class Blob:
    """Bytes that grow; each addition says where it stands: [offset, count, bytes a number]."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def integers(self, values: Tensor) -> list[int]:
        """Integers of 0 or more, in as many planes of bytes as the largest needs."""
        flat = values.detach().flatten().cpu().to(torch.int64).numpy().astype(np.uint32)
        planes = max((int(flat.max(initial=0)).bit_length() + 7) // 8, 1)
        split = flat.astype("<u4").view(np.uint8).reshape(-1, 4)
        return self._add(np.ascontiguousarray(split[:, :planes].T).tobytes(), flat.size, planes)

    def signed(self, values: Tensor) -> list[int]:
        """Integers from −32,768 to 32,767 in two planes."""
        flat = values.detach().flatten().cpu().to(torch.int16).numpy().astype("<i2")
        return self._add(np.ascontiguousarray(flat.view(np.uint8).reshape(-1, 2).T).tobytes(), flat.size, 2)

    def floats(self, values: Tensor) -> list[int]:
        """Float32 numbers as they are."""
        flat = values.detach().flatten().cpu().to(torch.float32).numpy().astype("<f4")
        return self._add(np.ascontiguousarray(flat.view(np.uint8).reshape(-1, 4).T).tobytes(), flat.size, 4)

    def bits(self, values: Tensor) -> list[int]:
        """Booleans, eight in a byte."""
        packed = np.packbits(values.detach().flatten().cpu().numpy(), bitorder="little")
        return self._add(packed.tobytes(), values.numel(), 0)

    def _add(self, content: bytes, count: int, planes: int) -> list[int]:
        where = [self._size, count, planes]
        self._parts.append(content)
        self._size += len(content)
        return where

    def text(self) -> str:
        """All of it, deflated, in base64."""
        return base64.b64encode(zlib.compress(b"".join(self._parts), 6)).decode("ascii")


def fixed(weights: Tensor, places: int) -> Tensor:
    """Weights as whole numbers of 10⁻ᵖˡᵃᶜᵉˢ, so that a page shows the very digits that rounding gives."""
    return (weights.double() * 10**places).round().to(torch.int64)


def squeezed(weights: Tensor, peak: float) -> Tensor:
    """Weights as numbers up to 127 on a root scale, where small ones keep their differences: 127 √(w / peak)."""
    return (weights / max(peak, 1e-30)).clamp(0, 1).sqrt().mul(127).round().to(torch.uint8)
