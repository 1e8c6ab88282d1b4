"""Outputs do not depend on padding, its place or its content."""

import pytest
import torch
from model_cases import (
    ENCODERS,
    GPTS,
    LANGUAGE_MODELS,
    TRANSLATORS,
    assert_close,
    inputs,
    make_random_model,
    padded,
    parametrize_cases,
    tokens_like,
)
from torch import Tensor

from qkv.models import EncoderConfig

PADDINGS = {
    "left": (".....xxxxxxx", "xxxxxxxxxxxx", "...........x"),
    "right": ("xxxxxx......", "xxxxxxxxxxxx", "x..........."),
    "holes": ("x..xx.xxx..x", ".x.x.x.x.x.x", "..xxx....xx."),
}
SINGLE_FILE = {**LANGUAGE_MODELS, **ENCODERS}


def other_content(given: Tensor, token_mask: Tensor) -> Tensor:
    """The same real tokens; other tokens (or vectors) in the padding."""
    if given.is_floating_point():
        return torch.where(token_mask[..., None], given, 100 * torch.randn_like(given))
    return torch.where(token_mask, given, (given + 1) % 9)


@pytest.mark.parametrize("padding", PADDINGS)
@parametrize_cases(SINGLE_FILE)
@torch.no_grad()
def test_models_ignore_padding(config, padding, device, unchecked):
    model = make_random_model(config, device)
    (given,) = inputs(config, device, batch=3, length=12)
    token_mask = padded(*PADDINGS[padding], device=device)
    out = model(given, token_mask)
    for row, flags in enumerate(token_mask):
        alone = model(given[row : row + 1, flags])[0]
        assert_close(out[row, flags], alone)
    changed = model(other_content(given, token_mask), token_mask)
    assert_close(changed[token_mask], out[token_mask], within=1e-12)


@pytest.mark.parametrize("padding", PADDINGS)
@parametrize_cases(TRANSLATORS)
@torch.no_grad()
def test_translator_ignores_padding_of_source_and_target(config, padding, device, unchecked):
    model = make_random_model(config, device)
    source, target = inputs(config, device, batch=3, length=14)
    source_mask = padded("x.xxx.........", "xxxxxxxxxxxxxx", ".........x.xxx", device=device)
    token_mask = padded(*PADDINGS[padding], device=device)
    out = model(source, target, source_mask, token_mask)
    for row, flags in enumerate(token_mask):
        alone = model(source[row : row + 1, source_mask[row]], target[row : row + 1, flags])[0]
        assert_close(out[row, flags], alone)
    changed = model(other_content(source, source_mask), other_content(target, token_mask), source_mask, token_mask)
    assert_close(changed[token_mask], out[token_mask], within=1e-12)


@parametrize_cases(SINGLE_FILE)
@torch.no_grad()
def test_models_with_a_full_token_mask_equal_models_without(config, device):
    model = make_random_model(config, device)
    (given,) = inputs(config, device)
    everything = torch.ones(2, 9, dtype=torch.bool, device=device)
    assert torch.equal(model(given, everything), model(given))


@parametrize_cases(SINGLE_FILE)
@torch.no_grad()
def test_models_treat_rows_of_a_batch_independently(config, device, unchecked):
    model = make_random_model(config, device)
    (given,) = inputs(config, device, batch=3)
    out = model(given)
    for row in range(3):
        assert_close(model(given[row : row + 1])[0], out[row], within=1e-12)


@pytest.mark.parametrize("block", [2, 3, 5])
@parametrize_cases(
    {name: GPTS[name] for name in ("learned", "shaw", "t5", "window and rope", "window and shaw", "additive")}
    | {"chunks": ENCODERS["encoder, chunks"], "alibi": ENCODERS["encoder, alibi"]}
)
@torch.no_grad()
def test_models_with_query_blocks_give_the_same_numbers(config, block, device, monkeypatch, unchecked):
    """Beyond BLOCK tokens masks stay lazy and queries are taken in blocks; here with blocks of a few."""
    model = make_random_model(config, device)
    tokens, token_mask = tokens_like(3, 12, device=device), padded(*PADDINGS["holes"], device=device)
    expected, padded_expected = model(tokens), model(tokens, token_mask)
    monkeypatch.setattr("qkv.nn.attention.BLOCK", block)
    monkeypatch.setattr("qkv.nn.prepare_masks.BLOCK", block)
    assert_close(model(tokens), expected)
    assert_close(model(tokens, token_mask)[token_mask], padded_expected[token_mask])


def test_encoder_chunks_are_counted_over_real_tokens(device):
    """With chunks of two and none before, the third real token begins the second chunk, wherever it is."""
    config = EncoderConfig(vocab_size=11, dim=8, heads=2, layers=1, chunk_size=2, left_chunks=0)
    model = make_random_model(config, device)
    tokens, token_mask = tokens_like(1, 7, device=device), padded("x.x.xx.", device=device)
    out = model(tokens, token_mask)
    for place, companions in ((0, {0, 2}), (2, {0, 2}), (4, {4, 5}), (5, {4, 5})):
        for other in (0, 2, 4, 5):
            changed = tokens.clone()
            changed[0, other] = (tokens[0, other] + 1) % 11
            moved = (model(changed, token_mask)[0, place] - out[0, place]).abs().max() > 1e-9
            assert bool(moved) == (other in companions)
