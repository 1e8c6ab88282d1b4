"""The models under test: tiny, in float64, with large random weights, because small initial weights hide bugs."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.models import (
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
from qkv.nn import Additive, DenseSynthesizer, Dot, LocationAware, RandomSynthesizer
from qkv.positions import Llama3Scaling, Rope, YarnScaling

VOCAB = 11
LLAMA = Rope(scaling=Llama3Scaling(original_max_length=8), pairing="halves")
SMALL: dict[str, Any] = {"vocab_size": VOCAB, "max_length": 16, "dim": 8, "layers": 2, "heads": 4, "mlp_dim": 12}

POSITIONS: dict[str, Any] = {
    "learned": "learned",
    "sinusoidal": "sinusoidal",
    "none": "none",
    "rope": "rope",
    "rope, halves": Rope(pairing="halves", base=100.0),
    "rope, partial": Rope(rotary_dim=2),
    "rope, yarn": Rope(scaling=YarnScaling(factor=4.0, original_max_length=8)),
    "rope, llama3": LLAMA,
    "alibi": "alibi",
    "t5": "t5",
    "shaw": "shaw",
}

GPTS = {
    **{name: GPTConfig(**{**SMALL, "heads": 2}, position=position) for name, position in POSITIONS.items()},
    "dense synthesizer": GPTConfig(**SMALL, score=DenseSynthesizer(16)),
    "dense synthesizer for each head": GPTConfig(**SMALL, score=DenseSynthesizer(16, shared=False)),
    "random synthesizer": GPTConfig(**SMALL, score=RandomSynthesizer(16)),
    "additive": GPTConfig(**SMALL, score=Additive(5)),
    "location-aware": GPTConfig(**SMALL, score=LocationAware(5, filters=2, kernel_size=3)),
    "grouped-query": GPTConfig(**SMALL, kv_heads=2, position="t5"),
    "multi-query": GPTConfig(**SMALL, kv_heads=1, head_dim=6, position="rope"),
    "grouped-query additive": GPTConfig(**SMALL, kv_heads=2, score=Additive(5)),
    "post-norm": GPTConfig(**SMALL, norm_order="post", position="alibi"),
    "swiglu and rms": GPTConfig(**SMALL, activation="swiglu", norm="rms", bias=False, tie_embeddings=True),
    "sliding window": GPTConfig(**SMALL, sliding_window=3),
    "window of one": GPTConfig(**SMALL, sliding_window=1, position="sinusoidal"),
    "window and rope": GPTConfig(**{**SMALL, "heads": 2}, sliding_window=4, kv_heads=1, position="rope"),
    "window and shaw": GPTConfig(**SMALL, sliding_window=3, position="shaw"),
    "window and t5": GPTConfig(**SMALL, sliding_window=2, position="t5", norm_order="post"),
    "window and dense synthesizer": GPTConfig(**SMALL, sliding_window=3, score=DenseSynthesizer(16)),
    "window and random synthesizer": GPTConfig(**SMALL, sliding_window=3, score=RandomSynthesizer(16)),
    "window and additive": GPTConfig(**SMALL, sliding_window=3, score=Additive(5)),
    "window and location-aware": GPTConfig(**SMALL, sliding_window=3, score=LocationAware(5, filters=2, kernel_size=5)),
}
RNNS = {cell: RNNConfig(VOCAB, dim=6, hidden_size=7, layers=2, cell=cell) for cell in ("rnn", "gru", "lstm")}
PERCEIVERS = {
    f"perceiver, {coverage}, {order}": PerceiverConfig(
        **{**SMALL, "layers": 3}, num_latents=5, coverage=coverage, norm_order=order
    )
    for coverage in ("even", "prefix")
    for order in ("pre", "post")
}
LANGUAGE_MODELS = {**GPTS, **RNNS, **PERCEIVERS}

TWO_STACKS: dict[str, Any] = {key: value for key, value in SMALL.items() if key != "layers"} | {
    "encoder_layers": 2,
    "decoder_layers": 2,
}
SEQ2SEQS = {
    **{
        f"seq2seq, {name}": Seq2SeqConfig(**TWO_STACKS, position=name)
        for name in ("learned", "sinusoidal", "rope", "t5")
    },
    "seq2seq, pre-norm": Seq2SeqConfig(
        **TWO_STACKS, norm_order="pre", position="shaw", activation="swiglu", norm="rms"
    ),
    "seq2seq, two tables": Seq2SeqConfig(**TWO_STACKS, target_vocab_size=9, tie_embeddings=False, position="alibi"),
}
RECURRENT: dict[str, Any] = {"vocab_size": VOCAB, "target_vocab_size": 9, "dim": 6, "hidden_size": 8}
RNN_SEQ2SEQS = {
    "rnn, additive": RNNSeq2SeqConfig(**RECURRENT, cell="rnn"),
    "gru, location-aware": RNNSeq2SeqConfig(**RECURRENT, cell="gru", score=LocationAware(5, filters=2, kernel_size=3)),
    "lstm, dot": RNNSeq2SeqConfig(**RECURRENT, cell="lstm", score=Dot(), layers=2),
}
TRANSLATORS = {**SEQ2SEQS, **RNN_SEQ2SEQS}

ENCODERS = {
    **{f"encoder, {name}": EncoderConfig(**{**SMALL, "heads": 2}, position=place) for name, place in POSITIONS.items()},
    "encoder of vectors": EncoderConfig(**{**SMALL, "vocab_size": None}, features=5),
    "encoder, post-norm": EncoderConfig(**SMALL, norm_order="post", final_norm=True, scale_embeddings=True),
    "encoder, chunks": EncoderConfig(**SMALL, chunk_size=3, left_chunks=1),
    "encoder, chunks and all before": EncoderConfig(**SMALL, chunk_size=4, position="rope"),
}

IMAGE: dict[str, Any] = {"image_size": 8, "channels": 2, "num_classes": 5}
VITS = {
    f"vit, {head}, {position}": ViTConfig(
        **IMAGE, patch_size=2, dim=8, layers=2, heads=2, mlp_dim=12, pooling=head, position=position
    )
    for head in ("cls", "mean")
    for position in ("learned", "learned-2d", "sinusoidal", "none")
}
IMAGE_MODELS = {
    **VITS,
    "vit, post-norm": ViTConfig(
        **IMAGE, patch_size=4, dim=6, layers=1, heads=1, norm_order="post", norm="rms", bias=False
    ),
    "cnn": CNNConfig(**IMAGE, stage_channels=(3, 4)),
    "mlp": MLPConfig(**IMAGE, hidden_sizes=(7, 6)),
}

EVERY_MODEL = {**LANGUAGE_MODELS, **TRANSLATORS, **ENCODERS, **IMAGE_MODELS}


def make_random_model(config: object, device: torch.device, *, deviation: float = 0.3) -> Any:
    """The config's model in eval mode, each parameter drawn from N(0, deviation²)."""
    model = build(config).to(device, torch.float64).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(deviation * torch.randn(parameter.shape, dtype=torch.float64))
    return model


