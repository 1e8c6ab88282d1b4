"""GPT-2: learned positions, pre-norm, one table of token vectors for input and output."""

from typing import Any

from qkv.checkpoints.family import Family
from qkv.checkpoints.switches import Switches, fits
from qkv.checkpoints.tables import THREE_TRANSPOSED, TRANSPOSED, Row
from qkv.models import GPT, GPTConfig
from qkv.nn import Dot
from qkv.nn.feed_forward import Activation

ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu": "gelu",
    "relu": "relu",
}
THEIR_ACTIVATIONS = {"gelu-tanh": "gelu_new", "gelu": "gelu", "relu": "relu"}

TABLE = [
    Row("tokens", "transformer.wte"),
    Row("place.positions", "transformer.wpe"),
    Row("blocks.*.attention_norm", "transformer.h.*.ln_1"),
    Row(
        ("blocks.*.attention.to_q", "blocks.*.attention.to_k", "blocks.*.attention.to_v"),
        "transformer.h.*.attn.c_attn",
        THREE_TRANSPOSED,
    ),
    Row("blocks.*.attention.to_out", "transformer.h.*.attn.c_proj", TRANSPOSED),
    Row("blocks.*.feed_forward_norm", "transformer.h.*.ln_2"),
    Row("blocks.*.feed_forward.to_hidden", "transformer.h.*.mlp.c_fc", TRANSPOSED),
    Row("blocks.*.feed_forward.to_out", "transformer.h.*.mlp.c_proj", TRANSPOSED),
    Row("norm", "transformer.ln_f"),
    Row("head", "lm_head"),
]


def read(switches: Switches) -> GPTConfig:
    switches.only("scale_attn_weights", True)
    switches.only("scale_attn_by_inverse_layer_idx", False)
    switches.only("reorder_and_upcast_attn", False)
    switches.only("add_cross_attention", False)
    switches.only("is_encoder_decoder", False)
    switches.skip(("embd_pdrop", "attn_pdrop", "n_ctx"))
    return GPTConfig(
        vocab_size=switches.count("vocab_size", 50257),
        max_length=switches.count("n_positions", 1024),
        dim=switches.count("n_embd", 768),
        layers=switches.count("n_layer", 12),
        heads=switches.count("n_head", 12),
        mlp_dim=switches.maybe_count("n_inner"),
        activation=switches.choice("activation_function", ACTIVATIONS, "gelu_new"),
        norm_eps=switches.number("layer_norm_epsilon", 1e-5),
        dropout=switches.number("resid_pdrop", 0.1),
        tie_embeddings=switches.flag("tie_word_embeddings", True),
    )


def write(config: GPTConfig) -> dict[str, Any]:
    fits(
        config,
        "GPT-2",
        position="learned",
        norm="layer",
        order="pre",
        score=Dot(),
        activation=tuple(THEIR_ACTIVATIONS),
        kv_heads=(None, config.heads),
        head_width=(None, config.dim // config.heads),
        window=None,
        bias=True,
        attention_bias=(None, True),
    )
    return {
        "vocab_size": config.vocab_size,
        "n_positions": config.max_length,
        "n_embd": config.dim,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.mlp_dim,
        "activation_function": THEIR_ACTIVATIONS[config.activation],
        "layer_norm_epsilon": config.norm_eps,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "tie_word_embeddings": config.tie_embeddings,
    }


GPT2 = Family(
    name="gpt2",
    architectures=("GPT2LMHeadModel", "GPT2Model"),
    model=GPT,
    read=read,
    write=write,
    table=lambda config: TABLE,
    prefix="transformer.",
    bare=("GPT2Model",),
    ignored=(r"h\.\d+\.attn\.(bias|masked_bias)",),  # the causal mask, written out
    tied={"transformer.wte.weight": ("lm_head.weight",)},
)
