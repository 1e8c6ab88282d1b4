"""record() of qkv models: the weights equal those that the layers return."""

from typing import Any

import pytest
import torch
from model_cases import EVERY_MODEL, GPTS, SEQ2SEQS, inputs, make_random_model, padded, tokens_like
from torch import Tensor, nn

from qkv.interp import Trace, record
from qkv.models import GPT, GPTConfig
from qkv.nn import MultiHeadAttention

EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-12}


def returned_weights(model: nn.Module, *arguments: Any, **named: Any) -> dict[str, Tensor]:
    """What each attention layer returns as its weights when it is asked to, for the input it has in this call."""
    seen: dict[str, tuple[MultiHeadAttention, tuple, dict]] = {}
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):

            def keep(layer: Any, args: tuple, kwargs: dict, name: str = name) -> None:
                seen[name] = (layer, args, kwargs)

            handles.append(module.register_forward_pre_hook(keep, with_kwargs=True))
    model(*arguments, **named)
    for handle in handles:
        handle.remove()
    return {name: layer(*args, **{**kwargs, "return_weights": True})[1] for name, (layer, args, kwargs) in seen.items()}


def all_weights(trace: Trace, layer: int | str) -> Tensor:
    return torch.stack([trace.weights(layer, batch=row) for row in range(trace.layer(layer).batch)])


@pytest.mark.parametrize("name", EVERY_MODEL)
@torch.no_grad()
def test_recorded_weights_are_the_layers_own_and_outputs_the_same_bits(name: str, device: torch.device):
    config = EVERY_MODEL[name]
    model, given = make_random_model(config, device), inputs(config, device)
    before = model(*given)
    with record(model) as trace:
        during = model(*given)
    assert torch.equal(before, during)
    expected = returned_weights(model, *given)
    assert [layer.name for layer in trace.layers] == list(expected)
    for layer, weights in expected.items():
        torch.testing.assert_close(all_weights(trace, layer), weights, **EXACT)
        dense = any(word in name.lower() for word in ("synthesizer", "additive", "location"))
        assert trace.layer(layer).storage == ("dense" if dense else "lazy")
        assert trace.layer(layer).cross == (
            "cross" in layer or layer in ("down.attention", "up.attention", "attention")
        )


@pytest.mark.parametrize(
    "name", ["rope", "t5", "grouped-query", "sliding window", "window and shaw", "additive", "location-aware"]
)
@torch.no_grad()
def test_padding_is_recorded(name: str, device: torch.device):
    model = make_random_model(GPTS[name], device)
    tokens, present = tokens_like(3, 7, device=device), padded("..xxxxx", "xxxxxxx", "x.xx.x.", device=device)
    with record(model) as trace:
        model(tokens, present)
    for layer, weights in returned_weights(model, tokens, present).items():
        torch.testing.assert_close(all_weights(trace, layer), weights, **EXACT)


@pytest.mark.parametrize(
    "name", ["learned", "rope", "alibi", "grouped-query", "window and rope", "additive", "dense synthesizer"]
)
@torch.no_grad()
def test_steps_of_a_generation_are_joined_into_one_map(name: str, device: torch.device):
    model = make_random_model(GPTS[name], device)
    with record(model) as trace:
        text = model.generate(tokens_like(2, 4, device=device), max_new_tokens=8, temperature=0.0)  # pyright: ignore
    assert [layer.queries for layer in trace.layers] == [11, 11]
    with record(model) as whole:
        model(text[:, :-1])
    for layer in range(2):
        torch.testing.assert_close(all_weights(trace, layer), all_weights(whole, layer), rtol=0, atol=1e-10)


@torch.no_grad()
def test_a_generation_of_a_fused_layer_becomes_one_piece(device: torch.device):
    model = make_random_model(GPTS["rope"], device)
    with record(model) as trace:
        model.generate(tokens_like(1, 4, device=device), max_new_tokens=8, temperature=0.0)  # pyright: ignore
    assert [len(layer.pieces) for layer in trace.layers] == [1, 1]


@torch.no_grad()
def test_a_translation_is_joined_in_self_and_cross_attention(device: torch.device):
    model = make_random_model(SEQ2SEQS["seq2seq, rope"], device)
    source = tokens_like(1, 6, device=device)
    cache = model.new_cache()  # pyright: ignore
    target = tokens_like(1, 5, device=device)
    with record(model) as trace:
        memory = model.encode(source)  # pyright: ignore
        for step in range(5):
            model.decode(target[:, step : step + 1], memory, cache=cache)  # pyright: ignore
    with record(model) as whole:
        model(source, target)
    assert [layer.name for layer in trace.layers] == [layer.name for layer in whole.layers]
    for layer in trace.layers:
        torch.testing.assert_close(all_weights(trace, layer.name), all_weights(whole, layer.name), rtol=0, atol=1e-10)


@pytest.mark.parametrize("position", ["rope", "alibi", "t5"])
@pytest.mark.parametrize("window", [None, 5])
@torch.no_grad()
def test_blocks_of_queries_are_one_map(position: str, window: int | None, device: torch.device):
    config = GPTConfig(
        vocab_size=11, max_length=1200, dim=8, layers=1, heads=2, mlp_dim=8, position=position, sliding_window=window
    )  # pyright: ignore
    model, tokens = make_random_model(config, device), tokens_like(1, 1100, device=device)
    with record(model) as trace:
        model(tokens)
    ((name, expected),) = returned_weights(model, tokens).items()
    assert [layer.queries for layer in trace.layers] == [1100]
    torch.testing.assert_close(all_weights(trace, name), expected, **EXACT)
    if position == "rope":
        assert len(trace.layers[0].pieces) == 1


@torch.no_grad()
def test_a_second_run_is_not_joined_to_the_first(device: torch.device):
    model = make_random_model(GPTS["rope"], device)
    with record(model) as trace:
        model(tokens_like(1, 4, device=device))
        model(tokens_like(1, 4, device=device))
    names = ["blocks.0.attention", "blocks.1.attention", "blocks.0.attention@1", "blocks.1.attention@1"]
    assert [layer.name for layer in trace.layers] == names


def test_training_is_recorded_with_the_weights_before_dropout():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=11, dim=16, layers=1, heads=2, dropout=0.5))
    tokens = torch.arange(6)[None]
    torch.manual_seed(1)
    before = model(tokens)
    torch.manual_seed(1)
    with record(model) as trace:
        during = model(tokens)
    during.sum().backward()
    assert torch.equal(before, during)
    torch.testing.assert_close(trace.weights(0).sum(-1), torch.ones(2, 6))
    assert not trace.weights(0).requires_grad


@torch.no_grad()
def test_what_is_recorded_does_not_change_when_memory_is_written_over():
    q, k, v = torch.randn(3, 1, 2, 4, 8)
    expected = (q @ k.mT * 8**-0.5).softmax(-1)
    with record() as trace:
        torch.nn.functional.scaled_dot_product_attention(q, k, v)
        k.zero_()
    torch.testing.assert_close(trace.weights(0), expected[0])
    k.normal_()
    weights = (q @ k.mT * 8**-0.5).softmax(-1)
    with record() as trace:
        k.add_(0.0)
        torch.nn.functional.scaled_dot_product_attention(q, k, v)
    k.zero_()
    torch.testing.assert_close(trace.weights(0), weights[0])
