"""Hugging Face transformers: every architecture, built small with random weights; nothing is downloaded."""

from __future__ import annotations

import difflib
import inspect
import re
import warnings
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import nn

from qkv.check.calling.guard import seeded
from qkv.check.calling.modules import form_implementation, module_implementation
from qkv.check.calling.multimodal import conditioned_form
from qkv.check.calling.names import parameters_of
from qkv.check.calling.outputs import find_rows
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation, randomize_weights

MAX_PARAMETERS = 20_000_000  # an architecture that stays larger with every known size made small is not built

# family: the table of transformers that lists it, and what its members promise
FAMILIES = {
    "causal": ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", Contract(kind="causal")),
    "masked": ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", Contract()),
    "encoder-decoder": ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", Contract(kind="causal")),
    "encoder": ("MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES", Contract()),
    "image classifier": ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", Contract()),
    "image encoder": ("MODEL_FOR_IMAGE_MAPPING_NAMES", Contract()),
    "image-text": ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", Contract(kind="causal")),
    "image and text encoder": ("MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES", Contract()),
    "speech": ("MODEL_FOR_CTC_MAPPING_NAMES", Contract()),
    "speech classifier": ("MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES", Contract()),
    "speech to text": ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", Contract(kind="causal")),
    "video": ("MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES", Contract()),
    "time series": ("MODEL_FOR_TIME_SERIES_PREDICTION_MAPPING_NAMES", Contract()),
    "time series classifier": ("MODEL_FOR_TIME_SERIES_CLASSIFICATION_MAPPING_NAMES", Contract()),
    "time series regression": ("MODEL_FOR_TIME_SERIES_REGRESSION_MAPPING_NAMES", Contract()),
}
WITH_OTHER_INPUTS = ("image-text", "speech to text", "image and text encoder")  # tokens, with another input given


@dataclass(frozen=True)
class Design:
    """What an architecture does by design: promises that it changes, why, and why its gradient is inexact."""

    promises: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    gradient: str | None = None


def _no_padding(why: str, gradient: str | None = None) -> Design:
    return Design({"padding": False}, why, gradient)


# by model type
DESIGNS: dict[str, Design] = {
    "cpmant": Design(
        {"kind": None, "padding": False}, "its input is all context; attention_mask is documented as a dummy"
    ),
    "xlnet": Design({"kind": None}, "the order is a permutation that is passed in; without one it sees everything"),
    "rwkv": _no_padding("a recurrence reads padding like any token"),
    "recurrent_gemma": _no_padding("a recurrence reads padding like any token"),
    "convbert": _no_padding("a convolution mixes neighbors, padding among them"),
    "funnel": _no_padding("neighbors are pooled, padding among them"),
    "nystromformer": _no_padding("landmarks are means over all positions, padding among them"),
    "yoso": _no_padding("an approximation with a convolution", "hashes have an approximate gradient of their own"),
    "mobilebert": _no_padding("the embeddings of neighbors are joined, padding among them"),
    "deepseek_v4": _no_padding("runs of tokens are compressed into one key, padding among them"),
    "hrm_text": Design(gradient="only the last cycle is differentiated"),
}

# Words in the names of parameters that text alone, or the checked output, does not use by design: towers and
# projections of other inputs, poolers, heads of other losses, and indexers, which choose keys by a ranking (it has no
# gradient; they are trained by a loss of their own).
UNUSED_BY_DESIGN = (
    "pooler", "indexer", "vision", "visual", "image", "audio", "speech", "video", "multi_modal", "multimodal", "mm_",
    "masked_spec",
    "patch_embed", "embed_positions_img", "talker", "mtp", "nextn", "qformer", "perceiver", "projector", "connector",
    "mask_token", "seq_relationship", "_global", "entity", "pronunciation_embed", "shape_embed", "eoi_embedding",
    "mask_emb", "seg_embed", "r_s_bias", "cross_attention", "crossattention", "encoder_attn", "cross_attn", "protein",
    "contact_head", "view_sep",
)  # fmt: skip
# forward() parameters that show that a model reads more than text
OTHER_INPUTS = (
    "pixel_values",
    "input_features",
    "input_values",
    "audio",
    "entity",
    "protein",
    "image",
    "video",
    "speech",
)


