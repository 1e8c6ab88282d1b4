"""Llama, Mistral, Qwen 2 and Qwen 3 (Hugging Face): RoPE, RMSNorm, SwiGLU, grouped-query attention.

Mistral is Llama with a sliding window; Qwen 2 has biases on query, key and value; Qwen 3 normalizes query and key.
RoPE settings are read from `rope_parameters`, or from `rope_theta` and `rope_scaling` in older files.
"""

import math
from collections.abc import Callable
from typing import Any

from qkv.checkpoints.huggingface.config_reader import ConfigReader, Fields, read_fields, require_fields, write_fields
from qkv.checkpoints.huggingface.family import SAME, Family, TensorRule, regroup_rope_rows
from qkv.models import GPT, GPTConfig
from qkv.nn import Dot
from qkv.nn.feed_forward import Activation
from qkv.nn.multi_head_attention import AttentionBias
from qkv.nn.rope import LinearScaling, Llama3Scaling, Rope, RopeScaling, YarnScaling

ACTIVATIONS: dict[str, Activation] = {"silu": "swiglu", "swish": "swiglu"}
FIELDS: Fields = {
    "vocab_size": ("vocab_size", int),
    "max_length": ("max_position_embeddings", 2048),
    "dim": ("hidden_size", int),
    "layers": ("num_hidden_layers", int),
    "heads": ("num_attention_heads", 32),
    "mlp_dim": ("intermediate_size", int),
    "norm_eps": ("rms_norm_eps", 1e-6),
    "tie_embeddings": ("tie_word_embeddings", False),
}


def read_rope(reader: ConfigReader, max_length: int) -> Rope:
    """The RoPE that a config.json describes; newer files hold it in one place, older ones in two."""
    base = reader.number("rope_theta", 10000.0)
    old, new = reader.get("rope_scaling"), reader.get("rope_parameters")
    for name, value in (("rope_scaling", old), ("rope_parameters", new)):
        if value is not None and not isinstance(value, dict):
            raise ValueError(f"{reader.where}: {name} should be an object, got {value!r}")
    if old is not None and new is not None:
        raise ValueError(f"{reader.where} holds rope_scaling and rope_parameters; remove the one that is out of date")
    settings = ConfigReader(new or old or {}, f"{reader.where}: {'rope_scaling' if old else 'rope_parameters'}")
    base = settings.number("rope_theta", base)
    if (before := reader.optional_integer("original_max_position_embeddings")) is not None:
        settings.require("original_max_position_embeddings", before)
        max_length = before
    partial = reader.number("partial_rotary_factor", 1.0)
    if settings.number("partial_rotary_factor", partial) != 1.0:
        raise ValueError(f"{reader.where}: partial_rotary_factor is not supported by qkv for Llama; expected 1.0")
    settings.ignore(("rope_type", "type"))
    kind = settings.get("rope_type") or settings.get("type") or "default"
    scaling = _read_scaling(kind, settings, max_length)
    settings.check_all_read()
    return Rope(base=base, pairing="halves", scaling=scaling)


def write_rope(rope: Rope) -> dict[str, Any]:
    """The `rope_parameters` of a RoPE."""
    scaling = rope.scaling
    settings: dict[str, Any] = {"rope_theta": rope.base}
    if scaling is None or type(scaling) is RopeScaling:
        return {"rope_type": "default", **settings}
    if isinstance(scaling, LinearScaling):
        return {"rope_type": "linear", **settings, "factor": scaling.factor}
    if isinstance(scaling, Llama3Scaling):
        return {
            "rope_type": "llama3",
            **settings,
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_length,
        }
    if isinstance(scaling, YarnScaling):
        return {
            "rope_type": "yarn",
            **settings,
            "factor": scaling.factor,
            "original_max_position_embeddings": scaling.original_max_length,
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
            "attention_factor": scaling.amplitude,
            "truncate": scaling.truncate,
        }
    raise ValueError(
        f"position={rope!r}: {type(scaling).__name__} has no counterpart in Llama, which has linear, llama3 and yarn"
    )


def _read_scaling(kind: Any, settings: ConfigReader, max_length: int) -> RopeScaling | None:
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(factor=settings.number("factor"))
    if kind == "dynamic":  # with a factor of 1 the base never grows
        settings.require("factor", 1, 1.0)
        return None
    if kind == "llama3":
        return Llama3Scaling(
            factor=settings.number("factor"),
            low_freq_factor=settings.number("low_freq_factor"),
            high_freq_factor=settings.number("high_freq_factor"),
            original_max_length=settings.integer("original_max_position_embeddings", max_length),
        )
    if kind == "yarn":
        original = settings.integer("original_max_position_embeddings", max_length)
        factor = settings.number("factor")
        return YarnScaling(
            factor=factor,
            original_max_length=original,
            beta_fast=settings.number("beta_fast", 32.0),
            beta_slow=settings.number("beta_slow", 1.0),
            attention_factor=_attention_factor(settings, factor),
            truncate=settings.boolean("truncate", True),
        )
    raise ValueError(
        f"{settings.where}: rope_type={kind!r} is not supported by qkv; expected default, linear, llama3 or yarn"
    )


