"""Which tokens influence which outputs, found by changing tokens and comparing outputs."""

import pytest
import torch
from model_cases import (
    LANGUAGE_MODELS,
    PERCEIVERS,
    POSITIONS,
    SMALL,
    TRANSLATORS,
    VOCAB,
    assert_close,
    inputs,
    make_random_model,
    parametrize_cases,
    tokens_like,
)
from torch import Tensor

from qkv.models import EncoderConfig, GPTConfig, PerceiverConfig, Seq2SeqConfig
from qkv.nn import Additive, DenseSynthesizer, LocationAware, RandomSynthesizer

ONE_LAYER = {**SMALL, "layers": 1, "heads": 2}


def influence(call, tokens: Tensor) -> Tensor:
    """(t, t): whether the output at i moves when the token at j is another; all changes in one batch."""
    t = tokens.shape[1]
    changed = tokens.repeat(t, 1)
    changed[range(t), range(t)] = (changed[range(t), range(t)] + 3) % VOCAB
    moved = (call(changed) - call(tokens)).abs().amax(-1)  # (j, i)
    return (moved > 1e-9).mT.cpu()


@parametrize_cases(LANGUAGE_MODELS)
@torch.no_grad()
def test_language_model_later_tokens_change_no_earlier_output(config, device):
    model = make_random_model(config, device)
    moved = influence(model, tokens_like(1, 12, device=device))
    assert not moved.triu(1).any()
    assert moved.any(0).all()  # and each token is source_mask somewhere


@parametrize_cases(LANGUAGE_MODELS)
@torch.no_grad()
def test_language_model_outputs_of_a_prefix_equal_those_of_the_text(config, device, unchecked):
    model = make_random_model(config, device)
    tokens = tokens_like(2, 12, device=device)
    whole = model(tokens)
    for t in (0, 1, 2, 5, 11):
        assert_close(model(tokens[:, :t]), whole[:, :t])


@parametrize_cases(TRANSLATORS)
@torch.no_grad()
def test_translator_is_causal_in_the_target_and_sees_the_whole_source(config, device):
    model = make_random_model(config, device)
    source, target = inputs(config, device, batch=1, length=9)
    target = target % 8
    memory = model.encode(source)
    moved = influence(lambda texts: model.decode(texts % 9, memory.expand(len(texts), -1, -1)), target)
    assert not moved.triu(1).any()
    assert moved.any(0).all()
    source_mask = influence(lambda texts: model(texts, target[:, :1].expand(len(texts), 9)), source)
    assert source_mask.all()


@pytest.mark.parametrize("position", [place for name, place in POSITIONS.items() if name != "none"], ids=str)
@torch.no_grad()
def test_seq2seq_encoder_depends_on_the_order_of_the_source(position, device):
    """What the encoder makes of the first word depends on the order of the words after it."""
    sizes = {key: value for key, value in ONE_LAYER.items() if key != "layers"}
    model = make_random_model(Seq2SeqConfig(**sizes, encoder_layers=1, position=position), device)
    source = torch.tensor([[1, 2, 3, 4, 5], [1, 5, 3, 4, 2]], device=device)
    first, swapped = model.encode(source)[:, 0]
    assert (first - swapped).abs().max() > 1e-6


@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize(
    "choice",
    [{"position": place} for place in POSITIONS.values()]
    + [{"score": score} for score in (Additive(5), DenseSynthesizer(16), RandomSynthesizer(16))],
    ids=str,
)
@torch.no_grad()
def test_gpt_sliding_window_sees_exactly_its_window(choice, window, device):
    model = make_random_model(GPTConfig(**ONE_LAYER, sliding_window=window, **choice), device)
    expected = torch.tensor([[0 <= i - j < window for j in range(10)] for i in range(10)])
    assert torch.equal(influence(model, tokens_like(1, 10, device=device)), expected)


@pytest.mark.parametrize(("layers", "window"), [(2, 2), (2, 3), (3, 2), (3, 4)])
@torch.no_grad()
def test_gpt_sliding_windows_of_several_layers_add_up(layers, window, device):
    model = make_random_model(GPTConfig(**{**SMALL, "layers": layers}, sliding_window=window), device)
    reach = layers * (window - 1)
    expected = torch.tensor([[0 <= i - j <= reach for j in range(14)] for i in range(14)])
    assert torch.equal(influence(model, tokens_like(1, 14, device=device)), expected)


@torch.no_grad()
def test_gpt_location_aware_sees_beyond_its_window_but_not_ahead(device):
    """Its window bounds what it may attend to; the weights before it reach further back, but never ahead."""
    model = make_random_model(
        GPTConfig(**ONE_LAYER, sliding_window=3, score=LocationAware(5, filters=2, kernel_size=3)), device
    )
    moved = influence(model, tokens_like(1, 10, device=device))
    assert not moved.triu(1).any()
    assert all(moved[i, j] for i in range(10) for j in range(max(0, i - 2), i + 1))


@pytest.mark.parametrize("position", POSITIONS.values(), ids=list(POSITIONS))
@pytest.mark.parametrize(
    ("chunk", "left_chunks"), [(1, 0), (3, 0), (3, 1), (4, 2), (4, None), (20, None), (None, None)]
)
@torch.no_grad()
def test_encoder_sees_its_own_chunk_and_left_chunks(chunk, left_chunks, position, device):
    config = EncoderConfig(**ONE_LAYER, chunk_size=chunk, left_chunks=left_chunks, position=position)
    model = make_random_model(config, device)

    def source_mask(i: int, j: int) -> bool:
        if chunk is None:
            return True
        back = i // chunk - j // chunk
        return back >= 0 and (left_chunks is None or back <= left_chunks)

    expected = torch.tensor([[source_mask(i, j) for j in range(11)] for i in range(11)])
    assert torch.equal(influence(model, tokens_like(1, 11, device=device)), expected)


@pytest.mark.parametrize("length", [1, 2, 4, 5, 6, 9, 15, 16])
@parametrize_cases(PERCEIVERS)
@torch.no_grad()
def test_perceiver_is_causal_for_any_length(config, length, device):
    model = make_random_model(config, device)
    moved = influence(model, tokens_like(1, length, device=device))
    assert not moved.triu(1).any()
    assert moved.diagonal().all()


@pytest.mark.parametrize("latents", [1, 3, 4, 8])
@pytest.mark.parametrize("coverage", ["even", "prefix"])
@torch.no_grad()
def test_perceiver_token_sees_exactly_what_its_latents_read(coverage, latents, device):
    """A token hears itself and, through the latents that stand at or before it, the tokens up to the last of them."""
    config = PerceiverConfig(VOCAB, max_length=8, dim=8, layers=4, heads=2, num_latents=latents, coverage=coverage)
    model = make_random_model(config, device)
    places = range(latents) if coverage == "prefix" else [8 * (k + 1) // latents - 1 for k in range(latents)]

    def source_mask(i: int, j: int) -> bool:
        return i == j or j <= max((place for place in places if place <= i), default=-1)

    expected = torch.tensor([[source_mask(i, j) for j in range(8)] for i in range(8)])
    assert torch.equal(influence(model, tokens_like(1, 8, device=device)), expected)
