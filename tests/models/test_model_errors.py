"""Error messages of models: what was expected, what came, what would fit."""

import pytest
import torch
from model_cases import (
    ENCODERS,
    GPTS,
    IMAGE,
    LANGUAGE_MODELS,
    RNNS,
    SMALL,
    TRANSLATORS,
    VOCAB,
    make_random_model,
    padded,
    parametrize_cases,
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
        r"dim=10 is not divisible by heads=4; try heads in \[1, 2, 5",
    ),
    (
        GPTConfig,
        {"vocab_size": 5, "heads": 8, "kv_heads": 3},
        r"heads=8 is not divisible by kv_heads=3.*\[1, 2, 4, 8\]",
    ),
    (GPTConfig, {"vocab_size": 0}, "vocab_size=0"),
    (GPTConfig, {"vocab_size": 5, "dim": 0}, "dim=0"),
    (GPTConfig, {"vocab_size": 5, "heads": 0}, "heads=0"),
    (GPTConfig, {"vocab_size": 5, "head_dim": 0}, "head_dim must be at least 1, got 0"),
    (GPTConfig, {"vocab_size": 5, "max_length": 0}, "max_length=0"),
    (GPTConfig, {"vocab_size": 5, "layers": -1}, "layers must be 0 or more, got -1"),
    (GPTConfig, {"vocab_size": 5, "sliding_window": 0}, "sliding_window must be at least 1, got 0"),
    (GPTConfig, {"vocab_size": 5, "mlp_dim": 0}, "mlp_dim must be at least 1, got 0"),
    (
        GPTConfig,
        {"vocab_size": 5, "dropout": 1.5},
        r"dropout probability.* got 1.5|dropout probability has to be .*1.5",
    ),
    (GPTConfig, {"vocab_size": 5, "dropout": 1.0}, r"the dropout probability must be in \[0, 1\), got 1.0"),
    (GPTConfig, {"vocab_size": 5, "position": "spiral"}, "learned, sinusoidal, none, rope, alibi, t5, shaw.*'spiral'"),
    (GPTConfig, {"vocab_size": 5, "activation": "tanh"}, "'relu', 'gelu', 'gelu-tanh' or 'swiglu', got 'tanh'"),
    (GPTConfig, {"vocab_size": 5, "norm": "batch"}, "'layer' or 'rms', got 'batch'"),
    (GPTConfig, {"vocab_size": 5, "norm_order": "middle"}, "norm_order must be 'pre' or 'post', got 'middle'"),
    (
        GPTConfig,
        {"vocab_size": 5, "dim": 9, "heads": 3, "position": "rope"},
        r"even number.*head_dim=3, got 3.*Rope\(rotary_dim=2\)",
    ),
    (GPTConfig, {"vocab_size": 5, "position": Rope(rotary_dim=64)}, "head_dim=32, got 64"),
    (GPTConfig, {"vocab_size": 5, "position": "alibi", "score": Additive(4)}, "Additive does not use; omit position"),
    (EncoderConfig, {}, "vocab_size=None, features=None"),
    (EncoderConfig, {"vocab_size": 5, "features": 5}, "one of the two"),
    (EncoderConfig, {"features": 0}, "features 1 or more, got 4 and 0"),
    (EncoderConfig, {"vocab_size": 5, "layers": -1}, "layers must be 0 or more.*-1"),
    (EncoderConfig, {"vocab_size": 5, "left_chunks": 1}, "no effect without chunk_size="),
    (EncoderConfig, {"vocab_size": 5, "chunk_size": 0}, "chunk_size must be at least 1.*chunk_size=0"),
    (EncoderConfig, {"vocab_size": 5, "chunk_size": 2, "left_chunks": -1}, "left_chunks=-1"),
    (
        Seq2SeqConfig,
        {"vocab_size": 5, "target_vocab_size": 6},
        "vocab_size=5 and target_vocab_size=6; set tie_embeddings=False",
    ),
    (Seq2SeqConfig, {"vocab_size": 5, "encoder_layers": -1}, "layers must be 0 or more, got -1"),
    (Seq2SeqConfig, {"vocab_size": 5, "decoder_layers": -2}, "layers must be 0 or more, got 3 and -2"),
    (PerceiverConfig, {"vocab_size": 5, "layers": 1}, "at least 2 .*, got layers=1"),
    (PerceiverConfig, {"vocab_size": 5, "max_length": 8, "num_latents": 9}, "from 1 to max_length=8, got 9"),
    (PerceiverConfig, {"vocab_size": 5, "num_latents": 0}, "num_latents.* got 0"),
    (PerceiverConfig, {"vocab_size": 5, "coverage": "random"}, "'even' or 'prefix', got 'random'"),
    (PerceiverConfig, {"vocab_size": 5, "position": "rope"}, "'learned' or 'sinusoidal', got 'rope'"),
    (RNNConfig, {"vocab_size": 5, "cell": "mamba"}, "rnn, gru, lstm, got 'mamba'"),
    (RNNConfig, {"vocab_size": 5, "layers": 0}, "at least 1, got 0"),
    (RNNConfig, {"vocab_size": 5, "hidden_size": 0}, "at least 1, got 2 and 0"),
    (RNNConfig, {"vocab_size": -1}, "vocab_size=-1"),
    (RNNSeq2SeqConfig, {"vocab_size": 5, "hidden_size": 7}, "hidden_size must be even .*, got 7"),
    (
        RNNSeq2SeqConfig,
        {"vocab_size": 5, "score": RandomSynthesizer(5)},
        "Additive, LocationAware or Dot, got RandomSynthesizer",
    ),
    (ViTConfig, {"image_size": 32, "patch_size": 5}, r"=32 is not divisible by patch_size=5; .*\[1, 2, 4, 8, 16, 32\]"),
    (ViTConfig, {"image_size": 0}, "image_size=0"),
    (ViTConfig, {"layers": -1}, "layers must be 0 or more, got 10 and -1"),
    (ViTConfig, {"pooling": "max"}, "pooling must be 'cls' or 'mean', got 'max'"),
    (ViTConfig, {"position": "rope"}, "learned, learned-2d, sinusoidal or none, got 'rope'"),
    (ViTConfig, {"num_classes": -1}, "num_classes .0: no head. and layers must be 0 or more, got -1"),
    (ViTConfig, {"channels": 0}, "at least 1, got 0"),
    (CNNConfig, {"kernel_size": 4}, "kernel_size must be odd.*got 4"),
    (CNNConfig, {"image_size": 4, "stage_channels": (8, 8, 8)}, "3 stages do not fit image_size=4"),
    (CNNConfig, {"stage_channels": ()}, "0 stages"),
    (CNNConfig, {"stage_channels": (8, 0)}, r"at least 1, got.*\(8, 0\)"),
    (CNNConfig, {"num_classes": 0}, "at least 1, got 3, 0"),
    (CNNConfig, {"channels": 0}, "at least 1, got 0"),
    (MLPConfig, {"hidden_sizes": (8, 0)}, r"at least 1, got.*\(8, 0\)"),
    (MLPConfig, {"num_classes": 0}, "at least 1, got 32, 3, 0"),
    (MLPConfig, {"image_size": 0}, "at least 1, got 0"),
]


