"""WAV files, log-mel features against the formula written out, streams against whole recordings, digit strings."""

import cmath
import json
import math
import pickle
import wave
from dataclasses import replace

import pytest
import torch
from shared_data import shared

from qkv.data.overlap import find_overlap
from qkv.data.speech.description import describe_recording
from qkv.data.speech.digit_strings import DigitStringBatches
from qkv.data.speech.mel import FeatureNormalization, Mel, mel_filterbank
from qkv.data.speech.recordings import DigitRecording, load_spoken_digits, load_voices
from qkv.data.speech.resampling import resample
from qkv.data.speech.wav import Audio, read_audio, write_wav

SMALL = Mel(sample_rate=800, n_mels=5, window=0.04, hop=0.02)
FOLLOWING = replace(SMALL, peak_decay=30.0)  # its peak decays within the samples of a test


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
def test_read_audio_scales_samples_of_every_width_to_minus_1_to_1(tmp_path, width, frames, expected):
    write(tmp_path / "a.wav", frames, width=width)
    sound = read_audio(tmp_path / "a.wav")
    assert sound.sample_rate == 8000 and torch.allclose(sound.samples, torch.tensor(expected))


def test_read_audio_averages_channels_and_reads_what_write_wav_wrote(tmp_path):
    write(tmp_path / "a.wav", b"\x00\x40\x00\x00\x00\xc0\x00\xc0", width=2, channels=2)
    assert read_audio(tmp_path / "a.wav").samples.tolist() == [0.25, -0.5]
    samples = torch.rand(500) * 2 - 1
    write_wav(tmp_path / "b.wav", Audio(samples, 16000))
    back = read_audio(tmp_path / "b.wav")
    assert back.sample_rate == 16000 and (back.samples - samples).abs().max() < 1e-4


RATES = [(8000, 16000), (11025, 8000), (16000, 8000), (22050, 8000), (44100, 8000), (48000, 8000), (44100, 16000)]


def make_sine(frequency: float, rate: int, seconds: float = 0.5) -> torch.Tensor:
    return torch.sin(2 * torch.pi * frequency * torch.arange(round(rate * seconds), dtype=torch.float64) / rate)


@pytest.mark.parametrize(("old", "new"), [*RATES, (8000, 8000), (44101, 8000)])
def test_resample_of_a_sine_equals_the_sine_at_the_new_rate(old, new):
    for part in (0.02, 0.4, 0.88):  # of the lower Nyquist frequency
        frequency = part * min(old, new) / 2
        found = resample(Audio(make_sine(frequency, old).float(), old), new)
        assert found.sample_rate == new
        expected = make_sine(frequency, new)
        assert abs(len(found.samples) - len(expected)) <= 1
        edge = round(0.02 * new)  # outside of the recording there is silence
        inner = slice(edge, min(len(expected), len(found.samples)) - edge)
        torch.testing.assert_close(found.samples[inner].double(), expected[inner], atol=2e-4, rtol=0)


@pytest.mark.parametrize(("old", "new"), [rates for rates in RATES if rates[0] > rates[1]])
def test_resample_removes_frequencies_that_would_alias(old, new):
    for part in (1.01, 1.2, 1.37):  # of the new Nyquist frequency
        frequency = part * new / 2
        found = resample(Audio(make_sine(frequency, old).float(), old), new).samples
        edge = round(0.02 * new)
        assert found[edge:-edge].abs().max() < 3e-4  # −70 dB; taking every n-th sample would keep it all


def test_resample_keeps_constants_and_refuses_absurd_rates():
    found = resample(Audio(torch.ones(4410), 44100), 8000).samples
    assert len(found) == 800 and (found[100:-100] - 1).abs().max() < 1e-5
    with pytest.raises(ValueError, match="4000 to 192000 samples per second, got 3"):
        resample(Audio(torch.ones(30), 3), 8000)


@pytest.mark.parametrize("rate", [8000, 44100])
@pytest.mark.parametrize("seconds", [0.3, 4.0])
def test_describe_recording_doubts_that_noise_and_tones_are_speech(rate, seconds):
    n = round(rate * seconds)
    noise = torch.randn(n, generator=torch.Generator().manual_seed(0))
    spectrum = torch.fft.rfft(noise)
    brown = torch.fft.irfft(spectrum / torch.arange(len(spectrum)).clamp(min=20), n)
    for sound in (noise / 8, brown / brown.abs().max(), make_sine(440, rate, seconds).float()):
        assert "probably no speech" in describe_recording(Audio(sound, rate), 8000)[-1]
    assert describe_recording(Audio(torch.zeros(n), rate), 8000)[-1] == "the recording is silent"


