"""Int8Linear is the linear layer of its rounded weights; quantize replaces every linear layer."""

import pytest
import torch
from torch import nn

from qkv.models import GPT, GPTConfig, ViT, ViTConfig
from qkv.nn.quantized import Int8Linear, dequantize_groups, quantize_groups


@pytest.mark.parametrize("inputs", [30, 64, 130])
def test_quantize_groups_is_within_half_a_step_and_keeps_zeros(inputs: int):
    weight = torch.randn(50, inputs)
    weight[3] = 0
    values, scale = quantize_groups(weight)
    assert values.dtype == torch.int8 and int(values.abs().max()) == 127
    step = scale.repeat_interleave(64, dim=1)[:, :inputs]
    assert bool(((dequantize_groups(values, scale) - weight).abs() <= step * 0.501).all())


@pytest.mark.parametrize("bias", [True, False])
def test_int8_linear_multiplies_by_its_weight(bias: bool, monkeypatch):
    monkeypatch.setattr("qkv.nn.quantized.CHUNK", 40)  # in several parts
    linear = nn.Linear(16, 9, bias)
    layer, x = Int8Linear(linear), torch.randn(2, 3, 16)
    expected = nn.functional.linear(x, layer.weight, linear.bias)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer(x.requires_grad_()), expected)
    assert layer(x).requires_grad


def test_quantize_changes_the_logits_little_and_leaves_embeddings():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=50, dim=32, tie_embeddings=True)).eval()
    tokens, embeddings = torch.randint(0, 50, (2, 9)), model.tokens.weight.clone()
    with torch.no_grad():
        before = model(tokens)
        assert model.quantize("int8") is model
        after = model(tokens)
    assert not any(isinstance(module, nn.Linear) for module in model.modules())
    assert torch.equal(model.tokens.weight, embeddings)
    assert 0 < float((after - before).abs().max()) < 0.02 * float(before.abs().max())


def test_quantize_works_for_a_vit_and_refuses_other_kinds_and_saving(tmp_path):
    model = ViT(ViTConfig(image_size=8)).eval()
    with pytest.raises(ValueError, match="'int4'"):
        model.quantize("int4")
    with torch.no_grad():
        assert model.quantize()(torch.randn(2, 3, 8, 8)).isfinite().all()
    with pytest.raises(ValueError, match="save it first"):
        model.save(tmp_path / "model")
