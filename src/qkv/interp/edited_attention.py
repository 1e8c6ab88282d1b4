"""Apply interventions inside attention: each kernel or layer computed with its edits (used by intervention.py).

Axes: b batch · h heads · t queries · s keys · d head dim · c model dim.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from qkv.interp.lazy_weights import LazyWeights
from qkv.nn.attention import apply_weights, attention
from qkv.nn.masks import DenseMask, as_mask
from qkv.nn.shapes import merge_heads, split_heads

LayerKey = int | str  # a layer, by its index or its name
HeadKey = int | None  # None means all heads
Scale = float | Mapping[LayerKey, float] | Mapping[tuple[LayerKey, HeadKey], float]
Pattern = Tensor | Callable[[Tensor], Tensor]

ATTENTION = inspect.signature(attention)
MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)


@dataclass(eq=False)
class Edge:
    """An edge to mask. largest: the numbers of queries and keys of the longest call; reached: whether it was in one."""

    head: HeadKey
    query: int
    key: int
    reached: bool = False
    largest: tuple[int, int] = (0, 0)


@dataclass(eq=False)
class LayerEdit:
    """The edits of one layer."""

    scales: dict[HeadKey, float] = field(default_factory=dict)
    ablated: list[HeadKey] = field(default_factory=list)
    masked_edges: list[Edge] = field(default_factory=list)
    patterns: dict[HeadKey, Pattern] = field(default_factory=dict)

    def scale(self, own: float | Tensor, heads: int) -> float | Tensor:
        """The layer's scale: a number if all heads share it, otherwise (h, 1, 1)."""
        if not self.scales:
            return own
        if list(self.scales) == [None]:
            return self.scales[None]
        scale = torch.as_tensor(self.scales.get(None, own), dtype=torch.float64).expand(heads, 1, 1).clone()
        for head, number in self.scales.items():
            if head is not None:
                scale[_check_head(head, heads)] = number
        return scale

    def edges(self, heads: int, t: int, s: int, shift: int, device: torch.device) -> Bool[Tensor, "h t s"] | None:
        """The edges to mask; query i of this call is query i + shift of the text."""
        if not self.masked_edges:
            return None
        edges = torch.zeros(heads, t, s, dtype=torch.bool, device=device)
        for edge in self.masked_edges:
            edge.largest = max(edge.largest, (t + shift, s))
            if 0 <= edge.query - shift < t and 0 <= edge.key < s:
                head = slice(None) if edge.head is None else _check_head(edge.head, heads)
                edges[head, edge.query - shift, edge.key] = True
                edge.reached = True
        return edges

    def ablate(self, x: Float[Tensor, "b h t e"]) -> Float[Tensor, "b h t e"]:
        """Set the ablated heads' weights or outputs to 0."""
        if not self.ablated:
            return x
        flags = torch.zeros(x.shape[1], dtype=torch.bool, device=x.device)
        for head in self.ablated:
            flags[slice(None) if head is None else _check_head(head, x.shape[1])] = True
        return x.masked_fill(flags[:, None, None], 0.0)

    def replace_patterns(self, weights: Float[Tensor, "b h t s"]) -> Float[Tensor, "b h t s"]:
        """Replace the weights of the heads that have a pattern."""
        if not self.patterns:
            return weights
        heads = list(weights.unbind(1))
        for head, pattern in self.patterns.items():
            for each in range(len(heads)) if head is None else [_check_head(head, len(heads))]:
                new = pattern(heads[each]) if callable(pattern) else pattern.to(heads[each])
                if new.shape[-2:] != heads[each].shape[-2:]:
                    raise ValueError(
                        f"the pattern of head {each} must be (queries, keys) = {tuple(heads[each].shape[-2:])}; got "
                        f"{tuple(new.shape)}"
                    )
                heads[each] = new.expand_as(heads[each])
        return torch.stack(heads, dim=1)


