"""Bundled voices: complete, split by speaker, and close to the recordings they were made from; their codec."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from shared_data import shared

from qkv.data.speech.digit_strings import DigitStringBatches
from qkv.data.speech.mel import Mel
from qkv.data.speech.recordings import load_voices
from qkv.data.speech.transform_codec import BLOCK, decode, encode
from qkv.data.speech.wav import read_audio


def test_load_voices_has_three_takes_of_every_digit_of_sixteen_people_at_one_level():
    parts = load_voices()
    everything = [*parts.train, *parts.validation, *parts.seen, *parts.unseen]
    said = Counter((spoken.speaker, spoken.digit) for spoken in everything)
    assert len(said) == 160 and set(said.values()) == {3}
    assert Counter(person.gender for person in parts.speakers.values()) == {"male": 10, "female": 6}
    for speaker in parts.speakers:
        loudest = max(float(spoken.samples.abs().max()) for spoken in everything if spoken.speaker == speaker)
        assert loudest == pytest.approx(0.7, abs=0.1)


def test_load_voices_trains_on_nobody_of_validation_and_test():
    parts = load_voices()
    trained, validated, tested = (
        {spoken.speaker for spoken in part} for part in (parts.train, parts.validation, parts.unseen)
    )
    assert (len(trained), len(validated), len(tested)) == (8, 3, 5)
    assert not trained & validated and not trained & tested and not validated & tested
    assert {parts.speakers[name].gender for name in tested} == {"male", "female"}


def test_load_voices_gives_the_recordings_of_audiomnist():
    folder = shared("audiomnist")
    errors = []
    for spoken in load_voices().unseen[::10]:
        original = read_audio(folder / f"{spoken.digit}_{spoken.speaker}_{spoken.take}.wav").samples
        original = original * (spoken.samples @ original) / (original @ original)
        errors.append(float((spoken.samples - original).norm() / original.norm()))
    assert max(errors) < 10 ** (-12 / 20) and sum(errors) / len(errors) < 10 ** (-20 / 20)  # 12 and 20 dB


def test_digit_strings_of_softer_recordings_have_softer_noise():
    """AudioMNIST is recorded 20 dB softer than other sets: noise of a fixed level would hide its voices."""
    recordings = load_voices().validation
    softer = [replace(spoken, samples=0.02 * spoken.samples) for spoken in recordings]
    loud, soft = (DigitStringBatches(spoken, Mel(), 4, num_strings=4, noise=0.05) for spoken in (recordings, softer))
    for number in range(4):
        torch.testing.assert_close(soft.string(0, number).samples, 0.02 * loud.string(0, number).samples)


def test_encode_without_rounding_error_is_inverted_by_decode(monkeypatch):
    """The MDCT reconstructs perfectly: with finer and finer steps the error vanishes."""
    samples = 0.01 * torch.randn(1000, generator=torch.Generator().manual_seed(0))
    errors = []
    for step in (0.02, 0.01, 0.005):
        monkeypatch.setattr("qkv.data.speech.transform_codec.STEP", step)
        codes = encode(samples)
        assert codes.shape == (9, BLOCK) and codes.abs().max() < 127
        errors.append(float((decode(codes, 1000) - samples).norm() / samples.norm()))
    assert errors[2] < errors[1] / 1.5 < errors[0] / 2.25 and errors[2] < 0.06


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 1000])
def test_decode_returns_the_length_asked_for_with_little_noise(length):
    time = torch.arange(length) / 8000
    samples = 0.4 * torch.sin(2 * torch.pi * 440 * time + 1) + 0.2 * torch.sin(2 * torch.pi * 1700 * time)
    decoded = decode(encode(samples), length)
    assert decoded.shape == (length,)
    assert float((decoded - samples).norm()) < 0.06 * float(samples.norm())
