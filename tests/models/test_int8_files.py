"""A model folder stored as int8: what `load` gives back, and what it refuses."""

import pytest
import torch
from safetensors.torch import load_file, save_file

import qkv
from qkv.models import GPT, GPTConfig
from qkv.models.folder import save
from qkv.models.int8_files import SCALE


@pytest.fixture
def model() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab_size=11, max_length=8, dim=16, layers=1, heads=2))


def test_save_int8_rounds_each_row_to_half_a_step_and_load_gives_float32(model, tmp_path):
    save(model, tmp_path / "small", int8=True)
    loaded = qkv.load(tmp_path / "small")
    for (name, stored), original in zip(loaded.state_dict().items(), model.state_dict().values(), strict=True):
        assert stored.dtype == torch.float32
        if original.dim() > 1:
            step = original.abs().amax(1, keepdim=True) / 127
            assert ((stored - original).abs() <= 0.57 * step).all(), name  # half a step, and the rounding of the scale
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        assert torch.allclose(loaded(tokens), model.eval()(tokens), atol=0.02)


def test_load_refuses_int8_scales_that_do_not_fit(model, tmp_path):
    save(model, tmp_path / "small", int8=True)
    path = tmp_path / "small" / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith(SCALE))
    save_file({**tensors, name: tensors[name][:-1].clone()}, path)
    with pytest.raises(ValueError, match="must have one number for each row of"):
        qkv.load(tmp_path / "small")
    save_file({**tensors, "nothing" + SCALE: tensors[name].clone()}, path)
    with pytest.raises(ValueError, match=r"nothing\.int8_scale must have one number for each row of nothing"):
        qkv.load(tmp_path / "small")
