"""From a path or an id to a folder: a path never asks the network, an id asks the hub for safetensors and JSON only."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from foreign import foreign

import qkv
from qkv.checkpoints.fetch import resolve

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a network call")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)


def test_a_local_path_makes_no_network_call(no_network, tmp_path, monkeypatch):
    foreign("gpt2").save_pretrained(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    assert qkv.load("org/name").num_parameters == qkv.load(tmp_path / "org" / "name").num_parameters


@pytest.mark.parametrize("path", ["./gone", "/gone/model", "a/b/c", "gone.bin", "~/gone", "gone/", "", Path("gone")])
def test_a_path_where_nothing_stands_is_refused_without_a_network_call(path, no_network, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"nothing at|no config\.json"):
        qkv.load(path)


def test_an_id_is_fetched_by_its_name_and_only_safe_files_are(monkeypatch, tmp_path):
    foreign("gpt2").save_pretrained(tmp_path / "fetched")
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


def test_what_the_hub_does_not_give_is_said_in_one_sentence(monkeypatch):
    def download(*_, **__):
        raise ConnectionError("no route to host.\nMore advice. And more.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(
        ValueError, match=r"^there is no folder org/name, and the hub did not give it: no route to host$"
    ):
        qkv.load("org/name")


def test_without_huggingface_hub_the_way_to_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"pip install 'qkv\[hf\]'"):
        resolve("org/name")


ALONE = """
import sys, qkv
size = qkv.load(sys.argv[1]).size
print([name for name in ("huggingface_hub", "transformers") if name in sys.modules])
print(qkv.load("org/name").size == size)
try:
    qkv.load("org/other")
except ValueError as error:
    print(error)
"""


def test_a_path_imports_no_hub_and_offline_a_cached_id_is_used_and_another_refused(tmp_path):
    """As huggingface_hub keeps it under HF_HOME: a folder for each revision, and a name that points to one."""
    place = tmp_path / "hub" / "models--org--name"
    folder = place / "snapshots" / ("0" * 40)
    foreign("gpt2").save_pretrained(folder)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0" * 40)
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")}
    command = [sys.executable, "-c", ALONE, str(folder)]
    shown = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert shown.returncode == 0, shown.stderr
    imported, loaded, said = shown.stdout.splitlines()
    assert (imported, loaded) == ("[]", "True")
    assert said.startswith("there is no folder org/other, and the hub did not give it")
