"""Models with a cache give the same outputs as without."""

import pytest
import torch
from model_cases import (
    GPTS,
    RNNS,
    SMALL,
    TRANSLATORS,
    VOCAB,
    assert_close,
    in_pieces,
    inputs,
    make_random_model,
    padded,
    parametrize_cases,
    tokens_like,
)

from qkv.models import GPTConfig, RNNConfig, RNNSeq2SeqConfig, Seq2SeqConfig
from qkv.nn import Additive, DenseSynthesizer, RandomSynthesizer

LANGUAGE = {**GPTS, **RNNS}
ORDERS = {  # how many tokens come first, and how many in each later piece
    **{f"pieces of {size}": (size, size) for size in range(1, 8)},
    "five, then one by one": (5, 1),
    "one, then pieces of four": (1, 4),
}
PADDINGS = {
    "left": (".....xxxxxxx", "xxxxxxxxxxxx", "..xxxxxxxxxx"),
    "holes": ("x..xx.xxx..x", ".x.x.x.x.x.x", "xxxx.....xxx"),
    "right": ("xxxxxx......", "xxxxxxxxxxxx", "xxx........."),
}


@parametrize_cases(LANGUAGE)
@torch.no_grad()
def test_language_model_with_cache_equals_one_call(config, device, unchecked):
    model = make_random_model(config, device)
    tokens = tokens_like(2, 11, device=device)
    whole = model(tokens)
    for name, (first, size) in ORDERS.items():
        parts = in_pieces(model, tokens, None, model.new_cache(), first=first, size=size)
        assert_close(parts, whole, note=name)


@pytest.mark.parametrize("padding", PADDINGS)
@parametrize_cases(LANGUAGE)
@torch.no_grad()
def test_language_model_with_cache_and_padding_equals_one_call(config, padding, device, unchecked):
    model = make_random_model(config, device)
    tokens, token_mask = tokens_like(3, 12, device=device), padded(*PADDINGS[padding], device=device)
    whole = model(tokens, token_mask)
    for first, size in ((1, 1), (4, 3)):
        parts = in_pieces(model, tokens, token_mask, model.new_cache(), first=first, size=size)
        assert_close(parts[token_mask], whole[token_mask], note=f"{first}, {size}")


@parametrize_cases(TRANSLATORS)
@torch.no_grad()
def test_translator_decode_with_cache_equals_one_call(config, device, unchecked):
    model = make_random_model(config, device)
    source, target = inputs(config, device, batch=3, length=14)
    source_mask = padded("xxxxxxxxxxxxxx", "....xxxxxxxxxx", "xx.xx.xxxx....", device=device)
    memory = model.encode(source, source_mask)

    def decode(text, flags, cache):
        return model.decode(text, memory, source_mask, flags, cache)

    for token_mask in (None, *(padded(*rows, device=device) for rows in PADDINGS.values())):
        whole = model.decode(target, memory, source_mask, token_mask)
        shown = torch.ones_like(target, dtype=torch.bool) if token_mask is None else token_mask
        for first, size in ORDERS.values() if token_mask is None else ((1, 1), (5, 3)):
            parts = in_pieces(decode, target, token_mask, model.new_cache(), first=first, size=size)
            assert_close(parts[shown], whole[shown])


@parametrize_cases(LANGUAGE)
@torch.no_grad()
def test_cache_reorder_equals_reordering_the_texts(config, device):
    model = make_random_model(config, device)
    tokens, token_mask = tokens_like(3, 12, device=device), padded(*PADDINGS["left"], device=device)
    rows = torch.tensor([2, 0, 2, 1], device=device)
    for flags in (None, token_mask):
        cache = model.new_cache()
        model(tokens[:, :7], None if flags is None else flags[:, :7], cache)
        cache.reorder(rows)
        rest = torch.cat([model(tokens[rows, i : i + 1], None, cache) for i in range(7, 12)], dim=1)
        whole = model(tokens[rows], None if flags is None else flags[rows])
        assert_close(rest, whole[:, 7:])


@parametrize_cases(TRANSLATORS)
@torch.no_grad()
def test_translator_cache_reorder_moves_the_source_too(config, device):
    model = make_random_model(config, device)
    source, target = inputs(config, device, batch=3, length=9)
    rows = torch.tensor([1, 1, 2], device=device)
    memory, cache = model.encode(source), model.new_cache()
    model.decode(target[:, :3], memory, cache=cache)
    cache.reorder(rows)
    rest = model.decode(target[rows, 3:], memory[rows], cache=cache)
    assert_close(rest, model(source[rows], target[rows])[:, 3:])