def make_varied_model(config: object, device: torch.device) -> Any:
    """A model whose most likely token varies with the input: large matrices, small biases."""
    model = make_random_model(config, device, deviation=1.0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.mul_(0.1).add_(float("norm" in name and name.endswith("weight")))
    return model


def parametrize_cases(cases: Mapping[str, Any], name: str = "config"):
    """Parametrize a test by these cases, with their names as ids."""
    return pytest.mark.parametrize(name, list(cases.values()), ids=list(cases))


def assert_close(ours: Any, expected: Any, *, within: float = 1e-10, note: str = "") -> None:
    """Assert that all numbers agree within an absolute tolerance."""
    torch.testing.assert_close(ours, expected, atol=within, rtol=0.0, msg=lambda text: f"{note}\n{text}")


def tokens_like(*shape: int, device: torch.device, vocab_size: int = VOCAB) -> Tensor:
    return torch.randint(vocab_size, shape).to(device)


def inputs(config: object, device: torch.device, *, batch: int = 2, length: int = 9) -> tuple[Tensor, ...]:
    """Random inputs for a config's model."""
    if isinstance(config, ViTConfig | CNNConfig | MLPConfig):
        return (
            torch.randn(batch, config.channels, config.image_size, config.image_size, dtype=torch.float64).to(device),
        )
    if isinstance(config, EncoderConfig) and config.features is not None:
        return (torch.randn(batch, length, config.features, dtype=torch.float64).to(device),)
    source = tokens_like(batch, length, device=device)
    if isinstance(config, Seq2SeqConfig | RNNSeq2SeqConfig):
        return source, tokens_like(batch, length - 2, device=device, vocab_size=9)
    return (source,)


def in_pieces(
    call: Callable[..., Tensor], tokens: Tensor, token_mask: Tensor | None, cache: Any, *, first: int, size: int
) -> Tensor:
    """Concatenated outputs of call(tokens, token_mask, cache) on the first few tokens, then on pieces of one size."""
    sizes = [first]
    while sum(sizes) < tokens.shape[1]:
        sizes.append(min(size, tokens.shape[1] - sum(sizes)))
    flags = [None] * len(sizes) if token_mask is None else token_mask.split(sizes, dim=1)
    return torch.cat(
        [call(text, flag, cache) for text, flag in zip(tokens.split(sizes, dim=1), flags, strict=True)], dim=1
    )


def padded(*rows: str, device: torch.device) -> Tensor:
    """A token mask from strings: x is a real token, . is padding."""
    return torch.tensor([[mark == "x" for mark in row] for row in rows]).to(device)