def hugging_face_implementation(
    name: str, contract: Contract, arguments: dict[str, Any] | None = None
) -> Implementation:
    """An architecture as an implementation, in float32: many compute norms and angles in float32 in any case."""
    impl = _text_or_conditioned(build_small(name, arguments), f"hf:{name}", contract, architectures().get(name))
    design = find_design(name)
    how = f"{impl.how}, built small with random weights{f'; by design {design.why}' if design.why else ''}"
    return replace(
        impl, how=how, unused_by_design=(*UNUSED_BY_DESIGN, *_uncalled(impl)), inexact_gradient=design.gradient
    )


def _text_or_conditioned(module: nn.Module, name: str, contract: Contract, family: str | None) -> Implementation:
    """A model as an implementation; one on text with images or speech is checked with that input given, if it can be.

    Its KV cache is then not checked: it would hold the other input, too.
    """
    tried: dict[str, str] = {}
    reads_more = any(word in known for known in parameters_of(module) for word in OTHER_INPUTS[:3])
    if family not in WITH_OTHER_INPUTS and not (family == "causal" and reads_more):
        return module_implementation(module, name, contract, (torch.float32,))
    module = randomize_weights(module.float().eval())
    with torch.no_grad():
        found = conditioned_form(
            module, parameters_of(module), torch.float32, tried, separate=family == "image and text encoder"
        )
    try:
        text = module_implementation(module, name, contract, (torch.float32,))
    except ValueError as error:
        if found is None:
            attempts = "; ".join(f"{form}: {why}" for form, why in list(tried.items())[:3])
            raise ValueError(f"{error}; with another input: {attempts}") from None
        text = None
    if found is None:
        assert text is not None
        return text
    form, call = found
    with torch.no_grad():
        parameters = {key: value for key, value in parameters_of(module).items() if call.takes_name(key)}
        impl = form_implementation(module, name, contract, form, [form], 8, torch.float32, parameters)

    def run_source(pieces: torch.Tensor, token_mask: torch.Tensor | None = None) -> torch.Tensor:
        x = form.sample(1, 8, torch.float32).expand(len(pieces), -1)
        out = find_rows(call(x, {}, pieces), len(pieces))
        assert out is not None
        return out

    medium = call.other.medium
    source = replace(
        impl, run=run_source, vocab_size=None, dim=medium.size, length=medium.pieces, fixed_length=medium.pieces,
        takes_padding=False, aligned=False, run_cached=None,
    )  # fmt: skip
    return replace(impl, source=source, run_cached=None)


def family_contract(name: str, promised: Contract | None = None) -> Contract:
    """What an architecture's family promises, without what its design excludes, and with what is `promised` besides."""
    name = name.removeprefix("hf:")
    family = architectures().get(name)
    if family is not None:
        contract = FAMILIES[family][1]
    else:
        contract = Contract(kind="causal") if name.endswith(("ForCausalLM", "LMHeadModel")) else Contract()
    contract = replace(contract, **find_design(name).promises)
    more = {} if promised is None else {part.name: getattr(promised, part.name) for part in fields(promised)}
    return replace(contract, **{name: value for name, value in more.items() if value is not None})


def architectures() -> dict[str, str]:
    """Every text or image architecture of the installed transformers, with its family."""
    import_transformers()
    from transformers.models.auto import modeling_auto

    found: dict[str, str] = {}
    for family, (table, _) in FAMILIES.items():
        for names in getattr(modeling_auto, table, {}).values():
            for name in (names,) if isinstance(names, str) else names:
                found.setdefault(name, family)
    return found


