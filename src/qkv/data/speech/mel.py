"""Log-mel spectrogram features, for whole recordings and streams; mel filterbank with VTLP; feature normalization.

Axes: n samples · t frames · k frequencies · f mel bands.

A frame depends on the samples of its window and, with peak_decay, on the loudest frame before it; never on later
samples, so a stream gives the frames of the whole recording.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Mel:
    """Log-mel features: frame i covers `window` seconds of audio from i·`hop` seconds on.

    sample_rate: samples per second. n_mels: number of mel bands.
    floor: added to the energy before the logarithm, so that silence is finite and much softer sound looks like silence.
    peak_decay: divide the energy by that of the loudest frame so far, so that soft and loud voices look alike; that
        peak decays by so many decibels per second, down to `min_peak` (mean over bands). None: energy as it is.
    """

    sample_rate: int = 8000
    n_mels: int = 40
    window: float = 0.025
    hop: float = 0.010
    floor: float = 1e-5
    peak_decay: float | None = None
    min_peak: float = 1e-6

    def __post_init__(self) -> None:
        if self.sample_rate < 1 or self.n_mels < 1:
            raise ValueError(f"sample_rate and n_mels must be at least 1, got {self.sample_rate} and {self.n_mels}")
        if not 0 < self.hop <= self.window:
            raise ValueError(f"expected 0 < hop ≤ window, got {self.hop} and {self.window}")
        if self.floor <= 0:
            raise ValueError(f"floor must be above 0, got {self.floor}")
        if self.peak_decay is not None and not 0 <= self.peak_decay <= 1000:
            raise ValueError(f"peak_decay must be None or in [0, 1000] decibels per second, got {self.peak_decay}")
        if not self.min_peak > 0:
            raise ValueError(f"min_peak must be above 0, got {self.min_peak}")
        empty = int((mel_filterbank(self.sample_rate, self.fft_size, self.n_mels).sum(0) == 0).sum())
        if empty:
            raise ValueError(
                f"{empty} of {self.n_mels} mel bands are empty at {self.sample_rate} Hz with a {self.window} s window; "
                "use a smaller n_mels or a longer window"
            )

    @property
    def window_size(self) -> int:
        """Samples in a window."""
        return max(round(self.window * self.sample_rate), 1)

    @property
    def hop_size(self) -> int:
        """Samples from one frame to the next."""
        return max(round(self.hop * self.sample_rate), 1)

    @property
    def fft_size(self) -> int:
        """Samples of the Fourier transform: the smallest power of two that holds a window."""
        return 1 << (self.window_size - 1).bit_length()

    def num_frames(self, samples: int) -> int:
        """Number of whole frames in that many samples."""
        return max((samples - self.window_size) // self.hop_size + 1, 0)

    def __call__(self, samples: Float[Tensor, "*b n"]) -> Float[Tensor, "*b t f"]:
        """log(floor + Σ_k filterbank[k, f] · |FFT(window · samples)[k]|²) for each whole frame."""
        return self.log_energy(self._mel_energy(samples))

    def log_energy(self, energy: Float[Tensor, "*b t f"]) -> Float[Tensor, "*b t f"]:
        """log(floor + energy), with energy relative to the peak if peak_decay is set."""
        return self._log_energy(energy, None)[0]

    def _mel_energy(self, samples: Tensor) -> Tensor:
        power = self.power(samples)
        return power @ mel_filterbank(self.sample_rate, self.fft_size, self.n_mels).to(power)

    def _log_energy(self, energy: Tensor, log_peak: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Log energy, and the logarithm of the peak at the end. log_peak: the one at the beginning, of a stream."""
        if self.peak_decay is None or energy.shape[-2] == 0:
            return (energy + self.floor).log(), log_peak
        decay = self.peak_decay * self.hop * math.log(10) / 10 * torch.arange(1, energy.shape[-2] + 1).to(energy)
        peak = (energy.mean(-1).log() + decay).cummax(-1).values
        if log_peak is not None:
            peak = torch.maximum(peak, log_peak[..., None])
        peak = torch.maximum(peak - decay, energy.new_tensor(self.min_peak).log())
        return (energy / peak.exp()[..., None] + self.floor).log(), peak[..., -1]

    def power(self, samples: Float[Tensor, "*b n"]) -> Float[Tensor, "*b t k"]:
        """The power spectrum |FFT(window · samples)[k]|² of each whole frame."""
        count = self.num_frames(samples.shape[-1])
        if count == 0:
            return samples.new_zeros(*samples.shape[:-1], 0, self.fft_size // 2 + 1)
        window = torch.hann_window(self.window_size, periodic=False, dtype=samples.dtype, device=samples.device)
        unused = self.fft_size - self.window_size
        spectrum = torch.stft(
            torch.nn.functional.pad(samples, (0, unused)),
            self.fft_size,
            self.hop_size,
            window=torch.nn.functional.pad(window, (0, unused)),  # the window first, so that no later sample enters
            center=False,
            return_complex=True,
        )[..., :count]
        return torch.addcmul(spectrum.real.square(), spectrum.imag, spectrum.imag).mT

    def stream(self, state: "MelState | None", samples: Float[Tensor, "*b n"]) -> tuple[Tensor, "MelState"]:
        """Feed a piece of audio of any length; get the frames it completes, and the state for the next piece."""
        log_peak = None
        if state is not None:
            samples, log_peak = torch.cat((state.samples, samples), -1), state.log_peak
        frames, log_peak = self._log_energy(self._mel_energy(samples), log_peak)
        return frames, MelState(samples[..., frames.shape[-2] * self.hop_size :], log_peak)


@dataclass(frozen=True)
class MelState:
    """The state of a stream: samples that wait for the rest of their frame, and the logarithm of the peak so far."""

    samples: Tensor
    log_peak: Tensor | None


def mel_filterbank(sample_rate: int, fft_size: int, n_mels: int, warp: float = 1.0) -> Float[Tensor, "k f"]:
    """Triangular filters, evenly spaced on the mel scale m = 2595·log₁₀(1 + hertz/700) from 0 to sample_rate/2.

    warp: VTLP's warp factor; audio sounds so many times as high (see `warp_frequencies`). Each filter peaks at 1.

    >>> mel_filterbank(8000, 256, 40).shape
    torch.Size([129, 40])
    """
    hertz = torch.arange(fft_size // 2 + 1, dtype=torch.float64) * sample_rate / fft_size
    top = 2595 * torch.tensor(1 + sample_rate / 2 / 700, dtype=torch.float64).log10()
    edges = 700 * (10 ** (torch.linspace(0, 1, n_mels + 2, dtype=torch.float64) * top / 2595) - 1)
    if warp != 1:
        edges = warp_frequencies(edges, sample_rate / 2, 1 / warp)
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (hertz[:, None] - low) / (middle - low), (high - hertz[:, None]) / (high - middle)
    return torch.minimum(rising, falling).clamp(min=0).float()


def warp_frequencies(hertz: Tensor, top: float, ratio: float, linear: float = 0.8) -> Tensor:
    """Vocal tract length perturbation (VTLP): multiply frequencies by `ratio`, bent so that `top` stays.

    The map is linear up to a knee; neither the knee nor its image is above `linear` of the top.

    >>> warp_frequencies(torch.tensor([0.0, 1000.0, 4000.0]), 4000.0, 1.1).tolist()
    [0.0, 1100.0, 4000.0]
    """
    knee = linear * top / max(ratio, 1.0)
    above = ratio * knee + (hertz - knee) * (top - ratio * knee) / (top - knee)
    return torch.where(hertz <= knee, hertz * ratio, above)


@dataclass(frozen=True)
class FeatureNormalization:
    """Mean and standard deviation of each mel band over training data: fixed numbers, so that a stream can use them."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def from_features(cls, features: list[Tensor]) -> "FeatureNormalization":
        """Compute them over all frames of recordings, each (t, f)."""
        frames = torch.cat(features).double()
        if len(frames) < 2:
            raise ValueError(f"mean and standard deviation need at least 2 frames, got {len(frames)}")
        std = frames.std(0, correction=0)
        return cls(tuple(frames.mean(0).tolist()), tuple(torch.where(std > 0, std, 1.0).tolist()))

    def __call__(self, features: Tensor) -> Tensor:
        """Normalize features (…, f)."""
        return (features - features.new_tensor(self.mean)) / features.new_tensor(self.std)
