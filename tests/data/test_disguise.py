"""Voices in disguise: tones move where the formula says, masks cover their share, colour is the waves written out."""

import math

import pytest
import torch

from qkv.data.batches import generator_for
from qkv.data.disguise import Disguise, faster
from qkv.data.mel import Mel, filterbank, warped
from qkv.data.spoken import Spoken, SpokenStrings

RATE = 8000


def tone(hertz, samples=4000):
    return (2 * math.pi * hertz * torch.arange(samples) / RATE).sin()


def pitch(samples):
    """The loudest frequency, in hertz."""
    size = 1 << 16
    spectrum = torch.fft.rfft(samples * torch.hann_window(len(samples)), n=size).abs()
    return float(spectrum.argmax()) * RATE / size


@pytest.mark.parametrize("speed", [0.8, 0.93, 1.0, 1.07, 1.2])
def test_a_tone_played_faster_is_higher_and_shorter_by_the_speed(speed):
    for hertz in (200.0, 700.0, 2500.0):
        heard = faster(tone(hertz), speed)
        assert len(heard) == round(4000 / speed)
        assert pitch(heard) == pytest.approx(hertz * speed, rel=0.01)
        middle = heard[len(heard) // 4 : -len(heard) // 4]
        assert float(middle.square().mean().sqrt()) == pytest.approx(math.sqrt(0.5), rel=0.02)


def test_a_tone_that_would_pass_half_the_rate_is_not_folded_back():
    assert float(faster(tone(3600.0), 1.3).square().mean()) < 0.01


@pytest.mark.parametrize("warp", [0.85, 1.0, 1.15])
def test_a_warped_filterbank_hears_a_tone_as_one_of_the_frequency_times_the_warp(warp):
    mel = Mel()
    for hertz in (500.0, 1200.0, 2000.0):
        bands = mel.energy(tone(hertz)).mean(0) @ filterbank(RATE, mel.size, mel.bands, warp)
        plain = mel.energy(tone(hertz * warp)).mean(0) @ filterbank(RATE, mel.size, mel.bands)
        assert abs(int(bands.argmax()) - int(plain.argmax())) <= (warp != 1)


def test_a_faster_tempo_gives_fewer_frames_of_the_same_pitch():
    paced = Disguise(tempo=(1.25, 1.25)).pace(Mel(), generator_for(0))
    assert paced.step == 100 and paced.frames(8000) == (8000 - 200) // 100 + 1
    assert paced(tone(900.0)).mean(0).argmax() == Mel()(tone(900.0)).mean(0).argmax()
    assert Disguise().pace(Mel(), generator_for(0)) == Mel()
    drawn = [Disguise(tempo=(0.8, 1.3)).pace(Mel(), generator_for(seed)).step for seed in range(50)]
    assert 64 <= min(drawn) < 72 and 96 < max(drawn) <= 104


def test_warping_keeps_order_and_both_ends():
    hertz = torch.linspace(0, 4000, 200, dtype=torch.float64)
    for ratio in (0.7, 1.0, 1.4):
        moved = warped(hertz, 4000.0, ratio)
        assert moved[0] == 0 and moved[-1] == pytest.approx(4000.0)
        assert (moved.diff() > 0).all()
        low = hertz <= 0.8 * 4000 / max(ratio, 1)
        assert torch.allclose(moved[low], hertz[low] * ratio)


def test_gain_and_hiss_are_what_was_asked_for():
    sound = tone(440.0)
    louder = Disguise(gain=(6.0, 6.0)).string(sound, generator_for(0))
    assert torch.allclose(louder, sound * 10**0.3)
    softer = Disguise(wobble=4.0).recording(sound, generator_for(1))
    decibels = 20 * math.log10(float(softer.norm() / sound.norm()))
    assert 0 < abs(decibels) <= 4
    for seed in range(20):
        hiss = Disguise(hiss=0.5).string(sound, generator_for(seed)) - sound
        assert float(hiss.norm() / sound.norm()) <= 0.5 * 1.05


def test_colour_is_three_waves_over_the_bands():
    drawn = Disguise(colour=6.0).tint(40, generator_for(5))
    heights = 6 * (2 * torch.rand(3, generator=generator_for(5)) - 1)
    for band in (0, 7, 39):
        decibels = sum(float(heights[j]) * math.cos(math.pi * (j + 1) * (band + 0.5) / 40) for j in range(3))
        assert 10 * math.log10(float(drawn[band])) == pytest.approx(decibels, abs=1e-3)
    assert torch.equal(Disguise().tint(40, generator_for(5)), torch.ones(40))


def test_what_is_not_heard_covers_the_share_that_is_stated():
    disguise = Disguise(time_masks=1.5, time_width=0.1, band_masks=2, band_width=0.25)
    frames, bands = 0, 0
    for seed in range(1000):
        times, places = disguise.unheard(300, 40, 0.01, generator_for(seed))
        assert len(places) == 2 and all(s.start >= 0 and s.stop <= 300 and len(s) <= 10 for s in times)
        assert all(s.start >= 0 and s.stop <= 40 and len(s) <= 10 for s in places)
        frames, bands = frames + sum(map(len, times)), bands + sum(map(len, places))
    assert frames / 1000 == pytest.approx(1.5 * 3 * 5, rel=0.05)  # masks a second · seconds · their mean length
    assert bands / 1000 == pytest.approx(2 * 5, rel=0.05)


FULL = Disguise(
    speed=(0.9, 1.1),
    tempo=(0.8, 1.3),
    warp=(0.9, 1.1),
    gain=(-6.0, 6.0),
    wobble=2.0,
    colour=3.0,
    hiss=0.2,
    time_masks=2.0,
    band_masks=1,
)


def recordings():
    return [Spoken(tone(200.0 + 100 * digit, 1600), digit, "a", 10) for digit in range(10)]


def test_disguised_batches_are_functions_of_their_place_and_strings_of_a_batch_are_alike():
    build, twin = (
        SpokenStrings(recordings(), Mel(), 4, strings=16, seed=3, alike=True, disguise=FULL) for _ in range(2)
    )
    sizes = set()
    for index in (3, 0, 1, 2):
        batch, again = build.batch(1, index), twin.batch(1, index)
        assert all(torch.equal(batch[name], again[name]) for name in batch)
        assert len(set(batch["label_lengths"].tolist())) == 1
        assert torch.isfinite(batch["features"]).all()
        sizes.add(int(batch["label_lengths"][0]))
    assert len(sizes) > 1
    assert not torch.equal(build.batch(0, 0)["features"][0, :10], build.batch(1, 0)["features"][0, :10])


def test_no_disguise_changes_nothing():
    plain = SpokenStrings(recordings(), Mel(), 4, strings=8, noise=0.0)
    samples, _ = plain.string(0, 0)
    expected = plain.scale(plain.mel(samples))
    assert torch.allclose(plain.batch(0, 0)["features"][0, : len(expected)], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"speed": (1.2, 0.9)}, "speed runs from less to more"),
        ({"warp": (0.1, 1.0)}, "warp runs from less to more, between 0.5 and 2"),
        ({"gain": (3.0, -3.0)}, "gain runs from less to more"),
        ({"hiss": -1.0}, "hiss is 0 or more"),
        ({"band_width": 1.5}, "band_width is a share"),
    ],
)
def test_a_disguise_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Disguise(**wrong)
