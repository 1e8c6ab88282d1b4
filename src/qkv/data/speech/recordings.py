"""Recordings of spoken digits: a folder of WAV files, the bundled synthetic voices, or tones; split by speaker."""

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qkv.data.batches import generator_for
from qkv.data.files import BadItemLog, BadItems, describe_error
from qkv.data.speech.augmentation import change_speed
from qkv.data.speech.wav import read_audio

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
FILE_NAME = re.compile(r"(\d)_([A-Za-z][\w-]*?)_(\d+)\.wav")
SAMPLE_RATE = 8000  # of synthetic voices and tones
MU = 255.0  # of the µ-law curve (as in ITU G.711)
TONE_STREAM = 12  # of randomness
TONE_SPEAKERS = ("ada", "bo", "cy", "dot", "eve")
TONE_PITCHES = (300, 420, 590, 830, 1160, 1620)


@dataclass(frozen=True)
class DigitRecording:
    """One recording of one digit."""

    samples: Tensor
    digit: int
    speaker: str
    take: int


@dataclass(frozen=True)
class SpokenDigitSplits:
    """Recordings by part. `seen` and `unseen` are for test: speakers of the training data, and held-out speakers."""

    train: list[DigitRecording]
    validation: list[DigitRecording]
    seen: list[DigitRecording]
    unseen: list[DigitRecording]
    sample_rate: int
    notes: tuple[str, ...] = ()


def load_spoken_digits(
    folder: str | Path, *, held_out_speakers: tuple[str, ...] = (), bad_items: BadItems = "error"
) -> SpokenDigitSplits:
    """Read a folder of `{digit}_{speaker}_{take}.wav`: takes 0–4 for test, 5–9 for validation, others for training.

    held_out_speakers: speakers to leave out of training; by default the last in alphabetical order, if there are
        several.
    """
    folder = Path(folder)
    paths = sorted(folder.glob("*.wav")) if folder.is_dir() else []
    if not paths:
        raise ValueError(f"{folder}: expected a folder of WAV files called digit_speaker_take.wav")
    log, rates, found = BadItemLog("recordings", bad_items), set(), []
    for path in paths:
        match = FILE_NAME.fullmatch(path.name)
        if match is None:
            log.add(path, "its name is not digit_speaker_take.wav")
            continue
        try:
            audio = read_audio(path)
        except (ValueError, OSError) as error:
            log.add(path, describe_error(error).removeprefix(f"{path} "))
            continue
        rates.add(audio.sample_rate)
        found.append(DigitRecording(audio.samples, int(match[1]), match[2], int(match[3])))
    notes = log.finish(len(paths))
    if len(rates) != 1:
        raise ValueError(f"{folder}: expected one sample rate, got {', '.join(f'{r} Hz' for r in sorted(rates))}")
    speakers = sorted({recording.speaker for recording in found})
    if unknown := sorted(set(held_out_speakers) - set(speakers)):
        raise ValueError(f"there is no speaker {unknown[0]!r}; there are {', '.join(speakers)}")
    held_out = held_out_speakers or (tuple(speakers[-1:]) if len(speakers) > 1 else ())
    trained = [speaker for speaker in speakers if speaker not in held_out]
    notes += (f"training speakers: {', '.join(trained)}; held out: {', '.join(held_out)}",)
    splits = split_by_speaker(found, held_out, rates.pop(), notes)
    names = {"train": "training (takes from 10 on)", "validation": "validation (takes 5–9)", "seen": "test (takes 0–4)"}
    for part, name in names.items():
        if not getattr(splits, part):
            raise ValueError(f"no recordings are left for {name}, of speakers {', '.join(speakers)} less {held_out}")
    return splits


def split_by_speaker(
    recordings: list[DigitRecording],
    held_out_speakers: tuple[str, ...],
    sample_rate: int,
    notes: tuple[str, ...] = (),
) -> SpokenDigitSplits:
    """Split recordings by take (0–4 test, 5–9 validation, others training); held-out speakers are `unseen` only."""
    known = [recording for recording in recordings if recording.speaker not in held_out_speakers]
    return SpokenDigitSplits(
        train=[recording for recording in known if recording.take >= 10],
        validation=[recording for recording in known if 5 <= recording.take < 10],
        seen=[recording for recording in known if recording.take < 5],
        unseen=[recording for recording in recordings if recording.speaker in held_out_speakers],
        sample_rate=sample_rate,
        notes=notes,
    )


