"""`qkv convert` on the command line."""

import json

import pytest
import torch

import qkv
from qkv.cli.main import run
from qkv.models import GPT, GPTConfig


@pytest.fixture
def folder(tmp_path):
    model = GPT(GPTConfig(vocab_size=11, max_length=8, dim=8, layers=1, heads=2))
    model.extra_files["tokenizer.json"] = b'{"kept": "as it is"}'
    model.save(tmp_path / "ours")
    return tmp_path


def test_convert_to_hf_and_back_gives_the_same_model(folder, capsys):
    assert run(["convert", f"{folder}/ours", f"{folder}/theirs", "--to", "hf", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["model"] == "GPT"
    assert done["files"] == ["config.json", "model.safetensors", "tokenizer.json"]
    assert run(["convert", f"{folder}/theirs", f"{folder}/back", "--to", "qkv"]) == 0
    assert "load it with" in capsys.readouterr().out
    first, last = qkv.load(folder / "ours"), qkv.load(folder / "back")
    assert (folder / "back" / "tokenizer.json").read_bytes() == b'{"kept": "as it is"}'
    assert all(torch.equal(one, last.state_dict()[name]) for name, one in first.state_dict().items())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere/at/all", "x", "--to", "hf"], "there is nothing at nowhere/at/all"),
        (["ours", "ours", "--to", "hf"], "ours is the source itself"),
        (["ours", "theirs", "--to", "gguf"], "gguf"),
        (["ours", "theirs"], "--to"),
        (["ours", ".", "--to", "hf"], "holds other files"),
        (["picture", "x", "--to", "hf"], "this MLP has no counterpart"),
    ],
)
def test_convert_wrong_use_is_one_sentence_and_exit_code_2(arguments, said, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    qkv.models.MLP(qkv.models.MLPConfig(image_size=4, channels=1, num_classes=2, hidden_sizes=(3,))).save("picture")
    assert run(["convert", *arguments]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == ["ours", "picture"]


def test_convert_refuses_a_link_as_target(folder, capsys):
    (folder / "real").mkdir()
    (folder / "link").symlink_to("real")
    assert run(["convert", f"{folder}/ours", f"{folder}/link", "--to", "qkv"]) == 2
    assert "link: it is a symbolic link; name the folder it leads to" in capsys.readouterr().err
    assert list((folder / "real").iterdir()) == [] and (folder / "link").is_symlink()


def test_convert_help_has_examples(capsys):
    assert run(["convert", "--help"]) == 0
    assert "qkv convert openai-community/gpt2" in capsys.readouterr().out
