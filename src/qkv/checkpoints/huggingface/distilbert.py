"""DistilBERT (Hugging Face): BERT without segments and pooler, under other names.

Our Encoder returns hidden states. The head (vocab_*) is left out, and kept for writing back.
"""

from typing import Any

from qkv.checkpoints.huggingface.config_reader import ConfigReader, Fields, read_fields, require_fields, write_fields
from qkv.checkpoints.huggingface.family import ACTIVATIONS, HF_ACTIVATIONS, Family, TensorRule
from qkv.models import Encoder, EncoderConfig

TABLE = [
    TensorRule("tokens", "distilbert.embeddings.word_embeddings"),
    TensorRule("position_embedding.positions", "distilbert.embeddings.position_embeddings"),
    TensorRule("position_embedding.norm", "distilbert.embeddings.LayerNorm"),
    TensorRule("blocks.*.attention.to_q", "distilbert.transformer.layer.*.attention.q_lin"),
    TensorRule("blocks.*.attention.to_k", "distilbert.transformer.layer.*.attention.k_lin"),
    TensorRule("blocks.*.attention.to_v", "distilbert.transformer.layer.*.attention.v_lin"),
    TensorRule("blocks.*.attention.to_out", "distilbert.transformer.layer.*.attention.out_lin"),
    TensorRule("blocks.*.attention_norm", "distilbert.transformer.layer.*.sa_layer_norm"),
    TensorRule("blocks.*.feed_forward.to_hidden", "distilbert.transformer.layer.*.ffn.lin1"),
    TensorRule("blocks.*.feed_forward.to_out", "distilbert.transformer.layer.*.ffn.lin2"),
    TensorRule("blocks.*.feed_forward_norm", "distilbert.transformer.layer.*.output_layer_norm"),
]

FIELDS: Fields = {
    "vocab_size": ("vocab_size", 30522),
    "max_length": ("max_position_embeddings", 512),
    "dim": ("dim", 768),
    "layers": ("n_layers", 6),
    "heads": ("n_heads", 12),
    "mlp_dim": ("hidden_dim", 3072),
    "dropout": ("dropout", 0.1),
}
FIXED: dict[str, Any] = {
    "norm_order": "post",
    "norm_eps": 1e-12,
    "position": "learned",
    "embedding_norm": True,
    "num_segments": 0,
}


def read_config(reader: ConfigReader) -> EncoderConfig:
    reader.require("is_decoder", False)
    reader.require("is_encoder_decoder", False)
    reader.require("add_cross_attention", False)
    reader.ignore(("attention_dropout", "qa_dropout", "seq_classif_dropout"))
    reader.ignore(("tie_word_embeddings", "tie_weights_"))  # of the head, which is left out
    reader.ignore(("sinusoidal_pos_embds",))  # how the table of positions was initialized; the file has the table
    activation = reader.choice("activation", ACTIVATIONS, "gelu")
    return EncoderConfig(**read_fields(reader, FIELDS), **FIXED, activation=activation)


def write_config(config: EncoderConfig) -> dict[str, Any]:
    require_fields(
        config,
        "DistilBERT",
        **FIXED,
        features=None,
        norm="layer",
        final_norm=(None, False),
        scale_embeddings=False,
        chunk_size=None,
        bias=True,
        activation=tuple(HF_ACTIVATIONS),
    )
    return {
        **write_fields(config, FIELDS),
        "hidden_dim": config.mlp_dim or 4 * config.dim,
        "activation": HF_ACTIVATIONS[config.activation],
        "attention_dropout": config.dropout,
    }


DISTILBERT = Family(
    name="distilbert",
    architectures=("DistilBertModel", "DistilBertForMaskedLM"),
    model=Encoder,
    read_config=read_config,
    write_config=write_config,
    table=lambda config: TABLE,
    prefix="distilbert.",
    headless=("DistilBertModel",),
    left_out=(r"vocab_(transform|layer_norm|projector)\.(weight|bias)",),
    ignored=(r"embeddings\.position_ids",),
)
