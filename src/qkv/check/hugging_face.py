"""Architectures of Hugging Face transformers, built small with random weights; nothing is downloaded."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from qkv.check.contract import Contract

# what configs call their sizes, and small values for them
SMALL: dict[str, Any] = {
    "hidden_size": 32, "n_embd": 32, "d_model": 32, "dim": 32, "embedding_size": 32, "word_embed_proj_dim": 32,
    "embed_dim": 32, "hidden_dim": 64, "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2,
    "encoder_layers": 2, "decoder_layers": 2, "num_decoder_layers": 2, "num_attention_heads": 4, "n_head": 4,
    "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "num_key_value_heads": 2, "multi_query_group_num": 2, "num_kv_heads": 2, "head_dim": 8, "attention_head_dim": 8,
    "d_kv": 8, "d_head": 8, "intermediate_size": 64, "n_inner": 64, "ffn_dim": 64, "d_ff": 64, "d_inner": 64,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "ffn_hidden_size": 64, "vocab_size": 64,
    "max_position_embeddings": 64, "n_positions": 64, "max_sequence_length": 64, "seq_length": 64, "n_ctx": 64,
    "max_seq_len": 64, "rotary_dim": 4, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_topk": 2, "moe_k": 2, "moe_intermediate_size": 32,
    "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "type_vocab_size": 2, "is_decoder": True, "first_k_dense_replace": 1, "use_cache": True,
}  # fmt: skip


def architectures(ending: str = "ForCausalLM") -> list[str]:
    """The names of all architectures of the installed transformers that end so."""
    import transformers

    return sorted(name for name in dir(transformers) if name.endswith(ending) and name != f"AutoModel{ending}")


def build(name: str) -> nn.Module:
    """A small instance with random weights, of the eager path."""
    try:
        import transformers
    except ImportError:
        raise ValueError("hf: targets need the transformers package: pip install transformers") from None
    kind = getattr(transformers, name, None)
    if kind is None:
        raise ValueError(f"transformers {transformers.__version__} has no architecture {name!r}")
    return kind(small_config(kind.config_class))


def small_config(kind: Any) -> Any:
    """A config with every size that it has made small."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        default = kind()
    text = getattr(default, "text_config", None)
    sizes = {name: value for name, value in SMALL.items() if getattr(default, name, None) is not None}
    if "num_key_value_heads" in sizes and getattr(default, "num_key_value_heads", None) == getattr(
        default, "num_attention_heads", None
    ):
        sizes["num_key_value_heads"] = 4
    if text is not None:
        sizes["text_config"] = small_config(type(text)).to_dict()
    return kind(**sizes)


def contract_of(name: str) -> Contract:
    """What an architecture's name promises."""
    name = name.removeprefix("hf:")
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return Contract(kind="causal")
    return Contract()
