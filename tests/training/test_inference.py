"""Predictor: use a trained model."""

import pytest

from qkv.training import run_recipe


def test_predictor_classifies_an_image_and_names_a_bad_file(tmp_path, unchecked):
    from PIL import Image

    from qkv.data.images.load import load_digits
    from qkv.training.inference import load_predictor

    overrides = {"model.dim": 16, "model.layers": 1, "model.heads": 2}
    run = run_recipe("vit-digits", overrides, steps=4, folder=tmp_path / "run")
    predictor, splits = load_predictor(tmp_path / "run"), load_digits()
    Image.fromarray(splits.test.pixels[0, 0].numpy()).save(tmp_path / "digit.png")
    prediction = predictor(str(tmp_path / "digit.png"), top=10)
    pixels = splits.test.pixels[:1].float() / 255
    normalized = (pixels - predictor.purpose["mean"][0]) / predictor.purpose["std"][0]
    probabilities = run.model(normalized).softmax(-1)[0].detach()
    assert prediction.result == str(int(probabilities.argmax()))
    assert prediction.confidence == pytest.approx(float(probabilities.max()), abs=1e-4)
    (tmp_path / "none.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"none\.png: the file is empty"):
        predictor(str(tmp_path / "none.png"))


def test_generate_says_that_a_prompt_is_longer_than_the_model_was_made_for():
    from qkv.training.inference import load_predictor

    predictor = load_predictor("qkv:shakespeare")
    assert predictor("To be", max_new_tokens=1).notes == ()
    (note,) = predictor("To be " * 50, max_new_tokens=1).notes
    assert note == "the prompt has 300 tokens, more than the 128 that the model was made for"


def test_transcribe_says_that_a_recording_is_shorter_than_a_frame(tmp_path, unchecked):
    import torch

    from qkv.data.speech.wav import Audio, write_wav
    from qkv.training.inference import load_predictor

    predictor = load_predictor("qkv:spoken-digits")
    notes = {}
    for samples in (3, 4000):
        file = tmp_path / f"{samples}.wav"
        write_wav(file, Audio(torch.randn(samples).clamp(-1, 1), 16000))
        notes[samples] = " ".join(predictor(str(file)).notes)
    assert "the recording is shorter than 0.025 s" in notes[3]
    assert "shorter than" not in notes[4000]
