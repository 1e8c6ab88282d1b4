"""Small configs for architectures of Hugging Face transformers: every size that a config has, made small.

The names are those that configs use; where two sizes hang together (a width and the heads that it splits into) the
values here fit each other.
"""

from __future__ import annotations

import warnings
from typing import Any

WIDTH, HEADS, LAYERS, VOCABULARY, PLACES = 32, 4, 2, 64, 64

# a value, and the names that get it
SIZES: tuple[tuple[int, tuple[str, ...]], ...] = (
    (WIDTH, (
        "hidden_size", "n_embd", "d_model", "dim", "embedding_size", "word_embed_proj_dim", "embed_dim", "emb_dim",
        "embedding_dim", "hidden_dim_size", "decoder_hidden_size", "encoder_hidden_size", "projection_dim",
        "attention_hidden_size", "lru_width", "moe_intermediate_size", "moe_shared_expert_intermediate_size",
        "dim_model", "width", "ssm_hidden_size", "image_size", "decoder_embed_dim", "output_hidden_size",
        "mask_feature_size", "conv_dim", "encoder_hidden_dim", "d_embed",
    )),
    (64, (
        "hidden_dim", "intermediate_size", "n_inner", "ffn_dim", "d_ff", "d_inner", "encoder_ffn_dim", "dim_ff",
        "decoder_ffn_dim", "ffn_hidden_size", "feedforward_size", "dense_intermediate_size", "dim_feedforward",
        "decoder_intermediate_size", "shared_intermediate_size", "shared_expert_intermediate_size", "mlp_dim",
        "mamba_intermediate_size", "intermediate_size_mlp", "encoder_intermediate_size", "ffn_dims",
        "moe_shared_intermediate_size", "time_step_rank",
    )),
    (VOCABULARY, ("vocab_size", "text_vocab_size", "decoder_vocab_size", "vocab_size_per_layer_input",
        "entity_vocab_size")),
    (PLACES, (
        "max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx", "max_seq_len",
        "max_source_positions", "max_target_positions", "context_length", "max_length", "max_2d_position_embeddings",
        "max_seq_length", "sequence_length", "text_seq_length", "max_text_len", "bos_size",
    )),
    (LAYERS, (
        "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
        "num_decoder_layers", "num_encoder_layers", "decoder_num_hidden_layers", "encoder_num_hidden_layers",
        "decoder_num_layers", "num_block_layers", "num_hidden_groups_layers", "num_experts_per_tok", "moe_topk",
        "moe_k", "num_experts_per_token",
        "num_selected_experts", "top_k_experts", "router_topk", "moe_top_k", "num_key_value_heads",
        "multi_query_group_num", "num_kv_heads", "type_vocab_size", "depth", "experts_per_token", "topk",
    )),
    (HEADS, (
        "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
        "decoder_attention_heads", "num_decoder_attention_heads", "num_encoder_attention_heads",
        "decoder_num_attention_heads", "encoder_num_attention_heads", "num_experts", "num_local_experts",
        "n_routed_experts", "moe_num_experts", "rotary_dim", "moe_num_routed_experts", "num_routed_experts",
        "num_global_key_value_heads", "linear_num_value_heads", "linear_num_key_heads", "swa_num_attention_heads",
        "ffn_num_experts", "num_moe_experts", "index_n_heads", "compress_ratio_heads",
    )),
    (8, (
        "head_dim", "attention_head_dim", "d_kv", "d_head", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",
        "global_head_dim", "patch_size", "linear_key_head_dim", "linear_value_head_dim", "mamba_n_heads",
        "mamba_num_heads", "mamba_d_head", "mamba_head_dim", "mamba_d_state", "ssm_state_size", "state_size",
        "swa_head_dim", "key_size", "index_topk", "hidden_size_per_layer_input", "ngram",
        "kv_channels", "qk_head_dim", "cross_head_dim", "lightning_head_dim",
    )),
    (16, ("q_lora_rank", "kv_lora_rank", "index_head_dim", "o_lora_rank", "chunk_size", "mamba_chunk_size",
        "bottleneck_size")),
    (1, ("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "num_shared_experts", "mamba_n_groups",
        "n_groups", "num_nextn_predict_layers", "num_hidden_groups", "moe_num_shared_experts")),
    (3, ("num_channels", "in_channels", "in_chans")),
)  # fmt: skip
SMALL: dict[str, Any] = {name: size for size, names in SIZES for name in names} | {
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "use_cache": True,
    "initializer_range": 0.02,
}  # fmt: skip

# lists with one entry for each stage of a picture's pyramid
STAGES = {
    "depths": 1, "hidden_sizes": (16, 32, 48, 64), "embed_dims": (16, 32, 48, 64), "num_heads": (2, 4, 4, 8),
    "num_attention_heads": (2, 4, 4, 8), "layers": 1, "embed_dim": (16, 32, 48, 64),
}  # fmt: skip

