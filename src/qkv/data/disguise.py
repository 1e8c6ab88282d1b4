"""Voices in disguise: sounds and their bands changed by chance, so that few speakers and rooms teach as many would.

Axes: b batch · n samples · t frames · f bands.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.data.mel import Mel

QUICK, STEP = 256, 32  # what the lengths of Fourier transforms are multiples of
WAVES = 3  # how many waves over the bands a microphone's colour is made of


@dataclass(frozen=True)
class Disguise:
    """How far a sound may be changed; as it stands, not at all. What is drawn is drawn evenly.

    speed: the slowest and the fastest that a recording is played; pitch and length move with it.
    tempo: the slowest and the fastest that a batch is spoken: length moves, pitch does not.
    warp: by how much the frequencies of a string are stretched, least and most, as by a shorter or longer throat.
    gain: the softest and the loudest, in decibels, that a string is made. wobble: decibels between its recordings.
    colour: decibels of each of three waves over the bands, at most: a microphone's, for each string.
    hiss: the loudest noise, as a share of the string's own loudness (root mean square); most are softer.
    time_masks: stretches a second that are not heard, each up to time_width seconds long.
    band_masks: stretches of bands that are not heard in a string, each up to band_width of all bands.
    """

    speed: tuple[float, float] = (1.0, 1.0)
    tempo: tuple[float, float] = (1.0, 1.0)
    warp: tuple[float, float] = (1.0, 1.0)
    gain: tuple[float, float] = (0.0, 0.0)
    wobble: float = 0.0
    colour: float = 0.0
    hiss: float = 0.0
    time_masks: float = 0.0
    time_width: float = 0.1
    band_masks: int = 0
    band_width: float = 0.15

    def __post_init__(self) -> None:
        for name in ("speed", "tempo", "warp"):
            low, high = getattr(self, name)
            if not 0.5 <= low <= high <= 2:
                raise ValueError(f"{name} runs from less to more, between 0.5 and 2; got {low} and {high}")
        if not -100 <= self.gain[0] <= self.gain[1] <= 100:
            raise ValueError(f"gain runs from less to more decibels, between -100 and 100; got {self.gain}")
        for name in ("wobble", "colour", "hiss", "time_masks", "time_width", "band_masks"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} is 0 or more; got {getattr(self, name)}")
        if not 0 <= self.band_width <= 1:
            raise ValueError(f"band_width is a share of the bands, from 0 to 1; got {self.band_width}")

    def recording(self, samples: Float[Tensor, " n"], generator: torch.Generator) -> Float[Tensor, " m"]:
        """One recording at another speed and a little louder or softer than those beside it."""
        if self.speed != (1.0, 1.0):
            samples = faster(samples, between(*self.speed, generator))
        if self.wobble:
            samples = samples * 10 ** (between(-self.wobble, self.wobble, generator) / 20)
        return samples

    def string(self, samples: Float[Tensor, " n"], generator: torch.Generator) -> Float[Tensor, " n"]:
        """A string in noise, then louder or softer as a whole."""
        if self.hiss:
            loudness = float(samples.square().mean().sqrt())
            share = self.hiss * between(0.0, 1.0, generator) ** 2
            samples = samples + share * loudness * torch.randn(len(samples), generator=generator)
        if self.gain != (0.0, 0.0):
            samples = samples * 10 ** (between(*self.gain, generator) / 20)
        return samples

    def pace(self, mel: Mel, generator: torch.Generator) -> Mel:
        """The features of a batch: frames that lie wider apart make it faster."""
        return replace(mel, hop=mel.hop * between(*self.tempo, generator)) if self.tempo != (1.0, 1.0) else mel

    def stretch(self, generator: torch.Generator) -> float:
        """What the frequencies of a string are multiplied by."""
        return between(*self.warp, generator) if self.warp != (1.0, 1.0) else 1.0

    def tint(self, bands: int, generator: torch.Generator) -> Float[Tensor, " f"]:
        """What the energy of each band is multiplied by: 10^(Σⱼ aⱼ cos(πj(f + ½)/bands) / 10), j = 1 … 3."""
        if not self.colour:
            return torch.ones(bands)
        heights = self.colour * (2 * torch.rand(WAVES, generator=generator) - 1)
        places = (torch.arange(bands) + 0.5) / bands
        waves = (math.pi * torch.arange(1, WAVES + 1)[:, None] * places).cos()
        return 10 ** (heights @ waves / 10)

    def unheard(
        self, frames: int, bands: int, hop: float, generator: torch.Generator
    ) -> tuple[list[range], list[range]]:
        """The frames and the bands that are not heard, in stretches. hop: seconds from a frame to the next."""
        expected = self.time_masks * frames * hop
        count = int(expected) + int(between(0.0, 1.0, generator) < expected % 1) if expected else 0
        longest = min(round(self.time_width / hop), frames)
        widest = round(self.band_width * bands)
        return (
            [stretch_of(frames, longest, generator) for _ in range(count)],
            [stretch_of(bands, widest, generator) for _ in range(self.band_masks)],
        )


def faster(samples: Float[Tensor, " n"], speed: float) -> Float[Tensor, " m"]:
    """The sound played `speed` times as fast, in n / speed samples, rounded: a tone of f hertz becomes one of f·speed.

    Its spectrum is kept as it is and read with another number of samples; what does not fit below half the rate goes.
    Both numbers are filled up to ones that are quickly transformed, which moves the speed by 1 % at most from n = 1600.

    >>> len(faster(torch.zeros(900), 1.5))
    600
    """
    n = len(samples)
    whole = -(-n // QUICK) * QUICK
    other = max(round(whole / speed / STEP), 1) * STEP
    if other == whole:
        return samples
    heard = torch.fft.irfft(torch.fft.rfft(samples, n=whole), n=other) * (other / whole)
    return heard[: max(round(n / speed), 1)]


def stretch_of(size: int, longest: int, generator: torch.Generator) -> range:
    """A stretch of 0 … longest places, anywhere in `size` of them."""
    length = int(torch.randint(0, longest + 1, (), generator=generator))
    start = int(torch.randint(0, size - length + 1, (), generator=generator))
    return range(start, start + length)


def between(low: float, high: float, generator: torch.Generator) -> float:
    """A number drawn evenly."""
    return low + (high - low) * float(torch.rand((), generator=generator))
