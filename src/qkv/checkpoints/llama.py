"""Llama and its kin: rotary positions, RMS norms, a gated feed-forward network, shared heads of keys.

Mistral is Llama with a window; Qwen 2 adds vectors to queries, keys and values; Qwen 3 normalises queries and keys.
"""

from typing import Any

from qkv.checkpoints.family import Family
from qkv.checkpoints.rope_settings import read_rope, write_rope
from qkv.checkpoints.switches import Switches, fits
from qkv.checkpoints.tables import SAME, Row, regrouped
from qkv.models import GPT, GPTConfig
from qkv.nn import Dot
from qkv.nn.feed_forward import Activation
from qkv.nn.multi_head_attention import AttentionBias
from qkv.nn.rope import Rope

ACTIVATIONS: dict[str, Activation] = {"silu": "swiglu", "swish": "swiglu"}


def table(config: GPTConfig) -> list[Row]:
    """Theirs turn each head's first half with its second; where ours turn neighbours, rows are regrouped."""
    turned = SAME
    if isinstance(config.position, Rope) and config.position.pairing == "interleaved":
        turned = regrouped(_head_width(config))
    return [
        Row("tokens", "model.embed_tokens"),
        Row("blocks.*.attention_norm", "model.layers.*.input_layernorm"),
        Row("blocks.*.attention.to_q", "model.layers.*.self_attn.q_proj", turned),
        Row("blocks.*.attention.to_k", "model.layers.*.self_attn.k_proj", turned),
        Row("blocks.*.attention.to_v", "model.layers.*.self_attn.v_proj"),
        Row("blocks.*.attention.q_norm", "model.layers.*.self_attn.q_norm", turned),
        Row("blocks.*.attention.k_norm", "model.layers.*.self_attn.k_norm", turned),
        Row("blocks.*.attention.to_out", "model.layers.*.self_attn.o_proj"),
        Row("blocks.*.feed_forward_norm", "model.layers.*.post_attention_layernorm"),
        Row("blocks.*.feed_forward.to_gate", "model.layers.*.mlp.gate_proj"),
        Row("blocks.*.feed_forward.to_hidden", "model.layers.*.mlp.up_proj"),
        Row("blocks.*.feed_forward.to_out", "model.layers.*.mlp.down_proj"),
        Row("norm", "model.norm"),
        Row("head", "lm_head"),
    ]


def read_llama(switches: Switches) -> GPTConfig:
    bias = switches.flag("attention_bias", False)
    return _read(switches, bias=switches.flag("mlp_bias", False), attention_bias=bias, kv_heads=None, window=None)


def read_mistral(switches: Switches) -> GPTConfig:
    # a window left out is 4096 tokens, a window of null is none
    window = switches.maybe_count("sliding_window") if "sliding_window" in switches.plain else 4096
    kinds = switches.look("layer_types")
    if kinds is not None and set(kinds) != {"full_attention" if window is None else "sliding_attention"}:
        raise ValueError(f"{switches.where}: layers of different layer_types have no equal in qkv; got {kinds!r}")
    return _read(switches, kv_heads=8, window=window)


def read_qwen2(switches: Switches) -> GPTConfig:
    return _read(switches, attention_bias="qkv", kv_heads=32, window=_qwen_window(switches))


def read_qwen3(switches: Switches) -> GPTConfig:
    return _read(
        switches,
        attention_bias=switches.flag("attention_bias", False),
        kv_heads=32,
        window=_qwen_window(switches),
        head_width=128,
        normalised=True,
    )