def find_design(name: str) -> Design:
    """What an architecture does by design."""
    kind = getattr(import_transformers(), name, None)
    return DESIGNS.get(getattr(getattr(kind, "config_class", None), "model_type", ""), Design())


def import_transformers() -> Any:
    """The transformers package, with its log messages off."""
    try:
        import transformers
    except ImportError:
        raise ValueError("hf: targets need the transformers package: pip install transformers") from None
    transformers.logging.set_verbosity_error()
    return transformers


def build_small(name: str, arguments: dict[str, Any] | None = None) -> nn.Module:
    """A small instance with random weights, on the eager path; `arguments` are fields of its config."""
    transformers = import_transformers()
    kind = getattr(transformers, name, None)
    if kind is None or getattr(kind, "config_class", None) is None:
        near = difflib.get_close_matches(name, list(architectures()), n=3) or (
            "LlamaForCausalLM", "BertModel", "ViTModel",
        )  # fmt: skip
        offered = f"; it has {', '.join(near)}, …"
        raise ValueError(f"transformers {transformers.__version__} has no architecture {name!r}{offered}")
    sides = {"is_decoder": True, "causal": True} if architectures().get(name) == "causal" else {}
    sides |= {"is_encoder_decoder": False} if name.endswith("EncoderModel") else {}
    config = small_config(kind.config_class, **sides | (arguments or {}))
    with warnings.catch_warnings(), seeded(0):
        warnings.simplefilter("ignore")
        if (size := _count_parameters(kind, config)) > MAX_PARAMETERS:
            raise ValueError(
                f"{name} has {size:,} parameters in its smallest known config, more than {MAX_PARAMETERS:,}"
            )
        return kind(config)


def _count_parameters(kind: Any, config: Any) -> int:
    """How many parameters it would have; nothing is allocated."""
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in kind(config).parameters())
    except Exception:  # some constructors compute with values, which the meta device does not have
        return 0


def _uncalled(impl: Implementation) -> tuple[str, ...]:
    """The parts that were not called, of a model that also reads images, audio or other inputs."""
    assert impl.module is not None
    names = inspect.signature(impl.module.forward).parameters
    if not any(word in name for name in names for word in OTHER_INPUTS):
        return ()
    called: set[nn.Module] = set()
    hooks = [part.register_forward_pre_hook(lambda part, _: called.add(part)) for part in impl.module.modules()]
    with torch.no_grad():
        impl.run(impl.random_input(2, impl.length, torch.Generator().manual_seed(3)))
    for hook in hooks:
        hook.remove()
    return tuple(f"{name.lower()}." for name, part in impl.module.named_modules() if name and part not in called)


# -- small configs -----------------------------------------------------------------------------------------------------

DIM, HEADS, LAYERS, VOCAB_SIZE, MAX_LENGTH = 32, 4, 2, 64, 64

