"""Options that other architectures need: qk_norm, biases of some projections, segments, head_bias."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from qkv.models import PRESETS, Encoder, EncoderConfig, GPTConfig, Seq2Seq, Seq2SeqConfig, ViT, ViTConfig, build
from qkv.nn import Dot, MultiHeadAttention
from qkv.nn.shapes import merge_heads, split_heads
from qkv.positions import Rope

SMALL: dict[str, Any] = {"vocab_size": 11, "dim": 8, "layers": 1, "heads": 2}


@pytest.mark.parametrize(("bias", "inner", "outer"), [(True, True, True), (False, False, False), ("qkv", True, False)])
def test_multi_head_attention_bias_chooses_the_projections_with_bias(bias, inner, outer):
    layer = MultiHeadAttention(8, 2, bias=bias)
    projections = (layer.to_q, layer.to_k, layer.to_v)
    assert [projection is not None and projection.bias is not None for projection in projections] == [inner] * 3
    assert (layer.to_out.bias is not None) == outer


def test_multi_head_attention_rejects_an_unknown_bias(unchecked):
    wrong: Any = "out"
    with pytest.raises(ValueError, match="bias must be True, False or 'qkv', got 'out'"):
        MultiHeadAttention(8, 2, bias=wrong)


@pytest.mark.parametrize("position", [None, Rope()])
def test_dot_qk_norm_equals_its_formula(position, randn):
    layer = MultiHeadAttention(8, 4, kv_heads=2, score=Dot(qk_norm=True, norm_eps=1e-3), position=position).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(randn(*parameter.shape))
    x = randn(2, 5, 8)
    assert layer.to_q is not None and layer.to_k is not None and layer.q_norm is not None and layer.k_norm is not None

    def normalized(heads: torch.Tensor, factors: Any) -> torch.Tensor:
        heads = heads / (heads.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * factors
        return heads if position is None else position(heads)

    q = normalized(split_heads(layer.to_q(x), 4), layer.q_norm.weight)
    k = normalized(split_heads(layer.to_k(x), 2), layer.k_norm.weight).repeat_interleave(2, dim=1)
    v = split_heads(layer.to_v(x), 2).repeat_interleave(2, dim=1)
    weights = (q @ k.mT / 2**0.5).softmax(-1)
    expected = layer.to_out(merge_heads(weights @ v))
    torch.testing.assert_close(layer(x), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(layer(x, return_weights=True)[1], weights, atol=1e-12, rtol=0)


def test_gpt_with_qk_norm_agrees_with_its_cache(randn):
    model: Any = build(
        GPTConfig(**SMALL, score=Dot(qk_norm=True), kv_heads=1, position="rope", sliding_window=3)
    ).double()
    tokens, cache = torch.randint(11, (2, 7)), model.new_cache()
    parts = [model(tokens[:, i : i + 2], cache=cache) for i in range(0, 7, 2)]
    torch.testing.assert_close(torch.cat(parts, 1), model(tokens), atol=1e-12, rtol=0)


def test_encoder_segments_add_their_vectors_and_default_to_zero():
    model = Encoder(EncoderConfig(**SMALL, num_segments=2, embedding_norm=True)).double().eval()
    tokens, segments = torch.randint(11, (2, 5)), torch.tensor([[0, 0, 1, 1, 1], [0, 1, 0, 1, 0]])
    torch.testing.assert_close(model(tokens), model(tokens, segments=torch.zeros_like(tokens)), atol=1e-14, rtol=0)
    source_mask = []
    model.blocks[0].register_forward_pre_hook(lambda _, given: source_mask.append(given[0]))
    model(tokens, segments=segments)
    assert model.position_embedding.segments is not None and model.position_embedding.positions is not None
    total = (
        model.tokens(tokens)
        + model.position_embedding.positions(torch.arange(5))
        + model.position_embedding.segments.weight[segments]
    )
    torch.testing.assert_close(source_mask[0], F.layer_norm(total, (8,)), atol=1e-12, rtol=0)


def test_encoder_rejects_segments_it_does_not_have():
    with pytest.raises(ValueError, match="has no segments"):
        Encoder(EncoderConfig(**SMALL))(torch.tensor([[1]]), segments=torch.tensor([[0]]))
    with pytest.raises(ValueError, match="from 0 to 1"):
        Encoder(EncoderConfig(**SMALL, num_segments=2))(torch.tensor([[1]]), segments=torch.tensor([[2]]))


def test_seq2seq_head_bias_is_added_to_the_logits():
    model = Seq2Seq(Seq2SeqConfig(vocab_size=11, dim=8, heads=2, head_bias=True, embedding_norm=True)).eval()
    source, target = torch.randint(11, (1, 4)), torch.randint(11, (1, 3))
    before = model(source, target)
    with torch.no_grad():
        model.head.bias.add_(torch.arange(11.0))
    torch.testing.assert_close(model(source, target) - before, torch.arange(11.0).expand(1, 3, 11), atol=1e-5, rtol=0)


def test_vit_without_classes_returns_the_pooled_features():
    model = ViT(ViTConfig(image_size=8, patch_size=4, dim=8, layers=1, heads=2, num_classes=0)).eval()
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(model(images), model.hidden_states(images)[:, 0])
    assert not any(name.startswith("head") for name in model.state_dict())


def test_presets_keep_their_numbers_of_parameters():
    sizes = {
        name: build(PRESETS[name]).num_parameters for name in ("nyu-hw4-vit", "cs224n-a5-gpt", "cs224n-a5-gpt-rope")
    }
    assert sizes == {"nyu-hw4-vit": 3_217_764, "cs224n-a5-gpt": 3_323_392, "cs224n-a5-gpt-rope": 3_290_624}
