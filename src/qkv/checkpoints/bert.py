"""BERT: an encoder with learned positions and segments, post-norm, and a norm on what the first block reads.

Our Encoder gives hidden states. The pooler and the heads (cls) are left out, and kept for the way back.
"""

from typing import Any

from qkv.checkpoints.family import Family
from qkv.checkpoints.gpt2 import ACTIVATIONS, THEIR_ACTIVATIONS
from qkv.checkpoints.switches import Switches, fits
from qkv.checkpoints.tables import Row
from qkv.models import Encoder, EncoderConfig

TABLE = [
    Row("tokens", "bert.embeddings.word_embeddings"),
    Row("place.positions", "bert.embeddings.position_embeddings"),
    Row("place.segments", "bert.embeddings.token_type_embeddings"),
    Row("place.norm", "bert.embeddings.LayerNorm"),
    Row("blocks.*.attention.to_q", "bert.encoder.layer.*.attention.self.query"),
    Row("blocks.*.attention.to_k", "bert.encoder.layer.*.attention.self.key"),
    Row("blocks.*.attention.to_v", "bert.encoder.layer.*.attention.self.value"),
    Row("blocks.*.attention.to_out", "bert.encoder.layer.*.attention.output.dense"),
    Row("blocks.*.attention_norm", "bert.encoder.layer.*.attention.output.LayerNorm"),
    Row("blocks.*.feed_forward.to_hidden", "bert.encoder.layer.*.intermediate.dense"),
    Row("blocks.*.feed_forward.to_out", "bert.encoder.layer.*.output.dense"),
    Row("blocks.*.feed_forward_norm", "bert.encoder.layer.*.output.LayerNorm"),
]


def read(switches: Switches) -> EncoderConfig:
    switches.only("position_embedding_type", "absolute")
    switches.only("is_decoder", False)
    switches.only("is_encoder_decoder", False)
    switches.only("add_cross_attention", False)
    switches.skip(("attention_probs_dropout_prob", "tie_word_embeddings"))  # the tie is one of the head left out
    switches.skip(("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "directionality"))
    switches.skip(("pooler_size_per_head", "pooler_type"))
    return EncoderConfig(
        vocab_size=switches.count("vocab_size", 30522),
        max_length=switches.count("max_position_embeddings", 512),
        dim=switches.count("hidden_size", 768),
        layers=switches.count("num_hidden_layers", 12),
        heads=switches.count("num_attention_heads", 12),
        mlp_dim=switches.count("intermediate_size", 3072),
        activation=switches.choice("hidden_act", ACTIVATIONS, "gelu"),
        norm_order="post",
        norm_eps=switches.number("layer_norm_eps", 1e-12),
        position="learned",
        dropout=switches.number("hidden_dropout_prob", 0.1),
        embedding_norm=True,
        segments=switches.count("type_vocab_size", 2),
    )


def write(config: EncoderConfig) -> dict[str, Any]:
    fits(
        config,
        "BERT",
        features=None,
        position="learned",
        norm="layer",
        order="post",
        final_norm=(None, False),
        scale=False,
        chunk=None,
        bias=True,
        embedding_norm=True,
        activation=tuple(THEIR_ACTIVATIONS),
    )
    if not config.segments:
        raise ValueError("segments=0 has no equal in BERT, which has at least 1")
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_length,
        "hidden_size": config.dim,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp_dim or 4 * config.dim,
        "hidden_act": THEIR_ACTIVATIONS[config.activation],
        "layer_norm_eps": config.norm_eps,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        "type_vocab_size": config.segments,
    }


BERT = Family(
    name="bert",
    architectures=("BertModel", "BertForMaskedLM", "BertForPreTraining"),
    model=Encoder,
    read=read,
    write=write,
    table=lambda config: TABLE,
    prefix="bert.",
    bare=("BertModel",),
    left_out=(r"pooler\.dense\.(weight|bias)", r"cls\.(predictions|seq_relationship)\..*"),
    ignored=(r"embeddings\.position_ids",),
    renamed={".gamma": ".weight", ".beta": ".bias"},
)
