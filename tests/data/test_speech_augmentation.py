"""Speech augmentation: tones move as the formula says, masks cover their share, the equalizer is three waves."""

import math

import pytest
import torch

from qkv.data.batches import generator_for
from qkv.data.speech.augmentation import SpeechAugment, change_speed
from qkv.data.speech.digit_strings import DigitStringBatches
from qkv.data.speech.mel import Mel, mel_filterbank, warp_frequencies
from qkv.data.speech.recordings import DigitRecording

RATE = 8000


def tone(hertz, samples=4000):
    return (2 * math.pi * hertz * torch.arange(samples) / RATE).sin()


def pitch(samples):
    """The loudest frequency, in hertz."""
    size = 1 << 16
    spectrum = torch.fft.rfft(samples * torch.hann_window(len(samples)), n=size).abs()
    return float(spectrum.argmax()) * RATE / size


@pytest.mark.parametrize("speed", [0.8, 0.93, 1.0, 1.07, 1.2])
def test_change_speed_makes_a_tone_higher_and_shorter_by_the_speed(speed):
    for hertz in (200.0, 700.0, 2500.0):
        heard = change_speed(tone(hertz), speed)
        assert len(heard) == round(4000 / speed)
        assert pitch(heard) == pytest.approx(hertz * speed, rel=0.01)
        middle = heard[len(heard) // 4 : -len(heard) // 4]
        assert float(middle.square().mean().sqrt()) == pytest.approx(math.sqrt(0.5), rel=0.02)


def test_change_speed_does_not_alias_tones_above_half_the_rate():
    assert float(change_speed(tone(3600.0), 1.3).square().mean()) < 0.01


@pytest.mark.parametrize("warp", [0.85, 1.0, 1.15])
def test_mel_filterbank_with_warp_maps_a_tone_to_its_frequency_times_the_warp(warp):
    mel = Mel()
    for hertz in (500.0, 1200.0, 2000.0):
        bands = mel.power(tone(hertz)).mean(0) @ mel_filterbank(RATE, mel.fft_size, mel.n_mels, warp)
        plain = mel.power(tone(hertz * warp)).mean(0) @ mel_filterbank(RATE, mel.fft_size, mel.n_mels)
        assert abs(int(bands.argmax()) - int(plain.argmax())) <= (warp != 1)


def test_sample_tempo_gives_fewer_frames_of_the_same_pitch():
    paced = SpeechAugment(tempo=(1.25, 1.25)).sample_tempo(Mel(), generator_for(0))
    assert paced.hop_size == 100 and paced.num_frames(8000) == (8000 - 200) // 100 + 1
    assert paced(tone(900.0)).mean(0).argmax() == Mel()(tone(900.0)).mean(0).argmax()
    assert SpeechAugment().sample_tempo(Mel(), generator_for(0)) == Mel()
    drawn = [SpeechAugment(tempo=(0.8, 1.3)).sample_tempo(Mel(), generator_for(seed)).hop_size for seed in range(50)]
    assert 64 <= min(drawn) < 72 and 96 < max(drawn) <= 104


def test_warp_frequencies_keeps_order_and_both_ends():
    hertz = torch.linspace(0, 4000, 200, dtype=torch.float64)
    for ratio in (0.7, 1.0, 1.4):
        moved = warp_frequencies(hertz, 4000.0, ratio)
        assert moved[0] == 0 and moved[-1] == pytest.approx(4000.0)
        assert (moved.diff() > 0).all()
        low = hertz <= 0.8 * 4000 / max(ratio, 1)
        assert torch.allclose(moved[low], hertz[low] * ratio)


def test_gain_and_noise_have_the_levels_that_are_set():
    sound = tone(440.0)
    louder = SpeechAugment(gain=(6.0, 6.0)).augment_string(sound, generator_for(0))
    assert torch.allclose(louder, sound * 10**0.3)
    softer = SpeechAugment(gain_jitter=4.0).augment_recording(sound, generator_for(1))
    decibels = 20 * math.log10(float(softer.norm() / sound.norm()))
    assert 0 < abs(decibels) <= 4
    for seed in range(20):
        noise = SpeechAugment(noise=0.5).augment_string(sound, generator_for(seed)) - sound
        assert float(noise.norm() / sound.norm()) <= 0.5 * 1.05


def test_sample_equalizer_is_three_waves_over_the_bands():
    drawn = SpeechAugment(equalizer=6.0).sample_equalizer(40, generator_for(5))
    heights = 6 * (2 * torch.rand(3, generator=generator_for(5)) - 1)
    for band in (0, 7, 39):
        decibels = sum(float(heights[j]) * math.cos(math.pi * (j + 1) * (band + 0.5) / 40) for j in range(3))
        assert 10 * math.log10(float(drawn[band])) == pytest.approx(decibels, abs=1e-3)
    assert torch.equal(SpeechAugment().sample_equalizer(40, generator_for(5)), torch.ones(40))


def test_sample_masks_covers_the_expected_share_of_frames_and_bands():
    augment = SpeechAugment(time_masks=1.5, time_mask_width=0.1, freq_masks=2, freq_mask_width=0.25)
    frames, bands = 0, 0
    for seed in range(1000):
        times, places = augment.sample_masks(300, 40, 0.01, generator_for(seed))
        assert len(places) == 2 and all(s.start >= 0 and s.stop <= 300 and len(s) <= 10 for s in times)
        assert all(s.start >= 0 and s.stop <= 40 and len(s) <= 10 for s in places)
        frames, bands = frames + sum(map(len, times)), bands + sum(map(len, places))
    assert frames / 1000 == pytest.approx(1.5 * 3 * 5, rel=0.05)  # masks a second · seconds · their mean length
    assert bands / 1000 == pytest.approx(2 * 5, rel=0.05)


FULL = SpeechAugment(
    speed=(0.9, 1.1),
    tempo=(0.8, 1.3),
    vtlp=(0.9, 1.1),
    gain=(-6.0, 6.0),
    gain_jitter=2.0,
    equalizer=3.0,
    noise=0.2,
    time_masks=2.0,
    freq_masks=1,
)


def recordings():
    return [DigitRecording(tone(200.0 + 100 * digit, 1600), digit, "a", 10) for digit in range(10)]


def test_augmented_batches_are_functions_of_epoch_and_index_and_have_equal_lengths():
    build, twin = (
        DigitStringBatches(recordings(), Mel(), 4, num_strings=16, seed=3, equal_lengths=True, augment=FULL)
        for _ in range(2)
    )
    sizes = set()
    for index in (3, 0, 1, 2):
        batch, again = build.batch(1, index), twin.batch(1, index)
        assert all(torch.equal(batch[name], again[name]) for name in batch)
        assert len(set(batch["label_lengths"].tolist())) == 1
        assert torch.isfinite(batch["features"]).all() and batch["features"].std() > 0.1
        sizes.add(int(batch["label_lengths"][0]))
    assert len(sizes) > 1
    assert not torch.equal(build.batch(0, 0)["features"][0, :10], build.batch(1, 0)["features"][0, :10])


def test_speech_augment_by_default_changes_nothing():
    plain = DigitStringBatches(recordings(), Mel(), 4, num_strings=8, noise=0.0)
    samples = plain.string(0, 0).samples
    expected = plain.normalization(plain.mel(samples))
    assert torch.allclose(plain.batch(0, 0)["features"][0, : len(expected)], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"speed": (1.2, 0.9)}, "speed must be"),
        ({"vtlp": (0.1, 1.0)}, "vtlp must be .low, high. with 0.5 ≤ low ≤ high ≤ 2"),
        ({"gain": (3.0, -3.0)}, "gain must be"),
        ({"noise": -1.0}, "noise must be at least 0"),
        ({"freq_mask_width": 1.5}, "freq_mask_width must be a fraction"),
    ],
)
def test_speech_augment_names_a_setting_out_of_range(wrong, message):
    with pytest.raises(ValueError, match=message):
        SpeechAugment(**wrong)
