"""prepare_input() of a recording: features as the model was trained on them."""

import json
from dataclasses import asdict

import pytest
import torch

from qkv.data.speech.mel import Mel
from qkv.data.speech.wav import Audio, write_wav
from qkv.interp import classify_heads, measure_effect, prepare_input
from qkv.models import Transcriber, TranscriberConfig

MEL = Mel(sample_rate=8000, n_mels=8)


def transcriber() -> Transcriber:
    model = Transcriber(
        TranscriberConfig(features=8, num_labels=3, dim=16, layers=2, heads=2, chunk_size=2, lookahead_chunks=1)
    ).eval()
    purpose = {
        "task": "transcribe",
        "words": ["yes", "no"],
        "mel": asdict(MEL),
        "mean": [0.5] * 8,
        "std": [2.0] * 8,
    }
    model.extra_files["purpose.json"] = json.dumps(purpose).encode()
    return model


@pytest.fixture
def recording(tmp_path):
    samples = torch.sin(torch.arange(4000) * 0.3) * 0.4
    write_wav(tmp_path / "said.wav", Audio(samples, 8000))
    return tmp_path / "said.wav"


def test_prepare_input_of_a_recording_computes_features_and_labels_tokens_by_seconds(recording, unchecked):
    model = transcriber()
    model.save(recording.parent / "model")
    found = prepare_input(recording.parent / "model", recording)
    assert found.kind == "audio" and found.inputs.shape == (1, MEL.num_frames(4000), 8)
    assert found.tokens[:3] == ("0.00 s", "0.04 s", "0.08 s") and found.token(0) == "–" and found.token(2) == "no"
    pcm = torch.frombuffer(bytearray(recording.read_bytes()[44:]), dtype=torch.int16).float() / 32768
    torch.testing.assert_close(found.inputs[0], (MEL(pcm) - 0.5) / 2.0)
    trace = found.trace()
    assert trace.layers[0].queries == len(found.tokens) == model(found.inputs).shape[1]
    assert found.labels(trace.layers[0])[0] == found.tokens


@pytest.mark.parametrize("rate", [11025, 22050, 44100, 48000])
def test_prepare_input_of_a_recording_at_another_rate_gives_the_features_of_the_models_rate(rate, unchecked):
    def tones(rate: int) -> Audio:
        time = torch.arange(rate, dtype=torch.float64) / rate
        return Audio(sum(0.2 * torch.sin(2 * torch.pi * f * time) for f in (310, 900, 2100)).float(), rate)

    model = transcriber()
    same, other = prepare_input(model, tones(8000)), prepare_input(model, tones(rate))
    doubt = "the recording is probably no speech: it is a steady sound, such as noise or a tone"
    resampled = f"the recording was resampled from {rate} to 8000 samples per second"
    assert same.notes == (doubt,) and other.notes == (resampled, doubt)
    inner = slice(5, -5)  # the ends differ: outside of a recording there is silence
    assert (same.inputs - other.inputs)[0, inner].abs().mean() < 0.02
    assert same.tokens == other.tokens


def test_classify_heads_and_measure_effect_work_on_a_recording(recording, unchecked):
    found = prepare_input(transcriber(), recording)
    assert len(classify_heads(found.model, found.inputs).heads) == 4
    quiet = measure_effect(found.model, found.inputs, ablate_heads=[(0, 1)])
    assert quiet.kind == "tokens" and len(quiet.kl_at) == len(found.tokens) and quiet.kl > 0


def test_prepare_input_answers_wrong_recordings_with_one_sentence(tmp_path, unchecked):
    write_wav(tmp_path / "slow.wav", Audio(torch.zeros(4000), 1000))
    with pytest.raises(ValueError, match="needs 4000 to 192000 samples per second, got 1000"):
        prepare_input(transcriber(), tmp_path / "slow.wav")
    with pytest.raises(ValueError, match=r"shorter than 0\.025 s"):
        prepare_input(transcriber(), Audio(torch.zeros(20), 8000))
    model = transcriber()
    model.extra_files.clear()
    with pytest.raises(ValueError, match="does not say how audio becomes features"):
        prepare_input(model, Audio(torch.zeros(4000), 8000))
