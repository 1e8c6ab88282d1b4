"""prepare_digit(): drawings become images like the bundled digits, and the bundled model reads them."""

import json

import numpy as np
import pytest
import torch
from drawings import STYLES, draw_digit
from PIL import Image

import qkv
from qkv.data.images.drawn_digits import prepare_digit
from qkv.data.images.load import load_digits


@pytest.mark.parametrize("style", STYLES)
def test_prepare_digit_lets_the_bundled_model_read_at_least_nine_of_ten_drawings(style, unchecked):
    model = qkv.load("qkv:digits")
    purpose = json.loads(model.extra_files["purpose.json"])
    prepared = [prepare_digit(draw_digit(digit, style)) for digit in range(10)]
    pixels = torch.stack([torch.from_numpy(np.array(image)).float()[None] / 255 for image, _ in prepared])
    with torch.no_grad():
        read = model((pixels - purpose["mean"][0]) / purpose["std"][0]).argmax(-1)
    assert int((read == torch.arange(10)).sum()) >= 9, read.tolist()
    kind = "light on dark" if style == "light on dark" else "dark on light"
    assert all(len(notes) == 1 and kind in notes[0] for _, notes in prepared)  # none is doubted


def test_prepare_digit_keeps_an_image_of_the_data_set_as_it_is():
    pixels = load_digits().test.pixels[0, 0].numpy()
    image, notes = prepare_digit(Image.fromarray(pixels))
    assert np.array_equal(np.asarray(image), pixels) and notes == ()


def test_prepare_digit_does_not_depend_on_place_and_inversion():
    drawing = draw_digit(5, "plain")
    moved = Image.new("RGB", (400, 500), (255, 255, 255))
    moved.paste(drawing, (90, 200))
    inverted = Image.fromarray(255 - np.asarray(drawing))
    expected = np.asarray(prepare_digit(drawing)[0], dtype=int)
    for other in (moved, inverted):
        assert np.abs(np.asarray(prepare_digit(other)[0], dtype=int) - expected).mean() < 16


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (Image.new("L", (50, 40), 128), "nothing stands out"),
        (Image.fromarray(np.pad(np.full((8, 90), 255, np.uint8), 20)), "much wider than high"),
        (Image.fromarray(np.pad(np.full((60, 60), 255, np.uint8), 20)), "a blot"),
    ],
)
def test_prepare_digit_says_when_the_image_is_probably_no_digit(image, reason):
    assert any(note.startswith("the image is probably no digit") and reason in note for note in prepare_digit(image)[1])


def test_use_and_look_read_the_same_pixels_of_a_drawing(tmp_path, capsys):
    from qkv.cli.main import run

    draw_digit(7, "plain").save(tmp_path / "seven.png")
    assert run(["use", "qkv:digits", str(tmp_path / "seven.png"), "--json"]) == 0
    used = json.loads(capsys.readouterr().out)[0]
    assert run(["look", "qkv:digits", str(tmp_path / "seven.png"), "--json"]) == 0
    looked = json.loads(capsys.readouterr().out)
    first = looked["prediction"][0]
    assert used["result"] == first["text"] == "7"
    assert used["confidence"] == pytest.approx(first["probability"], abs=1e-4)
    assert list(used["notes"]) == list(looked["notes"])[: len(used["notes"])]