def load_synthetic_voices(sample_rate: int = SAMPLE_RATE) -> list[DigitRecording]:
    """The bundled digits of 144 speech-synthesizer voices (`synthetic_voices/README.md`).

    `speaker` is a group of voices, `take` counts the voices of a group.

    >>> voices = load_synthetic_voices()
    >>> len(voices), sorted({recording.speaker for recording in voices})
    (1440, ['espeak', 'espeak-accents', 'flite', 'pico'])
    """
    arrays = _read_synthetic_voices()
    ends = np.cumsum(arrays["lengths"], dtype=np.int64)
    pieces = np.split(arrays["sound"], ends[:-1])
    takes: dict[tuple[str, int], int] = {}
    found = []
    for piece, digit, speaker in zip(pieces, arrays["digits"].tolist(), arrays["speakers"].tolist(), strict=True):
        take = takes[speaker, digit] = takes.get((speaker, digit), -1) + 1
        samples = mu_law_decode(torch.from_numpy(piece))
        if sample_rate != SAMPLE_RATE:
            samples = change_speed(samples, SAMPLE_RATE / sample_rate)
        found.append(DigitRecording(samples, digit, speaker, take))
    return found


@cache
def _read_synthetic_voices() -> dict[str, np.ndarray]:
    with files("qkv.data.speech").joinpath("synthetic_voices", "voices.npz").open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        return {name: arrays[name] for name in ("sound", "lengths", "digits", "speakers")}


def mu_law_encode(samples: Tensor) -> Tensor:
    """µ-law: samples in [−1, 1] as 8 bits each, sign(x) · ln(1 + µ|x|) / ln(1 + µ) mapped to 0 … 255."""
    level = samples.sign() * (MU * samples.abs()).log1p() / (torch.tensor(MU)).log1p()
    return ((level + 1) / 2 * 255).round().clamp(0, 255).to(torch.uint8)


def mu_law_decode(codes: Tensor) -> Tensor:
    """The samples of µ-law codes.

    >>> mu_law_decode(mu_law_encode(torch.tensor([-1.0, 0.01, 0.5]))).mul(100).round().tolist()
    [-100.0, 1.0, 50.0]
    """
    level = codes.float() / 255 * 2 - 1
    return level.sign() * ((level.abs() * torch.tensor(MU).log1p()).exp() - 1) / MU


def make_tone_digits(*, takes: int = 20, held_out_speaker: str = "eve", seed: int = 0) -> SpokenDigitSplits:
    """Digits as three tones each, at a speaker's pitch and pace, where there are no recordings.

    >>> parts = make_tone_digits(takes=12)
    >>> len(parts.train), len(parts.validation), len(parts.seen), len(parts.unseen)
    (80, 200, 200, 120)
    """
    recordings = [
        DigitRecording(_make_tones(digit, number, take, seed), digit, speaker, take)
        for number, speaker in enumerate(TONE_SPEAKERS)
        for digit in range(10)
        for take in range(takes)
    ]
    return split_by_speaker(recordings, (held_out_speaker,), SAMPLE_RATE)


def _make_tones(digit: int, speaker: int, take: int, seed: int) -> Tensor:
    """Three tones chosen by the digit, at the speaker's pitch and pace, with a little randomness for the take."""
    generator = generator_for(seed, TONE_STREAM, digit, speaker, take)
    random = torch.rand(4, generator=generator)
    pitch = 0.85 + 0.08 * speaker + 0.04 * float(random[0] - 0.5)
    length = round(SAMPLE_RATE * (0.09 + 0.01 * speaker) * (0.85 + 0.3 * float(random[1])))
    time = torch.arange(length) / SAMPLE_RATE
    envelope = torch.hann_window(length, periodic=False).sqrt()
    chosen = (digit % 6, (digit * 5 + 2) % 6, (digit * 2 + digit // 6 + 1) % 6)
    pieces = [envelope * torch.sin(2 * torch.pi * TONE_PITCHES[tone] * pitch * time) for tone in chosen]
    samples = 0.3 * torch.cat(pieces)
    return samples + 0.01 * torch.randn(len(samples), generator=generator)
