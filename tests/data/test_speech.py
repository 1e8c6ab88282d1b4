"""Sound: files, log-mel frames against the formula written out, streams against the whole, strings of digits."""

import cmath
import math
import pickle
import wave
from dataclasses import replace

import pytest
import torch
from shared_data import shared

from qkv.data.mel import FeatureScale, Mel, filterbank
from qkv.data.overlap import overlap
from qkv.data.spoken import Spoken, SpokenStrings, read_spoken
from qkv.data.wav import Sound, read_sound, write_wav

SMALL = Mel(rate=800, bands=5, window=0.04, hop=0.02)
FOLLOWING = replace(SMALL, fade=30.0)  # its loudest fades within the samples of a test


def write(path, frames, *, width, channels=1, rate=8000):
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(frames)


@pytest.mark.parametrize(
    ("width", "frames", "expected"),
    [
        (1, bytes([0, 128, 255]), [-1.0, 0.0, 127 / 128]),
        (2, b"\x00\x80\x00\x00\xff\x7f", [-1.0, 0.0, 32767 / 32768]),
        (3, b"\x00\x00\x80\x00\x00\x00\xff\xff\x7f", [-1.0, 0.0, 8388607 / 8388608]),
        (4, b"\x00\x00\x00\x80\x00\x00\x00\x40", [-1.0, 0.5]),
    ],
)
def test_samples_of_every_width_run_from_minus_1_to_1(tmp_path, width, frames, expected):
    write(tmp_path / "a.wav", frames, width=width)
    sound = read_sound(tmp_path / "a.wav")
    assert sound.rate == 8000 and torch.allclose(sound.samples, torch.tensor(expected))


def test_two_channels_become_their_mean_and_writing_comes_back(tmp_path):
    write(tmp_path / "a.wav", b"\x00\x40\x00\x00\x00\xc0\x00\xc0", width=2, channels=2)
    assert read_sound(tmp_path / "a.wav").samples.tolist() == [0.25, -0.5]
    samples = torch.rand(500) * 2 - 1
    write_wav(tmp_path / "b.wav", Sound(samples, 16000))
    back = read_sound(tmp_path / "b.wav")
    assert back.rate == 16000 and (back.samples - samples).abs().max() < 1e-4