def _attention_factor(settings: ConfigReader, factor: float) -> float | None:
    """YaRN's attention factor: stated, or computed from mscale and mscale_all_dim, or None for the paper's."""
    stated = settings.get("attention_factor")
    above, below = settings.get("mscale"), settings.get("mscale_all_dim")
    if stated is not None:
        return settings.number("attention_factor")
    if not above or not below or factor <= 1:
        return None
    above, below = settings.number("mscale"), settings.number("mscale_all_dim")
    return (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)


def table(config: GPTConfig) -> list[TensorRule]:
    """Their RoPE rotates the first half of a head with the second; rows are regrouped if ours rotates neighbors."""
    rope_rows = SAME
    if isinstance(config.position, Rope) and config.position.pairing == "interleaved":
        rope_rows = regroup_rope_rows(_head_dim(config))
    return [
        TensorRule("tokens", "model.embed_tokens"),
        TensorRule("blocks.*.attention_norm", "model.layers.*.input_layernorm"),
        TensorRule("blocks.*.attention.to_q", "model.layers.*.self_attn.q_proj", rope_rows),
        TensorRule("blocks.*.attention.to_k", "model.layers.*.self_attn.k_proj", rope_rows),
        TensorRule("blocks.*.attention.to_v", "model.layers.*.self_attn.v_proj"),
        TensorRule("blocks.*.attention.q_norm", "model.layers.*.self_attn.q_norm", rope_rows),
        TensorRule("blocks.*.attention.k_norm", "model.layers.*.self_attn.k_norm", rope_rows),
        TensorRule("blocks.*.attention.to_out", "model.layers.*.self_attn.o_proj"),
        TensorRule("blocks.*.feed_forward_norm", "model.layers.*.post_attention_layernorm"),
        TensorRule("blocks.*.feed_forward.to_gate", "model.layers.*.mlp.gate_proj"),
        TensorRule("blocks.*.feed_forward.to_hidden", "model.layers.*.mlp.up_proj"),
        TensorRule("blocks.*.feed_forward.to_out", "model.layers.*.mlp.down_proj"),
        TensorRule("norm", "model.norm"),
        TensorRule("head", "lm_head"),
    ]


def read_llama(reader: ConfigReader) -> GPTConfig:
    bias = reader.boolean("attention_bias", False)
    return _read_common(reader, bias=reader.boolean("mlp_bias", False), attention_bias=bias, kv_heads=None, window=None)


def read_mistral(reader: ConfigReader) -> GPTConfig:
    # without the key the window is 4096 tokens, with null there is none
    window = reader.optional_integer("sliding_window") if "sliding_window" in reader.config else 4096
    kinds = reader.get("layer_types")
    if kinds is not None and set(kinds) != {"full_attention" if window is None else "sliding_attention"}:
        raise ValueError(f"{reader.where}: qkv does not support different layer_types in one model, got {kinds!r}")
    return _read_common(reader, kv_heads=8, window=window)


def read_qwen2(reader: ConfigReader) -> GPTConfig:
    return _read_common(reader, attention_bias="qkv", kv_heads=32, window=_qwen_window(reader))


def read_qwen3(reader: ConfigReader) -> GPTConfig:
    return _read_common(
        reader,
        attention_bias=reader.boolean("attention_bias", False),
        kv_heads=32,
        window=_qwen_window(reader),
        head_dim=128,
        qk_norm=True,
    )


def _read_common(
    reader: ConfigReader,
    *,
    kv_heads: int | None,
    window: int | None,
    bias: bool = False,
    attention_bias: AttentionBias = False,
    head_dim: int | None = None,
    qk_norm: bool = False,
) -> GPTConfig:
    """The settings that all four share; `kv_heads` and `head_dim` are defaults where the file leaves them out."""
    reader.ignore(("attention_dropout", "pretraining_tp"))
    reader.require("is_encoder_decoder", False)
    reader.require("tie_encoder_decoder", False)
    reader.require("rope_interleaved", False)
    reader.require("use_mrope", False)
    fields = read_fields(reader, FIELDS)
    if "num_key_value_heads" in reader.config or kv_heads is None:  # null: as many as there are heads
        kv_heads = reader.optional_integer("num_key_value_heads") or fields["heads"]
    return GPTConfig(
        **fields,
        kv_heads=kv_heads,
        head_dim=reader.optional_integer("head_dim") or head_dim,
        activation=reader.choice("hidden_act", ACTIVATIONS, "silu"),
        norm="rms",
        position=read_rope(reader, fields["max_length"]),
        score=Dot(qk_norm=True, norm_eps=fields["norm_eps"]) if qk_norm else Dot(),
        sliding_window=window,
        bias=bias,
        attention_bias=attention_bias,
    )


