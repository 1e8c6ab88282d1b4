"""Read fused attention kernels: scaled_dot_product_attention, nn.MultiheadAttention and the fused encoder layer.

Axes: b batch · h heads · g key heads · t queries · s keys · d head dim · c model dim.

Arguments are read by the names in the operator's schema, so one reader serves every kernel of
scaled_dot_product_attention, also on devices where this was never run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from qkv.interp.lazy_weights import FusedWeights, LazyWeights, ProjectedHeads, WeightSource
from qkv.interp.recording.mask_structure import AnalyzeBias, deduplicate_heads, find_mask, four_axes, join_masks
from qkv.nn.masks import BandMask, Mask, PaddingMask

Reader = Callable[[dict[str, Any], AnalyzeBias], WeightSource]

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
OPAQUE = re.compile(r"attention|attn|mha", re.IGNORECASE)  # an operator with such a name and no reader is refused
HARMLESS = re.compile(r"backward|_fused_sdp_choice|mask|dropout", re.IGNORECASE)


def read_sdpa(arguments: dict[str, Any], analyze_bias: AnalyzeBias) -> WeightSource:
    """The kernels of scaled_dot_product_attention: queries (b, h, t, d), keys (b, g, s, d)."""
    q, k = arguments["query"], arguments["key"]
    t, s = q.shape[-2], k.shape[-2]
    masks: list[Mask | None] = []
    bias, mask_value = None, float("-inf")
    if arguments.get("is_causal"):
        masks.append(BandMask(t, s, None, t - s))  # the kernels align the first query with the first key
    added = arguments.get("attn_mask", arguments.get("attn_bias"))
    if added is not None and added.dtype == torch.bool:
        masks.append(find_mask(added.clone(), t, s))  # a copy: the model may overwrite its own tensor
    elif added is not None:
        analyzed = analyze_bias(four_axes(added), added, t, s)
        masks.append(analyzed.mask)
        bias, mask_value = analyzed.bias, analyzed.mask_value
    scale = arguments.get("scale")
    q, k = (x if x.ndim == 4 else x.unsqueeze(1) for x in (q, k))
    return LazyWeights(
        q,
        deduplicate_heads(k),
        scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
        mask=join_masks(masks),
        mask_value=mask_value,
        bias=bias,
    )


def read_fused_layer(arguments: dict[str, Any], analyze_bias: AnalyzeBias) -> WeightSource:
    """The fused operators of nn.MultiheadAttention and nn.TransformerEncoderLayer: their input and projection."""
    source = arguments["query"] if "query" in arguments else arguments["src"]
    heads = _head_count(arguments)
    memory = arguments.get("key", source)
    lengths = source._nested_tensor_size()[:, 0] if source.is_nested else None
    source, memory = _to_padded(source), _to_padded(memory)
    masks: list[Mask | None] = []
    if lengths is not None:
        positions = torch.arange(source.shape[1], device=source.device)
        masks.append(PaddingMask(positions < lengths[:, None].to(source.device)))
    if arguments.get("mask") is not None:
        # The operators' own masks forbid where they are not 0: (t, s), (b, s) if mask_type is 1, or (b, h, t, s).
        forbidden = arguments["mask"] != 0
        forbidden = forbidden[:, None, None, :] if arguments.get("mask_type") == 1 else forbidden
        masks.append(find_mask(~forbidden, source.shape[1], memory.shape[1]))
    norm = None
    if arguments.get("norm_first"):
        weight, bias = (arguments[name].detach().clone() for name in ("norm_weight_1", "norm_bias_1"))
        norm = partial(_layer_norm, weight=weight, bias=bias, eps=arguments["eps"])
    weights, biases = arguments["qkv_weight"].detach().chunk(3), arguments["qkv_bias"].detach().chunk(3)
    query, key = (
        ProjectedHeads(x.detach().clone(), weights[i].clone(), biases[i].clone(), heads, norm)
        for i, x in enumerate((source, memory))
    )
    return FusedWeights(query, key, join_masks(masks))


def read_values(arguments: dict[str, Any]) -> Tensor:
    """The values (b, g, s, d) of a fused attention; for fused layers they are projected from the input."""
    if "qkv_weight" not in arguments:
        values = arguments["value"]
        return deduplicate_heads(values if values.ndim == 4 else values.unsqueeze(1))
    source = _to_padded(arguments["src"] if "src" in arguments else arguments["value"])
    if arguments.get("norm_first"):
        source = _layer_norm(source, arguments["norm_weight_1"], arguments["norm_bias_1"], arguments["eps"])
    weight, bias = (arguments[name].detach().chunk(3)[2] for name in ("qkv_weight", "qkv_bias"))
    return ProjectedHeads(source.detach(), weight, bias, _head_count(arguments)).tensor


def _head_count(arguments: dict[str, Any]) -> int:
    return arguments["num_head"] if "num_head" in arguments else arguments["num_heads"]


def _to_padded(x: Tensor) -> Tensor:
    return x.to_padded_tensor(0.0) if x.is_nested else x


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return torch.nn.functional.layer_norm(x, weight.shape, weight.to(x), bias.to(x), eps)


SUFFIX = {"_transformer_encoder_layer_fwd": "self_attn"}  # operators that are a whole layer: the attention's name in it

READERS: dict[str, Reader] = {
    "scaled_dot_product_attention": read_sdpa,
    "_scaled_dot_product_flash_attention_for_cpu": read_sdpa,
    "_scaled_dot_product_flash_attention": read_sdpa,
    "_scaled_dot_product_efficient_attention": read_sdpa,
    "_scaled_dot_product_cudnn_attention": read_sdpa,
    "_scaled_dot_product_fused_attention_overrideable": read_sdpa,
    "_scaled_dot_product_attention_math_for_mps": read_sdpa,
    "_native_multi_head_attention": read_fused_layer,
    "_transformer_encoder_layer_fwd": read_fused_layer,
}


def find_reader(operator: Any) -> Reader | None:
    """The reader of a fused attention operator; None for others; a ValueError for attention that cannot be read."""
    namespace, name = operator.namespace, operator.__name__.split(".")[0]
    if namespace == "aten" and name in READERS:
        return READERS[name]
    if OPAQUE.search(name) and not HARMLESS.search(name):
        raise ValueError(
            f"the model calls {namespace}::{name}, an attention kernel whose weights cannot be computed from its "
            "arguments; use the model's eager or scaled_dot_product_attention variant to record it"
        )
    return None


@cache
def is_composite(operator: Any) -> bool:
    """Whether PyTorch itself composes the operator of others: in inference mode it is seen before its parts."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), COMPOSITE)


def run_decomposed(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a composite operator so that its parts are seen; the same kernels run."""
    return operator._op_dk(COMPOSITE, *args, **kwargs)


def bind_arguments(operator: Any, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """An operator's arguments by name."""
    names = (argument.name for argument in operator._schema.arguments)
    return {**dict(zip(names, args, strict=False)), **kwargs}
