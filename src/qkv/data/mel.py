"""Sound as the ear hears it, in small steps: the logarithm of the energy in bands that are even in pitch.

Axes: n samples · t frames · k frequencies · f bands.

A frame needs the samples of its own window and, if loudness is followed, what was loudest before it; nothing later,
so a stream gives the frames that the whole gives.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Mel:
    """Log-mel features: frame i is made of `window` seconds of sound from i·`hop` seconds on.

    floor: what is added to the energy, so that silence has a logarithm, and all that is much softer looks like silence.
    fade: energy is divided by that of the loudest frame so far, so that a soft voice and a loud one look alike; the
        loudest fades by so many decibels a second, down to `quiet` (mean of the bands). None: energy as it is.
    """

    rate: int = 8000
    bands: int = 40
    window: float = 0.025
    hop: float = 0.010
    floor: float = 1e-5
    fade: float | None = None
    quiet: float = 0.005

    def __post_init__(self) -> None:
        if self.rate < 1 or self.bands < 1 or not 0 < self.hop <= self.window or self.floor <= 0:
            raise ValueError(
                f"rate and bands are 1 or more, 0 < hop ≤ window, floor above 0; got {self.rate}, {self.bands}, "
                f"{self.hop}, {self.window} and {self.floor}"
            )
        if not self.quiet > 0 or not (self.fade is None or 0 <= self.fade <= 1000):
            raise ValueError(
                f"fade is None or from 0 to 1000 decibels a second, quiet above 0; got {self.fade} and {self.quiet}"
            )
        empty = int((filterbank(self.rate, self.size, self.bands).sum(0) == 0).sum())
        if empty:
            raise ValueError(
                f"{empty} of {self.bands} bands hold no frequency at {self.rate} Hz and a window of {self.window} s; "
                "take fewer bands or a longer window"
            )

    @property
    def samples(self) -> int:
        """Samples in a window."""
        return max(round(self.window * self.rate), 1)

    @property
    def step(self) -> int:
        """Samples from one frame to the next."""
        return max(round(self.hop * self.rate), 1)

    @property
    def size(self) -> int:
        """Samples of the Fourier transform: the power of two that holds a window."""
        return 1 << (self.samples - 1).bit_length()

    def frames(self, samples: int) -> int:
        """How many frames so many samples give."""
        return max((samples - self.samples) // self.step + 1, 0)

    def __call__(self, samples: Float[Tensor, "*b n"]) -> Float[Tensor, "*b t f"]:
        """log(floor + Σ_k bank[k, f] · |FFT(window · samples)[k]|²) for each frame that the samples complete."""
        return self.logarithm(self._in_bands(samples))

    def logarithm(self, bands: Float[Tensor, "*b t f"]) -> Float[Tensor, "*b t f"]:
        """log(floor + energy), the energy as it is or in shares of the loudest."""
        return self._compared(bands, None)[0]

    def _in_bands(self, samples: Tensor) -> Tensor:
        energy = self.energy(samples)
        return energy @ filterbank(self.rate, self.size, self.bands).to(energy)

    def _compared(self, bands: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The logarithm of the energy, and that of the loudest in the end. before: the loudest of what came before."""
        if self.fade is None or bands.shape[-2] == 0:
            return (bands + self.floor).log(), before
        fading = self.fade * self.hop * math.log(10) / 10 * torch.arange(1, bands.shape[-2] + 1).to(bands)
        quiet = bands.new_tensor(self.quiet).log()
        loudest = (bands.mean(-1).log() + fading).cummax(-1).values
        if before is not None:
            loudest = torch.maximum(loudest, before[..., None])
        loudest = torch.maximum(loudest - fading, quiet)
        return (bands / loudest.exp()[..., None] + self.floor).log(), loudest[..., -1]

    def energy(self, samples: Float[Tensor, "*b n"]) -> Float[Tensor, "*b t k"]:
        """|FFT(window · samples)[k]|² for each frame that the samples complete."""
        count = self.frames(samples.shape[-1])
        if count == 0:
            return samples.new_zeros(*samples.shape[:-1], 0, self.size // 2 + 1)
        window = torch.hann_window(self.samples, periodic=False, dtype=samples.dtype, device=samples.device)
        spare = self.size - self.samples
        spectrum = torch.stft(
            torch.nn.functional.pad(samples, (0, spare)),
            self.size,
            self.step,
            window=torch.nn.functional.pad(window, (0, spare)),  # the window first, so that no later sample enters
            center=False,
            return_complex=True,
        )
        kept = spectrum[..., :count]
        return torch.addcmul(kept.real.square(), kept.imag, kept.imag).mT

    def stream(self, state: "MelState | None", samples: Float[Tensor, "*b n"]) -> tuple[Tensor, "MelState"]:
        """Feed a piece of sound of any length; get the frames it completes, and the state to go on with."""
        held = samples if state is None else torch.cat((state.samples, samples), -1)
        frames, loudest = self._compared(self._in_bands(held), None if state is None else state.loudest)
        return frames, MelState(held[..., frames.shape[-2] * self.step :], loudest)


@dataclass(frozen=True)
class MelState:
    """Where a stream stands: samples that wait for the rest of their frame, and the logarithm of the loudest so far."""

    samples: Tensor
    loudest: Tensor | None


def filterbank(rate: int, size: int, bands: int, warp: float = 1.0) -> Float[Tensor, "k f"]:
    """Triangles, even on the mel scale m = 2595·log₁₀(1 + hertz/700) from 0 to rate/2; each peaks at 1.

    warp: what the triangles' places are divided by (see `warped`), so that a sound seems so many times as high.

    >>> filterbank(8000, 256, 40).shape
    torch.Size([129, 40])
    """
    hertz = torch.arange(size // 2 + 1, dtype=torch.float64) * rate / size
    top = 2595 * torch.tensor(1 + rate / 2 / 700, dtype=torch.float64).log10()
    edges = 700 * (10 ** (torch.linspace(0, 1, bands + 2, dtype=torch.float64) * top / 2595) - 1)
    if warp != 1:
        edges = warped(edges, rate / 2, 1 / warp)
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (hertz[:, None] - low) / (middle - low), (high - hertz[:, None]) / (high - middle)
    return torch.minimum(rising, falling).clamp(min=0).float()


def warped(hertz: Tensor, top: float, ratio: float, straight: float = 0.8) -> Tensor:
    """Frequencies times the ratio; those above a knee on the line that leads to `top`, which stays where it is.

    The knee: neither it nor its image is above `straight` of the top.

    >>> warped(torch.tensor([0.0, 1000.0, 4000.0]), 4000.0, 1.1).tolist()
    [0.0, 1100.0, 4000.0]
    """
    knee = straight * top / max(ratio, 1.0)
    above = ratio * knee + (hertz - knee) * (top - ratio * knee) / (top - knee)
    return torch.where(hertz <= knee, hertz * ratio, above)


@dataclass(frozen=True)
class FeatureScale:
    """Mean and standard deviation of each band over training data: fixed numbers, so that a stream can use them."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, features: list[Tensor]) -> "FeatureScale":
        """Over all frames of some recordings, each (t, f)."""
        frames = torch.cat(features).double()
        if len(frames) < 2:
            raise ValueError(f"mean and deviation need 2 frames or more; got {len(frames)}")
        deviation = frames.std(0, correction=0)
        return cls(tuple(frames.mean(0).tolist()), tuple(torch.where(deviation > 0, deviation, 1.0).tolist()))

    def __call__(self, features: Tensor) -> Tensor:
        return (features - features.new_tensor(self.mean)) / features.new_tensor(self.deviation)