class EditTable:
    """All edits of an intervention, sorted by layer."""

    def __init__(
        self,
        ablate_heads: Iterable[tuple[LayerKey, HeadKey]],
        mask_edges: Iterable[tuple[LayerKey, HeadKey, int, int]],
        scale: Scale | None,
        pattern: Mapping[tuple[LayerKey, HeadKey], Pattern],
    ) -> None:
        self.layers: dict[LayerKey | None, LayerEdit] = {}
        self.used: set[LayerKey | None] = set()  # keys that matched a layer which ran
        for (layer, head), number in _scales_by_head(scale).items():
            self._edit(layer).scales[head] = number
        for layer, head in _check_tuples(ablate_heads, "ablate_heads", "(layer, head)", "[(0, 1)]"):
            self._edit(layer).ablated.append(head)
        edges = _check_tuples(mask_edges, "mask_edges", "(layer, head, query, key)", "[(0, 1, 5, 2)]")
        for layer, head, query, key in edges:
            self._edit(layer).masked_edges.append(Edge(head, query, key))
        for (layer, head), weights in pattern.items():
            self._edit(layer).patterns[head] = weights

    def _edit(self, layer: LayerKey | None) -> LayerEdit:
        return self.layers.setdefault(layer, LayerEdit())

    def __bool__(self) -> bool:
        return bool(self.layers)

    @property
    def names(self) -> list[str]:
        return [layer for layer in self.layers if isinstance(layer, str)]

    def find(self, index: int, is_inside: Callable[[str], bool]) -> LayerEdit | None:
        """The edits of the layer that ran as number `index`, inside modules for which `is_inside` is true."""
        keys = [
            layer
            for layer in self.layers
            if layer is None or layer == index or (isinstance(layer, str) and is_inside(layer))
        ]
        self.used.update(keys)
        if len(keys) < 2:
            return self.layers[keys[0]] if keys else None
        merged = LayerEdit()
        for edit in (self.layers[key] for key in keys):
            merged.scales.update(edit.scales)
            merged.ablated.extend(edit.ablated)
            merged.masked_edges.extend(edit.masked_edges)
            merged.patterns.update(edit.patterns)
        return merged


def _check_tuples(items: Iterable[Any], name: str, form: str, example: str) -> list[tuple[Any, ...]]:
    """The items of an argument; a ValueError with an example if one is not a tuple of that form."""
    found = list(items)
    for item in found:
        if not isinstance(item, tuple | list) or len(item) != form.count(",") + 1:
            raise ValueError(f"{name} must be a list of {form}, such as {example}; got {item!r} in it")
    return found


def _scales_by_head(scale: Scale | None) -> dict[tuple[LayerKey | None, HeadKey], float]:
    if scale is None:
        return {}
    if not isinstance(scale, Mapping):
        return {(None, None): float(scale)}
    return {(key if isinstance(key, tuple) else (key, None)): float(number) for key, number in scale.items()}


def _check_head(head: int, heads: int) -> int:
    if not 0 <= head < heads:
        raise ValueError(f"the layer has {heads} heads, 0 to {heads - 1}; got head {head}")
    return head


def edited_attention(edit: LayerEdit, cross: bool | None, *args: Any, **kwargs: Any) -> Any:
    """`qkv.attention` with edits."""
    bound = ATTENTION.bind(*args, **kwargs)
    bound.apply_defaults()
    options = dict(bound.arguments)
    q, k, v = options.pop("query"), options.pop("key"), options.pop("value")
    has_heads = q.ndim == 4
    heads, t, s = q.shape[1] if has_heads else 1, q.shape[-2], k.shape[-2]
    own = q.shape[-1] ** -0.5 if options["scale"] is None else options["scale"]
    options["scale"] = _to(edit.scale(own, heads), q)
    edges = edit.edges(heads, t, s, 0 if cross else max(s - t, 0), q.device)
    if edges is not None:
        kept = DenseMask(~edges if has_heads else ~edges[0])
        options["mask"] = kept if options["mask"] is None else as_mask(options["mask"]) & kept
    if not edit.patterns:
        result = attention(q, k, v, **options)
        if options["return_weights"]:
            return _ablate_output(edit, result[0]), result[1]
        return _ablate_output(edit, result)
    _, weights = attention(q, k, v, **{**options, "return_weights": True})
    if not has_heads:
        weights, v = weights.unsqueeze(1), v.unsqueeze(1)
    weights = edit.replace_patterns(weights)
    out = edit.ablate(apply_weights(weights, v, options["dropout_p"]))
    if not has_heads:
        out, weights = out.squeeze(1), weights.squeeze(1)
    return (out, weights) if options["return_weights"] else out


