"""The models that come with qkv: small, whole, and as their cards say."""

import json
import shutil

import pytest
import torch

import qkv
from qkv.checkpoints import bundled as shipped
from qkv.cli.main import run as typed
from qkv.data.digit_images import digits
from qkv.models import GPT, ViT
from qkv.training.recipes.shipping import About, ship
from qkv.training.runs import train


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A place for models of a test's own."""
    monkeypatch.setattr(shipped, "HOME", tmp_path)
    return tmp_path


def test_they_are_there_and_small():
    assert {"qkv:digits", "qkv:shakespeare"} <= set(shipped.names())
    files = [path for path in shipped.HOME.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 8_000_000
    assert {path.suffix for path in files} <= {".safetensors", ".json", ".toml", ".wav", ".py", ".pyc"}


@pytest.mark.parametrize("name", shipped.names())
def test_a_model_is_what_its_card_says(name):
    card, model = shipped.read_card(name), qkv.load(name)
    assert card["name"] == name and card["parameters"] == model.num_parameters
    assert all(card[key] for key in ("recipe", "command", "metrics", "licence", "data", "sha256"))
    assert card["command"].startswith(f"qkv train {card['recipe']}") and isinstance(card["seed"], int)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_the_digits_are_read_as_well_as_the_card_says():
    model, test = qkv.load("qkv:digits"), digits().test
    purpose = json.loads(model.files["purpose.json"])
    assert isinstance(model, ViT)
    pixels = (test.pixels.float() / 255 - purpose["mean"][0]) / purpose["deviation"][0]
    with torch.no_grad():
        right = (model(pixels).argmax(-1) == test.labels).double().mean().item()
    assert round(right, 4) == shipped.read_card("qkv:digits")["metrics"]["test"]["accuracy"] > 0.95


def test_the_commands_take_their_names(capsys, unchecked):
    assert typed(["use", "qkv:shakespeare", "To be, or", "--count", "5", "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("To be, or")
    assert typed(["look", "qkv:shakespeare", "To be", "--layer", "1", "--head", "2", "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)
    model = qkv.load("qkv:shakespeare")
    assert isinstance(model, GPT) and len(seen["layers"]) == model.config.layers
    assert typed(["look", "qkv:shakespeare", "To be", "--against", "qkv:shakespeare", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["comparison"]["mean"] == pytest.approx(0, abs=1e-6)


def test_a_name_that_is_not_there_is_one_sentence():
    with pytest.raises(ValueError, match="no model 'qkv:digit' comes with qkv; did you mean qkv:digits"):
        qkv.load("qkv:digit")
    with pytest.raises(ValueError, match="no folder digits; the model that comes with qkv is qkv:digits"):
        qkv.load("digits")
    with pytest.raises(ValueError, match=r"no model 'qkv:\.\./digits' comes with qkv"):
        qkv.load("qkv:../digits")


@pytest.mark.parametrize("file", ["model.safetensors", "purpose.json"])
def test_a_changed_file_is_refused(elsewhere, file):
    shutil.copytree(shipped.__path__[0] + "/digits", elsewhere / "digits")
    assert qkv.load("qkv:digits").num_parameters == 152_202
    content = bytearray((elsewhere / "digits" / file).read_bytes())
    content[-1] ^= 1
    (elsewhere / "digits" / file).write_bytes(content)
    with pytest.raises(ValueError, match=rf"qkv:digits is damaged: {file} is not what its card says"):
        qkv.load("qkv:digits")


def test_a_run_becomes_one_in_half_precision_and_is_loaded_in_single(elsewhere, unchecked):
    changes = {"model.dim": 16, "model.layers": 1, "model.heads": 2}
    run = train("vit-digits", changes, folder=elsewhere / "run", steps=2)
    about = About("A small one.", "qkv train vit-digits --steps 2", "digits", "CC BY 4.0")
    card = ship(run.folder, "tiny", about, half=True, home=elsewhere)
    assert card["stored"] == "float16" and shipped.names() == ["qkv:tiny"]
    model, before = qkv.load("qkv:tiny"), run.model
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before.state_dict()[name].half().float())
    assert card["metrics"]["test"]["accuracy"] == pytest.approx(run.result["test"]["accuracy"], abs=0.02)
