"""Small random models of other libraries, nothing downloaded: each as (model, call, weights in eager mode)."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24, "vocab_size": 33}


@dataclass(frozen=True)
class TransformersModel:
    """A model, what it is called with, and the fields of its output that hold attention weights in eager mode."""

    name: str
    config: Callable[[], object]
    kind: str
    inputs: Callable[[], dict[str, Tensor]]
    fields: tuple[str, ...] = ("attentions",)
    backends: tuple[str, ...] = ("eager", "sdpa")


def tokens(*shape: int) -> Tensor:
    return torch.randint(3, 33, shape, generator=torch.Generator().manual_seed(1))


def text() -> dict[str, Tensor]:
    return {"input_ids": tokens(2, 7)}


def padded_text() -> dict[str, Tensor]:
    """Left padding in the first row."""
    return {**text(), "attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])}


def both_texts() -> dict[str, Tensor]:
    return {"input_ids": tokens(2, 7), "decoder_input_ids": tokens(2, 5)}


def _config(name: str, **options) -> Callable[[], object]:
    def build() -> object:
        transformers = pytest.importorskip("transformers")
        return getattr(transformers, name)(**options)

    return build


T5 = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "vocab_size": 33}
BART = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "vocab_size": 33,
}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CROSS = ("encoder_attentions", "decoder_attentions", "cross_attentions")
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 33, "n_positions": 32, **ENDS}

TRANSFORMERS_MODELS = [
    TransformersModel("GPT-2", _config("GPT2Config", **GPT2), "AutoModelForCausalLM", text),
    TransformersModel("GPT-2, padded", _config("GPT2Config", **GPT2), "AutoModelForCausalLM", padded_text),
    TransformersModel(
        "Llama", _config("LlamaConfig", **SIZES, num_key_value_heads=2, **ENDS), "AutoModelForCausalLM", text
    ),
    TransformersModel(
        "Llama, padded",
        _config("LlamaConfig", **SIZES, num_key_value_heads=2, **ENDS),
        "AutoModelForCausalLM",
        padded_text,
    ),
    TransformersModel(
        "Mistral",
        _config("MistralConfig", **SIZES, num_key_value_heads=2, sliding_window=3, **ENDS),
        "AutoModelForCausalLM",
        text,
    ),
    TransformersModel("BERT", _config("BertConfig", **SIZES), "AutoModel", padded_text),
    TransformersModel(
        "ViT",
        _config("ViTConfig", **{**SIZES, "image_size": 8, "patch_size": 4}),
        "AutoModel",
        lambda: {"pixel_values": torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))},
    ),
    TransformersModel("BART", _config("BartConfig", **BART, **ENDS), "AutoModel", both_texts, CROSS),
    TransformersModel("T5", _config("T5Config", **T5, **ENDS), "AutoModel", both_texts, CROSS),
    TransformersModel(
        "Whisper",
        _config("WhisperConfig", **BART, num_mel_bins=8, max_source_positions=6, max_target_positions=16, **ENDS),
        "AutoModel",
        lambda: {
            "input_features": torch.randn(2, 8, 12, generator=torch.Generator().manual_seed(1)),
            "decoder_input_ids": tokens(2, 5),
        },
        CROSS,
    ),
    TransformersModel(
        "GPT-OSS",
        _config(
            "GptOssConfig",
            **SIZES,
            num_key_value_heads=2,
            head_dim=4,
            num_local_experts=2,
            num_experts_per_tok=1,
            sliding_window=3,
            layer_types=["sliding_attention", "full_attention"],
            **ENDS,
        ),
        "AutoModelForCausalLM",
        text,
        backends=("eager",),
    ),
    TransformersModel(
        "Gemma 2",
        _config("Gemma2Config", **SIZES, num_key_value_heads=2, head_dim=4, attn_logit_softcapping=0.5, **ENDS),
        "AutoModelForCausalLM",
        text,
        backends=("eager",),
    ),
]


def build(case: TransformersModel, backend: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The model with every weight drawn at random, the same for every backend."""
    transformers = pytest.importorskip("transformers")
    model = getattr(transformers, case.kind).from_config(case.config(), attn_implementation=backend)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.to(dtype).eval()


def call(model: nn.Module, case: TransformersModel, **options) -> Tensor:
    inputs = {
        name: x.to(next(model.parameters()).dtype) if x.is_floating_point() else x for name, x in case.inputs().items()
    }
    output = model(**inputs, **options)
    return output[0]


def eager_weights(case: TransformersModel, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """The weights (b, h, t, s) of every layer, in the order in which they run, as the library returns them."""
    model = build(case, "eager", dtype)
    inputs = {name: x.to(dtype) if x.is_floating_point() else x for name, x in case.inputs().items()}
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    stacks = [getattr(output, field) for field in case.fields]
    if len(stacks) == 1:
        return list(stacks[0])
    encoder, decoder, cross = stacks
    return [*encoder, *(weights for pair in zip(decoder, cross, strict=True) for weights in pair)]
