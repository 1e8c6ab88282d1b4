"""generate against a loop over the model's own predictions."""

import pytest
import torch
from model_cases import (
    GPTS,
    PERCEIVERS,
    RNNS,
    SMALL,
    TRANSLATORS,
    VOCAB,
    inputs,
    make_random_model,
    make_varied_model,
    padded,
    parametrize_cases,
    tokens_like,
)

from qkv.models import GPTConfig, PerceiverConfig, RNNConfig, Seq2SeqConfig
from qkv.nn import DenseSynthesizer

NAMES = ("learned", "rope", "shaw", "dense synthesizer", "location-aware", "grouped-query", "window and t5")
WRITERS = {name: GPTS[name] for name in NAMES} | RNNS | PERCEIVERS


def written_by_hand(model, tokens, count):
    """The likeliest token, again and again, each time from the whole text."""
    for _ in range(count):
        likeliest = [max(range(VOCAB), key=row.__getitem__) for row in model(tokens)[:, -1].tolist()]
        tokens = torch.cat((tokens, torch.tensor(likeliest, device=tokens.device)[:, None]), dim=1)
    return tokens


@parametrize_cases(WRITERS)
def test_generate_greedy_takes_the_most_likely_token_with_and_without_cache(config, device):
    model = make_varied_model(config, device)
    tokens = tokens_like(3, 4, device=device)
    expected = written_by_hand(model, tokens, 9)
    assert torch.equal(model.generate(tokens, 9), expected)
    assert torch.equal(model.generate(tokens, 9, use_cache=False), expected)
    assert any(len(set(row)) > 2 for row in expected[:, 4:].tolist())  # not one word repeated


@parametrize_cases(WRITERS)
def test_generate_with_left_padding_equals_each_text_alone(config, device, unchecked):
    model = make_varied_model(config, device)
    tokens, token_mask = tokens_like(3, 6, device=device), padded("..xxxx", "xxxxxx", ".x..xx", device=device)
    for cached in (True, False):
        together = model.generate(tokens, 7, token_mask=token_mask, use_cache=cached)
        for row, flags in enumerate(token_mask):
            alone = model.generate(tokens[row : row + 1, flags], 7)
            assert torch.equal(together[row, 6:], alone[0, -7:])


@parametrize_cases({name: WRITERS[name] for name in ("learned", "rope", "window and t5", "lstm")})
def test_generate_ends_at_the_stop_token_and_fills_with_it(config, device, unchecked):
    model = make_varied_model(config, device)
    tokens = tokens_like(4, 3, device=device)
    free = written_by_hand(model, tokens, 8)[:, 3:].tolist()
    for stop in {row[place] for row, place in zip(free, (0, 2, 5, 7), strict=True)} | {VOCAB - 1}:
        ends = [row.index(stop) + 1 if stop in row else len(row) for row in free]
        longest = max(ends)
        expected = [row[:end] + [stop] * (longest - end) for row, end in zip(free, ends, strict=True)]
        for cached in (True, False):
            assert model.generate(tokens, 8, stop_token=stop, use_cache=cached)[:, 3:].tolist() == expected


@parametrize_cases({name: WRITERS[name] for name in ("learned", "gru")})
def test_generate_sampling_repeats_with_the_same_generator(config, device):
    model = make_random_model(config, device)
    tokens = tokens_like(4, 3, device=device)

    def drawn(seed: int, **choice):
        generator = torch.Generator(device).manual_seed(seed)
        return model.generate(tokens, 8, generator=generator, **choice)

    assert torch.equal(drawn(1, temperature=1.0), drawn(1, temperature=1.0))
    assert torch.equal(drawn(1, temperature=1.0), drawn(1, temperature=1.0, use_cache=False))
    assert not torch.equal(drawn(1, temperature=1.0), drawn(2, temperature=1.0))
    greedy = model.generate(tokens, 8)
    for cut in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
        assert torch.equal(drawn(3, temperature=5.0, **cut), greedy)


def test_generate_sampling_follows_the_model_probabilities(device):
    model = make_random_model(RNNConfig(vocab_size=4, dim=4, hidden_size=4, layers=1), device, deviation=1.0)
    tokens = torch.full((4000, 1), 2, device=device)
    generator = torch.Generator(device).manual_seed(0)
    drawn = model.generate(tokens, 1, temperature=0.7, generator=generator)[:, 1]
    shares = torch.bincount(drawn, minlength=4) / 4000
    expected = (model(tokens[:1])[0, -1] / 0.7).softmax(-1)
    assert (shares - expected).abs().max() < 0.03  # 3.8 standard deviations of a share of one half


@parametrize_cases({"learned": GPTS["learned"], "lstm": RNNS["lstm"], "perceiver": PERCEIVERS["perceiver, even, pre"]})
def test_generate_of_zero_tokens_returns_the_text(config, device):
    model = make_random_model(config, device)
    tokens = tokens_like(2, 16, device=device)
    assert torch.equal(model.generate(tokens, 0), tokens)


LIMITED = {
    "learned": GPTConfig(**SMALL),
    "synthesizer": GPTConfig(**{**SMALL, "max_length": 20}, score=DenseSynthesizer(16)),
    "perceiver": PerceiverConfig(**SMALL, num_latents=4),
}


