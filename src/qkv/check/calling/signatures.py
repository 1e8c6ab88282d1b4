"""Call signatures: known parameter names of attention code, the ways a module may be called, and where its output is.

Axes: b batch · t tokens · c features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, Literal

import torch
from torch import Tensor, nn

from qkv.check.implementation import random_tokens

# -- names of parameters, as seen in public code -----------------------------------------------------------------------

QUERIES = ("q", "query", "queries", "xq")
TOKENS = ("input_ids", "tokens", "token_ids", "idx", "ids", "input_tokens", "inp", "input", "inputs", "src")
IMAGES = ("pixel_values", "images", "image", "img", "imgs", "pictures", "pixels")
SOURCES = (
    "source", "src", "input_ids", "src_tokens", "source_ids", "src_ids", "encoder_input", "enc_input", "encoder_inputs",
    "enc_inputs", "enc", "inputs", "input", "x", "src_seq", "source_tokens",
)  # fmt: skip
TARGETS = (
    "target", "tgt", "trg", "decoder_input_ids", "tgt_tokens", "target_ids", "tgt_ids", "decoder_input", "dec_input",
    "decoder_inputs", "dec_inputs", "dec", "outputs", "y", "prev_output_tokens", "trg_seq", "tgt_seq", "target_tokens",
)  # fmt: skip
MEMORIES = (
    "memory",
    "context",
    "encoder_hidden_states",
    "encoder_output",
    "enc_output",
    "enc_out",
    "encoder_out",
    "mem",
)
MASKS = (
    "mask", "attn_mask", "attention_mask", "src_mask", "tgt_mask", "trg_mask", "causal_mask", "bias_mask",
    "attn_bias", "look_ahead_mask", "self_attn_mask", "self_mask", "target_mask", "slf_attn_mask",
)  # fmt: skip
CAUSAL_FLAGS = ("causal", "is_causal", "use_causal_mask")
# padding masks: whether True (or 1) means a real token
PADDING_MASKS = {
    "token_mask": True, "attention_mask": True, "padding_mask": False, "key_padding_mask": False,
    "src_key_padding_mask": False, "tgt_key_padding_mask": False, "pad_mask": False, "target_token_mask": True,
    "decoder_attention_mask": True, "input_mask": True, "valid": True, "valid_mask": True,
}  # fmt: skip
# the same for the input of an encoder, or for what a decoder attends to
SOURCE_PADDING_MASKS = {
    "source_token_mask": True, "attention_mask": True, "encoder_attention_mask": True, "src_key_padding_mask": False,
    "memory_key_padding_mask": False, "memory_token_mask": True,
}  # fmt: skip
SOURCE_MASKS = (
    "src_mask", "source_mask", "memory_mask", "enc_mask", "encoder_mask", "src_padding_mask", "cross_mask",
    "cross_attn_mask", "dec_enc_attn_mask", "padding_mask", "pad_mask",
)  # fmt: skip
# where a piece begins; a module with such a parameter keeps its KV cache itself
OFFSETS = (
    "input_pos", "start_pos", "position", "offset", "start", "pos", "cache_position", "seq_offset", "past_length",
)  # fmt: skip
LABELS = ("targets", "labels", "target")

Parameters = Mapping[str, Parameter]
Fill = dict[str, Callable[[Tensor], Any]]  # a parameter's value, made from the input


# -- ways to call a module ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallForm:
    """One way to call a module on tokens or vectors.

    Args:
        size: the number of tokens, or the size of a vector.
        call: from the input and further keyword arguments to whatever the module returns.
    """

    words: str
    reads: Literal["tokens", "vectors"]
    size: int
    call: Callable[[Tensor, dict[str, Any]], Any]

    def sample(self, batch: int, length: int, dtype: torch.dtype) -> Tensor:
        """A fixed random input."""
        generator = torch.Generator().manual_seed(3)
        if self.reads == "tokens":
            return random_tokens(self.size, batch, length, generator)
        return torch.randn(batch, length, self.size, generator=generator, dtype=dtype)


def call_forms(module: nn.Module, parameters: Parameters) -> Iterator[CallForm]:
    """Every way that fits its parameter names, the sizes of its weights and its batch axis; likely ones first."""
    names = list(parameters)
    first = names[0].lower() if names else ""
    has_embedding = any(isinstance(child, nn.Embedding) for child in module.children())
    orders = [_token_forms(module, parameters), _vector_forms(module, parameters)]
    if not (first in TOKENS or has_embedding or "input_ids" in names):
        orders.reverse()
    for order in orders:
        yield from order


def _token_forms(module: nn.Module, parameters: Parameters) -> Iterator[CallForm]:
    size = find_vocab_size(module)
    if size is None:
        return
    names = list(parameters)
    for words, filled in fill_required(parameters, names[:1]):

        def call(x: Tensor, named: dict[str, Any], filled: Fill = filled) -> Any:
            return module(x, **{key: value(x) for key, value in filled.items() if key not in named}, **named)

        yield CallForm(f"tokens (b, t){words}", "tokens", size, call)
        for label in LABELS:  # code in the style of nanoGPT returns all logits only with labels
            if label in names:
                yield CallForm(
                    f"tokens (b, t){words}, {label}= the same",
                    "tokens",
                    size,
                    lambda x, named, call=call, label=label: call(x, {label: x, **named}),
                )
    if "input_ids" in names:
        yield CallForm("tokens (b, t) as input_ids", "tokens", size, lambda x, named: module(input_ids=x, **named))


def _vector_forms(module: nn.Module, parameters: Parameters) -> Iterator[CallForm]:
    names = list(parameters)
    takes_qkv = len(names) >= 3 and names[0].lower() in QUERIES
    inputs = names[: 3 if takes_qkv else 1]
    sequence_first = has_sequence_first(module)
    if takes_qkv:
        sequence_first = getattr(module, "batch_first", True) is False
    axes = "(t, b, c)" if sequence_first else "(b, t, c)"
    role = " as query, key and value" if takes_qkv else ""
    for words, filled in fill_required(parameters, inputs):

        def call(x: Tensor, named: dict[str, Any], filled: Fill = filled) -> Any:
            more = {key: value(x) for key, value in filled.items() if key not in named} | named
            if not sequence_first:
                return module(*[x] * len(inputs), **more)
            result = module(*[x.transpose(0, 1)] * len(inputs), **more)
            if isinstance(result, Tensor):
                return result.transpose(0, 1)
            return (result[0].transpose(0, 1), *result[1:])

        for dim in find_dims(module):
            yield CallForm(f"vectors {axes}{role}{words}", "vectors", dim, call)
    for dim in find_dims(module)[:1]:
        yield CallForm(
            f"vectors (t, c){role}, one sequence at a time",
            "vectors",
            dim,
            lambda x, named: torch.stack([first_tensor(module(*[row] * len(inputs), **named)) for row in x]),
        )


def fill_required(parameters: Parameters, given: list[str]) -> Iterator[tuple[str, Fill]]:
    """Values for parameters without a default: None for masks and the like, or masks that allow everything."""
    required = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and name not in given
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    known: Fill = {}
    for name in required:
        if name in ("input_pos", "cache_position"):
            known[name] = lambda x: torch.arange(x.shape[1])
        elif name in OFFSETS:
            known[name] = lambda x: 0
        elif name in CAUSAL_FLAGS:
            known[name] = lambda x: False
    masks = [name for name in required if name in (*MASKS, *PADDING_MASKS, *SOURCE_MASKS)]
    rest: Fill = {name: lambda x: None for name in required if name not in known and name not in masks}
    words = "".join(f", {name}=None" for name in required if name not in OFFSETS)
    yield words, known | rest | {name: lambda x: None for name in masks}
    if masks:
        for words, full_mask in FULL_MASKS.items():
            yield f", {', '.join(masks)}= {words}", known | rest | dict.fromkeys(masks, full_mask)


FULL_MASKS: Fill = {
    "(t, t) all True": lambda x: torch.ones(x.shape[1], x.shape[1], dtype=torch.bool),
    "(b, 1, t, t) all True": lambda x: torch.ones(x.shape[0], 1, x.shape[1], x.shape[1], dtype=torch.bool),
    "(b, t) all True": lambda x: torch.ones(x.shape[:2], dtype=torch.bool),
    "(t, t) all 1": lambda x: torch.ones(x.shape[1], x.shape[1]),
    "(b, t) all 1": lambda x: torch.ones(x.shape[:2], dtype=torch.long),
}


def padding_argument(parameter: str, token_mask: Tensor, table: dict[str, bool]) -> Tensor:
    """A padding argument with the polarity that its name says; an attention_mask takes integers."""
    mask = token_mask if table[parameter] else ~token_mask
    return mask.long() if parameter.endswith("attention_mask") else mask


def find_vocab_size(module: nn.Module) -> int | None:
    """The vocabulary size by its config, its attributes, or its embedding that is not one of positions."""
    config = getattr(module, "config", None)
    for holder in (config, getattr(config, "text_config", None), module):
        for name in ("vocab_size", "vocab", "n_vocab"):
            if isinstance(size := getattr(holder, name, None), int):
                return size
    tables = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Embedding)]
    likely = [part for name, part in tables if "pos" not in name.lower()]
    return (likely or [part for _, part in tables])[0].num_embeddings if tables else None


def find_dims(module: nn.Module) -> list[int]:
    """The possible sizes of its vectors, likely ones first."""
    found: list[int] = []
    for name in ("embed_dim", "d_model", "width", "dim", "hidden_size", "n_embd"):
        if isinstance(size := getattr(module, name, None), int):
            found.append(size)
    for part in module.modules():
        if isinstance(part, nn.LayerNorm | nn.RMSNorm):
            found.append(part.normalized_shape[-1])
        elif isinstance(part, nn.Linear):
            found.append(part.in_features)
    if not found:
        found = [size for parameter in module.parameters() for size in parameter.shape if 1 < size <= 4096]
    return list(dict.fromkeys(found))[:6]


def has_sequence_first(module: nn.Module) -> bool:
    """Whether a part of it says batch_first=False."""
    return any(getattr(part, "batch_first", True) is False for part in module.modules())


# -- outputs -----------------------------------------------------------------------------------------------------------

OUTPUT_NAMES = ("logits", "last_hidden_state", "prediction_logits", "hidden_states", "output", "out")


def find_output(result: Any, batch: int, tokens: int) -> Tensor | None:
    """The first output that has a row for each token: (b, t, …)."""
    return _find_tensor(result, lambda part: part.ndim >= 2 and tuple(part.shape[:2]) == (batch, tokens))


def find_image_output(result: Any, batch: int) -> Tensor | None:
    """The output of an image model as (b, rows, features): maps are flattened, one vector is one row."""
    found = _find_tensor(result, lambda part: part.ndim >= 2 and part.shape[0] == batch)
    if found is None or found.ndim == 3:
        return found
    return found[:, None] if found.ndim == 2 else found.flatten(2).transpose(1, 2)


def _find_tensor(result: Any, fits: Callable[[Tensor], bool]) -> Tensor | None:
    """The first floating-point tensor that fits; outputs with the usual names go first."""
    if isinstance(result, Tensor):
        return result if result.is_floating_point() and fits(result) else None
    named = result if isinstance(result, dict) else None
    if named is None and any(isinstance(getattr(result, name, None), Tensor) for name in OUTPUT_NAMES):
        named = {name: getattr(result, name, None) for name in OUTPUT_NAMES}  # any object with the usual names
    if named is not None:
        parts = [named[name] for name in OUTPUT_NAMES if named.get(name) is not None] + list(named.values())
    elif isinstance(result, tuple | list):
        parts = list(result)
    else:
        return None
    return next((out for part in parts if (out := _find_tensor(part, fits)) is not None), None)


def first_tensor(result: Any) -> Tensor:
    """The result, or its first element if more is returned."""
    return result if isinstance(result, Tensor) else result[0]


def differentiable_outputs(result: Any) -> list[Tensor]:
    """All outputs that have a gradient."""
    if isinstance(result, Tensor):
        return [result] if result.is_floating_point() and result.requires_grad else []
    if isinstance(result, dict):
        result = list(result.values())
    if not isinstance(result, tuple | list):
        return []
    return [out for part in result for out in differentiable_outputs(part)]