def edited_sdpa(
    edit: LayerEdit,
    cross: bool | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """scaled_dot_product_attention with edits; ablated heads or another scale alone keep the same kernel call."""
    own = query.shape[-1] ** -0.5 if scale is None else scale
    heads, t, s = query.shape[1] if query.ndim == 4 else 1, query.shape[-2], key.shape[-2]
    new = _to(edit.scale(own, heads), query)
    if isinstance(new, Tensor):
        query, scale = (query * (new / own)).to(query.dtype), own
    elif new != own and new > 1e-30:
        scale = new
    elif new != own:
        query, scale = query * new, 1.0  # the causal kernel returns NaN for a scale of 0 or below
    if not edit.masked_edges and not edit.patterns:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return _ablate_output(edit, out)
    mask = torch.ones(t, s, dtype=torch.bool, device=query.device).tril() if is_causal else None
    bias = None
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        mask = attn_mask if mask is None else mask & attn_mask
    elif attn_mask is not None:
        bias = attn_mask
    unscaled = LayerEdit(ablated=edit.ablated, masked_edges=edit.masked_edges, patterns=edit.patterns)
    scale = own if scale is None else scale
    return edited_attention(unscaled, cross, query, key, value, mask, scale=scale, bias=bias, dropout_p=dropout_p)


def edited_multi_head(edit: LayerEdit, cross: bool | None, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """nn.MultiheadAttention's function with edits: project, attend, project, as its slow path does."""
    bound = MULTI_HEAD.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    unsupported = [name for name in ("bias_k", "bias_v", "static_k", "static_v") if given[name] is not None]
    unsupported += ["add_zero_attn"] if given["add_zero_attn"] else []
    if unsupported:
        raise ValueError(f"intervene does not support an nn.MultiheadAttention with {unsupported[0]}")
    batched = given["query"].ndim == 3
    inputs = [x if batched else x.unsqueeze(1) for x in (given["query"], given["key"], given["value"])]
    if given["use_separate_proj_weight"]:
        projections = [given[f"{name}_proj_weight"] for name in "qkv"]
    else:
        projections = given["in_proj_weight"].chunk(3)
    biases = (None, None, None) if given["in_proj_bias"] is None else given["in_proj_bias"].chunk(3)
    heads = given["num_heads"]
    q, k, v = (
        split_heads(F.linear(x, weight, bias).transpose(0, 1), heads)
        for x, weight, bias in zip(inputs, projections, biases, strict=True)
    )
    bias = _torch_masks_to_bias(given["attn_mask"], given["key_padding_mask"], q)
    dropout_p = given["dropout_p"] if given["training"] else 0.0
    out, weights = edited_attention(edit, cross, q, k, v, bias=bias, dropout_p=dropout_p, return_weights=True)
    out = F.linear(merge_heads(out), given["out_proj_weight"], given["out_proj_bias"])
    out = out.transpose(0, 1) if batched else out[0]
    if not given["need_weights"]:
        return out, None
    weights = weights.mean(1) if given["average_attn_weights"] else weights
    return out, weights if batched else weights[0]


def edited_softmax(
    edit: LayerEdit, cross: bool | None, scores: Tensor, lazy: LazyWeights | None, heads: int | None
) -> Tensor:
    """The softmax over the last axis of hand-written scores (b, h, t, s) or (b·h, t, s), with edits."""
    shape = scores.shape
    if scores.ndim == 3:
        scores = scores.unflatten(0, (-1, heads or 1))
    scores = scores.flatten(1, -3)
    count, t, s = scores.shape[1:]
    if edit.scales:
        scores = scores + _score_change(edit, lazy, scores)
    keys = s if lazy is None or lazy.sink is None else s - 1
    edges = edit.edges(count, t, s, 0 if cross else max(keys - t, 0), scores.device)
    if edges is None:
        weights = scores.softmax(-1)
    else:
        scores = scores.masked_fill(edges, float("-inf"))
        fully_masked = scores.isneginf().all(-1, keepdim=True)
        weights = scores.masked_fill(fully_masked, 0.0).softmax(-1).masked_fill(fully_masked, 0.0)
    return edit.ablate(edit.replace_patterns(weights)).reshape(shape)


def _score_change(edit: LayerEdit, lazy: LazyWeights | None, scores: Tensor) -> Tensor:
    """What to add to scores (scale · q·k and more) so that they have another scale."""
    if lazy is None:
        raise ValueError("this layer's scores are not a product of queries and keys: it has no scale to change")
    _, h, _, s = lazy.shape
    keys = lazy.keys.repeat_interleave(h // lazy.keys.shape[1], dim=1)
    product = lazy.queries @ keys.mT

    def scaled(scale: float | Tensor) -> Tensor:
        x = product * _to(scale, product)
        return x if lazy.softcap is None else torch.tanh(x / lazy.softcap) * lazy.softcap

    change = scaled(edit.scale(lazy.scale, h)) - scaled(lazy.scale)
    change = F.pad(change, (0, scores.shape[-1] - s)) if scores.shape[-1] > s else change  # a sink has no key
    return change.reshape(scores.shape).to(scores.dtype)


def _torch_masks_to_bias(mask: Tensor | None, padding: Tensor | None, q: Tensor) -> Tensor | None:
    """nn.MultiheadAttention's masks as one bias; in boolean masks True forbids."""
    bias = None
    if mask is not None:
        bias = _to_bias(mask.unflatten(0, q.shape[:2]) if mask.ndim == 3 else mask, q)
    if padding is not None:
        padding = padding if padding.ndim == 2 else padding[None]
        more = _to_bias(padding, q)[:, None, None, :]
        bias = more if bias is None else bias + more
    return bias


def _to_bias(mask: Tensor, q: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(q.dtype)
    return torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, float("-inf"))


def _ablate_output(edit: LayerEdit, out: Tensor) -> Tensor:
    return edit.ablate(out) if out.ndim == 4 else edit.ablate(out.unsqueeze(1)).squeeze(1)


def _to(scale: float | Tensor, q: Tensor) -> float | Tensor:
    return scale.to(q) if isinstance(scale, Tensor) else scale