def _read(
    switches: Switches,
    *,
    kv_heads: int | None,
    window: int | None,
    bias: bool = False,
    attention_bias: AttentionBias = False,
    head_width: int | None = None,
    normalised: bool = False,
) -> GPTConfig:
    """What the four have in common; `kv_heads` and `head_width` are what is meant where the file leaves them out."""
    switches.skip(("attention_dropout", "pretraining_tp"))
    switches.only("is_encoder_decoder", False)
    switches.only("tie_encoder_decoder", False)
    switches.only("rope_interleaved", False)
    switches.only("use_mrope", False)
    heads, length = switches.count("num_attention_heads", 32), switches.count("max_position_embeddings", 2048)
    if "num_key_value_heads" in switches.plain or kv_heads is None:  # null: as many as there are heads
        kv_heads = switches.maybe_count("num_key_value_heads") or heads
    epsilon = switches.number("rms_norm_eps", 1e-6)
    return GPTConfig(
        vocab_size=switches.count("vocab_size"),
        max_length=length,
        dim=switches.count("hidden_size"),
        layers=switches.count("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=switches.maybe_count("head_dim") or head_width,
        mlp_dim=switches.count("intermediate_size"),
        activation=switches.choice("hidden_act", ACTIVATIONS, "silu"),
        norm="rms",
        norm_eps=epsilon,
        position=read_rope(switches, length),
        score=Dot(qk_norm=True, norm_eps=epsilon) if normalised else Dot(),
        sliding_window=window,
        bias=bias,
        attention_bias=attention_bias,
        tie_embeddings=switches.flag("tie_word_embeddings", False),
    )


def _qwen_window(switches: Switches) -> int | None:
    """Some layers may see a window and others all; qkv has one rule for all layers."""
    layers, window = switches.count("num_hidden_layers"), switches.maybe_count("sliding_window")
    used, first = switches.flag("use_sliding_window", False), switches.count("max_window_layers", 28)
    window = window if used else None
    kinds = switches.look("layer_types")
    if kinds is None:
        kinds = ["sliding_attention" if window is not None and i >= first else "full_attention" for i in range(layers)]
    if (
        not isinstance(kinds, list)
        or len(kinds) != layers
        or set(kinds) not in ({"full_attention"}, {"sliding_attention"})
    ):
        raise ValueError(f"{switches.where}: layers of different layer_types have no equal in qkv; got {kinds!r}")
    if kinds[0] == "sliding_attention" and window is None:
        raise ValueError(f"{switches.where}: layer_types ask for a sliding_window, which is not given or not used")
    return window if kinds[0] == "sliding_attention" else None


def write_llama(config: GPTConfig) -> dict[str, Any]:
    attention_bias = config.bias if config.attention_bias is None else config.attention_bias
    fits(config, "Llama", window=None, score=Dot(), attention_bias=(None, True, False))
    return {**_write(config, "Llama"), "attention_bias": attention_bias, "mlp_bias": config.bias}


def write_mistral(config: GPTConfig) -> dict[str, Any]:
    fits(config, "Mistral", score=Dot(), bias=False, attention_bias=(None, False))
    return {**_write(config, "Mistral"), "sliding_window": config.sliding_window}


def write_qwen2(config: GPTConfig) -> dict[str, Any]:
    fits(config, "Qwen 2", score=Dot(), bias=False, attention_bias="qkv")
    return {**_write(config, "Qwen 2"), **_write_qwen_window(config)}


def write_qwen3(config: GPTConfig) -> dict[str, Any]:
    score = Dot(qk_norm=True, norm_eps=config.norm_eps)
    fits(config, "Qwen 3", score=score, bias=False, attention_bias=(None, True, False))
    return {**_write(config, "Qwen 3"), **_write_qwen_window(config), "attention_bias": bool(config.attention_bias)}


def _write(config: GPTConfig, architecture: str) -> dict[str, Any]:
    fits(config, architecture, norm="rms", order="pre", activation="swiglu")
    if not isinstance(config.position, Rope) or config.position.rotary_dim not in (None, _head_width(config)):
        raise ValueError(
            f"position={config.position!r} has no equal in {architecture}, which has Rope() on whole heads"
        )
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_length,
        "hidden_size": config.dim,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads or config.heads,
        "head_dim": _head_width(config),
        "intermediate_size": config.mlp_dim or 4 * config.dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": write_rope(config.position),
        "attention_dropout": config.dropout,
        "tie_word_embeddings": config.tie_embeddings,
    }


def _write_qwen_window(config: GPTConfig) -> dict[str, Any]:
    windowed = config.sliding_window is not None
    return {
        "sliding_window": config.sliding_window,
        "use_sliding_window": windowed,
        "max_window_layers": 0 if windowed else config.layers,
        "layer_types": ["sliding_attention" if windowed else "full_attention"] * config.layers,
    }


def _head_width(config: GPTConfig) -> int:
    return config.dim // config.heads if config.head_dim is None else config.head_dim


def _family(name: str, stem: str, read, write) -> Family:
    return Family(
        name=name,
        architectures=(f"{stem}ForCausalLM", f"{stem}Model"),
        model=GPT,
        read=read,
        write=write,
        table=table,
        prefix="model.",
        bare=(f"{stem}Model",),
        ignored=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"rotary_emb\.inv_freq"),
        tied={"model.embed_tokens.weight": ("lm_head.weight",)},
    )


LLAMA = _family("llama", "Llama", read_llama, write_llama)
MISTRAL = _family("mistral", "Mistral", read_mistral, write_mistral)
QWEN2 = _family("qwen2", "Qwen2", read_qwen2, write_qwen2)
QWEN3 = _family("qwen3", "Qwen3", read_qwen3, write_qwen3)