# what hangs together otherwise
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "deepseek_v2": {"topk_method": "greedy", "num_experts_per_tok": 2},
    "longcat_flash": {"qk_head_dim": 16, "zero_expert_num": 1},
    "deepseek_v4": {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 6},
                    "index_n_heads": 16},
    "deepseek_v32": {"index_n_heads": 16}, "glm_moe_dsa": {"index_n_heads": 16}, "axk2": {"index_n_heads": 16},
    "xmod": {"languages": ["en"], "default_language": "en"},
    "swin": {"patch_size": 4, "window_size": 2, "embed_dim": 16, "image_size": 64},
    "donut-swin": {"patch_size": 4, "window_size": 2, "embed_dim": 16, "image_size": 64},
    "swinv2": {"patch_size": 4, "window_size": 2, "embed_dim": 16, "image_size": 64,
        "pretrained_window_sizes": [0] * 4},
    "swin2sr": {"patch_size": 1, "window_size": 4, "embed_dim": 16, "image_size": 32, "depths": [1, 1],
                "num_heads": [2, 2]},
    "mobilevitv2": {"patch_size": 2, "image_size": 128}, "mobilevit": {"patch_size": 2, "image_size": 128},
    "levit": {"image_size": 128, "patch_size": 16, "hidden_sizes": [16, 32, 48], "num_attention_heads": [2, 4, 4],
              "depths": [1, 1, 1], "key_dim": [8, 8, 8]},
    "pvt": {"image_size": 128}, "pvt_v2": {"image_size": 128}, "glpn": {"image_size": 128},
    "longformer": {"attention_window": 4}, "led": {"attention_window": 4},
    "prophetnet": {"ngram": 2},
    "convnext": {"image_size": 128}, "poolformer": {"image_size": 128}, "swiftformer": {"image_size": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "dots1": {"layer_types": ["full_attention", "full_attention"]},
    "siglip2_vision_model": {"num_patches": 16},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "falcon_h1": {"mamba_d_ssm": 64},
    "zaya": {"num_experts_per_tok": 1},
    "reformer": {"axial_pos_embds_dim": (16, 16), "axial_pos_shape": (8, 8), "attn_layers": ["local", "local"],
                 "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4},
    "funnel": {"block_sizes": [1, 1, 1]},
    "esm": {"vocab_size": 64, "mask_token_id": 3},
    "perceiver": {"d_latents": 32, "num_latents": 8, "num_self_attends_per_block": 1, "num_self_attention_heads": 4,
                  "num_cross_attention_heads": 1, "qk_channels": None, "v_channels": None},
    "bit": {"num_groups": 8, "hidden_sizes": [16, 16, 32, 32], "embedding_size": 16},
    "xlnet": {"n_layer": 2},
    "mobilebert": {"intra_bottleneck_size": 32, "true_hidden_size": 32, "embedding_size": 32},
    "hiera": {"image_size": [32, 32], "patch_size": [7, 7]},
    "dbrx": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "vocab_size": 64},
}  # fmt: skip


def small_config(kind: Any, **said: Any) -> Any:
    """A config with every size that it has made small; one layer of each kind, two at least.

    said: fields that are set to what is said.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        default = kind()
        return kind(**(shrunk(default) | {name: value for name, value in said.items() if hasattr(default, name)}))


def shrunk(default: Any) -> dict[str, Any]:
    """The fields of a config that become small, with their values."""
    fields = {name: _field(default, name) for name in (*SMALL, *STAGES)}
    sizes: dict[str, Any] = {
        name: SMALL[name]
        for name, value in fields.items()
        if name in SMALL and isinstance(value, int | float) and not isinstance(value, bool)
    }
    if fields["head_dim"] is None and "head_dim" in vars(default):
        sizes["head_dim"] = WIDTH // HEADS
    if fields["num_key_value_heads"] in (fields["num_attention_heads"], None) and "num_key_value_heads" in vars(
        default
    ):
        sizes["num_key_value_heads"] = HEADS
    sizes |= {name: _stages(name, value) for name, value in fields.items() if isinstance(value, list | tuple)}
    sizes |= _layered(default, sizes)
    sizes |= SPECIAL.get(getattr(default, "model_type", ""), {})
    for name, part in vars(default).items():
        if hasattr(part, "to_dict") and hasattr(part, "model_type"):
            decodes = {"is_decoder": True, "add_cross_attention": True} if name == "decoder" else {}
            sizes[name] = small_config(type(part), **decodes)
    return sizes


def _field(default: Any, name: str) -> Any:
    """A field's value; None where there is none, or where it is computed from others."""
    if isinstance(getattr(type(default), name, None), property):
        return None
    try:
        return getattr(default, name, None)
    except Exception:  # a field that differs from layer to layer says so
        return vars(default).get(name)


def _stages(name: str, value: Any) -> Any:
    small = STAGES.get(name, SMALL.get(name))
    values = small if isinstance(small, tuple) else (small,) * len(value)
    return type(value)(values[: len(value)])


def _layered(default: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    """Lists with one entry for each layer, cut to one layer of each kind and to two at least."""
    count = _field(default, "num_hidden_layers")
    lists = {
        name: value
        for name, value in vars(default).items()
        if isinstance(value, list | tuple) and isinstance(count, int) and len(value) == count
    }
    if not lists:
        return {}
    kinds = list(zip(*lists.values(), strict=True))
    first = [place for place, kind in enumerate(map(str, kinds)) if kind not in map(str, kinds[:place])]
    kept = sorted({*first[:4], *range(LAYERS)})
    cut = {
        name: [SMALL[name]] * len(kept) if name in SMALL else type(value)(value[place] for place in kept)
        for name, value in lists.items()
    }
    layers = {name: len(kept) for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if name in sizes}
    return cut | layers
