"""Digits "spoken" by machines: three tones each, at the speaker's pitch and pace, where there are no recordings."""

import torch

from qkv.data.batches import generator_for
from qkv.data.spoken import Spoken, SpokenParts

RATE = 8000
TONES = 12  # the stream of randomness that makes voices and takes
SPEAKERS = ("ada", "bo", "cy", "dot", "eve")
PITCHES = (300, 420, 590, 830, 1160, 1620)


def tone_digits(*, takes: int = 20, left_out: str = "eve", seed: int = 0) -> SpokenParts:
    """Recordings as `read_spoken` gives them: takes 0–4 for test, 5–9 for validation, one speaker left out.

    >>> parts = tone_digits(takes=12)
    >>> len(parts.train), len(parts.validation), len(parts.seen), len(parts.unseen)
    (80, 200, 200, 120)
    """
    found = [
        Spoken(_tones(digit, number, take, seed), digit, speaker, take)
        for number, speaker in enumerate(SPEAKERS)
        for digit in range(10)
        for take in range(takes)
    ]
    kept = [spoken for spoken in found if spoken.speaker != left_out]
    return SpokenParts(
        train=[spoken for spoken in kept if spoken.take >= 10],
        validation=[spoken for spoken in kept if 5 <= spoken.take < 10],
        seen=[spoken for spoken in kept if spoken.take < 5],
        unseen=[spoken for spoken in found if spoken.speaker == left_out],
        rate=RATE,
    )


def _tones(digit: int, speaker: int, take: int, seed: int) -> torch.Tensor:
    """Three tones, chosen by the digit, moved by the speaker's pitch and the take's chance."""
    generator = generator_for(seed, TONES, digit, speaker, take)
    chance = torch.rand(4, generator=generator)
    pitch = 0.85 + 0.08 * speaker + 0.04 * float(chance[0] - 0.5)
    length = round(RATE * (0.09 + 0.01 * speaker) * (0.85 + 0.3 * float(chance[1])))
    time = torch.arange(length) / RATE
    envelope = torch.hann_window(length, periodic=False).sqrt()
    chosen = (digit % 6, (digit * 5 + 2) % 6, (digit * 2 + digit // 6 + 1) % 6)
    pieces = [envelope * torch.sin(2 * torch.pi * PITCHES[tone] * pitch * time) for tone in chosen]
    sound = 0.3 * torch.cat(pieces)
    return sound + 0.01 * torch.randn(len(sound), generator=generator)
