"""Presets have the published numbers of parameters; other sizes follow the formulas."""

from typing import Any

import pytest
import torch

from qkv.models import (
    PRESETS,
    EncoderConfig,
    GPTConfig,
    MLPConfig,
    RNNConfig,
    Seq2SeqConfig,
    build,
)
from qkv.nn import DenseSynthesizer


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("transformer-base", 63_082_496),  # 37,000 shared tokens; the paper rounds to 65 million
        ("nyu-hw4-vit", 3_217_764),
        ("cs224n-a5-gpt", 3_323_392),
        ("cs224n-a5-gpt-synthesizer", 3_076_988),
        ("cs224n-a5-gpt-rope", 3_290_624),
    ],
)
def test_preset_has_the_published_number_of_parameters(name, size):
    assert build(PRESETS[name]).num_parameters == size


def test_preset_with_rope_lacks_exactly_the_position_table():
    assert (
        build(PRESETS["cs224n-a5-gpt"]).num_parameters - build(PRESETS["cs224n-a5-gpt-rope"]).num_parameters
        == 128 * 256
    )


def test_presets_read_the_inputs_of_their_course(device):
    for name, config in PRESETS.items():
        model: Any = build(config).to(device).eval()
        if name == "nyu-hw4-vit":
            assert model(torch.zeros(1, 3, 32, 32, device=device)).shape == (1, 100)
            assert model.hidden_states(torch.zeros(1, 3, 32, 32, device=device)).shape == (1, 65, 256)
        elif name == "transformer-base":
            tokens = torch.zeros(1, 5, dtype=torch.long, device=device)
            assert model(tokens, tokens[:, :3]).shape == (1, 3, 37_000)
        else:
            assert model(torch.zeros(1, 127, dtype=torch.long, device=device)).shape == (1, 127, 256)


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    return inputs * outputs + (outputs if bias else 0)


def block(
    c: int, hidden: int, *, kv: int | None = None, bias: bool = True, gate: bool = False, cross: bool = False
) -> int:
    """Parameters of one layer with layer norms: attention, feed-forward, a norm for each."""
    kv = c if kv is None else kv
    attention = linear(c, c, bias) + 2 * linear(c, kv, bias) + linear(c, c, bias)
    feed_forward = (2 if gate else 1) * linear(c, hidden, bias) + linear(hidden, c, bias)
    norm = 2 * c if bias else c
    return attention * (2 if cross else 1) + feed_forward + norm * (3 if cross else 2)


SIZES = {
    "gpt": (
        GPTConfig(vocab_size=50, max_length=20, dim=24, layers=3, heads=4),
        50 * 24 + 20 * 24 + 3 * block(24, 96) + 2 * 24 + 24 * 50,
    ),
    "gpt, tied, grouped, without bias": (
        GPTConfig(
            50, dim=24, layers=2, heads=4, kv_heads=2, tie_embeddings=True, bias=False, position="rope", mlp_dim=10
        ),
        50 * 24 + 2 * block(24, 10, kv=12, bias=False) + 24,
    ),
    "gpt, swiglu and rms": (
        GPTConfig(50, max_length=9, dim=24, layers=1, heads=4, activation="swiglu", norm="rms", mlp_dim=10),
        50 * 24 + 9 * 24 + block(24, 10, gate=True) - 2 * 24 + 24 + 24 * 50,
    ),
    "gpt, post-norm, t5": (
        GPTConfig(50, dim=24, layers=2, heads=4, norm_order="post", position="t5"),
        50 * 24 + 2 * (block(24, 96) + 32 * 4) + 24 * 50,
    ),
    "gpt, shaw": (
        GPTConfig(50, dim=24, layers=2, heads=4, position="shaw"),
        50 * 24 + 2 * (block(24, 96) + 33 * 6) + 2 * 24 + 24 * 50,
    ),
    "gpt, synthesizer": (
        GPTConfig(50, dim=24, max_length=7, layers=2, heads=4, score=DenseSynthesizer(7)),
        50 * 24 + 7 * 24 + 2 * (block(24, 96) - linear(24, 24) + 6 * 7 + 7) + 2 * 24 + 24 * 50,
    ),
    "encoder": (
        EncoderConfig(vocab_size=30, dim=16, layers=2, heads=2, mlp_dim=20),
        30 * 16 + 2 * block(16, 20) + 2 * 16,
    ),
    "encoder of vectors": (
        EncoderConfig(features=5, dim=16, layers=2, heads=2, mlp_dim=20, norm_order="post"),
        linear(5, 16) + 2 * block(16, 20),
    ),
    "seq2seq": (
        Seq2SeqConfig(30, dim=16, heads=2, mlp_dim=20, encoder_layers=2, decoder_layers=3),
        30 * 16 + 2 * block(16, 20) + 3 * block(16, 20, cross=True),
    ),
    "seq2seq, two tables": (
        Seq2SeqConfig(30, target_vocab_size=40, tie_embeddings=False, dim=16, heads=2, mlp_dim=20, norm_order="pre"),
        30 * 16 + 2 * 40 * 16 + 3 * (block(16, 20) + block(16, 20, cross=True)) + 4 * 16,
    ),
    "lstm": (
        RNNConfig(30, dim=6, hidden_size=8, layers=2),
        30 * 6 + 4 * 8 * (6 + 8 + 2) + 4 * 8 * (8 + 8 + 2) + linear(8, 30),
    ),
    "mlp": (
        MLPConfig(image_size=4, channels=3, num_classes=7, hidden_sizes=(5, 6)),
        linear(48, 5) + linear(5, 6) + linear(6, 7),
    ),
}


@pytest.mark.parametrize(("config", "size"), SIZES.values(), ids=list(SIZES))
def test_num_parameters_follows_the_formula(config, size):
    assert build(config).num_parameters == size


def test_init_weights_scales_residual_projections_with_depth():
    """N(0, 0.02²), and 0.02 / √(2·layers) for the last matrix of each part, as GPT-2 has it."""
    model: Any = build(GPTConfig(vocab_size=50, dim=64, layers=8, heads=4))
    first = model.blocks[0]
    for weight, deviation in (
        (model.tokens.weight, 0.02),
        (first.attention.to_q.weight, 0.02),
        (first.feed_forward.to_hidden.weight, 0.02),
        (first.attention.to_out.weight, 0.02 / 4),
        (first.feed_forward.to_out.weight, 0.02 / 4),
    ):
        assert float(weight.detach().std()) == pytest.approx(deviation, rel=0.1)
    assert not first.attention.to_q.bias.detach().any()


def test_new_gpt_predicts_uniformly():
    model: Any = build(GPTConfig(vocab_size=50, dim=64, layers=2, heads=4)).eval()
    logits = model(torch.randint(50, (4, 20))).detach()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.randint(50, (80,)))
    assert float(loss) == pytest.approx(torch.tensor(50.0).log().item(), abs=0.1)
