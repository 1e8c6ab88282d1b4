"""GPT-2 (Hugging Face): learned positions, pre-norm, tied token embeddings."""

from typing import Any

from qkv.checkpoints.huggingface.config_reader import ConfigReader, Fields, read_fields, require_fields, write_fields
from qkv.checkpoints.huggingface.family import (
    ACTIVATIONS,
    FUSED_TRANSPOSED,
    HF_ACTIVATIONS,
    TRANSPOSED,
    Family,
    TensorRule,
)
from qkv.models import GPT, GPTConfig
from qkv.nn import Dot

TABLE = [
    TensorRule("tokens", "transformer.wte"),
    TensorRule("position_embedding.positions", "transformer.wpe"),
    TensorRule("blocks.*.attention_norm", "transformer.h.*.ln_1"),
    TensorRule(
        ("blocks.*.attention.to_q", "blocks.*.attention.to_k", "blocks.*.attention.to_v"),
        "transformer.h.*.attn.c_attn",
        FUSED_TRANSPOSED,
    ),
    TensorRule("blocks.*.attention.to_out", "transformer.h.*.attn.c_proj", TRANSPOSED),
    TensorRule("blocks.*.feed_forward_norm", "transformer.h.*.ln_2"),
    TensorRule("blocks.*.feed_forward.to_hidden", "transformer.h.*.mlp.c_fc", TRANSPOSED),
    TensorRule("blocks.*.feed_forward.to_out", "transformer.h.*.mlp.c_proj", TRANSPOSED),
    TensorRule("norm", "transformer.ln_f"),
    TensorRule("head", "lm_head"),
]

FIELDS: Fields = {
    "vocab_size": ("vocab_size", 50257),
    "max_length": ("n_positions", 1024),
    "dim": ("n_embd", 768),
    "layers": ("n_layer", 12),
    "heads": ("n_head", 12),
    "mlp_dim": ("n_inner", None),
    "norm_eps": ("layer_norm_epsilon", 1e-5),
    "dropout": ("resid_pdrop", 0.1),
    "tie_embeddings": ("tie_word_embeddings", True),
}


def read_config(reader: ConfigReader) -> GPTConfig:
    reader.require("scale_attn_weights", True)
    reader.require("scale_attn_by_inverse_layer_idx", False)
    reader.require("reorder_and_upcast_attn", False)
    reader.require("add_cross_attention", False)
    reader.require("is_encoder_decoder", False)
    reader.ignore(("embd_pdrop", "attn_pdrop", "n_ctx"))
    activation = reader.choice("activation_function", ACTIVATIONS, "gelu_new")
    return GPTConfig(**read_fields(reader, FIELDS), activation=activation)


def write_config(config: GPTConfig) -> dict[str, Any]:
    require_fields(
        config,
        "GPT-2",
        position="learned",
        norm="layer",
        norm_order="pre",
        score=Dot(),
        activation=tuple(HF_ACTIVATIONS),
        kv_heads=(None, config.heads),
        head_dim=(None, config.dim // config.heads),
        sliding_window=None,
        bias=True,
        attention_bias=(None, True),
    )
    return {
        **write_fields(config, FIELDS),
        "activation_function": HF_ACTIVATIONS[config.activation],
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
    }


GPT2 = Family(
    name="gpt2",
    architectures=("GPT2LMHeadModel", "GPT2Model"),
    model=GPT,
    read_config=read_config,
    write_config=write_config,
    table=lambda config: TABLE,
    prefix="transformer.",
    headless=("GPT2Model",),
    ignored=(r"h\.\d+\.attn\.(bias|masked_bias)",),  # the causal mask as a tensor
    tied={"transformer.wte.weight": ("lm_head.weight",)},
)
