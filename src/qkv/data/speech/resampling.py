"""Resample audio to another sample rate: a windowed-sinc low-pass filter, one kernel per phase."""

import math

import torch
from torch import Tensor

from qkv.data.speech.wav import Audio

MIN_RATE, MAX_RATE = 4000, 192_000  # samples per second
ZEROS = 64  # zero crossings of the sinc on each side
ROLLOFF = 0.95  # cutoff, as a part of the lower of the two Nyquist frequencies
BETA = 9.0  # of the Kaiser window: the stop band is 90 dB down


def resample(audio: Audio, sample_rate: int) -> Audio:
    """Audio at another sample rate: n samples become ⌈n · new / old⌉.

    Frequencies up to 0.9 of the lower Nyquist frequency are kept; those above it, which would alias, are removed.

    >>> resample(Audio(torch.zeros(44100), 44100), 8000).samples.shape
    torch.Size([8000])
    """
    if audio.sample_rate == sample_rate:
        return audio
    for rate in (audio.sample_rate, sample_rate):
        if not MIN_RATE <= rate <= MAX_RATE:
            raise ValueError(f"audio needs {MIN_RATE} to {MAX_RATE} samples per second, got {rate}")
    divisor = math.gcd(audio.sample_rate, sample_rate)
    old, new = audio.sample_rate // divisor, sample_rate // divisor
    samples, count = audio.samples, -(-len(audio.samples) * new // old)
    cutoff = ROLLOFF * min(1.0, new / old)
    reach = math.ceil(ZEROS / cutoff)  # samples on each side of a tap's center
    padded = torch.nn.functional.pad(samples, (reach, reach + old + 1))
    output = samples.new_zeros(count)
    for phase in range(min(new, count)):  # outputs phase, phase + new, … share a kernel and are `old` samples apart
        first, fraction = divmod(phase * old, new)
        windows = padded[first:].unfold(0, 2 * reach + 1, old)
        places = output[phase::new]
        places.copy_(windows[: len(places)] @ _sinc_kernel(reach, fraction / new, cutoff).to(samples))
    return Audio(output, sample_rate)


def _sinc_kernel(reach: int, fraction: float, cutoff: float) -> Tensor:
    """Weights (2·reach + 1,) of the samples around a point `fraction` after the middle one; they sum to 1."""
    distance = torch.arange(-reach, reach + 1, dtype=torch.float64) - fraction
    inside = (1 - (distance * cutoff / ZEROS).square()).clamp(min=0)
    window = torch.special.i0(BETA * inside.sqrt()) * (inside > 0)
    kernel = torch.sinc(cutoff * distance) * window
    return kernel / kernel.sum()
