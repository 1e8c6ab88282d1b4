"""Gradients of models: every parameter learns, and rows of padding alone do no harm."""

import pytest
import torch
from model_cases import (
    ENCODERS,
    EVERY_MODEL,
    LANGUAGE_MODELS,
    TRANSLATORS,
    assert_close,
    inputs,
    make_random_model,
    padded,
    parametrize_cases,
    tokens_like,
)

from qkv.models import CNNConfig, GPTConfig, Seq2SeqConfig
from qkv.nn import Dot

SINGLE_FILE = {**LANGUAGE_MODELS, **ENCODERS}


def without_effect(model, name: str) -> bool:
    """A key's bias adds the same to all of a query's scores, which softmax forgets; unless positions turn it."""
    if not name.endswith("to_k.bias"):
        return False
    position = getattr(model.config, "position", None)
    turned = not isinstance(position, str) and type(position).__name__ == "Rope" and "cross" not in name
    return isinstance(getattr(model.config, "score", Dot()), Dot) and not turned


@parametrize_cases(
    {name: config for name, config in EVERY_MODEL.items() if name != "window of one"}
)  # one key: nothing to choose
def test_models_have_gradients_for_every_parameter(config, device):
    model = make_random_model(config, device).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    given = inputs(config, device, batch=3, length=16)
    out = model(*given)
    out.backward(torch.randn_like(out))
    idle = set()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if not (parameter.grad.abs() > 1e-11).any():
            idle.add(name)
    assert idle == {name for name, _ in model.named_parameters() if without_effect(model, name)}


@parametrize_cases(SINGLE_FILE)
def test_models_with_a_row_of_padding_stay_finite(config, device):
    model = make_random_model(config, device)
    (given,) = inputs(config, device, batch=3, length=6)
    token_mask = padded("xxxxxx", "......", "..x.xx", device=device)
    out = model(given, token_mask)
    assert out.isfinite().all()
    assert_close(out[0], model(given[:1])[0])
    out.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@parametrize_cases(TRANSLATORS)
def test_translator_with_empty_sources_or_targets_stays_finite(config, device):
    model = make_random_model(config, device)
    source, target = inputs(config, device, batch=4, length=6)
    source_mask = padded("xxxxxx", "......", "xx.x..", "......", device=device)
    token_mask = padded("xxxx", "xxxx", "....", "....", device=device)
    out = model(source, target, source_mask, token_mask)
    assert out.isfinite().all()
    assert_close(out[:1], model(source[:1], target[:1]))
    empty = model(source[1:2, :0], target[1:2])  # a source without tokens is as one whose tokens are all absent
    assert_close(out[1:2], empty)
    out.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@parametrize_cases(SINGLE_FILE)
@torch.no_grad()
def test_models_of_empty_inputs_give_empty_outputs(config, device):
    model = make_random_model(config, device)
    (given,) = inputs(config, device, batch=2, length=4)
    wide = model(given).shape[-1]
    assert model(given[:, :0]).shape == (2, 0, wide)
    assert model(given[:0]).shape == (0, 4, wide)


@parametrize_cases(
    {name: LANGUAGE_MODELS[name] for name in ("rope", "sliding window", "location-aware", "random synthesizer", "lstm")}
)
@torch.no_grad()
def test_language_model_cache_may_begin_empty(config, device):
    model = make_random_model(config, device)
    tokens = tokens_like(2, 6, device=device)
    cache = model.new_cache()
    assert model(tokens[:, :0], None, cache).shape[1] == 0
    absent = torch.zeros(2, 3, dtype=torch.bool, device=device)
    assert model(tokens[:, :3], absent, cache).isfinite().all()
    assert_close(model(tokens, None, cache), model(tokens))


@pytest.mark.parametrize("name", ["learned", "grouped-query", "additive", "perceiver, even, pre", "seq2seq, t5", "gru"])
def test_model_gradients_equal_finite_differences(name, device):
    """The gradient along a random direction, against the difference of two losses."""
    config = EVERY_MODEL[name]
    model = make_random_model(config, device)
    given = inputs(config, device, batch=2, length=6)
    weights = torch.randn_like(model(*given))
    (model(*given) * weights).sum().backward()
    parameters, losses = [*model.parameters()], []
    directions = [torch.randn_like(parameter) for parameter in parameters]
    with torch.no_grad():
        for step in (1e-6, -2e-6):
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(step * direction)
            losses.append((model(*given) * weights).sum())
    expected = sum((p.grad * direction).sum() for p, direction in zip(parameters, directions, strict=True))
    assert_close((losses[0] - losses[1]) / 2e-6, expected, within=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        GPTConfig(11, dim=16, heads=2, dropout=0.5),
        Seq2SeqConfig(11, dim=16, heads=2),
        CNNConfig(image_size=8, dropout=0.5),
    ],
    ids=["gpt", "seq2seq", "cnn"],
)
def test_model_dropout_acts_in_training_only(config, device):
    model = make_random_model(config, device)
    given = inputs(config, device)
    assert torch.equal(model(*given), model(*given))
    model.train()
    assert not torch.equal(model(*given), model(*given))


@parametrize_cases(EVERY_MODEL)
@torch.no_grad()
def test_models_in_lower_precision_agree_within_that_precision(config, device, unchecked):
    model = make_random_model(config, device)
    given = inputs(config, device)
    exact = model(*given)
    for dtype, error in ((torch.float32, 1e-4), (torch.bfloat16, 0.2)):
        out = model.to(dtype)(*(part.to(dtype) if part.is_floating_point() else part for part in given))
        assert out.dtype == dtype
        assert (out - exact).abs().max() < error * exact.abs().max()
