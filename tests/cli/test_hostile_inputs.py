"""Hostile files and texts on the command line: one sentence and exit code 2."""

import json

import pytest

from qkv.cli.main import run
from qkv.data.text.tokenizers import MAX_CHARACTERS, character_tokenizer, serialize_tokenizer
from qkv.models import GPT, GPTConfig


@pytest.fixture
def model(tmp_path):
    """A model folder with a character tokenizer."""
    made = GPT(GPTConfig(vocab_size=4, max_length=8, dim=8, layers=1, heads=2))
    made.extra_files["tokenizer.json"] = serialize_tokenizer(character_tokenizer(["abcd"]))
    made.save(tmp_path / "model")
    return tmp_path / "model"


def _sentence(capfd) -> str:
    shown = capfd.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and "bug in qkv" not in shown.err, shown.err
    return shown.err


@pytest.mark.parametrize("command", ["use", "look"])
def test_a_tokenizer_that_panics_is_one_sentence(command, model, capfd):
    table = json.loads((model / "tokenizer.json").read_text())
    single = [{"SpecialToken": {"id": "zz", "type_id": 0}}]
    table["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}
    (model / "tokenizer.json").write_text(json.dumps(table))
    assert run([command, str(model), "abc"]) == 2
    assert "tokenizer.json cannot be used" in _sentence(capfd)


@pytest.mark.parametrize("command", ["use", "look"])
def test_a_text_far_beyond_any_model_is_refused_before_it_is_encoded(command, model, capfd):
    assert run([command, str(model), "a" * (MAX_CHARACTERS + 1)]) == 2
    assert "the text has 1,000,001 characters, far more than the model can read" in _sentence(capfd)


def test_a_recipe_of_a_wrong_type_is_one_sentence(tmp_path, capfd):
    (tmp_path / "r.toml").write_text('recipe = ["x"]')
    assert run(["train", "--config", str(tmp_path / "r.toml"), "--folder", str(tmp_path / "none")]) == 2
    assert "r.toml: recipe must be the name of a recipe, got ['x']" in _sentence(capfd)
    assert not (tmp_path / "none").exists()
