"""Attention with an edit: the same calls that a model makes, with another β, cut edges, patterns and silenced heads.

Axes: b batch · h heads · t queries · s keys · d head width · c model width.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.interp.intervention.edits import Edit
from qkv.interp.traces.lazy_weights import Recipe
from qkv.nn.attention import attend, attention
from qkv.nn.heads import merge_heads, split_heads
from qkv.nn.masks import Dense, as_mask

ATTENTION = inspect.signature(attention)
MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)


def edited_attention(edit: Edit, cross: bool | None, *args: Any, **kwargs: Any) -> Any:
    """`qkv.attention`, edited."""
    given = ATTENTION.bind(*args, **kwargs)
    given.apply_defaults()
    asked = dict(given.arguments)
    q, k, v = asked.pop("q"), asked.pop("k"), asked.pop("v")
    heads, t, s = q.shape[1] if q.ndim == 4 else 1, q.shape[-2], k.shape[-2]
    own = q.shape[-1] ** -0.5 if asked["beta"] is None else asked["beta"]
    asked["beta"] = _to(edit.beta(own, heads), q)
    edges = edit.edges(heads, t, s, 0 if cross else max(s - t, 0), q.device)
    if edges is not None:
        kept = ~edges if q.ndim == 4 else ~edges[0]
        asked["allowed"] = Dense(kept) if asked["allowed"] is None else as_mask(asked["allowed"]) & Dense(kept)
    if not edit.patterns:
        result = attention(q, k, v, **asked)
        return (_silenced(edit, result[0]), result[1]) if asked["weights"] else _silenced(edit, result)
    _, weights = attention(q, k, v, **{**asked, "weights": True})
    weights = edit.replaced(weights.unsqueeze(1) if q.ndim == 3 else weights)
    out = attend(weights, v.unsqueeze(1) if q.ndim == 3 else v, asked["dropout"])
    out, weights = (x.squeeze(1) if q.ndim == 3 else x for x in (edit.silenced(out), weights))
    return (out, weights) if asked["weights"] else out


def edited_dot_product(
    edit: Edit,
    cross: bool | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """scaled_dot_product_attention, edited; with heads silenced alone or another β alone it is the same kernel call."""
    own = q.shape[-1] ** -0.5 if scale is None else scale
    heads, t, s = q.shape[1] if q.ndim == 4 else 1, q.shape[-2], k.shape[-2]
    beta = _to(edit.beta(own, heads), q)
    if isinstance(beta, Tensor):
        q, scale = (q * (beta / own)).to(q.dtype), own
    elif beta != own:
        q, scale = (q, beta) if beta > 1e-30 else (q * beta, 1.0)  # the causal kernel is NaN for a scale of 0 or below
    if not edit.cuts and not edit.patterns:
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return _silenced(edit, out)
    allowed = torch.ones(t, s, dtype=torch.bool, device=q.device).tril() if is_causal else None
    bias = None
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        allowed = attn_mask if allowed is None else allowed & attn_mask
    elif attn_mask is not None:
        bias = attn_mask
    quiet = Edit(silent=edit.silent, cuts=edit.cuts, patterns=edit.patterns)
    scale = own if scale is None else scale
    return edited_attention(quiet, cross, q, k, v, beta=scale, allowed=allowed, bias=bias, dropout=dropout_p)


def edited_multi_head(edit: Edit, cross: bool | None, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """nn.MultiheadAttention's function, edited: project, attend, project, as its slow path does."""
    bound = MULTI_HEAD.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    for name in ("bias_k", "bias_v", "static_k", "static_v"):
        if given[name] is not None:
            raise ValueError(f"an nn.MultiheadAttention with {name} cannot be changed; one without it can")
    if given["add_zero_attn"]:
        raise ValueError("an nn.MultiheadAttention with add_zero_attn cannot be changed; one without it can")
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
    bias = _torch_bias(given["attn_mask"], given["key_padding_mask"], q, k)
    dropout = given["dropout_p"] if given["training"] else 0.0
    out, weights = edited_attention(edit, cross, q, k, v, bias=bias, dropout=dropout, weights=True)
    out = F.linear(merge_heads(out), given["out_proj_weight"], given["out_proj_bias"])
    out = out.transpose(0, 1) if batched else out[0]
    weights = weights.mean(1) if given["average_attn_weights"] else weights
    return out, (weights if batched else weights[0]) if given["need_weights"] else None


def edited_softmax(edit: Edit, cross: bool | None, scores: Tensor, recipe: Recipe | None, heads: int | None) -> Tensor:
    """The softmax over the last axis of hand-written scores (b, h, t, s) or (b·h, t, s), edited."""
    shape = scores.shape
    if scores.ndim == 3:
        scores = scores.unflatten(0, (-1, heads or 1))
    scores = scores.flatten(1, -3)
    count, t, s = scores.shape[1:]
    if edit.betas:
        scores = scores + _another_beta(edit, recipe, scores)
    keys = s if recipe is None or recipe.sink is None else s - 1
    edges = edit.edges(count, t, s, 0 if cross else max(keys - t, 0), scores.device)
    nothing = None
    if edges is not None:
        scores = scores.masked_fill(edges, float("-inf"))
        nothing = scores.isneginf().all(-1, keepdim=True)
        scores = scores.masked_fill(nothing, 0.0)
    weights = scores.softmax(-1)
    weights = weights if nothing is None else weights.masked_fill(nothing, 0.0)
    return edit.silenced(edit.replaced(weights)).reshape(shape)


def _another_beta(edit: Edit, recipe: Recipe | None, scores: Tensor) -> Tensor:
    """What another β adds to scores that are β q·k and more."""
    if recipe is None:
        raise ValueError("this layer's scores are not a product of queries and keys: it has no beta to change")
    _, h, _, s = recipe.shape
    keys = recipe.keys.repeat_interleave(h // recipe.keys.shape[1], dim=1)
    product = recipe.queries @ keys.mT

    def scaled(beta: float | Tensor) -> Tensor:
        product_scaled = product * _to(beta, product)
        return (
            product_scaled if recipe.softcap is None else torch.tanh(product_scaled / recipe.softcap) * recipe.softcap
        )

    more = scaled(edit.beta(recipe.scale, h)) - scaled(recipe.scale)
    more = F.pad(more, (0, scores.shape[-1] - s)) if scores.shape[-1] > s else more  # a sink has no key
    return more.reshape(scores.shape).to(scores.dtype)


def _torch_bias(mask: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """nn.MultiheadAttention's masks as what is added to the scores; where they are boolean, True forbids."""
    bias = None
    if mask is not None:
        mask = mask.unflatten(0, q.shape[:2]) if mask.ndim == 3 else mask
        bias = _forbidding(mask, q)
    if padding is not None:
        padding = padding if padding.ndim == 2 else padding[None]
        more = _forbidding(padding, q)[:, None, None, :]
        bias = more if bias is None else bias + more
    return bias


def _forbidding(mask: Tensor, q: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(q.dtype)
    return torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, float("-inf"))


def _silenced(edit: Edit, out: Tensor) -> Tensor:
    return edit.silenced(out) if out.ndim == 4 else edit.silenced(out.unsqueeze(1)).squeeze(1)


def _to(beta: float | Tensor, q: Tensor) -> float | Tensor:
    return beta.to(q) if isinstance(beta, Tensor) else beta