@pytest.mark.parametrize(("kind", "fields", "words"), IMPOSSIBLE, ids=lambda value: str(value)[-60:])
def test_config_rejects_impossible_values(kind, fields, words, unchecked):
    with pytest.raises(ValueError, match=words):
        build(kind(**fields))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Rope(pairing="thirds"), "'thirds'"),  # pyright: ignore[reportArgumentType]
        (lambda: Rope(rotary_dim=3), "even number of at least 2, got 3"),
        (lambda: Rope(base=0.0), "base of Rope must be positive, got 0.0"),
        (lambda: Additive(0), "hidden_dim of Additive must be at least 1, got 0"),
        (lambda: LocationAware(kernel_size=2), "kernel_size .* must be odd.*got 2"),
        (lambda: DenseSynthesizer(0), "max_length of DenseSynthesizer must be at least 1, got 0"),
        (lambda: RandomSynthesizer(-1), "max_length of RandomSynthesizer must be at least 1, got -1"),
        (lambda: GPT(RNNConfig(vocab_size=3)), "built from a GPTConfig, got RNNConfig"),  # pyright: ignore[reportArgumentType]
        (lambda: build({"vocab_size": 3}), "a model config such as GPTConfig.*got dict"),
    ],
)
def test_config_parts_reject_impossible_values(make, words, unchecked):
    with pytest.raises(ValueError, match=words):
        make()


def test_config_is_hashable_and_frozen():
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
        (torch.tensor([[0, VOCAB]]), "from 0 to 10 .the vocabulary., got 0 to 11"),
        (torch.tensor([[-1, 3]]), "got -1 to 3"),
        (torch.tensor([1, 2]), r"\(batch, tokens\), got shape \(2,\)"),
        (torch.zeros(1, 2, 3).long(), r"got shape \(1, 2, 3\)"),
        (torch.zeros(1, 2), "integers.*float32"),
        (torch.ones(1, 2, dtype=torch.bool), "integers.*bool"),
    ],
    ids=str,
)
@parametrize_cases(READERS)
def test_models_reject_wrong_tokens(config, tokens, words, device, unchecked):
    with pytest.raises(ValueError, match=words):
        make_random_model(config, device)(tokens.to(device))


