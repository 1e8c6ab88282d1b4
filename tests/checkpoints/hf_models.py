"""Hugging Face models for the tests: tiny, in float64, with random parameters."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers: Any = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

VOCAB = 23
SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
GPT2 = {"vocab_size": VOCAB, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 4, **SPECIAL}
OPT = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "ffn_dim": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    **SPECIAL,
}
LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    **SPECIAL,
}
ENCODER = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT = {**ENCODER, "vocab_size": VOCAB, "max_position_embeddings": 32, "pad_token_id": 2}
ROBERTA = {**BERT, "pad_token_id": 1}
DISTILBERT = {
    "vocab_size": VOCAB,
    "max_position_embeddings": 32,
    "dim": 16,
    "hidden_dim": 20,
    "n_layers": 2,
    "n_heads": 4,
    "pad_token_id": 2,
}
VIT = {**ENCODER, "image_size": 12, "patch_size": 4, "num_channels": 2}
BART = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 32,
    **SPECIAL,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **settings}}


LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=16)

# name: (their class, their config's class, its settings)
GPTS = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gpt2, untied": ("GPT2LMHeadModel", "GPT2Config", {**GPT2, "tie_word_embeddings": False, "n_inner": 24}),
    "gpt2, relu": ("GPT2LMHeadModel", "GPT2Config", {**GPT2, "activation_function": "relu"}),
    "opt": ("OPTForCausalLM", "OPTConfig", OPT),
    "opt, untied": ("OPTForCausalLM", "OPTConfig", {**OPT, "tie_word_embeddings": False}),
    "opt, gelu": ("OPTForCausalLM", "OPTConfig", {**OPT, "activation_function": "gelu"}),
}
LLAMAS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "llama, tied": ("LlamaForCausalLM", "LlamaConfig", {**LLAMA, "tie_word_embeddings": True}),
    "llama, not grouped": ("LlamaForCausalLM", "LlamaConfig", {**LLAMA, "num_key_value_heads": 4}),
    "llama, biases": ("LlamaForCausalLM", "LlamaConfig", {**LLAMA, "attention_bias": True, "mlp_bias": True}),
    "llama, attention's biases": ("LlamaForCausalLM", "LlamaConfig", {**LLAMA, "attention_bias": True}),
    "llama, wide heads": ("LlamaForCausalLM", "LlamaConfig", {**LLAMA, "head_dim": 6}),
    "llama, linear": ("LlamaForCausalLM", "LlamaConfig", {**LLAMA, **rope("linear", factor=3.0)}),
    "llama, llama3": ("LlamaForCausalLM", "LlamaConfig", {**LLAMA, **LLAMA3}),
    "llama, yarn": ("LlamaForCausalLM", "LlamaConfig", {**LLAMA, **YARN}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**LLAMA, "sliding_window": 4}),
    "mistral, no window": ("MistralForCausalLM", "MistralConfig", {**LLAMA, "sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", LLAMA),
    "qwen2, window": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {**LLAMA, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0},
    ),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**LLAMA, "head_dim": 6, "tie_word_embeddings": True}),
}
BERTS = {
    "bert": ("BertModel", "BertConfig", BERT),
    "bert, masked": ("BertForMaskedLM", "BertConfig", {**BERT, "type_vocab_size": 3}),
    "bert, pretraining": ("BertForPreTraining", "BertConfig", {**BERT, "hidden_act": "gelu_new"}),
    "roberta": ("RobertaModel", "RobertaConfig", ROBERTA),
    "roberta, masked": ("RobertaForMaskedLM", "RobertaConfig", {**ROBERTA, "hidden_act": "relu"}),
    "xlm-roberta": ("XLMRobertaModel", "XLMRobertaConfig", ROBERTA),
    "camembert": ("CamembertModel", "CamembertConfig", ROBERTA),
    "distilbert": ("DistilBertModel", "DistilBertConfig", DISTILBERT),
    "distilbert, masked": ("DistilBertForMaskedLM", "DistilBertConfig", {**DISTILBERT, "activation": "relu"}),
}
VITS = {
    "vit": ("ViTForImageClassification", "ViTConfig", {**VIT, "num_labels": 5}),
    "vit, bare": ("ViTModel", "ViTConfig", VIT),
}
BARTS = {
    "bart": ("BartForConditionalGeneration", "BartConfig", BART),
    "bart, untied": ("BartForConditionalGeneration", "BartConfig", {**BART, "tie_word_embeddings": False}),
    "bart, bare": ("BartModel", "BartConfig", BART),
    "bart, scaled": ("BartForConditionalGeneration", "BartConfig", {**BART, "scale_embedding": True}),
}
EVERY = {**GPTS, **LLAMAS, **BERTS, **VITS, **BARTS}


def plain(models: dict[str, Any]) -> list[str]:
    """The name of each family: its first model, without a variation after a comma."""
    return [name for name in models if "," not in name]


def make_hf_model(name: str, **more: Any) -> Any:
    """One of the models above, in eval mode."""
    architecture, config, settings = EVERY[name]
    settings = {key: dict(value) if isinstance(value, dict) else value for key, value in {**settings, **more}.items()}
    torch.manual_seed(1)
    model = getattr(transformers, architecture)(getattr(transformers, config)(**settings)).double().eval()
    assert model.config._attn_implementation == "sdpa"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, dtype=torch.float64))
        for module in model.modules():  # scales of norms near 1, so that signals get through
            if "Norm" in type(module).__name__ and getattr(module, "weight", None) is not None:
                module.weight.add_(1.0)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias))
    return model


def from_pretrained(folder: Path, name: str) -> Any:
    """Load a folder with Hugging Face's from_pretrained; no tensor may be missing or unexpected."""
    model, report = getattr(transformers, EVERY[name][0]).from_pretrained(
        folder, dtype=torch.float64, output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model.eval()


def random_tokens(rows: int = 2, length: int = 9) -> Tensor:
    return torch.randint(3, VOCAB, (rows, length))


def images(rows: int = 2) -> Tensor:
    return torch.randn(rows, 2, 12, 12, dtype=torch.float64)


def without_head(theirs: Any) -> Any:
    """The model below a head; a model without one is returned as it is."""
    return getattr(theirs, theirs.base_model_prefix, theirs)


@torch.no_grad()
def compute_outputs(name: str, theirs: Any, ours: Any) -> tuple[Tensor, Tensor]:
    """The outputs of both models for the same inputs."""
    torch.manual_seed(2)
    if name in VITS:
        pixels = images()
        if name == "vit, bare":
            return theirs(pixels).last_hidden_state, ours.hidden_states(pixels)
        return theirs(pixels).logits, ours(pixels)
    tokens = random_tokens()
    if name in BERTS:
        base = without_head(theirs)
        if not ours.config.num_segments:
            return base(tokens).last_hidden_state, ours(tokens)
        segments = torch.randint(2, tokens.shape)
        return base(tokens, token_type_ids=segments).last_hidden_state, ours(tokens, segments=segments)
    if name in BARTS:
        target = random_tokens(length=6)
        if name == "bart, bare":  # its output layer is the token embedding
            states = theirs(input_ids=tokens, decoder_input_ids=target).last_hidden_state
            return states @ theirs.shared.weight.mT, ours(tokens, target)
        return theirs(input_ids=tokens, decoder_input_ids=target).logits, ours(tokens, target)
    return theirs(tokens).logits, ours(tokens)


def use_float64(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute the norms and RoPE angles of a Hugging Face model in float64 instead of float32."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            monkeypatch.setattr(module, "forward", _exact_norm(module))
    rotary = model.model.rotary_emb
    make = rotary.compute_default_rope_parameters
    make = make if rotary.rope_type == "default" else ROPE_INIT_FUNCTIONS[rotary.rope_type]
    with monkeypatch.context() as patch:  # the function that makes the frequencies refers to float32 by these names
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(torch, "float32", torch.float64)
        frequencies, amplitude = make(model.config)

    def forward(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None].double() * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos() * amplitude, angles.sin() * amplitude

    monkeypatch.setattr(rotary, "forward", forward)


def _exact_norm(module: nn.Module) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        return module.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)  # pyright: ignore

    return forward