# a small size, and the config fields that get it; sizes that depend on each other (a dim and its heads) fit
CONFIG_SIZES: tuple[tuple[int, tuple[str, ...]], ...] = (
    (DIM, (
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
    (VOCAB_SIZE, ("vocab_size", "text_vocab_size", "decoder_vocab_size", "vocab_size_per_layer_input",
        "entity_vocab_size", "encoder_hash_byte_group_vocab")),
    (MAX_LENGTH, (
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
        "multi_query_group_num", "num_kv_heads", "swa_num_key_value_heads", "type_vocab_size", "depth",
        "experts_per_token", "topk",
    )),
    (HEADS, (
        "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
        "decoder_attention_heads", "num_decoder_attention_heads", "num_encoder_attention_heads",
        "decoder_num_attention_heads", "encoder_num_attention_heads", "num_experts", "num_local_experts",
        "n_routed_experts", "moe_num_experts", "rotary_dim", "moe_num_routed_experts", "num_routed_experts",
        "num_global_key_value_heads", "linear_num_value_heads", "linear_num_key_heads", "swa_num_attention_heads",
        "ffn_num_experts", "num_moe_experts", "compress_ratio_heads",
        "linear_num_heads",
    )),
    (8, (
        "head_dim", "attention_head_dim", "d_kv", "d_head", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",
        "global_head_dim", "patch_size", "linear_key_head_dim", "linear_value_head_dim", "mamba_n_heads",
        "mamba_num_heads", "mamba_d_head", "mamba_head_dim", "mamba_d_state", "ssm_state_size", "state_size",
        "swa_head_dim", "key_size", "index_topk", "hidden_size_per_layer_input", "ngram",
        "kv_channels", "qk_head_dim", "cross_head_dim", "lightning_head_dim", "linear_head_dim",
    )),
    (16, ("q_lora_rank", "kv_lora_rank", "index_head_dim", "o_lora_rank", "chunk_size", "mamba_chunk_size",
        "bottleneck_size", "index_n_heads")),  # few heads of an indexer tie: a ReLU makes all their scores 0

    (1, ("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "num_shared_experts", "mamba_n_groups",
        "n_groups", "num_nextn_predict_layers", "num_hidden_groups", "moe_num_shared_experts")),
    (3, ("num_channels", "in_channels", "in_chans")),
)  # fmt: skip
SMALL: dict[str, Any] = {name: size for size, names in CONFIG_SIZES for name in names} | {
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "use_cache": True,
    "initializer_range": 0.02,
}  # fmt: skip

# lists with one entry per stage of an image pyramid
STAGES = {
    "depths": 1, "hidden_sizes": (16, 32, 48, 64, 64), "embed_dims": (16, 32, 48, 64), "num_heads": (2, 4, 4, 8),
    "num_attention_heads": (2, 4, 4, 8), "layers": 1, "embed_dim": (16, 32, 48, 64),
}  # fmt: skip

# sizes that depend on each other in other ways, by model type
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "deepseek_v2": {"topk_method": "greedy", "num_experts_per_tok": 2},
    "longcat_flash": {"qk_head_dim": 16, "zero_expert_num": 1},
    "deepseek_v4": {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 6}},
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
    "gemma3": {"mm_tokens_per_image": 4},
    "llava_next": {"image_grid_pinpoints": [[32, 32]]}, "llava_next_video": {"image_grid_pinpoints": [[32, 32]]},
    "llava_onevision": {"image_grid_pinpoints": [[32, 32]]},
    "pegasus_x": {"block_size": 8, "num_global_tokens": 4},
    "longformer": {"attention_window": 4}, "led": {"attention_window": 4},
    "prophetnet": {"ngram": 2},
    "convnext": {"image_size": 128}, "poolformer": {"image_size": 128}, "swiftformer": {"image_size": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "dots1": {"layer_types": ["full_attention", "full_attention"], "n_routed_experts": 4,
        "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "gemma3n_text": {"num_kv_shared_layers": 1},
    "ernie4_5_vl_moe_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}},
    "neomme": {"head_dim": 16}, "mistral4": {"head_dim": 16},
    "cvt": {"depth": [1, 2, 3]}, "textnet": {"stem_out_channels": 16},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10_000.0}}},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4,
        "attention_hidden_size": 64, "attention_head_dim": 16},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4,
        "attention_hidden_size": 64, "attention_head_dim": 16},
    "llama4_vision_model": {"intermediate_size": 128, "projector_input_dim": 32, "projector_output_dim": 32,
        "vision_output_dim": 32},
    "xlstm": {"hidden_size": 64, "embedding_dim": 64, "qk_dim_factor": 1.0},
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


