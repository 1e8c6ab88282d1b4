"""The operators that are a whole attention, and how to read their arguments.

Axes: b batch · h heads · t queries · s keys · d head width · c model width.

Arguments are read by the names that their schema gives them, so one reader serves every kernel of
scaled_dot_product_attention, those of devices that this was never run on included.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from qkv.interp.recording.score import Understand
from qkv.interp.recording.structure import four_axes, mask_of, without_copies
from qkv.interp.traces.lazy_weights import Derived, Projected, Recipe, Source
from qkv.nn.masks import Band, Both, Mask, PaddingMask

Reader = Callable[[dict[str, Any], Understand], Source]

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
OPAQUE = re.compile(r"attention|attn|mha", re.IGNORECASE)  # an operator of such a name that no reader knows is refused
HARMLESS = re.compile(r"backward|_fused_sdp_choice|mask|dropout", re.IGNORECASE)


def read_dot_product(given: dict[str, Any], understand: Understand) -> Source:
    """scaled_dot_product_attention's kernels: queries (b, h, t, d), keys (b, g, s, d)."""
    q, k = given["query"], given["key"]
    t, s = q.shape[-2], k.shape[-2]
    masks: list[Mask] = []
    bias, floor = None, float("-inf")
    if given.get("is_causal"):
        masks.append(Band(t, s, None, t - s))  # the kernels count from the first query and the first key
    added = given.get("attn_mask", given.get("attn_bias"))
    if added is not None and added.dtype == torch.bool:
        mask = mask_of(added.clone(), t, s)  # the model's own tensor may be written over
        masks += [] if mask is None else [mask]
    elif added is not None:
        seen = understand(four_axes(added), added, t, s)
        masks += [] if seen.mask is None else [seen.mask]
        bias, floor = seen.bias, seen.floor
    scale = given.get("scale")
    q, k = (x if x.ndim == 4 else x.unsqueeze(1) for x in (q, k))
    return Recipe(
        q,
        without_copies(k),
        scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
        mask=None if not masks else masks[0] if len(masks) == 1 else Both.of(*masks),
        floor=floor,
        bias=bias,
    )


def read_fused_layer(given: dict[str, Any], understand: Understand) -> Source:
    """nn.MultiheadAttention's and nn.TransformerEncoderLayer's fused operators: their input and their projection."""
    source = given["query"] if "query" in given else given["src"]
    heads = given["num_head"] if "num_head" in given else given["num_heads"]
    memory = given.get("key", source)
    lengths = _lengths(source) if source.is_nested else None
    source, memory = (x.to_padded_tensor(0.0) if x.is_nested else x for x in (source, memory))
    masks: list[Mask] = []
    if lengths is not None:
        places = torch.arange(source.shape[1], device=source.device)
        masks.append(PaddingMask(places < lengths[:, None].to(source.device)))
    if given.get("mask") is not None:
        masks.extend(_fused_mask(given["mask"], given.get("mask_type"), source.shape[1], memory.shape[1]))
    norm = None
    if given.get("norm_first"):
        weight, bias = (given[name].detach().clone() for name in ("norm_weight_1", "norm_bias_1"))
        norm = partial(_normed, weight=weight, bias=bias, eps=given["eps"])
    weights, biases = given["qkv_weight"].detach().chunk(3), given["qkv_bias"].detach().chunk(3)
    query, key = (
        Projected(x.detach().clone(), weights[i].clone(), biases[i].clone(), heads, norm)
        for i, x in enumerate((source, memory))
    )
    return Derived(query, key, None if not masks else masks[0] if len(masks) == 1 else Both.of(*masks))


def kernel_values(given: dict[str, Any]) -> Tensor:
    """The values (b, g, s, d) of a whole attention; of fused operators they are made, as their queries are."""
    if "qkv_weight" not in given:
        values = given["value"]
        return without_copies(values if values.ndim == 4 else values.unsqueeze(1))
    source = given["src"] if "src" in given else given["value"]
    heads = given["num_head"] if "num_head" in given else given["num_heads"]
    source = source.to_padded_tensor(0.0) if source.is_nested else source
    if given.get("norm_first"):
        source = _normed(source, given["norm_weight_1"], given["norm_bias_1"], given["eps"])
    weight, bias = given["qkv_weight"].detach().chunk(3)[2], given["qkv_bias"].detach().chunk(3)[2]
    return Projected(source.detach(), weight, bias, heads).tensor


SUFFIX = {"_transformer_encoder_layer_fwd": "self_attn"}  # operators that stand for a layer whose part is the attention

READERS: dict[str, Reader] = {
    "scaled_dot_product_attention": read_dot_product,
    "_scaled_dot_product_flash_attention_for_cpu": read_dot_product,
    "_scaled_dot_product_flash_attention": read_dot_product,
    "_scaled_dot_product_efficient_attention": read_dot_product,
    "_scaled_dot_product_cudnn_attention": read_dot_product,
    "_scaled_dot_product_fused_attention_overrideable": read_dot_product,
    "_scaled_dot_product_attention_math_for_mps": read_dot_product,
    "_native_multi_head_attention": read_fused_layer,
    "_transformer_encoder_layer_fwd": read_fused_layer,
}


def reader_of(operator: Any) -> Reader | None:
    """How to read this operator, if it is an attention; a ValueError if it is one that cannot be read."""
    namespace, name = operator.namespace, operator.__name__.split(".")[0]
    if namespace == "aten" and name in READERS:
        return READERS[name]
    if OPAQUE.search(name) and not HARMLESS.search(name):
        raise ValueError(
            f"the model calls {namespace}::{name}, an attention kernel whose weights cannot be derived from its "
            "arguments; use the model's eager or scaled_dot_product_attention variant to record it"
        )
    return None


@cache
def is_composite(operator: Any) -> bool:
    """Whether an operator is made of others by PyTorch itself: in inference mode such are seen before their parts."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), COMPOSITE)


def in_parts(operator: Any, *arguments: Any, **named: Any) -> Any:
    """Run a composite operator so that its parts are seen: the same kernel that would have run."""
    return operator._op_dk(COMPOSITE, *arguments, **named)


def bound(operator: Any, arguments: tuple, named: dict[str, Any]) -> dict[str, Any]:
    """An operator's arguments by name."""
    names = (argument.name for argument in operator._schema.arguments)
    return {**dict(zip(names, arguments, strict=False)), **named}


def _lengths(nested: Tensor) -> Tensor:
    return nested._nested_tensor_size()[:, 0]


def _normed(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return torch.nn.functional.layer_norm(x, weight.shape, weight.to(x), bias.to(x), eps)


def _fused_mask(mask: Tensor, kind: int | None, t: int, s: int) -> list[Mask]:
    """The operators' own masks forbid where they are not 0: (t, s), or (b, s) if the kind is 1, or (b, h, t, s)."""
    forbidden = mask != 0
    forbidden = forbidden[:, None, None, :] if kind == 1 else forbidden
    found = mask_of(~forbidden, t, s)
    return [] if found is None else [found]
