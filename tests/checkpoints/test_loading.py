"""resolve and load: paths without network calls, hub ids that fetch safetensors and JSON only, and run folders."""

import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hf_models import make_hf_model
from safetensors.torch import save_file

import qkv
from qkv.checkpoints import load_any, resolve
from qkv.models import GPT, GPTConfig

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a network call")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)


def test_load_of_a_local_path_makes_no_network_call(no_network, tmp_path, monkeypatch):
    make_hf_model("gpt2").save_pretrained(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    assert qkv.load("org/name").num_parameters == qkv.load(tmp_path / "org" / "name").num_parameters


@pytest.mark.parametrize("path", ["./gone", "/gone/model", "a/b/c", "gone.bin", "~/gone", "gone/", "", Path("gone")])
def test_load_refuses_a_missing_path_without_a_network_call(path, no_network, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"nothing at|no config\.json"):
        qkv.load(path)


def test_load_of_a_run_folder_loads_its_trained_model(tmp_path):
    model = GPT(GPTConfig(vocab_size=7, max_length=5, dim=4, layers=1, heads=2))
    (tmp_path / "runs" / "text-1").mkdir(parents=True)
    (tmp_path / "runs" / "text-1" / "recipe.toml").touch()
    with pytest.raises(ValueError, match=r"text-1 is not finished.*resume it: qkv train --config .*recipe\.toml"):
        qkv.load(tmp_path / "runs" / "text-1")
    (tmp_path / "runs" / "text-1" / "run.json").write_text('{"error": "step 2: the loss is nan"}')
    with pytest.raises(ValueError, match=r"text-1 failed, so it has no model: step 2: the loss is nan"):
        qkv.load(tmp_path / "runs" / "text-1")
    model.save(tmp_path / "runs" / "text-1" / "model")
    folder = resolve(tmp_path / "runs" / "text-1")
    assert folder == tmp_path / "runs" / "text-1" / "model" == resolve(folder)
    assert torch.equal(qkv.load(tmp_path / "runs" / "text-1").tokens.weight, model.tokens.weight)
    with pytest.raises(ValueError, match=r"there is no run .*text-2; `qkv runs .*runs` lists the runs"):
        qkv.load(tmp_path / "runs" / "text-2")


def test_load_any_uses_transformers_for_an_architecture_that_qkv_does_not_read(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"embedding_size": 16, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1}
    config = transformers.ElectraConfig(vocab_size=23, num_attention_heads=4, **sizes)
    transformers.ElectraModel(config).save_pretrained(tmp_path / "electra")
    make_hf_model("gpt2").save_pretrained(tmp_path / "gpt2")
    with pytest.raises(ValueError, match="of type 'electra'"):
        qkv.load(tmp_path / "electra")
    model, notes = load_any(tmp_path / "electra")
    assert type(model).__name__ == "ElectraModel" and notes == ("ElectraModel, loaded by transformers",)
    model, notes = load_any(tmp_path / "gpt2")
    assert isinstance(model, GPT) and notes == ()


def test_load_fetches_only_safe_files_of_a_hub_id(monkeypatch, tmp_path):
    make_hf_model("gpt2").save_pretrained(tmp_path / "fetched")
    asked = []

    def download(name, *, allow_patterns):
        asked.append((name, allow_patterns))
        return str(tmp_path / "fetched")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert qkv.load("org/name").config.dim == 16
    (name, patterns), *_ = asked
    assert name == "org/name"
    assert all(pattern.endswith((".safetensors", ".json")) for pattern in patterns)
    assert {"config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"} <= set(patterns)


def test_load_reports_a_failed_fetch_in_one_line(monkeypatch):
    def download(*_, **__):
        raise OSError("the repository is gated.\nMore advice. And more.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(
        ValueError,
        match=r"^there is no folder org/name, and it could not be fetched from the hub: the repository is gated; "
        "bundled models start with qkv:$",
    ):
        qkv.load("org/name")


def test_resolve_says_how_to_install_huggingface_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"pip install 'qkv\[hf\]'"):
        resolve("org/name")


SCRIPT = """
import sys, qkv
parameters = qkv.load(sys.argv[1]).num_parameters
print([name for name in ("huggingface_hub", "transformers") if name in sys.modules])
print(qkv.load("org/name").num_parameters == parameters)
try:
    qkv.load("org/other")
except ValueError as error:
    print(error)
"""


def test_load_of_a_path_imports_no_hub_and_offline_uses_the_cache(tmp_path):
    """As huggingface_hub keeps it under HF_HOME: a folder for each revision, and a name that points to one."""
    place = tmp_path / "hub" / "models--org--name"
    folder = place / "snapshots" / ("0" * 40)
    make_hf_model("gpt2").save_pretrained(folder)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0" * 40)
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")}
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    shown = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert shown.returncode == 0, shown.stderr
    imported, loaded, said = shown.stdout.splitlines()
    assert (imported, loaded) == ("[]", "True")
    assert said.startswith("there is no folder org/other, and it could not be fetched from the hub")


def test_load_says_that_the_hub_cannot_be_reached(monkeypatch):
    class ConnectError(Exception):
        """As httpx calls it."""

    def snapshot_download(*_, **__):
        raise RuntimeError("an error of the hub") from ConnectError("")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ValueError, match="the Hugging Face hub could not be reached to fetch it: check the network"):
        qkv.load("org/name")


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"]},  # all sizes are transformers' defaults
        {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "hidden_size": 32_000, "vocab_size": 35_000,
         "intermediate_size": 35_000, "num_hidden_layers": 20, "num_attention_heads": 8},
    ],
)  # fmt: skip
def test_load_any_refuses_a_model_much_larger_than_its_folder_before_memory_is_allocated(config, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({f"layers.{i}.weight": torch.zeros(8, 8) for i in range(60)}, tmp_path / "model.safetensors")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"describes a model of [\d,]+ parameters, but the folder has 3,840 numbers"):
        load_any(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000  # in KiB
