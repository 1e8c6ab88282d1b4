"""Machine-made voices: what ships is whole and sounds as it was written; a share of the strings is theirs."""

import pytest
import torch

from qkv.data.mel import Mel
from qkv.data.spoken import Spoken, SpokenStrings
from qkv.data.voices import from_bytes, machine_voices, to_bytes


def test_every_voice_says_every_digit_once_and_about_as_loud():
    voices = machine_voices()
    for speaker, count in (("espeak", 72), ("espeak-accents", 48), ("flite", 10), ("pico", 14)):
        said = {(spoken.digit, spoken.take) for spoken in voices if spoken.speaker == speaker}
        assert said == {(digit, take) for digit in range(10) for take in range(count)}
    for spoken in voices:
        assert 0.1 < len(spoken.samples) / 8000 < 1.5
        assert 0.4 < float(spoken.samples.abs().max()) <= 1


def test_eight_bits_keep_soft_sounds_as_exactly_as_loud_ones():
    samples = torch.logspace(-3, 0, 200)
    samples = torch.cat((samples, -samples))
    error = (from_bytes(to_bytes(samples)) - samples).abs()
    assert (error <= 0.025 * samples.abs() + 1e-4).all()  # half a step: ln(256) / 255 ≈ 0.022 of the sample


def test_at_another_rate_a_voice_is_as_long_and_as_high():
    tone, other = machine_voices()[3], machine_voices(16000)[3]
    assert len(other.samples) == pytest.approx(2 * len(tone.samples), rel=0.01)
    low = [torch.fft.rfft(spoken.samples).abs()[1:].argmax() / len(spoken.samples) for spoken in (tone, other)]
    assert float(low[0]) * 8000 == pytest.approx(float(low[1]) * 16000, rel=0.05)


def spoken(digit: int, speaker: str) -> Spoken:
    return Spoken(torch.full((400,), 0.1 * (digit + 1)), digit, speaker, 0)


def test_a_share_of_the_strings_is_said_by_others():
    people, machines = (
        [spoken(1, "ada"), spoken(2, "bo")],
        [spoken(7, "espeak"), spoken(8, "espeak"), spoken(9, "flite")],
    )
    strings = SpokenStrings(people, Mel(), 4, strings=2000, digits=(3, 3), others=machines, share=0.3)
    said = [set(strings.string(0, number)[1]) for number in range(2000)]
    assert all(digits in ({1}, {2}, {9}) or digits <= {7, 8} for digits in said)  # nobody speaks with another
    others = sum(min(digits) > 2 for digits in said) / 2000
    assert others == pytest.approx(0.3, abs=0.04)  # four standard deviations
    assert sum(digits == {9} for digits in said) / 2000 == pytest.approx(0.15, abs=0.035)
    assert {7, 8} in said


def test_without_others_strings_are_what_they_were_and_a_share_of_none_is_refused():
    people = [spoken(1, "ada"), spoken(2, "bo")]
    plain = SpokenStrings(people, Mel(), 4, strings=8)
    unused = SpokenStrings(people, Mel(), 4, strings=8, others=[spoken(7, "espeak")])
    assert torch.equal(plain.batch(0, 1)["features"], unused.batch(0, 1)["features"])
    for more in ({"share": 0.5}, {"share": 1.5, "others": people}):
        with pytest.raises(ValueError, match="share is from 0 to 1, and above 0 there are others"):
            SpokenStrings(people, Mel(), 4, **more)
