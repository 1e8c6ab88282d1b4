"""What cannot be is refused with a sentence: what was expected, what came, what would fit."""

import pytest
import torch
from model_zoo import (
    ENCODERS,
    GPTS,
    IMAGE,
    LANGUAGE_MODELS,
    RNNS,
    SMALL,
    TRANSLATORS,
    VOCAB,
    every,
    padded,
    randomised,
    tokens_like,
)

from qkv.models import (
    GPT,
    CNNConfig,
    EncoderConfig,
    GPTConfig,
    MLPConfig,
    PerceiverConfig,
    RNNConfig,
    RNNSeq2SeqConfig,
    Seq2SeqConfig,
    ViTConfig,
    build,
)
from qkv.nn import Additive, DenseSynthesizer, LocationAware, RandomSynthesizer
from qkv.positions import Rope

IMPOSSIBLE = [
    (
        GPTConfig,
        {"vocab_size": 5, "dim": 10, "heads": 4},
        r"width=10 does not split into heads=4; heads that fit: \[1, 2, 5",
    ),
    (
        GPTConfig,
        {"vocab_size": 5, "heads": 8, "kv_heads": 3},
        r"heads=8 do not share kv_heads=3 evenly.*\[1, 2, 4, 8\]",
    ),
    (GPTConfig, {"vocab_size": 0}, "vocab=0"),
    (GPTConfig, {"vocab_size": 5, "dim": 0}, "width=0"),
    (GPTConfig, {"vocab_size": 5, "heads": 0}, "heads=0"),
    (GPTConfig, {"vocab_size": 5, "head_dim": 0}, "head_width is at least 1; got 0"),
    (GPTConfig, {"vocab_size": 5, "max_length": 0}, "length=0"),
    (GPTConfig, {"vocab_size": 5, "layers": -1}, "layers are 0 or more.*-1"),
    (GPTConfig, {"vocab_size": 5, "sliding_window": 0}, "a window 1 or more.*0"),
    (GPTConfig, {"vocab_size": 5, "mlp_dim": 0}, "hidden is at least 1; got 0"),
    (GPTConfig, {"vocab_size": 5, "dropout": 1.5}, "1.5"),
    (GPTConfig, {"vocab_size": 5, "dropout": 1.0}, "dropout is a probability from 0 to below 1; got 1.0"),
    (GPTConfig, {"vocab_size": 5, "position": "spiral"}, "learned, sinusoidal, none, rope, alibi, t5, shaw.*'spiral'"),
    (GPTConfig, {"vocab_size": 5, "activation": "tanh"}, "'relu', 'gelu', 'gelu-tanh' or 'swiglu'; got 'tanh'"),
    (GPTConfig, {"vocab_size": 5, "norm": "batch"}, "'layer' or 'rms'; got 'batch'"),
    (GPTConfig, {"vocab_size": 5, "norm_order": "middle"}, "'pre' or 'post'; got order='middle'"),
    (
        GPTConfig,
        {"vocab_size": 5, "dim": 9, "heads": 3, "position": "rope"},
        r"even number.*got 3 of 3.*Rope\(width=2\)",
    ),
    (GPTConfig, {"vocab_size": 5, "position": Rope(rotary_dim=64)}, "got 64 of 32"),
    (GPTConfig, {"vocab_size": 5, "position": "alibi", "score": Additive(4)}, "Additive has none: leave position out"),
    (EncoderConfig, {}, "vocab=None, features=None"),
    (EncoderConfig, {"vocab_size": 5, "features": 5}, "one of the two"),
    (EncoderConfig, {"features": 0}, "features.*0"),
    (EncoderConfig, {"vocab_size": 5, "layers": -1}, "layers.*-1"),
    (EncoderConfig, {"vocab_size": 5, "left_chunks": 1}, "without chunk="),
    (EncoderConfig, {"vocab_size": 5, "chunk_size": 0}, "chunk.*at least 1.*0"),
    (EncoderConfig, {"vocab_size": 5, "chunk_size": 2, "left_chunks": -1}, "left_chunks.*-1"),
    (Seq2SeqConfig, {"vocab_size": 5, "target_vocab_size": 6}, "vocab=5 and target_vocab=6: say tied=False"),
    (Seq2SeqConfig, {"vocab_size": 5, "encoder_layers": -1}, "layers.*-1"),
    (Seq2SeqConfig, {"vocab_size": 5, "decoder_layers": -2}, "layers.*-2"),
    (PerceiverConfig, {"vocab_size": 5, "layers": 1}, "at least 2; got layers=1"),
    (PerceiverConfig, {"vocab_size": 5, "max_length": 8, "latents": 9}, "from 1 to the length 8; got 9"),
    (PerceiverConfig, {"vocab_size": 5, "latents": 0}, "got 0"),
    (PerceiverConfig, {"vocab_size": 5, "coverage": "random"}, "'even' or 'course'.*'random'"),
    (PerceiverConfig, {"vocab_size": 5, "position": "rope"}, "'learned' or 'sinusoidal'.*'rope'"),
    (RNNConfig, {"vocab_size": 5, "cell": "mamba"}, "rnn, gru, lstm; got 'mamba'"),
    (RNNConfig, {"vocab_size": 5, "layers": 0}, "at least 1; got 0"),
    (RNNConfig, {"vocab_size": 5, "hidden_size": 0}, "at least 1; got 2 and 0"),
    (RNNConfig, {"vocab_size": -1}, "vocab=-1"),
    (RNNSeq2SeqConfig, {"vocab_size": 5, "hidden_size": 7}, "even; got 7"),
    (
        RNNSeq2SeqConfig,
        {"vocab_size": 5, "score": RandomSynthesizer(5)},
        "Additive, LocationAware or Dot; got RandomSyn",
    ),
    (
        ViTConfig,
        {"image_size": 32, "patch_size": 5},
        r"32 pixels do not cut into patches of 5; .*\[1, 2, 4, 8, 16, 32\]",
    ),
    (ViTConfig, {"image_size": 0}, "0"),
    (ViTConfig, {"layers": -1}, "layers.*-1"),
    (ViTConfig, {"pooling": "max"}, "'cls' or 'mean'; got pooling='max'"),
    (ViTConfig, {"position": "rope"}, "learned, learned-2d, sinusoidal or none; got 'rope'"),
    (ViTConfig, {"num_classes": -1}, "classes are 0 .no head. or more.*got -1"),
    (ViTConfig, {"channels": 0}, "at least 1; got 0"),
    (CNNConfig, {"kernel": 4}, "odd number.*got 4"),
    (CNNConfig, {"image_size": 4, "widths": (8, 8, 8)}, "3 stages do not fit a picture of 4"),
    (CNNConfig, {"widths": ()}, "0 stages"),
    (CNNConfig, {"widths": (8, 0)}, r"at least 1; got.*\(8, 0\)"),
    (CNNConfig, {"num_classes": 0}, "at least 1; got.*0"),
    (CNNConfig, {"channels": 0}, "at least 1; got.*0"),
    (MLPConfig, {"widths": (8, 0)}, r"at least 1; got.*\(8, 0\)"),
    (MLPConfig, {"num_classes": 0}, "at least 1; got.*0"),
    (MLPConfig, {"image_size": 0}, "at least 1; got.*0"),
]