@parametrize_cases(TRANSLATORS)
def test_translator_rejects_wrong_sources_targets_and_token_masks(config, device, unchecked):
    model = make_random_model(config, device)
    good, high = tokens_like(2, 4, device=device, vocab_size=9), torch.full((2, 4), 40, device=device)
    token_mask = padded("xxxx", ".xxx", device=device)
    with pytest.raises(ValueError, match="got 40 to 40"):
        model(high, good)
    with pytest.raises(ValueError, match="got 40 to 40"):
        model(good, high)
    with pytest.raises(ValueError, match=r"\(2, 4\), got .*\(2, 3\)"):
        model(good, good, token_mask[:, 1:])
    with pytest.raises(ValueError, match=r"\(2, 4\), got .*\(2, 3\)"):
        model(good, good, None, token_mask[:, 1:])
    with pytest.raises(ValueError, match="batch size"):
        model(good, good[:1])


@parametrize_cases(READERS)
def test_models_reject_wrong_token_masks(config, device, unchecked):
    model = make_random_model(config, device)
    tokens = tokens_like(2, 4, device=device)
    for wrong in (torch.ones(2, 3).bool(), torch.ones(4).bool(), torch.ones(1, 4).bool(), torch.ones(2, 4, 1).bool()):
        with pytest.raises(ValueError, match=r"\(batch, tokens\) = \(2, 4\), got torch.bool of"):
            model(tokens, wrong.to(device))
    for kind in (torch.long, torch.float64):
        with pytest.raises(ValueError, match=f"token_mask must be boolean.*{kind}"):
            model(tokens, torch.ones(2, 4, dtype=kind, device=device))


BEYOND = {
    "learned": (GPTConfig(**SMALL), "has learned 16 positions, got a sequence of 17 tokens"),
    "dense": (GPTConfig(**SMALL, position="none", score=DenseSynthesizer(16)), "scores for 16 positions, got .* of 17"),
    "random": (GPTConfig(**SMALL, position="none", score=RandomSynthesizer(16)), "16 positions, got .* of 17"),
    "encoder": (EncoderConfig(**SMALL, position="learned"), "has learned 16 positions, got a sequence of 17 tokens"),
    "perceiver": (PerceiverConfig(**SMALL, num_latents=3), "16 positions, got a sequence of 17"),
    "perceiver, sinusoidal": (
        PerceiverConfig(**SMALL, num_latents=3, position="sinusoidal"),
        "for 16 positions, got .* 17",
    ),
}


@pytest.mark.parametrize(("config", "words"), BEYOND.values(), ids=list(BEYOND))
def test_models_reject_texts_beyond_their_positions(config, words, device, unchecked):
    model = make_random_model(config, device)
    tokens = tokens_like(2, 17, device=device)
    assert model(tokens[:, :16]).shape[1] == 16
    with pytest.raises(ValueError, match=words):
        model(tokens)
    flags = torch.arange(17, device=device)[None] > torch.tensor([[0], [5]], device=device)
    assert model(tokens, flags).shape[1] == 17  # one token too many, but no position too many


@pytest.mark.parametrize(
    "features", [torch.zeros(2, 4), torch.zeros(2, 4, 6), torch.zeros(2, 4, 5).long(), torch.zeros(2, 4, 5)]
)
def test_encoder_rejects_wrong_vectors(features, device, unchecked):
    model = make_random_model(ENCODERS["encoder of vectors"], device)
    with pytest.raises(ValueError, match=r"vectors of (shape \(batch, tokens, 5\)|torch.float64), got"):
        model(features.to(device))


def test_translator_decode_rejects_a_memory_of_another_dim(device, unchecked):
    for name in ("seq2seq, rope", "rnn, additive"):
        model = make_random_model(TRANSLATORS[name], device)
        with pytest.raises(ValueError, match=r"memory must be \(batch, tokens, dim=8\), got \(2, 3, 5\)"):
            model.decode(
                tokens_like(2, 3, device=device, vocab_size=9), torch.zeros(2, 3, 5, dtype=torch.float64, device=device)
            )


def test_build_keeps_the_config(device):
    for config in (GPTS["learned"], RNNS["gru"], CNNConfig(**IMAGE)):
        assert build(config).config is config