def _qwen_window(reader: ConfigReader) -> int | None:
    """The sliding window; their layers may differ, ours all have the same."""
    layers, window = reader.integer("num_hidden_layers"), reader.optional_integer("sliding_window")
    used, first = reader.boolean("use_sliding_window", False), reader.integer("max_window_layers", 28)
    window = window if used else None
    kinds = reader.get("layer_types")
    if kinds is None:
        kinds = ["sliding_attention" if window is not None and i >= first else "full_attention" for i in range(layers)]
    if (
        not isinstance(kinds, list)
        or len(kinds) != layers
        or set(kinds) not in ({"full_attention"}, {"sliding_attention"})
    ):
        raise ValueError(f"{reader.where}: qkv does not support different layer_types in one model, got {kinds!r}")
    if kinds[0] == "sliding_attention" and window is None:
        raise ValueError(f"{reader.where}: layer_types ask for a sliding_window, which is missing or not used")
    return window if kinds[0] == "sliding_attention" else None


def write_llama(config: GPTConfig) -> dict[str, Any]:
    attention_bias = config.bias if config.attention_bias is None else config.attention_bias
    require_fields(config, "Llama", sliding_window=None, score=Dot(), attention_bias=(None, True, False))
    return {**_write_common(config, "Llama"), "attention_bias": attention_bias, "mlp_bias": config.bias}


def write_mistral(config: GPTConfig) -> dict[str, Any]:
    require_fields(config, "Mistral", score=Dot(), bias=False, attention_bias=(None, False))
    return {**_write_common(config, "Mistral"), "sliding_window": config.sliding_window}


def write_qwen2(config: GPTConfig) -> dict[str, Any]:
    require_fields(config, "Qwen 2", score=Dot(), bias=False, attention_bias="qkv")
    return {**_write_common(config, "Qwen 2"), **_write_qwen_window(config)}


def write_qwen3(config: GPTConfig) -> dict[str, Any]:
    score = Dot(qk_norm=True, norm_eps=config.norm_eps)
    require_fields(config, "Qwen 3", score=score, bias=False, attention_bias=(None, True, False))
    return {
        **_write_common(config, "Qwen 3"),
        **_write_qwen_window(config),
        "attention_bias": bool(config.attention_bias),
    }


def _write_common(config: GPTConfig, architecture: str) -> dict[str, Any]:
    require_fields(config, architecture, norm="rms", norm_order="pre", activation="swiglu")
    if not isinstance(config.position, Rope) or config.position.rotary_dim not in (None, _head_dim(config)):
        raise ValueError(
            f"position={config.position!r} has no counterpart in {architecture}, which has Rope() on whole heads"
        )
    return {
        **write_fields(config, FIELDS),
        "num_key_value_heads": config.kv_heads or config.heads,
        "head_dim": _head_dim(config),
        "intermediate_size": config.mlp_dim or 4 * config.dim,
        "hidden_act": "silu",
        "rope_parameters": write_rope(config.position),
        "attention_dropout": config.dropout,
    }


def _write_qwen_window(config: GPTConfig) -> dict[str, Any]:
    windowed = config.sliding_window is not None
    return {
        "sliding_window": config.sliding_window,
        "use_sliding_window": windowed,
        "max_window_layers": 0 if windowed else config.layers,
        "layer_types": ["sliding_attention" if windowed else "full_attention"] * config.layers,
    }


def _head_dim(config: GPTConfig) -> int:
    return config.dim // config.heads if config.head_dim is None else config.head_dim


def _family(
    name: str,
    stem: str,
    read_config: Callable[[ConfigReader], GPTConfig],
    write_config: Callable[[GPTConfig], dict[str, Any]],
) -> Family:
    return Family(
        name=name,
        architectures=(f"{stem}ForCausalLM", f"{stem}Model"),
        model=GPT,
        read_config=read_config,
        write_config=write_config,
        table=table,
        prefix="model.",
        headless=(f"{stem}Model",),
        ignored=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"rotary_emb\.inv_freq"),
        tied={"model.embed_tokens.weight": ("lm_head.weight",)},
    )


LLAMA = _family("llama", "Llama", read_llama, write_llama)
MISTRAL = _family("mistral", "Mistral", read_mistral, write_mistral)
QWEN2 = _family("qwen2", "Qwen2", read_qwen2, write_qwen2)
QWEN3 = _family("qwen3", "Qwen3", read_qwen3, write_qwen3)
