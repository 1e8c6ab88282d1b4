"""Known names of parameters in attention code, and what each of them takes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter
from typing import Any

from torch import Tensor, nn

Parameters = Mapping[str, Parameter]
Fill = dict[str, Callable[[Tensor], Any]]  # a parameter's value, made from the input

_ENDING = r"_?(s|states?|layer|in|input|inputs|proj|heads|vec|vectors?|tensor|seq|tokens?|x|_)?"
_ROLES = {
    "query": re.compile(rf"(x_?|in_|input_)?(q|query|queries|quer){_ENDING}"),
    "key": re.compile(rf"(x_?|in_|input_)?(k|key|keys){_ENDING}"),
    "value": re.compile(rf"(x_?|in_|input_)?(v|val|vals|value|values){_ENDING}"),
    "packed": re.compile(r"(x_?)?(mixed_|packed_|fused_)?(qkv|q_k_v)(_packed|_proj|_mixed|_fused|s)?|packed"),
    "keys and values": re.compile(r"(packed_)?(kv|k_v|key_?values?)(_packed|_states)?"),
}


def qkv_role(name: str) -> str | None:
    """Whether a parameter takes queries, keys, values, all three packed, or keys and values.

    >>> qkv_role("query_states"), qkv_role("K"), qkv_role("qkv"), qkv_role("mask")
    ('query', 'key', 'packed', None)
    """
    plain = name.lower().strip("_")
    return next((role for role, pattern in _ROLES.items() if pattern.fullmatch(plain)), None)


def qkv_names(parameters: Parameters) -> dict[str, str]:
    """The parameters that take queries, keys, values or packs of them, by role; the first of each."""
    found: dict[str, str] = {}
    for name in parameters:
        role = qkv_role(name)
        if role is not None:
            found.setdefault(role, name)
    return found


TOKENS = (
    "input_ids", "tokens", "token_ids", "idx", "ids", "input_tokens", "inp", "input", "inputs", "src", "in_idx",
    "toks", "input_seq", "token_indices", "indices",
)  # fmt: skip
VECTORS = (
    "x", "hidden_states", "hidden", "inputs", "input", "h", "embeddings", "embeds", "inputs_embeds", "z", "src", "seq",
    "sequence", "features", "feats", "emb", "xs", "x_in", "residual", "stream", "hidden_state", "tgt", "data", "latent",
    "latents", "inp",
)  # fmt: skip
IMAGES = ("pixel_values", "images", "image", "img", "imgs", "pictures", "pixels", "picture")
VIDEOS = ("pixel_values_videos", "video", "videos", "clip", "clips", "frames")
WAVES = ("input_values", "audio", "waveform", "wave", "wav", "waveforms", "speech", "signal", "samples", "raw_audio")
SPECTROGRAMS = (
    "input_features", "mel", "mels", "spectrogram", "spec", "fbank", "log_mel", "mel_spec", "spectrograms", "melspec",
    "audio_features",
)  # fmt: skip
SOURCES = (
    "source", "src", "input_ids", "src_tokens", "source_ids", "src_ids", "encoder_input", "enc_input", "encoder_inputs",
    "enc_inputs", "enc", "inputs", "input", "x", "src_seq", "source_tokens",
)  # fmt: skip
TARGETS = (
    "target", "tgt", "trg", "decoder_input_ids", "tgt_tokens", "target_ids", "tgt_ids", "decoder_input", "dec_input",
    "decoder_inputs", "dec_inputs", "dec", "outputs", "y", "prev_output_tokens", "trg_seq", "tgt_seq", "target_tokens",
)  # fmt: skip
MEMORIES = (
    "memory", "context", "encoder_hidden_states", "encoder_output", "enc_output", "enc_out", "encoder_out", "mem",
    "ctx", "cond", "conditioning", "enc", "source", "src", "xa", "key_value_states", "cross_states",
    "other", "kv_input", "enc_hidden", "encoded", "kv", "x_kv", "media", "context_states", "text_embeds", "y",
)  # fmt: skip
MASKS = (
    "mask", "attn_mask", "attention_mask", "src_mask", "tgt_mask", "trg_mask", "causal_mask", "bias_mask",
    "attn_bias", "look_ahead_mask", "self_attn_mask", "self_mask", "target_mask", "slf_attn_mask", "allowed",
    "allowed_mask", "attention_bias", "attn_masks", "masks", "m", "mask_tensor", "visible", "bias", "keep_mask", "keep",
    "blocked", "block_mask", "additive_mask", "x_mask",
)  # fmt: skip
CAUSAL_FLAGS = ("causal", "is_causal", "use_causal_mask", "use_causal", "masked", "autoregressive", "apply_causal_mask")
# padding masks: whether True (or 1) means a real token
PADDING_MASKS = {
    "token_mask": True, "attention_mask": True, "padding_mask": False, "key_padding_mask": False,
    "src_key_padding_mask": False, "tgt_key_padding_mask": False, "pad_mask": False, "target_token_mask": True,
    "decoder_attention_mask": True, "input_mask": True, "valid": True, "valid_mask": True, "key_mask": True,
    "kv_mask": True, "seq_mask": True, "is_pad": False, "pad": False, "key_valid": True, "is_real": True,
}  # fmt: skip
# the same for the input of an encoder, or for what a decoder attends to
SOURCE_PADDING_MASKS = {
    "source_token_mask": True, "attention_mask": True, "encoder_attention_mask": True, "src_key_padding_mask": False,
    "memory_key_padding_mask": False, "memory_token_mask": True,
}  # fmt: skip
SOURCE_MASKS = (
    "src_mask", "source_mask", "memory_mask", "enc_mask", "encoder_mask", "src_padding_mask", "cross_mask",
    "cross_attn_mask", "dec_enc_attn_mask", "padding_mask", "pad_mask", "context_mask", "mem_mask", "ctx_mask",
    "key_padding_mask", "key_mask", "kv_mask", "mask", "attn_mask",
)  # fmt: skip
# the number of real tokens of each row; the others follow them
LENGTHS = (
    "lengths", "lens", "seq_lens", "seqlens", "valid_lens", "valid_len", "input_lengths", "x_lens", "src_lengths",
    "seq_lengths", "length", "src_lens", "lengths_x", "sequence_lengths", "valid_lengths", "input_lens", "xlens",
    "x_lengths", "kv_lens", "key_lengths", "num_tokens",
)  # fmt: skip
# where each row begins in the tokens of all rows, one after the other
BORDERS = ("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_kv", "cu_seq_lens", "cu_lens", "offsets",
           "seq_starts", "cu_seqlen", "cumulative_lengths", "boundaries", "row_splits", "indptr")  # fmt: skip
LONGEST = ("max_seqlen", "max_seqlen_q", "max_seqlen_k", "max_seqlen_kv", "max_s", "max_seq_len", "max_length")
# where a piece begins; a module with such a parameter keeps its KV cache itself
OFFSETS = (
    "input_pos", "start_pos", "position", "offset", "start", "pos", "cache_position", "seq_offset", "past_length",
    "pos_offset", "position_offset", "cur_pos",
)  # fmt: skip
POSITIONS = (
    "positions", "position_ids", "pos_ids", "input_pos", "cache_position", "pos_idx", "token_positions", "seq_pos",
    "q_positions", "k_positions", "position_id",
)  # fmt: skip
LABELS = ("targets", "labels", "target")
HEAD_COUNTS = ("num_heads", "n_heads", "heads", "n_head", "nhead", "num_attention_heads", "h", "nheads", "H", "head")
KEY_HEAD_COUNTS = (
    "num_kv_heads", "n_kv_heads", "kv_heads", "num_key_value_heads", "n_kv_head", "num_key_heads", "n_kv",
    "num_kv_head", "kv_head", "nkv", "n_key_heads",
)  # fmt: skip
HEAD_DIMS = ("d_k", "dk", "d", "head_dim", "dim", "d_head", "dim_head", "head_size", "hidden_dim")
SCALES = ("scale", "softmax_scale", "sm_scale", "scaling", "scale_factor", "temperature", "norm_factor")


def mask_names(names: Iterable[str]) -> list[str]:
    """The parameters that take a mask: those with a known name first, then those that call themselves one.

    >>> mask_names(["x", "attend_mask", "attn_mask", "padding_mask"])
    ['attn_mask', 'attend_mask']
    """
    names = list(names)
    words = re.compile(r"mask|allowed|visib|attendable", re.IGNORECASE)
    other = [
        n for n in names if n not in MASKS and n not in PADDING_MASKS and words.search(n) and "pad" not in n.lower()
    ]
    return [known for known in MASKS if known in names] + other


def padding_names(names: Iterable[str]) -> list[str]:
    """The parameters without a known name that call themselves a padding mask.

    >>> padding_names(["x", "padding_mask", "encoder_padding_mask", "padding_idx"])
    ['encoder_padding_mask']
    """
    return [n for n in names if n not in PADDING_MASKS and "pad" in n.lower() and "mask" in n.lower()]


def parameters_of(found: Any) -> Parameters:
    """The parameters of a call. Keras layers have theirs in `call`; raises ValueError for some builtins."""
    function: Any = found
    if isinstance(found, nn.Module):
        own = inspect.signature(found.forward).parameters
        wraps = all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in own.values())
        function = found.call if wraps and callable(getattr(found, "call", None)) else found.forward
    return inspect.signature(function).parameters


def required_names(parameters: Parameters) -> list[str]:
    """The parameters that have no default."""
    return [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def passes_by_position(parameters: Parameters, name: str) -> bool:
    """Whether a parameter cannot be passed by its name."""
    return name not in parameters or parameters[name].kind in (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL)
