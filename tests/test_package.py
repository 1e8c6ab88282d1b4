"""Import cost of qkv and its public names."""

import subprocess
import sys

import pytest

import qkv


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_qkv_does_not_import_torch():
    assert run("import sys, qkv; print('torch' in sys.modules)") == "False"


def test_qkv_names_are_imported_on_first_use():
    assert run("import sys, qkv; qkv.attention; print('torch' in sys.modules)") == "True"


def test_masks_are_importable_by_their_public_path():
    assert run("from qkv.masks import causal; print(causal(2).to_dense().int().tolist())") == "[[1, 0], [1, 1]]"


@pytest.mark.parametrize("name", qkv.__all__)
def test_every_public_name_exists_and_is_listed(name):
    assert getattr(qkv, name) is not None
    assert name in dir(qkv)


@pytest.mark.parametrize("name", ["causal", "sliding_window", "chunked", "prefix", "padding"])
def test_masks_are_public(name):
    assert callable(getattr(qkv.masks, name))


@pytest.mark.parametrize("name", ["sinusoidal", "Rope", "Alibi", "T5Bias", "Shaw"])
def test_positions_are_public(name):
    assert callable(getattr(qkv.positions, name))


@pytest.mark.parametrize("name", ["GPT", "ViT", "Encoder", "Seq2Seq", "Perceiver", "RNN", "RNNSeq2Seq", "CNN", "MLP"])
def test_models_have_a_frozen_config_class(name):
    config = getattr(qkv.models, f"{name}Config")
    assert getattr(qkv.models, name).config_class is config
    assert config.__dataclass_params__.frozen


def test_qkv_names_the_known_attributes_for_an_unknown_one():
    with pytest.raises(AttributeError, match=r"has no attribute .atention.; it has .*attention"):
        _ = qkv.atention  # pyright: ignore[reportAttributeAccessIssue]


def test_dir_of_qkv_has_no_helpers_of_its_own_source():
    assert not {"importlib", "TYPE_CHECKING"} & set(dir(qkv))