def by_formula(samples, mel):
    """Every frame, frequency and band written out."""
    n, size = mel.samples, mel.size
    hann = [0.5 - 0.5 * math.cos(2 * math.pi * i / (n - 1)) for i in range(n)]

    def to_mel(hertz):
        return 2595 * math.log10(1 + hertz / 700)

    top = to_mel(mel.rate / 2)
    edges = [700 * (10 ** (top * i / (mel.bands + 1) / 2595) - 1) for i in range(mel.bands + 2)]
    rows = []
    for start in range(0, len(samples) - n + 1, mel.step):
        piece = [samples[start + i] * hann[i] for i in range(n)]
        row = []
        for band in range(mel.bands):
            low, middle, high = edges[band : band + 3]
            total = 0.0
            for k in range(size // 2 + 1):
                hertz = k * mel.rate / size
                height = max(min((hertz - low) / (middle - low), (high - hertz) / (high - middle)), 0.0)
                if height:
                    total += (
                        height * abs(sum(x * cmath.exp(-2j * math.pi * k * i / size) for i, x in enumerate(piece))) ** 2
                    )
            row.append(math.log(total + mel.floor))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def test_log_mel_is_the_formula():
    samples = torch.randn(200, dtype=torch.float64)
    assert (SMALL(samples) - by_formula(samples.tolist(), SMALL)).abs().max() < 1e-6
    assert SMALL(samples).shape == (SMALL.frames(200), 5)
    assert torch.allclose(SMALL(samples.expand(3, -1))[1], SMALL(samples))


def test_a_tone_lights_the_band_that_holds_it():
    mel = Mel()
    time = torch.arange(8000) / 8000
    bank = filterbank(8000, mel.size, mel.bands)
    for hertz in (300.0, 1000.0, 2500.0):
        loudest = mel((2 * math.pi * hertz * time).sin()).mean(0).argmax()
        assert bank[round(hertz * mel.size / 8000), loudest] > 0.3


def test_energy_in_shares_of_the_loudest_is_the_recursion():
    mel = replace(SMALL, fade=90.0, quiet=2.0, floor=0.1)
    samples = torch.randn(600) * torch.linspace(0, 30, 600).sin() ** 4  # loud and soft by turns
    samples[300:400] = 0.0
    energy = (replace(SMALL, floor=1e-12)(samples)).double().exp()
    loudest, expected, fading = mel.quiet, [], 10 ** (-mel.fade * mel.hop / 10)
    ruled = set()
    for row in energy:
        told = {"quiet": mel.quiet, "now": float(row.mean()), "before": loudest * fading}
        ruled.add(max(told, key=told.__getitem__))
        loudest = max(told.values())
        expected.append((row / loudest + mel.floor).log())
    assert ruled == {"quiet", "now", "before"}  # so that each case was tried
    assert torch.allclose(mel(samples).double(), torch.stack(expected), atol=1e-4)


def test_a_soft_voice_looks_like_a_loud_one():
    mel = replace(SMALL, fade=5.0, floor=0.1)
    samples = torch.randn(2, 500)
    assert torch.allclose(mel(samples), mel(samples / 10), atol=1e-4)
    assert not torch.allclose(SMALL(samples), SMALL(samples / 10), atol=1.0)
    assert torch.isfinite(mel(torch.zeros(200))).all()


@pytest.mark.parametrize("mel", [SMALL, FOLLOWING])
@pytest.mark.parametrize("pieces", [[1] * 50, [7, 13, 80, 100], [200], [32, 16, 16, 136]])
def test_a_stream_gives_the_frames_of_the_whole(mel, pieces):
    samples = torch.randn(sum(pieces)) * torch.linspace(3, 0.01, sum(pieces))
    state, frames, start = None, [], 0
    for size in pieces:
        new, state = mel.stream(state, samples[start : start + size])
        frames.append(new)
        start += size
    assert torch.allclose(torch.cat(frames), mel(samples), atol=1e-5)


@pytest.mark.parametrize("mel", [SMALL, FOLLOWING])
def test_no_frame_sees_a_sample_after_its_window(mel):
    samples = torch.randn(400)
    before = mel(samples)
    samples[200:] = torch.randn(200)
    whole = mel.frames(200)
    assert torch.equal(mel(samples)[:whole], before[:whole])
    assert not torch.allclose(mel(samples)[whole], before[whole])


def test_silence_and_short_sounds_give_finite_numbers_or_none():
    assert torch.isfinite(SMALL(torch.zeros(100))).all()
    assert SMALL(torch.zeros(10)).shape == (0, 5)
    with pytest.raises(ValueError, match="bands hold no frequency"):
        Mel(rate=8000, bands=400)
    with pytest.raises(ValueError, match="hop ≤ window"):
        Mel(hop=0.5)
    with pytest.raises(ValueError, match="fade is None or from 0 to 1000"):
        Mel(fade=-1.0)


def test_the_scale_of_training_data_brings_it_to_mean_0_and_deviation_1():
    features = [torch.randn(50, 5) * 3 + 2, torch.randn(20, 5) + 1]
    scaled = torch.cat([FeatureScale.of(features)(f.double()) for f in features])
    assert scaled.mean(0).abs().max() < 1e-9 and (scaled.std(0, correction=0) - 1).abs().max() < 1e-9


def recordings():
    """Two speakers; a digit's recording is a constant of its own, so that strings can be read back."""
    return [
        Spoken(torch.full((60 + 7 * digit,), (digit + 1) / 20 + 0.5 * (speaker == "b")), digit, speaker, 10)
        for speaker in ("a", "b")
        for digit in range(10)
    ]


def test_strings_are_whole_recordings_of_one_speaker_with_pauses_between():
    strings = SpokenStrings(recordings(), SMALL, 4, strings=30, digits=(2, 5), pause=(0.05, 0.2), noise=0.0)
    lengths, speakers = set(), set()
    for number in range(30):
        samples, digits = strings.string(0, number)
        runs = torch.unique_consecutive(samples, return_counts=True)
        assert runs[0][::2].eq(0).all() and ((runs[1][::2] >= 40) & (runs[1][::2] <= 160)).all()
        heard = runs[0][1::2]
        speaker = bool(heard[0] > 0.5)
        assert ((heard - 0.5 * speaker) * 20 - 1).round().int().tolist() == digits
        assert runs[1][1::2].tolist() == [60 + 7 * digit for digit in digits]
        lengths.add(len(digits))
        speakers.add(speaker)
    assert lengths == {2, 3, 4, 5} and speakers == {True, False}


def test_batches_of_strings_are_functions_of_their_place():
    build = SpokenStrings(recordings(), SMALL, 4, strings=10, seed=2)
    twin = pickle.loads(pickle.dumps(build))
    assert build.count(0) == 3
    for index in (2, 0, 1):
        batch, again = build.batch(1, index), twin.batch(1, index)
        assert all(torch.equal(batch[k], again[k]) for k in batch)
        b, t, f = batch["features"].shape
        assert f == 5 and int(batch["lengths"].max()) == t and b == (2 if index == 2 else 4)
        for row in range(b):
            samples, digits = build.string(1, 4 * index + row)
            assert batch["labels"][row][: batch["label_lengths"][row]].tolist() == [d + 1 for d in digits]
            assert batch["labels"][row][batch["label_lengths"][row] :].eq(0).all()
            expected = build.scale(SMALL(samples))
            assert torch.equal(batch["features"][row, : len(expected)], expected)
    assert not torch.equal(build.batch(0, 0)["features"][0, :10], build.batch(1, 0)["features"][0, :10])
    fixed = SpokenStrings(recordings(), SMALL, 4, strings=10, fresh=False)
    assert torch.equal(fixed.batch(0, 0)["features"], fixed.batch(5, 0)["features"])
    with pytest.raises(ValueError, match="digits and pause run from less to more"):
        SpokenStrings(recordings(), SMALL, 4, digits=(3, 2))


def test_the_spoken_digits_are_split_by_take_and_speaker():
    parts = read_spoken(shared("spoken-digits"), left_out=("nicolas",))
    assert parts.rate == 8000
    assert [len(p) for p in (parts.train, parts.validation, parts.seen, parts.unseen)] == [1600, 200, 200, 500]
    assert {s.speaker for s in parts.unseen} == {"nicolas"} and "nicolas" not in {s.speaker for s in parts.train}
    train = [s.samples for s in parts.train]
    for other in (parts.validation, parts.seen, parts.unseen):
        assert not overlap(train, [s.samples for s in other]).places
    batch = SpokenStrings(parts.train, Mel(parts.rate), 4, strings=20).batch(0, 0)
    assert torch.isfinite(batch["features"]).all() and (batch["lengths"] > 2 * batch["label_lengths"]).all()