def test_describe_recording_takes_every_bundled_voice_for_speech_also_over_noise():
    generator = torch.Generator().manual_seed(0)
    for spoken in load_voices().unseen[::3]:
        noise = torch.randn(spoken.samples.shape, generator=generator) * spoken.samples.std() / 10  # 20 dB below
        assert describe_recording(Audio(spoken.samples + noise, 8000), 8000) == ()
        high = resample(Audio(spoken.samples, 8000), 44100)
        assert len(describe_recording(high, 8000)) == 1  # that it was resampled


def by_formula(samples, mel):
    """Every frame, frequency and band written out."""
    n, size = mel.window_size, mel.fft_size
    hann = [0.5 - 0.5 * math.cos(2 * math.pi * i / (n - 1)) for i in range(n)]

    def to_mel(hertz):
        return 2595 * math.log10(1 + hertz / 700)

    top = to_mel(mel.sample_rate / 2)
    edges = [700 * (10 ** (top * i / (mel.n_mels + 1) / 2595) - 1) for i in range(mel.n_mels + 2)]
    rows = []
    for start in range(0, len(samples) - n + 1, mel.hop_size):
        piece = [samples[start + i] * hann[i] for i in range(n)]
        row = []
        for band in range(mel.n_mels):
            low, middle, high = edges[band : band + 3]
            total = 0.0
            for k in range(size // 2 + 1):
                hertz = k * mel.sample_rate / size
                height = max(min((hertz - low) / (middle - low), (high - hertz) / (high - middle)), 0.0)
                if height:
                    total += (
                        height * abs(sum(x * cmath.exp(-2j * math.pi * k * i / size) for i, x in enumerate(piece))) ** 2
                    )
            row.append(math.log(total + mel.floor))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def test_mel_equals_the_formula():
    samples = torch.randn(200, dtype=torch.float64)
    assert (SMALL(samples) - by_formula(samples.tolist(), SMALL)).abs().max() < 1e-6
    assert SMALL(samples).shape == (SMALL.num_frames(200), 5)
    assert torch.allclose(SMALL(samples.expand(3, -1))[1], SMALL(samples))


def test_mel_has_a_peak_in_the_band_of_a_tone():
    mel = Mel()
    time = torch.arange(8000) / 8000
    bank = mel_filterbank(8000, mel.fft_size, mel.n_mels)
    for hertz in (300.0, 1000.0, 2500.0):
        loudest = mel((2 * math.pi * hertz * time).sin()).mean(0).argmax()
        assert bank[round(hertz * mel.fft_size / 8000), loudest] > 0.3


def test_mel_with_peak_decay_equals_the_recursion():
    mel = replace(SMALL, peak_decay=90.0, min_peak=2.0, floor=0.1)
    samples = torch.randn(600) * torch.linspace(0, 30, 600).sin() ** 4  # loud and soft by turns
    samples[300:400] = 0.0
    energy = (replace(SMALL, floor=1e-12)(samples)).double().exp()
    loudest, expected, fading = mel.min_peak, [], 10 ** (-mel.peak_decay * mel.hop / 10)
    cases = set()
    for row in energy:
        candidates = {"quiet": mel.min_peak, "now": float(row.mean()), "before": loudest * fading}
        cases.add(max(candidates, key=candidates.__getitem__))
        loudest = max(candidates.values())
        expected.append((row / loudest + mel.floor).log())
    assert cases == {"quiet", "now", "before"}  # every case occurs
    assert torch.allclose(mel(samples).double(), torch.stack(expected), atol=1e-4)


def test_mel_with_peak_decay_ignores_loudness():
    mel = replace(SMALL, peak_decay=5.0, floor=0.1)
    samples = torch.randn(2, 500)
    assert torch.allclose(mel(samples), mel(samples / 10), atol=1e-4)
    assert not torch.allclose(SMALL(samples), SMALL(samples / 10), atol=1.0)
    assert torch.allclose(mel(torch.zeros(200)), torch.tensor(math.log(mel.floor)))


@pytest.mark.parametrize("mel", [SMALL, FOLLOWING])
@pytest.mark.parametrize("pieces", [[1] * 50, [7, 13, 80, 100], [200], [32, 16, 16, 136]])
def test_mel_stream_gives_the_frames_of_the_whole_recording(mel, pieces):
    samples = torch.randn(sum(pieces)) * torch.linspace(3, 0.01, sum(pieces))
    state, frames, start = None, [], 0
    for size in pieces:
        new, state = mel.stream(state, samples[start : start + size])
        frames.append(new)
        start += size
    assert torch.allclose(torch.cat(frames), mel(samples), atol=1e-5)


@pytest.mark.parametrize("mel", [SMALL, FOLLOWING])
def test_mel_frames_do_not_depend_on_later_samples(mel):
    samples = torch.randn(400)
    before = mel(samples)
    samples[200:] = torch.randn(200)
    whole = mel.num_frames(200)
    assert torch.equal(mel(samples)[:whole], before[:whole])
    assert not torch.allclose(mel(samples)[whole], before[whole])


def test_mel_of_silence_is_the_floor_and_of_short_audio_is_empty():
    assert torch.allclose(SMALL(torch.zeros(100)), torch.tensor(math.log(SMALL.floor)))
    assert SMALL(torch.zeros(10)).shape == (0, 5)
    with pytest.raises(ValueError, match="mel bands are empty"):
        Mel(sample_rate=8000, n_mels=400)
    with pytest.raises(ValueError, match="hop ≤ window"):
        Mel(hop=0.5)
    with pytest.raises(ValueError, match="peak_decay must be None or in"):
        Mel(peak_decay=-1.0)


def test_feature_normalization_gives_mean_0_and_std_1():
    features = [torch.randn(50, 5) * 3 + 2, torch.randn(20, 5) + 1]
    scaled = torch.cat([FeatureNormalization.from_features(features)(f.double()) for f in features])
    assert scaled.mean(0).abs().max() < 1e-9 and (scaled.std(0, correction=0) - 1).abs().max() < 1e-9


def recordings():
    """Two speakers; a digit's recording is a constant of its own, so that strings can be read back."""
    return [
        DigitRecording(torch.full((60 + 7 * digit,), (digit + 1) / 20 + 0.5 * (speaker == "b")), digit, speaker, 10)
        for speaker in ("a", "b")
        for digit in range(10)
    ]


def test_digit_strings_are_whole_recordings_of_one_speaker_with_pauses():
    strings = DigitStringBatches(recordings(), SMALL, 4, num_strings=30, digits=(2, 5), pause=(0.05, 0.2), noise=0.0)
    lengths, speakers = set(), set()
    for number in range(30):
        samples, digits, _ = strings.string(0, number)
        runs = torch.unique_consecutive(samples, return_counts=True)
        assert runs[0][::2].eq(0).all() and ((runs[1][::2] >= 40) & (runs[1][::2] <= 160)).all()
        heard = runs[0][1::2]
        speaker = bool(heard[0] > 0.5)
        assert ((heard - 0.5 * speaker) * 20 - 1).round().int().tolist() == digits
        assert runs[1][1::2].tolist() == [60 + 7 * digit for digit in digits]
        lengths.add(len(digits))
        speakers.add(speaker)
    assert lengths == {2, 3, 4, 5} and speakers == {True, False}


def test_digit_string_batches_are_functions_of_epoch_and_index():
    build = DigitStringBatches(recordings(), SMALL, 4, num_strings=10, seed=2)
    twin = pickle.loads(pickle.dumps(build))
    assert build.num_batches(0) == 3
    for index in (2, 0, 1):
        batch, again = build.batch(1, index), twin.batch(1, index)
        assert all(torch.equal(batch[k], again[k]) for k in batch)
        b, t, f = batch["features"].shape
        assert f == 5 and int(batch["lengths"].max()) == t and b == (2 if index == 2 else 4)
        for row in range(b):
            samples, digits, _ = build.string(1, 4 * index + row)
            assert batch["labels"][row][: batch["label_lengths"][row]].tolist() == [d + 1 for d in digits]
            assert batch["labels"][row][batch["label_lengths"][row] :].eq(0).all()
            expected = build.normalization(SMALL(samples))
            assert torch.equal(batch["features"][row, : len(expected)], expected)
    assert not torch.equal(build.batch(0, 0)["features"][0, :10], build.batch(1, 0)["features"][0, :10])
    fixed = DigitStringBatches(recordings(), SMALL, 4, num_strings=10, resample=False)
    assert torch.equal(fixed.batch(0, 0)["features"], fixed.batch(5, 0)["features"])
    with pytest.raises(ValueError, match="digits and pause must be"):
        DigitStringBatches(recordings(), SMALL, 4, digits=(3, 2))


def test_load_spoken_digits_splits_by_take_and_speaker():
    parts = load_spoken_digits(shared("spoken-digits"), held_out_speakers=("nicolas",))
    assert parts.sample_rate == 8000
    assert [len(p) for p in (parts.train, parts.validation, parts.seen, parts.unseen)] == [1600, 200, 200, 500]
    assert {s.speaker for s in parts.unseen} == {"nicolas"} and "nicolas" not in {s.speaker for s in parts.train}
    train = [s.samples for s in parts.train]
    for other in (parts.validation, parts.seen, parts.unseen):
        assert not find_overlap(train, [s.samples for s in other]).indices
    batch = DigitStringBatches(parts.train, Mel(parts.sample_rate), 4, num_strings=20).batch(0, 0)
    assert torch.isfinite(batch["features"]).all() and (batch["lengths"] > 2 * batch["label_lengths"]).all()


def write_speakers(folder, accents, takes=6):
    """A folder of short recordings and the JSON file beside it; every third speaker is female."""
    folder.mkdir(parents=True)
    about = {}
    for number, accent in enumerate(accents):
        name = f"p{number:02d}"
        about[name] = {"gender": "Female" if number % 3 == 0 else "male", "accent": accent}
        for take in range(takes):
            for digit in (0, 7):
                samples = torch.rand(300, generator=torch.Generator().manual_seed(number * 100 + take * 10 + digit))
                write_wav(folder / f"{digit}_{name}_{take}.wav", Audio(samples - 0.5, 8000))
    folder.with_name(f"{folder.name}.json").write_text(json.dumps(about))


def test_load_spoken_digits_splits_many_speakers_by_speaker_gender_and_accent(tmp_path):
    write_speakers(tmp_path / "many", ["German", "Danish"] * 12)
    parts = load_spoken_digits(tmp_path)  # the folder around it
    people = {part: {r.speaker for r in getattr(parts, part)} for part in ("train", "validation", "seen", "unseen")}
    assert people["seen"] == people["train"]
    assert not people["train"] & people["validation"]
    assert not (people["train"] | people["validation"]) & people["unseen"]
    assert [len(people[part]) for part in ("unseen", "validation", "train")] == [6, 3, 15]
    for part, women, danes in (("unseen", 2, (3, 3)), ("validation", 1, (1, 2)), ("train", 5, (7, 8))):
        about = [parts.speakers[name] for name in people[part]]
        assert sum(speaker.gender == "female" for speaker in about) == women
        assert danes[0] <= sum(speaker.accent == "Danish" for speaker in about) <= danes[1]
    assert {r.take for r in parts.seen} == {0} and {r.take for r in parts.train} == {1, 2, 3, 4, 5}
    assert "test: 6 speakers (2 female, 4 male)" in parts.notes[-1]
    again = load_spoken_digits(tmp_path / "many", held_out_speakers=("p05",))
    assert {r.speaker for r in again.unseen} == {"p05"} and len({r.speaker for r in again.validation}) == 3


def test_load_spoken_digits_names_a_damaged_file_about_speakers(tmp_path):
    write_speakers(tmp_path / "many", ["German"] * 16, takes=2)
    (tmp_path / "many.json").write_text('["ann"]')
    with pytest.raises(ValueError, match=r"many\.json: expected \{.*gender"):
        load_spoken_digits(tmp_path / "many")


def test_load_spoken_digits_tests_audiomnist_on_unseen_speakers_of_both_genders():
    shared("spoken-digits")
    parts = load_spoken_digits(shared("audiomnist").parent)
    unseen = {r.speaker for r in parts.unseen}
    assert len(unseen) >= 10 and not unseen & {r.speaker for r in [*parts.train, *parts.validation]}
    assert {parts.speakers[name].gender for name in unseen} >= {"female", "male"}
    train = [r.samples for r in parts.train]
    for other in (parts.validation, parts.seen, parts.unseen):
        assert not find_overlap(train, [r.samples for r in other]).indices