@pytest.mark.parametrize("cached", [True, False])
@parametrize_cases(LIMITED)
def test_generate_stops_at_max_positions(config, cached, device, unchecked):
    """The last token written is never read, so 10 tokens in 16 positions leave room for 7."""
    model = make_random_model(config, device)
    tokens = tokens_like(2, 10, device=device)
    assert model.generate(tokens, 7, use_cache=cached).shape == (2, 17)
    with pytest.raises(ValueError, match=r"has 16 positions; 10 tokens and 8 more.*at most 7 can be added"):
        model.generate(tokens, 8, use_cache=cached)
    token_mask = padded("....xxxxxx", ".....xxxxx", device=device)  # at most 6 positions are taken
    assert model.generate(tokens, 11, token_mask=token_mask, use_cache=cached).shape == (2, 21)
    with pytest.raises(ValueError, match="at most 11"):
        model.generate(tokens, 12, token_mask=token_mask, use_cache=cached)


@pytest.mark.parametrize("position", ["rope", "alibi", "sinusoidal", "none", "t5", "shaw"])
def test_generate_without_position_table_has_no_limit(position, device):
    model = make_random_model(GPTConfig(**{**SMALL, "max_length": 4, "heads": 2}, position=position), device)
    assert model.max_positions is None
    assert model.generate(tokens_like(1, 3, device=device), 12).shape == (1, 15)


def test_generate_keeps_the_training_mode_and_needs_no_gradients(device):
    model = make_varied_model(GPTConfig(**SMALL, dropout=0.5), device)
    tokens = tokens_like(2, 4, device=device)
    expected = model.generate(tokens, 5)
    model.train()
    assert torch.equal(model.generate(tokens, 5), expected)  # without dropout
    assert model.training and all(module.training for module in model.modules())
    with pytest.raises(ValueError, match="temperature"):
        model.generate(tokens, 5, temperature=-1.0)
    assert model.training
    assert not model.generate(tokens, 2).requires_grad


def test_generate_rejects_what_it_cannot_continue(device, unchecked):
    model = make_random_model(GPTConfig(**SMALL), device)
    tokens = tokens_like(2, 4, device=device)
    with pytest.raises(ValueError, match="max_new_tokens must be 0 or more, got -1"):
        model.generate(tokens, -1)
    with pytest.raises(ValueError, match=r"at least one token, got \(2, 0\)"):
        model.generate(tokens[:, :0], 1)
    with pytest.raises(ValueError, match=r"\(batch, tokens\).*got \(4,\)"):
        model.generate(tokens[0], 1)
    with pytest.raises(ValueError, match="pad on the left"):
        model.generate(tokens, 1, token_mask=padded("xxxx", "xxx.", device=device))
    with pytest.raises(ValueError, match=r"\(2, 4\), got .*\(2, 3\)"):
        model.generate(tokens, 1, token_mask=padded("xxx", "xxx", device=device))


@parametrize_cases(TRANSLATORS)
@torch.no_grad()
def test_translator_generate_greedy_takes_the_most_likely_token(config, device, unchecked):
    model = make_varied_model(config, device)
    source, _ = inputs(config, device, batch=3, length=7)
    source_mask = padded("xxxxxxx", "..xxxxx", "x.xx...", device=device)
    target = torch.full((3, 1), 1, device=device)
    for _ in range(6):
        target = torch.cat((target, model(source, target, source_mask)[:, -1:].argmax(-1)), dim=1)
    free = target[:, 1:].tolist()
    for stop in (0, 3, 5):
        ends = [row.index(stop) + 1 if stop in row else 6 for row in free]
        expected = [row[:end] + [stop] * (max(ends) - end) for row, end in zip(free, ends, strict=True)]
        for cached in (True, False):
            made = model.generate(source, 6, start_token=1, stop_token=stop, token_mask=source_mask, use_cache=cached)
            assert made.tolist() == expected


def test_translator_generate_sampling_repeats_with_the_same_generator(device):
    model = make_random_model(TRANSLATORS["seq2seq, rope"], device).train()
    source = tokens_like(3, 5, device=device)

    def drawn(seed: int):
        generator = torch.Generator(device).manual_seed(seed)
        return model.generate(source, 8, start_token=1, stop_token=0, temperature=1.0, generator=generator)

    assert torch.equal(drawn(1), drawn(1))
    assert drawn(1).tolist() != drawn(2).tolist()
    assert model.training


def test_translator_generate_rejects_zero_tokens_and_too_many(device):
    model = make_random_model(Seq2SeqConfig(VOCAB, max_length=8, dim=8, heads=2, position="learned"), device)
    source = tokens_like(2, 5, device=device)
    assert model.generate(source, 8, start_token=1, stop_token=VOCAB + 1).shape == (2, 8)
    with pytest.raises(ValueError, match="has 8 positions; 9 target tokens"):
        model.generate(source, 9, start_token=1, stop_token=0)
    with pytest.raises(ValueError, match="max_new_tokens and num_beams must be at least 1, got 0 and 1"):
        model.generate(source, 0, start_token=1, stop_token=0)
    with pytest.raises(ValueError, match="max_new_tokens and num_beams must be at least 1, got 3 and 0"):
        model.generate(source, 3, start_token=1, stop_token=0, num_beams=0)
