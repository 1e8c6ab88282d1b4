"""A recording as something that can be looked at: heard as the model was taught to hear."""

import json
from dataclasses import asdict

import pytest
import torch

from qkv.data.mel import Mel
from qkv.data.wav import Sound, write_wav
from qkv.interp import effect, heads, subject
from qkv.models import Transcriber, TranscriberConfig

MEL = Mel(rate=8000, bands=8)


def transcriber() -> Transcriber:
    model = Transcriber(
        TranscriberConfig(features=8, labels=3, dim=16, layers=2, heads=2, chunk_size=2, ahead=1)
    ).eval()
    purpose = {
        "task": "transcribe",
        "words": ["yes", "no"],
        "mel": asdict(MEL),
        "mean": [0.5] * 8,
        "deviation": [2.0] * 8,
    }
    model.files["purpose.json"] = json.dumps(purpose).encode()
    return model


@pytest.fixture
def recording(tmp_path):
    samples = torch.sin(torch.arange(4000) * 0.3) * 0.4
    write_wav(tmp_path / "said.wav", Sound(samples, 8000))
    return tmp_path / "said.wav"


def test_a_recording_is_heard_as_frames_and_named_by_its_seconds(recording, unchecked):
    model = transcriber()
    model.save(recording.parent / "model")
    found = subject.open(recording.parent / "model", recording)
    assert found.kind == "sound" and found.inputs.shape == (1, MEL.frames(4000), 8)
    assert found.tokens[:3] == ("0.00 s", "0.04 s", "0.08 s") and found.token(0) == "–" and found.token(2) == "no"
    pcm = torch.frombuffer(bytearray(recording.read_bytes()[44:]), dtype=torch.int16).float() / 32768
    torch.testing.assert_close(found.inputs[0], (MEL(pcm) - 0.5) / 2.0)
    trace = found.trace()
    assert trace.layers[0].queries == len(found.tokens) == model(found.inputs).shape[1]
    assert found.labels(trace.layers[0])[0] == found.tokens


def test_a_head_of_a_recording_has_a_kind_and_an_effect(recording, unchecked):
    found = subject.of(transcriber(), recording)
    assert len(heads(found.model, found.inputs).heads) == 4
    quiet = effect(found.model, found.inputs, silence=[(0, 1)])
    assert quiet.kind == "tokens" and len(quiet.kl_at) == len(found.tokens) and quiet.kl > 0


def test_wrong_recordings_are_one_sentence(tmp_path, unchecked):
    write_wav(tmp_path / "fast.wav", Sound(torch.zeros(4000), 16000))
    with pytest.raises(ValueError, match="hears 8000 samples a second; the recording has 16000"):
        subject.of(transcriber(), tmp_path / "fast.wav")
    with pytest.raises(ValueError, match=r"shorter than 0\.025 s"):
        subject.of(transcriber(), Sound(torch.zeros(20), 8000))
    model = transcriber()
    model.files.clear()
    with pytest.raises(ValueError, match="does not say how it hears"):
        subject.of(model, Sound(torch.zeros(4000), 8000))
