"""Audio files: read and write WAV with the standard library; other formats with soundfile where it is installed."""

import wave
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from qkv.data.files import describe_error

MAX_SECONDS = 4 * 3600


class Audio(NamedTuple):
    """Mono samples in [−1, 1], and the number of samples per second."""

    samples: Float32[Tensor, " n"]
    sample_rate: int


def read_audio(path: str | Path) -> Audio:
    """Read one recording as mono. An empty, damaged or unknown file raises a ValueError that names it."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate, frames = file.getparams()[:4]
            if frames > MAX_SECONDS * max(rate, 1):
                raise ValueError(f"{path} claims {frames:,} samples, more than {MAX_SECONDS // 3600} hours")
            stored = path.stat().st_size // max(channels * width, 1) + 1  # no memory is reserved for more than that
            content = file.readframes(min(frames, stored))
    except (wave.Error, EOFError, RuntimeError) as error:
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty; expected a WAV file") from None
        return _read_with_soundfile(path, error)
    if rate < 1 or channels < 1 or width not in (1, 2, 3, 4):
        raise ValueError(f"{path}: expected PCM of 8 to 32 bits, got {8 * width} bits, {channels} channels, {rate} Hz")
    if not content:
        raise ValueError(f"{path} has no samples")
    if len(content) < frames * channels * width:
        raise ValueError(
            f"{path} is cut short: its header says {frames:,} samples, got {len(content) // (channels * width):,}"
        )
    samples = _decode_pcm(content, width).reshape(-1, channels).mean(1, dtype=np.float32)
    return Audio(torch.from_numpy(samples), rate)


def _decode_pcm(content: bytes, width: int) -> np.ndarray:
    """PCM as numbers in [−1, 1]: 8 bits are unsigned, more are signed, little-endian."""
    if width == 1:
        return (np.frombuffer(content, np.uint8).astype(np.float32) - 128) / 128
    if width == 3:
        samples = np.frombuffer(content, np.uint8).reshape(-1, 3)
        widened = np.zeros((len(samples), 4), np.uint8)
        widened[:, 1:] = samples
        return widened.view("<i4")[:, 0].astype(np.float32) / 2**31
    return np.frombuffer(content, f"<i{width}").astype(np.float32) / 2 ** (8 * width - 1)


def _read_with_soundfile(path: Path, wave_error: Exception) -> Audio:
    try:
        import soundfile  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(
            f"{path} is not a PCM WAV file ({describe_error(wave_error)}); for other formats: pip install soundfile"
        ) from None
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except Exception as error:  # soundfile raises its own kinds
        raise ValueError(f"{path} is not a readable audio file: {describe_error(error)}") from None
    if not len(samples):
        raise ValueError(f"{path} has no samples")
    return Audio(torch.from_numpy(samples.mean(1)), int(rate))


def write_wav(to: str | Path | BytesIO, audio: Audio) -> None:
    """Write a recording as a mono WAV file of 16 bits."""
    values = (audio.samples.clamp(-1, 1) * 32767).round().to(torch.int16).numpy()
    with wave.open(str(to) if isinstance(to, str | Path) else to, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(audio.sample_rate)
        file.writeframes(values.astype("<i2").tobytes())
