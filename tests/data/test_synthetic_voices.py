"""Synthetic voices: the bundled recordings are complete, and a fraction of the strings uses them."""

import pytest
import torch

from qkv.data.speech.digit_strings import DigitStringBatches
from qkv.data.speech.mel import Mel
from qkv.data.speech.recordings import DigitRecording, load_synthetic_voices
from qkv.data.speech.transform_codec import BLOCK, decode, encode


def test_load_synthetic_voices_has_every_digit_of_every_voice_at_a_similar_level():
    voices = load_synthetic_voices()
    for speaker, count in (("espeak", 72), ("espeak-accents", 48), ("flite", 10), ("pico", 14)):
        said = {(spoken.digit, spoken.take) for spoken in voices if spoken.speaker == speaker}
        assert said == {(digit, take) for digit in range(10) for take in range(count)}
    for spoken in voices:
        assert 0.1 < len(spoken.samples) / 8000 < 1.5
        assert 0.4 < float(spoken.samples.abs().max()) <= 1


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


def test_load_synthetic_voices_at_another_rate_keeps_length_and_pitch():
    tone, other = load_synthetic_voices()[3], load_synthetic_voices(16000)[3]
    assert len(other.samples) == pytest.approx(2 * len(tone.samples), rel=0.01)
    low = [torch.fft.rfft(spoken.samples).abs()[1:].argmax() / len(spoken.samples) for spoken in (tone, other)]
    assert float(low[0]) * 8000 == pytest.approx(float(low[1]) * 16000, rel=0.05)


def spoken(digit: int, speaker: str) -> DigitRecording:
    return DigitRecording(torch.full((400,), 0.1 * (digit + 1)), digit, speaker, 0)


def test_extra_recordings_make_the_given_fraction_of_strings():
    people, machines = (
        [spoken(1, "ada"), spoken(2, "bo")],
        [spoken(7, "espeak"), spoken(8, "espeak"), spoken(9, "flite")],
    )
    strings = DigitStringBatches(
        people, Mel(), 4, num_strings=2000, digits=(3, 3), extra_recordings=machines, extra_fraction=0.3
    )
    said = [set(strings.string(0, number).digits) for number in range(2000)]
    assert all(digits in ({1}, {2}, {9}) or digits <= {7, 8} for digits in said)  # nobody speaks with another
    others = sum(min(digits) > 2 for digits in said) / 2000
    assert others == pytest.approx(0.3, abs=0.04)  # four standard deviations
    assert sum(digits == {9} for digits in said) / 2000 == pytest.approx(0.15, abs=0.035)
    assert {7, 8} in said


def test_unused_extra_recordings_change_nothing_and_a_fraction_without_them_is_refused():
    people = [spoken(1, "ada"), spoken(2, "bo")]
    plain = DigitStringBatches(people, Mel(), 4, num_strings=8)
    unused = DigitStringBatches(people, Mel(), 4, num_strings=8, extra_recordings=[spoken(7, "espeak")])
    assert torch.equal(plain.batch(0, 1)["features"], unused.batch(0, 1)["features"])
    for more in ({"extra_fraction": 0.5}, {"extra_fraction": 1.5, "extra_recordings": people}):
        with pytest.raises(
            ValueError, match=r"extra_fraction must be in .0, 1., and above 0 it needs extra_recordings"
        ):
            DigitStringBatches(people, Mel(), 4, **more)