@pytest.mark.parametrize(("kind", "fields", "words"), IMPOSSIBLE, ids=lambda value: str(value)[-60:])
def test_an_impossible_configuration_is_refused(kind, fields, words, unchecked):
    with pytest.raises(ValueError, match=words):
        build(kind(**fields))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Rope(pairing="thirds"), "'thirds'"),  # pyright: ignore[reportArgumentType]
        (lambda: Rope(rotary_dim=3), "even number from 2; got 3"),
        (lambda: Rope(base=0.0), "positive number; got 0.0"),
        (lambda: Additive(0), "hidden of at least 1; got 0"),
        (lambda: LocationAware(kernel=2), "odd number.*got 2"),
        (lambda: DenseSynthesizer(0), "length of at least 1; got 0"),
        (lambda: RandomSynthesizer(-1), "length of at least 1; got -1"),
        (lambda: GPT(RNNConfig(vocab_size=3)), "built from a GPTConfig; got RNNConfig"),  # pyright: ignore[reportArgumentType]
        (lambda: build({"vocab_size": 3}), "expected a config such as GPTConfig.*got dict"),
    ],
)
def test_an_impossible_part_is_refused(make, words, unchecked):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_frozen_config_can_be_compared_and_cannot_be_changed():
    config = GPTConfig(vocab_size=5)
    assert config == GPTConfig(vocab_size=5) and hash(config) == hash(GPTConfig(vocab_size=5))
    with pytest.raises(AttributeError):
        config.dim = 3  # pyright: ignore[reportAttributeAccessIssue]