def small_config(kind: Any, **values: Any) -> Any:
    """A config with every known size made small: one layer of each kind, two at least. `values` set its fields."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        default = kind()
        return kind(
            **(small_fields(default) | {name: value for name, value in values.items() if hasattr(default, name)})
        )


def small_fields(default: Any) -> dict[str, Any]:
    """The fields of a config that become small, with their values."""
    values = {name: _field(default, name) for name in (*SMALL, *STAGES)}
    sizes: dict[str, Any] = {
        name: SMALL[name]
        for name, value in values.items()
        if name in SMALL and isinstance(value, int | float) and not isinstance(value, bool)
    }
    own = vars(default)
    if values["head_dim"] is None and "head_dim" in own:
        sizes["head_dim"] = DIM // HEADS
    if values["num_key_value_heads"] in (values["num_attention_heads"], None) and "num_key_value_heads" in own:
        sizes["num_key_value_heads"] = HEADS
    sizes |= {name: _per_stage(name, value) for name, value in values.items() if isinstance(value, list | tuple)}
    sizes |= _per_layer(default, sizes)
    special = SPECIAL.get(getattr(default, "model_type", ""), {})
    sizes |= special
    sizes |= _special_tokens(own, sizes) | _rotary_sections(default, own) | special
    for name, part in own.items():
        if hasattr(part, "to_dict") and hasattr(part, "model_type"):
            decoder = {"is_decoder": True, "add_cross_attention": True} if name == "decoder" else {}
            sizes[name] = small_config(type(part), **decoder)
    return sizes


def _rotary_sections(default: Any, own: dict[str, Any]) -> dict[str, Any]:
    """The parts of a head that rotate by time, height and width (mrope_section), for the small head."""
    rotary = own.get("rope_parameters")
    sees = re.search(r"vl|\dv|omni", getattr(default, "model_type", "")) is not None
    if not isinstance(rotary, dict) or "rope_type" not in rotary or not (sees or "mrope_section" in rotary):
        return {}
    count = int(DIM // HEADS * rotary.get("partial_rotary_factor", own.get("partial_rotary_factor") or 1.0)) // 2
    third = count // 3
    return {"rope_parameters": rotary | {"mrope_section": [count - 2 * third, third, third]}}


def _special_tokens(own: dict[str, Any], sizes: dict[str, Any]) -> dict[str, int]:
    """Tokens beyond the small vocabulary, and those that stand for an image or a recording, as its last ones."""
    stands = re.compile("image|img|video|audio|vision|media")
    names = [name for name, value in own.items() if name.endswith(("_token_id", "_token_index"))
             and isinstance(value, int) and name not in sizes
             and (value >= VOCAB_SIZE or (value > 0 and stands.search(name)))]  # fmt: skip
    values = list(dict.fromkeys(own[name] for name in names))
    return {name: VOCAB_SIZE - 1 - values.index(own[name]) for name in names}


def _field(default: Any, name: str) -> Any:
    """A field's value; None if the config has none, or computes it from others."""
    if isinstance(getattr(type(default), name, None), property):
        return None
    try:
        return getattr(default, name, None)
    except Exception:  # a field that differs from layer to layer raises
        return vars(default).get(name)


def _per_stage(name: str, value: Any) -> Any:
    small = STAGES.get(name, SMALL.get(name))
    values = small if isinstance(small, tuple) else (small,) * len(value)
    return type(value)(values[: len(value)])


def _per_layer(default: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    """Lists with one entry per layer, cut to one layer of each kind and to two at least."""
    count = _field(default, "num_hidden_layers")
    lists = {
        name: value
        for name, value in vars(default).items()
        if isinstance(value, list | tuple) and isinstance(count, int) and len(value) == count
    }
    if not lists:
        return {}
    kinds = [str(kind) for kind in zip(*lists.values(), strict=True)]
    first = [index for index, kind in enumerate(kinds) if kind not in kinds[:index]]
    kept = sorted({*first[:4], *range(LAYERS)})
    cut = {
        name: [SMALL[name]] * len(kept) if name in SMALL else type(value)(value[index] for index in kept)
        for name, value in lists.items()
    }
    layers = {name: len(kept) for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if name in sizes}
    return cut | layers
