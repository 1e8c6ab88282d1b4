"""BART (Hugging Face): an encoder–decoder with learned positions, post-norm, embedding norms and a logit bias."""

from typing import Any

from torch import Tensor

from qkv.checkpoints.huggingface.config_reader import ConfigReader, Fields, read_fields, require_fields, write_fields
from qkv.checkpoints.huggingface.family import ACTIVATIONS, HF_ACTIVATIONS, UNBATCHED, Family, TensorRule, skip_rows
from qkv.models import Seq2Seq, Seq2SeqConfig

POSITIONS = skip_rows(2)  # their tables begin with two rows that no position uses

FIELDS: Fields = {
    "vocab_size": ("vocab_size", 50265),
    "max_length": ("max_position_embeddings", 1024),
    "dim": ("d_model", 1024),
    "encoder_layers": ("encoder_layers", 12),
    "decoder_layers": ("decoder_layers", 12),
    "heads": ("encoder_attention_heads", 16),
    "mlp_dim": ("encoder_ffn_dim", 4096),
    "dropout": ("dropout", 0.1),
    "tie_embeddings": ("tie_word_embeddings", True),
    "scale_embeddings": ("scale_embedding", False),
}
FIXED: dict[str, Any] = {"norm_order": "post", "position": "learned", "embedding_norm": True}


def table(config: Seq2SeqConfig) -> list[TensorRule]:
    """Tied token embeddings are one tensor, `shared`; untied ones are three."""
    tokens = [TensorRule("source_tokens", "model.shared")]
    if not config.tie_embeddings:
        tokens = [
            TensorRule("source_tokens", "model.encoder.embed_tokens"),
            TensorRule("target_tokens", "model.decoder.embed_tokens"),
            TensorRule("head.weight", "lm_head.weight"),
        ]
    return [
        *tokens,
        *_stack("encoder", "source_position_embedding"),
        *_stack("decoder", "target_position_embedding"),
        TensorRule("decoder.*.cross_attention.to_q", "model.decoder.layers.*.encoder_attn.q_proj"),
        TensorRule("decoder.*.cross_attention.to_k", "model.decoder.layers.*.encoder_attn.k_proj"),
        TensorRule("decoder.*.cross_attention.to_v", "model.decoder.layers.*.encoder_attn.v_proj"),
        TensorRule("decoder.*.cross_attention.to_out", "model.decoder.layers.*.encoder_attn.out_proj"),
        TensorRule("decoder.*.cross_norm", "model.decoder.layers.*.encoder_attn_layer_norm"),
        TensorRule("head.bias", "final_logits_bias", UNBATCHED),
    ]


def _stack(name: str, place: str) -> list[TensorRule]:
    """The rules that encoder and decoder share."""
    return [
        TensorRule(f"{place}.positions", f"model.{name}.embed_positions", POSITIONS),
        TensorRule(f"{place}.norm", f"model.{name}.layernorm_embedding"),
        TensorRule(f"{name}.*.attention.to_q", f"model.{name}.layers.*.self_attn.q_proj"),
        TensorRule(f"{name}.*.attention.to_k", f"model.{name}.layers.*.self_attn.k_proj"),
        TensorRule(f"{name}.*.attention.to_v", f"model.{name}.layers.*.self_attn.v_proj"),
        TensorRule(f"{name}.*.attention.to_out", f"model.{name}.layers.*.self_attn.out_proj"),
        TensorRule(f"{name}.*.attention_norm", f"model.{name}.layers.*.self_attn_layer_norm"),
        TensorRule(f"{name}.*.feed_forward.to_hidden", f"model.{name}.layers.*.fc1"),
        TensorRule(f"{name}.*.feed_forward.to_out", f"model.{name}.layers.*.fc2"),
        TensorRule(f"{name}.*.feed_forward_norm", f"model.{name}.layers.*.final_layer_norm"),
    ]


def read_config(reader: ConfigReader) -> Seq2SeqConfig:
    reader.require("is_encoder_decoder", True)
    reader.require("is_decoder", False)
    reader.require("normalize_before", False)
    reader.require("normalize_embedding", True)
    reader.require("add_final_layer_norm", False)
    reader.require("add_bias_logits", False)
    reader.require("static_position_embeddings", False)
    reader.require("extra_pos_embeddings", 2)
    reader.ignore(("attention_dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop"))
    fields = read_fields(reader, FIELDS)
    reader.require("num_hidden_layers", fields["encoder_layers"])  # another name for it
    for name, key, default in (("heads", "decoder_attention_heads", 16), ("mlp_dim", "decoder_ffn_dim", 4096)):
        if reader.integer(key, default) != fields[name]:
            raise ValueError(
                f"{reader.where}: {key} differs from the encoder's {fields[name]}, which qkv does not support"
            )
    activation = reader.choice("activation_function", ACTIVATIONS, "gelu")
    return Seq2SeqConfig(**fields, **FIXED, activation=activation, head_bias=True)


def write_config(config: Seq2SeqConfig) -> dict[str, Any]:
    require_fields(
        config,
        "BART",
        **FIXED,
        target_vocab_size=(None, config.vocab_size),
        norm="layer",
        final_norm=(None, False),
        norm_eps=1e-5,
        bias=True,
        activation=tuple(HF_ACTIVATIONS),
    )
    mlp_dim = config.mlp_dim or 4 * config.dim
    return {
        **write_fields(config, FIELDS),
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": mlp_dim,
        "decoder_ffn_dim": mlp_dim,
        "activation_function": HF_ACTIVATIONS[config.activation],
        "attention_dropout": config.dropout,
        "activation_dropout": config.dropout,
        "is_encoder_decoder": True,
    }


def add_missing(tensors: dict[str, Tensor]) -> None:
    """Add the bias of the logits, and the shared table that an untied model does not read."""
    if "model.shared.weight" not in tensors:
        tensors["model.shared.weight"] = tensors["model.encoder.embed_tokens.weight"].clone()
    shared = tensors["model.shared.weight"]
    tensors.setdefault("final_logits_bias", shared.new_zeros(1, len(shared)))


BART = Family(
    name="bart",
    architectures=("BartForConditionalGeneration", "BartModel"),
    model=Seq2Seq,
    read_config=read_config,
    write_config=write_config,
    table=table,
    prefix="model.",
    headless=("BartModel",),
    left_out=(r"shared\.weight",),  # untied models do not read the shared table
    ignored=(r"(encoder|decoder)\.version",),
    tied={
        "model.shared.weight": (
            "model.encoder.embed_tokens.weight",
            "model.decoder.embed_tokens.weight",
            "lm_head.weight",
        )
    },
    optional=("final_logits_bias",),
    add_missing=add_missing,
)
