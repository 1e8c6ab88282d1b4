"""MultiHeadAttention with a KV cache gives the same numbers as without, for any pieces, padding and positions."""

import pytest
import torch
from reference import close

from qkv.nn import Additive, DenseSynthesizer, Dot, LayerKVCache, LocationAware, MultiHeadAttention, RandomSynthesizer
from qkv.nn.rope import LinearScaling, Rope, YarnScaling
from qkv.positions import Alibi, Shaw, T5Bias

WIDTH, TOKENS = 8, 9
LAYERS = {
    "dot": {},
    "dot with scale": {"score": Dot(scale=0.7)},
    "grouped heads": {"kv_heads": 1, "head_dim": 6},
    "additive": {"score": Additive(5)},
    "location-aware": {"score": LocationAware(5, filters=3, kernel_size=5)},
    "dense synthesizer": {"score": DenseSynthesizer(TOKENS, shared=False)},
    "random synthesizer": {"score": RandomSynthesizer(TOKENS), "kv_heads": 1},
    "rope": {"position": Rope()},
    "rope in halves, partial": {"position": Rope(pairing="halves", rotary_dim=2)},
    "rope, linear": {"position": Rope(scaling=LinearScaling(3.0))},
    "rope, yarn": {"position": Rope(scaling=YarnScaling(4.0, 8)), "kv_heads": 1},
    "alibi": {"position": Alibi()},
    "t5": {"position": T5Bias(8, 6, bidirectional=False)},
    "t5, bidirectional": {"position": T5Bias(8, 6)},
    "shaw": {"position": Shaw(2), "kv_heads": 1},
}
PADDED = [
    [0, 0, 0, 1, 1, 1, 1, 1, 1],
    [1, 1, 1, 1, 1, 1, 0, 0, 0],
    [0, 1, 0, 0, 1, 1, 0, 1, 1],
    [1, 1, 1, 1, 1, 1, 1, 1, 1],
]
CUTS = {
    "single steps": [1] * 9,
    "prefill and steps": [5, 1, 1, 1, 1],
    **{f"chunks of {n}": [n] * (9 // n) + [9 % n] * (9 % n > 0) for n in range(2, 8)},
}


@pytest.fixture(params=LAYERS)
def layer(request, device):
    layer = MultiHeadAttention(WIDTH, 2, **LAYERS[request.param]).double().to(device)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


@pytest.fixture
def token_mask(device):
    return torch.tensor(PADDED, dtype=torch.bool, device=device)


def in_pieces(layer, x, cuts, token_mask=None):
    cache, outs, stop = LayerKVCache(), [], 0
    for length in cuts:
        start, stop = stop, stop + length
        known = None if token_mask is None else token_mask[:, :stop]
        outs.append(layer(x[:, start:stop], causal=True, token_mask=known, cache=cache))
    assert cache.length == x.shape[1]
    return torch.cat(outs, dim=1)


def test_multi_head_attention_with_cache_equals_one_call(randn, layer):
    x = randn(2, TOKENS, WIDTH)
    whole = layer(x, causal=True)
    for cuts in CUTS.values():
        with torch.no_grad():
            close(in_pieces(layer, x, cuts), whole)


def test_multi_head_attention_with_cache_and_padding_equals_one_call(randn, token_mask, layer):
    x = randn(4, TOKENS, WIDTH)
    whole = layer(x, causal=True, token_mask=token_mask)
    for name in ("single steps", "prefill and steps", "chunks of 4"):
        with torch.no_grad():
            close(in_pieces(layer, x, CUTS[name], token_mask), whole)


def test_multi_head_attention_ignores_padding(randn, token_mask, layer):
    x = randn(4, TOKENS, WIDTH)
    padded = layer(x, causal=True, token_mask=token_mask)
    for row in range(4):
        there = token_mask[row]
        close(padded[row, there], layer(x[row : row + 1, there], causal=True)[0])


def test_multi_head_attention_ignores_the_content_of_padding(randn, token_mask, layer):
    x = randn(4, TOKENS, WIDTH)
    other = torch.where(token_mask[..., None], x, randn(4, TOKENS, WIDTH))
    before, after = (layer(tokens, causal=True, token_mask=token_mask) for tokens in (x, other))
    assert torch.equal(before[token_mask], after[token_mask])


def test_multi_head_attention_causal_later_tokens_change_no_earlier_output(randn, layer):
    x = randn(2, TOKENS, WIDTH)
    before = layer(x, causal=True)
    for place in range(TOKENS):
        other = x.clone()
        other[:, place] = randn(2, WIDTH)
        after = layer(other, causal=True)
        assert torch.equal(before[:, :place], after[:, :place])
        assert after[:, place].ne(before[:, place]).any(-1).all()


def test_multi_head_attention_weights_with_cache_are_rows_of_those_without(randn, layer):
    x, cache = randn(2, TOKENS, WIDTH), LayerKVCache()
    _, whole = layer(x, causal=True, return_weights=True)
    layer(x[:, :4], causal=True, cache=cache)
    _, weights = layer(x[:, 4:7], causal=True, cache=cache, return_weights=True)
    close(weights, whole[:, :, 4:7, :7])


def test_multi_head_attention_gradients_through_a_cache_equal_one_call(randn, layer):
    x = randn(2, TOKENS, WIDTH).requires_grad_()
    parameters = [x, *(p for p in layer.parameters() if p.requires_grad)]
    weighing = randn(2, TOKENS, WIDTH)
    expected = torch.autograd.grad((layer(x, causal=True) * weighing).sum(), parameters)
    gradients = torch.autograd.grad((in_pieces(layer, x, [2, 1, 1, 3, 1, 1]) * weighing).sum(), parameters)
    for ours, theirs in zip(gradients, expected, strict=True):
        close(ours, theirs, 1e-11)


def test_multi_head_attention_reads_a_fixed_memory_once(randn, layer):
    x, memory, cache = randn(2, 3, WIDTH), randn(2, 5, WIDTH), LayerKVCache(fixed=True)
    expected = layer(x, memory)
    close(layer(x, memory, cache=cache), expected)
    assert cache.filled and cache.length == 5
    cache.weights = None  # location-aware scores start anew
    close(layer(x, cache=cache), expected)
    assert cache.length == 5


def test_multi_head_attention_trains_only_to_q_through_a_cache(randn, device):
    layer = MultiHeadAttention(WIDTH, 2).double().to(device)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name.startswith("to_q"))
    x, trained = randn(2, TOKENS, WIDTH), [p for p in layer.parameters() if p.requires_grad]
    expected = torch.autograd.grad(layer(x, causal=True).square().sum(), trained)
    gradients = torch.autograd.grad(in_pieces(layer, x, [1] * TOKENS).square().sum(), trained)
    for ours, theirs in zip(gradients, expected, strict=True):
        close(ours, theirs, 1e-11)


def test_multi_head_attention_cache_of_inference_mode_works_outside_it(randn, device):
    layer = MultiHeadAttention(WIDTH, 2).double().to(device)
    x, cache = randn(2, TOKENS, WIDTH), LayerKVCache()
    with torch.inference_mode():
        first = [layer(x[:, :3], causal=True, cache=cache), layer(x[:, 3:4], causal=True, cache=cache)]
    with torch.no_grad():
        rest = [layer(x[:, i : i + 1], causal=True, cache=cache) for i in range(4, TOKENS)]
    close(torch.cat([*first, *rest], dim=1), layer(x, causal=True))
