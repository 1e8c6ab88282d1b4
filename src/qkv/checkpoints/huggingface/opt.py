"""OPT (Hugging Face): GPT-2's architecture with ReLU, separate projections and a position table that begins with 2 rows
that are never read.
"""

from qkv.checkpoints.huggingface.config_reader import ConfigReader, Fields, read_fields
from qkv.checkpoints.huggingface.family import ACTIVATIONS, Family, TensorRule, skip_rows
from qkv.models import GPT, GPTConfig

TABLE = [
    TensorRule("tokens", "model.decoder.embed_tokens"),
    TensorRule("position_embedding.positions", "model.decoder.embed_positions", skip_rows(2)),
    TensorRule("blocks.*.attention_norm", "model.decoder.layers.*.self_attn_layer_norm"),
    TensorRule("blocks.*.attention.to_q", "model.decoder.layers.*.self_attn.q_proj"),
    TensorRule("blocks.*.attention.to_k", "model.decoder.layers.*.self_attn.k_proj"),
    TensorRule("blocks.*.attention.to_v", "model.decoder.layers.*.self_attn.v_proj"),
    TensorRule("blocks.*.attention.to_out", "model.decoder.layers.*.self_attn.out_proj"),
    TensorRule("blocks.*.feed_forward_norm", "model.decoder.layers.*.final_layer_norm"),
    TensorRule("blocks.*.feed_forward.to_hidden", "model.decoder.layers.*.fc1"),
    TensorRule("blocks.*.feed_forward.to_out", "model.decoder.layers.*.fc2"),
    TensorRule("norm", "model.decoder.final_layer_norm"),
    TensorRule("head", "lm_head"),
]

FIELDS: Fields = {
    "vocab_size": ("vocab_size", 50272),
    "max_length": ("max_position_embeddings", 2048),
    "dim": ("hidden_size", 768),
    "layers": ("num_hidden_layers", 12),
    "heads": ("num_attention_heads", 12),
    "mlp_dim": ("ffn_dim", 3072),
    "dropout": ("dropout", 0.1),
    "tie_embeddings": ("tie_word_embeddings", True),
}


def read_config(reader: ConfigReader) -> GPTConfig:
    reader.require("do_layer_norm_before", True)  # OPT-350m has post-norm and smaller token embeddings
    reader.require("_remove_final_layer_norm", False)
    reader.require("enable_bias", True)
    reader.require("layer_norm_elementwise_affine", True)
    reader.require("is_encoder_decoder", False)
    reader.ignore(("attention_dropout", "activation_dropout", "layerdrop"))
    fields = read_fields(reader, FIELDS)
    reader.require("word_embed_proj_dim", fields["dim"], None)
    return GPTConfig(**fields, activation=reader.choice("activation_function", ACTIVATIONS, "relu"))


OPT = Family(
    name="opt",
    architectures=("OPTForCausalLM", "OPTModel"),
    model=GPT,
    read_config=read_config,
    table=lambda config: TABLE,
    prefix="model.",
    headless=("OPTModel",),
    tied={"model.decoder.embed_tokens.weight": ("lm_head.weight",)},
)
