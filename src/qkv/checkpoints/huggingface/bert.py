"""BERT (Hugging Face): an encoder with learned positions, segments, post-norm and an embedding norm.

Our Encoder returns hidden states. The pooler and the heads (cls) are left out, and kept for writing back.
"""

from typing import Any

from qkv.checkpoints.huggingface.config_reader import ConfigReader, Fields, read_fields, require_fields, write_fields
from qkv.checkpoints.huggingface.family import ACTIVATIONS, ENCODER_FIELDS, HF_ACTIVATIONS, Family, TensorRule
from qkv.models import Encoder, EncoderConfig

TABLE = [
    TensorRule("tokens", "bert.embeddings.word_embeddings"),
    TensorRule("position_embedding.positions", "bert.embeddings.position_embeddings"),
    TensorRule("position_embedding.segments", "bert.embeddings.token_type_embeddings"),
    TensorRule("position_embedding.norm", "bert.embeddings.LayerNorm"),
    TensorRule("blocks.*.attention.to_q", "bert.encoder.layer.*.attention.self.query"),
    TensorRule("blocks.*.attention.to_k", "bert.encoder.layer.*.attention.self.key"),
    TensorRule("blocks.*.attention.to_v", "bert.encoder.layer.*.attention.self.value"),
    TensorRule("blocks.*.attention.to_out", "bert.encoder.layer.*.attention.output.dense"),
    TensorRule("blocks.*.attention_norm", "bert.encoder.layer.*.attention.output.LayerNorm"),
    TensorRule("blocks.*.feed_forward.to_hidden", "bert.encoder.layer.*.intermediate.dense"),
    TensorRule("blocks.*.feed_forward.to_out", "bert.encoder.layer.*.output.dense"),
    TensorRule("blocks.*.feed_forward_norm", "bert.encoder.layer.*.output.LayerNorm"),
]

FIELDS: Fields = {
    **ENCODER_FIELDS,
    "vocab_size": ("vocab_size", 30522),
    "max_length": ("max_position_embeddings", 512),
    "dropout": ("hidden_dropout_prob", 0.1),
    "num_segments": ("type_vocab_size", 2),
}
FIXED: dict[str, Any] = {"norm_order": "post", "position": "learned", "embedding_norm": True}


def read_config(reader: ConfigReader) -> EncoderConfig:
    reader.require("position_embedding_type", "absolute")
    reader.require("is_decoder", False)
    reader.require("is_encoder_decoder", False)
    reader.require("add_cross_attention", False)
    reader.ignore(("attention_probs_dropout_prob", "tie_word_embeddings"))  # of the head, which is left out
    reader.ignore(("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "directionality"))
    reader.ignore(("pooler_size_per_head", "pooler_type"))
    activation = reader.choice("hidden_act", ACTIVATIONS, "gelu")
    return EncoderConfig(**read_fields(reader, FIELDS), **FIXED, activation=activation)


def write_config(config: EncoderConfig) -> dict[str, Any]:
    require_fields(
        config,
        "BERT",
        **FIXED,
        features=None,
        norm="layer",
        final_norm=(None, False),
        scale_embeddings=False,
        chunk_size=None,
        bias=True,
        activation=tuple(HF_ACTIVATIONS),
    )
    if not config.num_segments:
        raise ValueError("num_segments=0 has no counterpart in BERT, which has at least 1")
    return {
        **write_fields(config, FIELDS),
        "intermediate_size": config.mlp_dim or 4 * config.dim,
        "hidden_act": HF_ACTIVATIONS[config.activation],
        "attention_probs_dropout_prob": config.dropout,
    }


BERT = Family(
    name="bert",
    architectures=("BertModel", "BertForMaskedLM", "BertForPreTraining"),
    model=Encoder,
    read_config=read_config,
    write_config=write_config,
    table=lambda config: TABLE,
    prefix="bert.",
    headless=("BertModel",),
    left_out=(r"pooler\.dense\.(weight|bias)", r"cls\.(predictions|seq_relationship)\..*"),
    ignored=(r"embeddings\.position_ids",),
    old_suffixes={".gamma": ".weight", ".beta": ".bias"},
)
