"""BART: the encoder–decoder with learned positions, post-norm, norms on what the first blocks read, and a number
added to each token's logit."""

from typing import Any

from torch import Tensor

from qkv.checkpoints.family import Family
from qkv.checkpoints.gpt2 import ACTIVATIONS, THEIR_ACTIVATIONS
from qkv.checkpoints.switches import Switches, fits
from qkv.checkpoints.tables import UNBATCHED, Row, after
from qkv.models import Seq2Seq, Seq2SeqConfig

POSITIONS = after(2)  # their tables begin with two rows for positions that no token has


def table(config: Seq2SeqConfig) -> list[Row]:
    """With one table of token vectors it is called `shared`; with three each has its name."""
    tokens = [Row("source_tokens", "model.shared")]
    if not config.tie_embeddings:
        tokens = [
            Row("source_tokens", "model.encoder.embed_tokens"),
            Row("target_tokens", "model.decoder.embed_tokens"),
            Row("head.weight", "lm_head.weight"),
        ]
    return [
        *tokens,
        *_stack("encoder", "source_place"),
        *_stack("decoder", "target_place"),
        Row("decoder.*.cross_attention.to_q", "model.decoder.layers.*.encoder_attn.q_proj"),
        Row("decoder.*.cross_attention.to_k", "model.decoder.layers.*.encoder_attn.k_proj"),
        Row("decoder.*.cross_attention.to_v", "model.decoder.layers.*.encoder_attn.v_proj"),
        Row("decoder.*.cross_attention.to_out", "model.decoder.layers.*.encoder_attn.out_proj"),
        Row("decoder.*.cross_norm", "model.decoder.layers.*.encoder_attn_layer_norm"),
        Row("head.bias", "final_logits_bias", UNBATCHED),
    ]


def _stack(name: str, place: str) -> list[Row]:
    """What encoder and decoder have alike."""
    return [
        Row(f"{place}.positions", f"model.{name}.embed_positions", POSITIONS),
        Row(f"{place}.norm", f"model.{name}.layernorm_embedding"),
        Row(f"{name}.*.attention.to_q", f"model.{name}.layers.*.self_attn.q_proj"),
        Row(f"{name}.*.attention.to_k", f"model.{name}.layers.*.self_attn.k_proj"),
        Row(f"{name}.*.attention.to_v", f"model.{name}.layers.*.self_attn.v_proj"),
        Row(f"{name}.*.attention.to_out", f"model.{name}.layers.*.self_attn.out_proj"),
        Row(f"{name}.*.attention_norm", f"model.{name}.layers.*.self_attn_layer_norm"),
        Row(f"{name}.*.feed_forward.to_hidden", f"model.{name}.layers.*.fc1"),
        Row(f"{name}.*.feed_forward.to_out", f"model.{name}.layers.*.fc2"),
        Row(f"{name}.*.feed_forward_norm", f"model.{name}.layers.*.final_layer_norm"),
    ]


def read(switches: Switches) -> Seq2SeqConfig:
    switches.only("is_encoder_decoder", True)
    switches.only("is_decoder", False)
    switches.only("normalize_before", False)
    switches.only("normalize_embedding", True)
    switches.only("add_final_layer_norm", False)
    switches.only("add_bias_logits", False)
    switches.only("static_position_embeddings", False)
    switches.only("extra_pos_embeddings", 2)
    switches.skip(("attention_dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop"))
    layers = switches.count("encoder_layers", 12)
    switches.only("num_hidden_layers", layers)  # another name of the same
    heads, hidden = switches.count("encoder_attention_heads", 16), switches.count("encoder_ffn_dim", 4096)
    for name, value in (("decoder_attention_heads", heads), ("decoder_ffn_dim", hidden)):
        if switches.count(name, 16 if name.endswith("heads") else 4096) != value:
            raise ValueError(f"{switches.where}: {name} differs from the encoder's {value}, which has no equal in qkv")
    return Seq2SeqConfig(
        vocab_size=switches.count("vocab_size", 50265),
        max_length=switches.count("max_position_embeddings", 1024),
        dim=switches.count("d_model", 1024),
        encoder_layers=layers,
        decoder_layers=switches.count("decoder_layers", 12),
        heads=heads,
        mlp_dim=hidden,
        activation=switches.choice("activation_function", ACTIVATIONS, "gelu"),
        norm_order="post",
        position="learned",
        dropout=switches.number("dropout", 0.1),
        tie_embeddings=switches.flag("tie_word_embeddings", True),
        scale_embeddings=switches.flag("scale_embedding", False),
        embedding_norm=True,
        head_bias=True,
    )


def write(config: Seq2SeqConfig) -> dict[str, Any]:
    fits(
        config,
        "BART",
        target_vocab=(None, config.vocab_size),
        position="learned",
        norm="layer",
        order="post",
        final_norm=(None, False),
        epsilon=1e-5,
        bias=True,
        embedding_norm=True,
        activation=tuple(THEIR_ACTIVATIONS),
    )
    hidden = config.mlp_dim or 4 * config.dim
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_length,
        "d_model": config.dim,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": hidden,
        "decoder_ffn_dim": hidden,
        "activation_function": THEIR_ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "attention_dropout": config.dropout,
        "activation_dropout": config.dropout,
        "scale_embedding": config.scale_embeddings,
        "is_encoder_decoder": True,
        "tie_word_embeddings": config.tie_embeddings,
    }


def complete(tensors: dict[str, Tensor]) -> None:
    """A number for each token, and a shared table even where nobody reads it."""
    if "model.shared.weight" not in tensors:
        tensors["model.shared.weight"] = tensors["model.encoder.embed_tokens.weight"].clone()
    shared = tensors["model.shared.weight"]
    tensors.setdefault("final_logits_bias", shared.new_zeros(1, len(shared)))


BART = Family(
    name="bart",
    architectures=("BartForConditionalGeneration", "BartModel"),
    model=Seq2Seq,
    read=read,
    write=write,
    table=table,
    prefix="model.",
    bare=("BartModel",),
    left_out=(r"shared\.weight",),  # where each stack has a table of its own, nobody reads the shared one
    ignored=(r"(encoder|decoder)\.version",),
    tied={
        "model.shared.weight": (
            "model.encoder.embed_tokens.weight",
            "model.decoder.embed_tokens.weight",
            "lm_head.weight",
        )
    },
    optional=("final_logits_bias",),
    complete=complete,
)
