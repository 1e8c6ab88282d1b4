"""A small transform codec for bundled speech: the MDCT of overlapping blocks, rounded to 8 bits.

Axes: f blocks · k frequencies (`BLOCK`) · n samples of a block and its overlap (2 · `BLOCK`).

Rounding |c|^¾ instead of c hides the noise below the loud frequencies (as MP3 and AAC do). Most codes are then 0 or ±1,
and a general compressor packs them to about 2 bits per sample.
"""

import math
from functools import cache

import torch
from jaxtyping import Float, Int8
from torch import Tensor

BLOCK = 128  # samples, 16 ms at 8 kHz
POWER, STEP = 0.75, 0.05


def encode(samples: Float[Tensor, " n"]) -> Int8[Tensor, "f k"]:
    """The codes of a recording in [−1, 1]: one block more than its samples fill."""
    blocks = math.ceil(len(samples) / BLOCK)
    padded = samples.new_zeros((blocks + 2) * BLOCK)
    padded[BLOCK : BLOCK + len(samples)] = samples
    coefficients = padded.unfold(0, 2 * BLOCK, BLOCK) @ _mdct_basis()
    levels = coefficients.sign() * coefficients.abs().pow(POWER) / STEP
    return levels.round().clamp(-127, 127).to(torch.int8)


def decode(codes: Int8[Tensor, "f k"], length: int) -> Float[Tensor, " n"]:
    """The first `length` samples of a coded recording.

    >>> tone = 0.5 * torch.sin(torch.arange(1000) * 0.3)
    >>> error = decode(encode(tone), 1000) - tone
    >>> bool(error.norm() < 0.05 * tone.norm())  # 26 dB
    True
    """
    levels = codes.float() * STEP
    overlapping = (levels.sign() * levels.abs().pow(1 / POWER)) @ _mdct_basis().T
    first, second = overlapping.split(BLOCK, dim=1)
    return (second[:-1] + first[1:]).flatten()[:length]  # the aliasing of neighboring blocks cancels


@cache
def _mdct_basis() -> Float[Tensor, "n k"]:
    """The modified discrete cosine transform with a sine window; its transpose is its inverse after overlap-add."""
    n, k = torch.arange(2 * BLOCK)[:, None] + 0.5, torch.arange(BLOCK)[None] + 0.5
    window = torch.sin(math.pi / (2 * BLOCK) * n)
    return math.sqrt(2 / BLOCK) * window * torch.cos(math.pi / BLOCK * (n + BLOCK / 2) * k)
