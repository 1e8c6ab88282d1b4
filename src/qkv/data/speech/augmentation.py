"""Speech augmentation: speed, tempo, VTLP, gain, equalizer, noise, and SpecAugment's time and frequency masks.

Axes: n samples · f mel bands.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.data.speech.mel import Mel

FFT_MULTIPLE, OUTPUT_MULTIPLE = 256, 32  # lengths that are fast to transform
EQUALIZER_WAVES = 3


@dataclass(frozen=True)
class SpeechAugment:
    """Ranges of augmentation, drawn uniformly; the defaults change nothing. A string is several recordings in a row.

    speed: slowest and fastest playback of a recording; pitch and length change.
    tempo: slowest and fastest tempo of a batch; length changes, pitch does not.
    vtlp: vocal tract length perturbation: the least and greatest factor on the frequencies of a string.
    gain: the softest and loudest, in decibels, for a string. gain_jitter: decibels between its recordings.
    equalizer: decibels, at most, of each of three cosine waves over the mel bands of a string, as of a microphone.
    noise: the loudest white noise, relative to the string's root mean square; most draws are softer.
    time_masks: SpecAugment's time masks per second, each up to time_mask_width seconds.
    freq_masks: SpecAugment's frequency masks per string, each up to freq_mask_width of all bands.
    """

    speed: tuple[float, float] = (1.0, 1.0)
    tempo: tuple[float, float] = (1.0, 1.0)
    vtlp: tuple[float, float] = (1.0, 1.0)
    gain: tuple[float, float] = (0.0, 0.0)
    gain_jitter: float = 0.0
    equalizer: float = 0.0
    noise: float = 0.0
    time_masks: float = 0.0
    time_mask_width: float = 0.1
    freq_masks: int = 0
    freq_mask_width: float = 0.15

    def __post_init__(self) -> None:
        for name in ("speed", "tempo", "vtlp"):
            low, high = getattr(self, name)
            if not 0.5 <= low <= high <= 2:
                raise ValueError(f"{name} must be (low, high) with 0.5 ≤ low ≤ high ≤ 2, got {low} and {high}")
        if not -100 <= self.gain[0] <= self.gain[1] <= 100:
            raise ValueError(f"gain must be (low, high) in decibels with -100 ≤ low ≤ high ≤ 100, got {self.gain}")
        for name in ("gain_jitter", "equalizer", "noise", "time_masks", "time_mask_width", "freq_masks"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not 0 <= self.freq_mask_width <= 1:
            raise ValueError(f"freq_mask_width must be a fraction of the bands in [0, 1], got {self.freq_mask_width}")

    def augment_recording(self, samples: Float[Tensor, " n"], generator: torch.Generator) -> Float[Tensor, " m"]:
        """Change the speed of one recording, and its gain relative to its neighbors."""
        if self.speed != (1.0, 1.0):
            samples = change_speed(samples, uniform(*self.speed, generator))
        if self.gain_jitter:
            samples = samples * 10 ** (uniform(-self.gain_jitter, self.gain_jitter, generator) / 20)
        return samples

    def augment_string(self, samples: Float[Tensor, " n"], generator: torch.Generator) -> Float[Tensor, " n"]:
        """Add noise to a string, then change its gain as a whole."""
        if self.noise:
            level = self.noise * root_mean_square(samples) * uniform(0.0, 1.0, generator) ** 2
            samples = samples + level * torch.randn(len(samples), generator=generator)
        if self.gain != (0.0, 0.0):
            samples = samples * 10 ** (uniform(*self.gain, generator) / 20)
        return samples

    def sample_tempo(self, mel: Mel, generator: torch.Generator) -> Mel:
        """The features of a batch at a random tempo: a larger hop makes speech faster."""
        return mel if self.tempo == (1.0, 1.0) else replace(mel, hop=mel.hop * uniform(*self.tempo, generator))

    def sample_warp(self, generator: torch.Generator) -> float:
        """A random VTLP factor for a string."""
        return 1.0 if self.vtlp == (1.0, 1.0) else uniform(*self.vtlp, generator)

    def sample_equalizer(self, bands: int, generator: torch.Generator) -> Float[Tensor, " f"]:
        """A random factor for the energy of each band: 10^(Σⱼ aⱼ cos(πj(f + ½)/bands) / 10), j = 1 … 3."""
        if not self.equalizer:
            return torch.ones(bands)
        heights = self.equalizer * (2 * torch.rand(EQUALIZER_WAVES, generator=generator) - 1)
        places = (torch.arange(bands) + 0.5) / bands
        waves = (math.pi * torch.arange(1, EQUALIZER_WAVES + 1)[:, None] * places).cos()
        return 10 ** (heights @ waves / 10)

    def sample_masks(
        self, frames: int, bands: int, hop: float, generator: torch.Generator
    ) -> tuple[list[range], list[range]]:
        """SpecAugment: random ranges of frames and of bands to mask. hop: seconds from a frame to the next."""
        expected = self.time_masks * frames * hop
        count = 0
        if expected:
            count = int(expected) + int(uniform(0.0, 1.0, generator) < expected % 1)
        longest = min(round(self.time_mask_width / hop), frames)
        widest = round(self.freq_mask_width * bands)
        return (
            [random_range(frames, longest, generator) for _ in range(count)],
            [random_range(bands, widest, generator) for _ in range(self.freq_masks)],
        )


def change_speed(samples: Float[Tensor, " n"], speed: float) -> Float[Tensor, " m"]:
    """Resample audio to play `speed` times as fast, in n / speed samples: a tone of f hertz becomes one of f·speed.

    The spectrum is kept and transformed back with another number of samples; frequencies above half the rate are lost.
    Both numbers are rounded to lengths that are fast to transform, so the speed is off by 1 % at most from n = 1600.

    >>> len(change_speed(torch.zeros(900), 1.5))
    600
    """
    n = len(samples)
    padded = -(-n // FFT_MULTIPLE) * FFT_MULTIPLE
    resampled = max(round(padded / speed / OUTPUT_MULTIPLE), 1) * OUTPUT_MULTIPLE
    if resampled == padded:
        return samples
    played = torch.fft.irfft(torch.fft.rfft(samples, n=padded), n=resampled) * (resampled / padded)
    return played[: max(round(n / speed), 1)]


def random_range(size: int, longest: int, generator: torch.Generator) -> range:
    """A random range of 0 … longest places within `size`."""
    length = int(torch.randint(0, longest + 1, (), generator=generator))
    start = int(torch.randint(0, size - length + 1, (), generator=generator))
    return range(start, start + length)


def root_mean_square(samples: Tensor) -> float:
    """The square root of the mean of the squares."""
    return float(samples.square().mean().sqrt())


def uniform(low: float, high: float, generator: torch.Generator) -> float:
    """A number drawn uniformly."""
    return low + (high - low) * float(torch.rand((), generator=generator))