@parametrize_cases({name: GPTS[name] for name in ("rope", "additive", "sliding window", "shaw")} | RNNS)
def test_gradients_through_a_cache_equal_one_call(config, device):
    model = make_random_model(config, device)
    tokens = tokens_like(2, 8, device=device)
    weights = torch.randn(2, 8, model.head.out_features, dtype=torch.float64).to(device)
    parts = in_pieces(model, tokens, None, model.new_cache(), first=3, size=2)
    pieces = torch.autograd.grad((parts * weights).sum(), [*model.parameters()], allow_unused=True)
    whole = torch.autograd.grad((model(tokens) * weights).sum(), [*model.parameters()], allow_unused=True)
    for ours, expected in zip(pieces, whole, strict=True):
        assert_close(ours, expected)


@pytest.mark.parametrize("window", [1, 2, 3, 5])
@torch.no_grad()
def test_kv_cache_of_a_sliding_window_holds_at_most_twice_the_window(window, device):
    model = make_random_model(GPTConfig(**{**SMALL, "max_length": 64}, sliding_window=window), device)
    cache = model.new_cache()
    for step in range(40):
        model(tokens_like(2, 1, device=device), None, cache)
        assert min(step + 1, window - 1) <= cache.length <= 2 * window
        assert cache.dropped + cache.length == step + 1


@torch.no_grad()
def test_cache_copy_is_independent(device):
    model = make_random_model(GPTS["window and shaw"], device)
    tokens, others = tokens_like(2, 12, device=device), tokens_like(2, 12, device=device)
    cache = model.new_cache()
    model(tokens[:, :6], None, cache)
    twin = cache.copy()
    model(others[:, 6:], None, twin)
    assert_close(model(tokens[:, 6:], None, cache), model(tokens)[:, 6:])


FAILURES = {
    "a token out of range": (GPTConfig(**SMALL), lambda device: (torch.full((2, 1), 99, device=device), None)),
    "beyond the learned positions": (GPTConfig(**SMALL), lambda device: (tokens_like(2, 12, device=device), None)),
    "beyond a dense synthesizer": (
        GPTConfig(**SMALL, position="none", score=DenseSynthesizer(8)),
        lambda device: (tokens_like(2, 4, device=device), None),
    ),
    "beyond a random synthesizer": (
        GPTConfig(**SMALL, position="none", score=RandomSynthesizer(8)),
        lambda device: (tokens_like(2, 4, device=device), None),
    ),
    "another batch size": (GPTConfig(**SMALL), lambda device: (tokens_like(3, 1, device=device), None)),
    "another batch size, additive": (
        GPTConfig(**SMALL, score=Additive(3)),
        lambda device: (tokens_like(3, 1, device=device), None),
    ),
    "another batch size, padded": (
        GPTConfig(**SMALL, position="rope"),
        lambda device: (tokens_like(3, 2, device=device), padded(".x", "xx", "xx", device=device)),
    ),
    "another batch size, recurrent": (RNNConfig(VOCAB), lambda device: (tokens_like(3, 1, device=device), None)),
    "token mask of another shape": (
        GPTConfig(**SMALL, sliding_window=3),
        lambda device: (tokens_like(2, 1, device=device), padded("xx", "xx", device=device)),
    ),
}


@parametrize_cases(FAILURES, "failure")
@torch.no_grad()
def test_cache_is_unchanged_after_a_failed_call(failure, device, unchecked):
    config, wrong = failure
    model = make_random_model(config, device)
    tokens = tokens_like(2, 8, device=device)
    cache = model.new_cache()
    model(tokens[:, :6], None, cache)
    for _ in range(2):
        with pytest.raises(ValueError):
            model(*wrong(device), cache)
    assert_close(model(tokens[:, 6:], None, cache), model(tokens)[:, 6:])


@parametrize_cases(
    {"seq2seq": Seq2SeqConfig(VOCAB, dim=8, heads=2), "rnn": RNNSeq2SeqConfig(VOCAB, dim=6, hidden_size=6)}
)
@torch.no_grad()
def test_translator_cache_is_unchanged_after_a_failed_decode(config, device, unchecked):
    model = make_random_model(config, device)
    source, target = tokens_like(2, 5, device=device), tokens_like(2, 6, device=device)
    memory, cache = model.encode(source), model.new_cache()
    model.decode(target[:, :4], memory, cache=cache)
    for wrong in (torch.full((2, 1), 99, device=device), tokens_like(3, 1, device=device)):
        with pytest.raises(ValueError):
            model.decode(wrong, memory, cache=cache)
    flags = torch.ones(2, 9, dtype=torch.bool, device=device)
    with pytest.raises(ValueError):
        model.decode(target[:, 4:], memory, memory_token_mask=flags, cache=cache)
    rest = model.decode(target[:, 4:], memory, cache=cache)
    assert_close(rest, model(source, target)[:, 4:])
