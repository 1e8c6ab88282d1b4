"""The ten digits as machines say them: voices that ship with qkv (`machine_voices/README.md`), for want of people's."""

from functools import cache
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from qkv.data.disguise import faster
from qkv.data.spoken import Spoken

RATE = 8000
LAW = 255.0  # µ of the law by which loudness is written in 8 bits (ITU G.711 has the same curve)


def machine_voices(rate: int = RATE) -> list[Spoken]:
    """Every digit by every voice; `speaker` names a group of voices, `take` counts the voices of a group.

    >>> voices = machine_voices()
    >>> len(voices), sorted({spoken.speaker for spoken in voices})
    (1440, ['espeak', 'espeak-accents', 'flite', 'pico'])
    """
    held = _held()
    ends = np.cumsum(held["lengths"], dtype=np.int64)
    pieces = np.split(held["sound"], ends[:-1])
    takes: dict[tuple[str, int], int] = {}
    found = []
    for piece, digit, speaker in zip(pieces, held["digits"].tolist(), held["speakers"].tolist(), strict=True):
        take = takes[speaker, digit] = takes.get((speaker, digit), -1) + 1
        samples = from_bytes(torch.from_numpy(piece))
        found.append(Spoken(samples if rate == RATE else faster(samples, RATE / rate), digit, speaker, take))
    return found


@cache
def _held() -> dict[str, np.ndarray]:
    with files("qkv.data.machine_voices").joinpath("voices.npz").open("rb") as file:
        held = np.load(file, allow_pickle=False)
        return {name: held[name] for name in ("sound", "lengths", "digits", "speakers")}


def to_bytes(samples: Tensor) -> Tensor:
    """Samples in −1 … 1 as 8 bits each: sign(x) · ln(1 + µ|x|) / ln(1 + µ), from 0 to 255."""
    loud = samples.sign() * (LAW * samples.abs()).log1p() / (torch.tensor(LAW)).log1p()
    return ((loud + 1) / 2 * 255).round().clamp(0, 255).to(torch.uint8)


def from_bytes(numbers: Tensor) -> Tensor:
    """The samples that 8 bits stand for.

    >>> from_bytes(to_bytes(torch.tensor([-1.0, 0.01, 0.5]))).mul(100).round().tolist()
    [-100.0, 1.0, 50.0]
    """
    loud = numbers.float() / 255 * 2 - 1
    return loud.sign() * ((loud.abs() * torch.tensor(LAW).log1p()).exp() - 1) / LAW
