"""Sound from wav files, by the standard library; other formats by soundfile where it is installed."""

import wave
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from qkv.data.problems import one_line

MOST_SECONDS = 4 * 3600


class Sound(NamedTuple):
    """Samples from −1 to 1, and how many there are a second."""

    samples: Float32[Tensor, " n"]
    rate: int


def read_sound(path: str | Path) -> Sound:
    """One recording as mono. An empty, a damaged or an unknown file is a ValueError that names it."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate, frames = file.getparams()[:4]
            if frames > MOST_SECONDS * max(rate, 1):
                raise ValueError(f"{path} claims {frames:,} samples, more than {MOST_SECONDS // 3600} hours")
            content = file.readframes(frames)
    except (wave.Error, EOFError, RuntimeError) as error:
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty; expected a wav file") from None
        return _by_soundfile(path, error)
    if rate < 1 or channels < 1 or width not in (1, 2, 3, 4):
        raise ValueError(f"{path}: expected PCM of 8 to 32 bits; got {8 * width} bits, {channels} channels, {rate} Hz")
    if not content:
        raise ValueError(f"{path} holds no sound: 0 samples")
    if len(content) < frames * channels * width:
        raise ValueError(
            f"{path} is cut short: {frames:,} samples were announced; got {len(content) // (channels * width):,}"
        )
    samples = _numbers(content, width).reshape(-1, channels).mean(1, dtype=np.float32)
    return Sound(torch.from_numpy(samples), rate)


def _numbers(content: bytes, width: int) -> np.ndarray:
    """PCM as numbers from −1 to 1: 8 bits are unsigned, more are signed, the lowest byte first."""
    if width == 1:
        return (np.frombuffer(content, np.uint8).astype(np.float32) - 128) / 128
    if width == 3:
        bytes_ = np.frombuffer(content, np.uint8).reshape(-1, 3)
        widened = np.zeros((len(bytes_), 4), np.uint8)
        widened[:, 1:] = bytes_
        return widened.view("<i4")[:, 0].astype(np.float32) / 2**31
    return np.frombuffer(content, f"<i{width}").astype(np.float32) / 2 ** (8 * width - 1)


def _by_soundfile(path: Path, error: Exception) -> Sound:
    try:
        import soundfile  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(
            f"{path} is no wav file of plain PCM ({one_line(error)}); for other formats: pip install soundfile"
        ) from None
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except Exception as other:  # soundfile raises its own kinds
        raise ValueError(f"{path} is no sound file that can be read: {one_line(other)}") from None
    if not len(samples):
        raise ValueError(f"{path} holds no sound: 0 samples")
    return Sound(torch.from_numpy(samples.mean(1)), int(rate))


def write_wav(to: str | Path | BytesIO, sound: Sound) -> None:
    """A recording as a mono wav file of 16 bits."""
    values = (sound.samples.clamp(-1, 1) * 32767).round().to(torch.int16).numpy()
    with wave.open(str(to) if isinstance(to, str | Path) else to, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sound.rate)
        file.writeframes(values.astype("<i2").tobytes())
