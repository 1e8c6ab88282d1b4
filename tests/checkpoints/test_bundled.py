"""The bundled models are small and undamaged, and give the results that their cards state."""

import json
import shutil

import pytest
import torch

import qkv
from qkv._config import read_toml
from qkv.checkpoints import bundled
from qkv.cli.main import run as run_command
from qkv.data.images.load import load_digits
from qkv.models import GPT, ViT
from qkv.training import get_recipe
from qkv.training.bundling import CardInfo, bundle_run
from qkv.training.runs import run_recipe


@pytest.fixture
def bundle_folder(tmp_path, monkeypatch):
    """A folder for bundled models of a test's own."""
    monkeypatch.setattr(bundled, "HOME", tmp_path)
    return tmp_path


def test_bundled_models_exist_and_are_small():
    assert {"qkv:digits", "qkv:shakespeare"} <= set(bundled.names())
    files = [path for path in bundled.HOME.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4_000_000
    assert {path.suffix for path in files} <= {".safetensors", ".json", ".toml", ".wav", ".py", ".pyc"}


@pytest.mark.parametrize("name", bundled.names())
def test_read_card_describes_the_bundled_model(name):
    card, model = bundled.read_card(name), qkv.load(name)
    assert card["name"] == name and card["parameters"] == model.num_parameters
    assert all(card[key] for key in ("recipe", "command", "metrics", "license", "data", "sha256"))
    assert card["command"].startswith(f"qkv train {card['recipe']}") and isinstance(card["seed"], int)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


OUTPUTS = {  # an input, and the first logits at its last position
    "qkv:digits": (torch.linspace(-1, 1, 64).view(1, 1, 8, 8), [0.3307, 0.2997, -0.0678, -1.0959]),
    "qkv:biographies": ((torch.arange(20) * 7 % 2048)[None], [-5.9247, 4.1995, -5.8407, -5.9250]),
    "qkv:shakespeare": ((torch.arange(20) % 65)[None], [0.7496, 1.3631, -0.9270, -8.4406]),
    "qkv:spoken-digits": (torch.linspace(-1, 1, 60 * 40).view(1, 60, 40), [9.6257, -3.8382, -3.2774, -2.5598]),
}


@pytest.mark.parametrize("name", bundled.names())
def test_load_of_a_bundled_model_gives_the_outputs_it_was_bundled_with(name):
    inputs, expected = OUTPUTS[name]
    with torch.no_grad():
        logits = qkv.load(name)(inputs)
    assert logits.flatten(0, -2)[-1, :4].tolist() == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("name", bundled.names())
def test_the_recipe_of_a_bundled_model_resolves_to_its_config(name):
    recipe = get_recipe(bundled.read_card(name)["recipe"]).from_table(read_toml(bundled.folder(name) / "recipe.toml"))
    assert recipe.model == qkv.load(name).config


def test_qkv_digits_has_the_accuracy_of_its_card():
    model, test = qkv.load("qkv:digits"), load_digits().test
    purpose = json.loads(model.extra_files["purpose.json"])
    assert isinstance(model, ViT)
    pixels = (test.pixels.float() / 255 - purpose["mean"][0]) / purpose["std"][0]
    with torch.no_grad():
        accuracy = (model(pixels).argmax(-1) == test.labels).double().mean().item()
    assert round(accuracy, 4) == bundled.read_card("qkv:digits")["metrics"]["test"]["accuracy"] > 0.95


def test_qkv_use_and_look_accept_bundled_names(capsys, unchecked):
    assert run_command(["use", "qkv:shakespeare", "To be, or", "--max-new-tokens", "5", "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("To be, or")
    assert run_command(["look", "qkv:shakespeare", "To be", "--layer", "1", "--head", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    model = qkv.load("qkv:shakespeare")
    assert isinstance(model, GPT) and len(result["layers"]) == model.config.layers
    assert run_command(["look", "qkv:shakespeare", "To be", "--compare", "qkv:shakespeare", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["comparison"]["mean"] == pytest.approx(0, abs=1e-6)


def test_load_suggests_a_bundled_name_for_an_unknown_one():
    with pytest.raises(ValueError, match="there is no bundled model 'qkv:digit'; did you mean qkv:digits"):
        qkv.load("qkv:digit")
    with pytest.raises(ValueError, match="no folder digits; the bundled model is called qkv:digits"):
        qkv.load("digits")
    with pytest.raises(ValueError, match=r"there is no bundled model 'qkv:\.\./digits'"):
        qkv.load("qkv:../digits")


@pytest.mark.parametrize("file", ["model.safetensors", "purpose.json"])
def test_load_refuses_a_changed_file_of_a_bundled_model(bundle_folder, file):
    shutil.copytree(bundled.__path__[0] + "/digits", bundle_folder / "digits")
    assert qkv.load("qkv:digits").num_parameters == 152_202
    content = bytearray((bundle_folder / "digits" / file).read_bytes())
    content[-1] ^= 1
    (bundle_folder / "digits" / file).write_bytes(content)
    with pytest.raises(ValueError, match=rf"qkv:digits is damaged: {file} differs from its card"):
        qkv.load("qkv:digits")


def test_bundle_run_stores_int8_that_load_reads_as_float32(bundle_folder, unchecked):
    overrides = {"model.dim": 16, "model.layers": 1, "model.heads": 2}
    run = run_recipe("vit-digits", overrides, folder=bundle_folder / "run", steps=2)
    info = CardInfo("A small model.", "qkv train vit-digits --steps 2", "digits", "CC BY 4.0")
    card = bundle_run(run.folder, "tiny", info, home=bundle_folder)
    assert card["stored"].startswith("int8") and bundled.names() == ["qkv:tiny"]
    model, before = qkv.load("qkv:tiny"), run.model
    for name, tensor in model.state_dict().items():
        trained = before.state_dict()[name]
        step = trained.abs().flatten(1).amax(1) / 127 if trained.dim() > 1 else trained.abs() / 1024
        step = step.view(-1, *(1,) * (trained.dim() - 1))
        assert tensor.dtype == torch.float32
        assert ((tensor - trained).abs() <= 0.57 * step + 1e-7).all(), name  # half a step, and that of the scale itself
    assert card["metrics"]["test"]["accuracy"] == pytest.approx(run.result["test"]["accuracy"], abs=0.02)