READERS = {
    **{name: LANGUAGE_MODELS[name] for name in ("learned", "rope", "additive", "lstm", "perceiver, even, pre")},
    "encoder": ENCODERS["encoder, t5"],
}


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (torch.tensor([[0, VOCAB]]), "from 0 to 10, the model's vocabulary; got from 0 to 11"),
        (torch.tensor([[-1, 3]]), "got from -1 to 3"),
        (torch.tensor([1, 2]), r"\(batch, tokens\); got shape \(2,\)"),
        (torch.zeros(1, 2, 3).long(), r"got shape \(1, 2, 3\)"),
        (torch.zeros(1, 2), "whole numbers.*float32"),
        (torch.ones(1, 2, dtype=torch.bool), "whole numbers.*bool"),
    ],
    ids=str,
)
@every(READERS)
def test_tokens_that_are_none_are_refused(config, tokens, words, device, unchecked):
    with pytest.raises(ValueError, match=words):
        randomised(config, device)(tokens.to(device))


@every(TRANSLATORS)
def test_a_translator_refuses_wrong_sources_targets_and_flags(config, device, unchecked):
    model = randomised(config, device)
    good, high = tokens_like(2, 4, device=device, vocab_size=9), torch.full((2, 4), 40, device=device)
    token_mask = padded("xxxx", ".xxx", device=device)
    with pytest.raises(ValueError, match="got from 40 to 40"):
        model(high, good)
    with pytest.raises(ValueError, match="got from 40 to 40"):
        model(good, high)
    with pytest.raises(ValueError, match=r"\(2, 4\); got .*\(2, 3\)"):
        model(good, good, token_mask[:, 1:])
    with pytest.raises(ValueError, match=r"\(2, 4\); got .*\(2, 3\)"):
        model(good, good, None, token_mask[:, 1:])
    with pytest.raises(ValueError, match="batch size"):
        model(good, good[:1])


@every(READERS)
def test_flags_of_another_shape_or_kind_are_refused(config, device, unchecked):
    model = randomised(config, device)
    tokens = tokens_like(2, 4, device=device)
    for wrong in (torch.ones(2, 3).bool(), torch.ones(4).bool(), torch.ones(1, 4).bool(), torch.ones(2, 4, 1).bool()):
        with pytest.raises(ValueError, match=r"\(batch, tokens\) = \(2, 4\); got torch.bool of"):
            model(tokens, wrong.to(device))
    for kind in (torch.long, torch.float64):
        with pytest.raises(ValueError, match=f"present is boolean.*{kind}"):
            model(tokens, torch.ones(2, 4, dtype=kind, device=device))


BEYOND = {
    "learned": (GPTConfig(**SMALL), "has learned 16 positions; got a sequence of 17 tokens"),
    "dense": (GPTConfig(**SMALL, position="none", score=DenseSynthesizer(16)), "scores for 16 positions; got .* of 17"),
    "random": (GPTConfig(**SMALL, position="none", score=RandomSynthesizer(16)), "16 positions; got .* of 17"),
    "encoder": (EncoderConfig(**SMALL, position="learned"), "has learned 16 positions; got a sequence of 17 tokens"),
    "perceiver": (PerceiverConfig(**SMALL, latents=3), "16 positions; got a sequence of 17"),
    "perceiver, sinusoidal": (
        PerceiverConfig(**SMALL, latents=3, position="sinusoidal"),
        "for 16 positions; got .* 17",
    ),
}


@pytest.mark.parametrize(("config", "words"), BEYOND.values(), ids=list(BEYOND))
def test_a_text_longer_than_the_known_positions_is_refused(config, words, device, unchecked):
    model = randomised(config, device)
    tokens = tokens_like(2, 17, device=device)
    assert model(tokens[:, :16]).shape[1] == 16
    with pytest.raises(ValueError, match=words):
        model(tokens)
    flags = torch.arange(17, device=device)[None] > torch.tensor([[0], [5]], device=device)
    assert model(tokens, flags).shape[1] == 17  # one token too many, but no position too many


@pytest.mark.parametrize(
    "features", [torch.zeros(2, 4), torch.zeros(2, 4, 6), torch.zeros(2, 4, 5).long(), torch.zeros(2, 4, 5)]
)
def test_vectors_of_another_shape_or_dtype_are_refused(features, device, unchecked):
    model = randomised(ENCODERS["encoder of vectors"], device)
    with pytest.raises(ValueError, match=r"vectors of (shape \(batch, tokens, 5\)|torch.float64); got"):
        model(features.to(device))


def test_memories_of_another_width_are_refused(device, unchecked):
    for name in ("seq2seq, rope", "rnn, additive"):
        model = randomised(TRANSLATORS[name], device)
        with pytest.raises(ValueError, match=r"memory is \(batch, tokens, width=8\); got \(2, 3, 5\)"):
            model.decode(
                tokens_like(2, 3, device=device, vocab_size=9), torch.zeros(2, 3, 5, dtype=torch.float64, device=device)
            )


def test_every_known_name_builds_a_model(device):
    for config in (GPTS["learned"], RNNS["gru"], CNNConfig(**IMAGE)):
        assert build(config).config is config
