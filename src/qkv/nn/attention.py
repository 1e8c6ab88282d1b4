"""Scaled dot-product attention: softmax(scale · q·kᵀ + bias) v, masked, causal, with grouped-query heads.

Axes: b batch · h query heads · g key heads · t queries · s keys · d head dim · e value dim.

There are two paths with the same numbers. The explicit path computes the weights; the fused path calls a PyTorch kernel
that never stores them. With a lazy mask or bias the fused path takes the queries in blocks, so that memory grows with
s instead of t·s, and keys that a block cannot see cost nothing.
"""

from typing import Any, Literal, Protocol, overload, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from qkv.nn.argument_names import explain_names
from qkv.nn.dropout import dropout
from qkv.nn.masks import AndMask, BandMask, DenseMask, Mask, as_mask
from qkv.nn.masks import causal as causal_mask
from qkv.nn.shapes import check_attention, check_bias, check_dropout, check_mask, check_scale, repeat_heads

TORCH_NAMES = {  # of torch.nn.functional.scaled_dot_product_attention
    "attn_mask": "mask= for a boolean mask (True = may attend), bias= for a float one",
    "is_causal": "causal=",
    "dropout": "dropout_p=",
    "enable_gqa": "nothing: keys with fewer heads than the query are shared",
    "need_weights": "return_weights=",
}
BLOCK = 512  # queries at a time, where a mask or a bias must become a tensor
FLOAT32_KEYS = 256  # up to so many keys, training in half precision on a CPU attends in float32


@runtime_checkable
class Bias(Protocol):
    """A lazy bias: any rectangle of the matrix that is added to the scores."""

    def tile(self, rows: range, columns: range) -> Float[Tensor, "... t s"]: ...


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    bias: Tensor | Bias | None = None,
    scale: float | Tensor | None = None,
    causal: bool = False,
    dropout_p: float = 0.0,
    hard: bool = False,
    return_weights: Literal[False] = False,
) -> Tensor: ...
@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    bias: Tensor | Bias | None = None,
    scale: float | Tensor | None = None,
    causal: bool = False,
    dropout_p: float = 0.0,
    hard: bool = False,
    return_weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@explain_names(TORCH_NAMES)
def attention(
    query: Float[Tensor, "*batch t d"],
    key: Float[Tensor, "*group s d"],
    value: Float[Tensor, "*group s e"],
    mask: Mask | Tensor | None = None,
    *,
    bias: Tensor | Bias | None = None,
    scale: float | Tensor | None = None,
    causal: bool = False,
    dropout_p: float = 0.0,
    hard: bool = False,
    return_weights: bool = False,
) -> Float[Tensor, "*batch t e"] | tuple[Float[Tensor, "*batch t e"], Float[Tensor, "*batch t s"]]:
    """Scaled dot-product attention: each query's mean of the values, weighted by softmax(scale · q·k + bias).

    Args:
        query: (b, h, t, d), or without h, or without b and h.
        key, value: (b, h, s, d) and (b, h, s, e). With fewer heads than the query (grouped-query attention), each
            group of query heads shares one key head.
        mask: True where a query may attend to a key; a boolean tensor that broadcasts to (b, h, t, s), or a lazy
            `Mask`. A float mask belongs in `bias`.
        bias: added to the scaled scores; a tensor that broadcasts to (b, h, t, s), or a lazy `Bias`.
        scale: multiplies q·k, default d^-½; a number or a tensor such as (h, 1, 1). It is the inverse temperature β.
        causal: query i sees keys up to i + (s − t), aligned bottom-right; combined with `mask`.
        dropout_p: probability with which each weight is dropped; the others grow by 1/(1 − dropout_p).
        hard: put all weight on the best key (the first of equals).
        return_weights: also return the weights.
    Returns:
        The output (b, h, t, e); with `return_weights` also the weights (b, h, t, s), per head and before dropout.
        A query that may attend to nothing has zero weights and a zero output.

    >>> query = torch.tensor([[0.0, 1.0]])
    >>> key, value = torch.eye(2), torch.tensor([[1.0], [5.0]])
    >>> out, weights = attention(query, key, value, scale=30.0, return_weights=True)
    >>> out.round(decimals=3).item(), weights.round(decimals=3).tolist()
    (5.0, [[0.0, 1.0]])
    """
    if has_torch_function_variadic(query, key, value):  # so that `qkv.interp.intervene` sees the whole call
        options: dict[str, Any] = {
            "mask": mask,
            "bias": bias,
            "scale": scale,
            "causal": causal,
            "dropout_p": dropout_p,
            "hard": hard,
        }
        options["return_weights"] = return_weights
        return handle_torch_function(attention, (query, key, value), query, key, value, **options)
    check_attention(query, key, value)
    check_dropout(dropout_p)
    axes = query.ndim
    rule = None if mask is None else _add_axes(as_mask(mask), axes)
    query, key, value, scale, bias = (_add_axes(x, axes) for x in (query, key, value, scale, bias))
    scores_shape = (*query.shape[:-1], key.shape[-2])
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    check_scale(factor, query.shape)
    if rule is not None:
        check_mask(rule, scores_shape)
    if isinstance(bias, Tensor):
        check_bias(bias, scores_shape)
    elif bias is not None and (isinstance(bias, Mask) or not isinstance(bias, Bias)):
        raise ValueError(
            f"bias must be a floating tensor or a lazy Bias, got {type(bias).__name__}; pass a mask as mask="
        )
    if causal:
        past = causal_mask(*scores_shape[-2:])
        rule = past if rule is None else past & rule

    if return_weights or hard or key.shape[-2] == 0:
        out, weights = _explicit(query, key, value, factor, rule, bias, hard, dropout_p)
        out, weights = _remove_axes(out, axes), _remove_axes(weights, axes)
        return (out, weights) if return_weights else out
    return _remove_axes(_fused(query, key, value, factor, rule, bias, dropout_p), axes)


def masked_softmax(
    scores: Float[Tensor, "*batch t s"], mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*batch t s"]:
    """Softmax over the keys that the mask allows; a row that allows none is 0 and has finite gradients.

    >>> masked_softmax(torch.zeros(1, 2), torch.tensor([[True, False]])).tolist()
    [[1.0, 0.0]]
    """
    if mask is None:
        return scores.softmax(-1)
    empty = ~mask.any(-1, keepdim=True)
    # An empty row is set to 0 before and after: the softmax of a row of −∞ is NaN.
    weights = scores.masked_fill(~mask, float("-inf")).masked_fill(empty, 0.0).softmax(-1)
    return weights.masked_fill(empty, 0.0)


def hardmax(
    scores: Float[Tensor, "*batch t s"], mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*batch t s"]:
    """1 on the highest allowed score (the first of equals), 0 elsewhere; a row that allows none is 0.

    >>> hardmax(torch.tensor([[1.0, 3.0, 2.0]])).tolist()
    [[0.0, 1.0, 0.0]]
    """
    masked = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
    one_hot = torch.zeros_like(scores).scatter(-1, masked.argmax(-1, keepdim=True), 1.0)
    return one_hot if mask is None else one_hot.masked_fill(~mask.any(-1, keepdim=True), 0.0)


def apply_weights(
    weights: Float[Tensor, "b h t s"], value: Float[Tensor, "b g s e"], dropout_p: float = 0.0
) -> Float[Tensor, "b h t e"]:
    """Average the values by attention weights, after dropout of the weights."""
    return dropout(weights, dropout_p).to(value.dtype) @ repeat_heads(value, weights.shape[1])


def _explicit(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b g s d"],
    v: Float[Tensor, "b g s e"],
    scale: float | Tensor,
    rule: Mask | None,
    bias: Tensor | Bias | None,
    hard: bool,
    dropout_p: float,
) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "b h t s"]]:
    """Attention with explicit weights; scores and softmax are at least float32."""
    rows, columns = range(q.shape[-2]), range(k.shape[-2])
    exact = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        scores = (q.to(exact) @ repeat_heads(k, q.shape[1]).to(exact).mT) * scale
        mask = None if rule is None else rule.tile(rows, columns, q.device)
        if bias is not None:
            added = bias if isinstance(bias, Tensor) else bias.tile(rows, columns)
            scores = scores + added.to(exact)
            finite = ~added.isneginf()  # a bias of −∞ forbids, as a mask does
            mask = finite if mask is None else mask & finite
        choose = hardmax if hard and columns else masked_softmax
        weights = choose(scores, mask).to(q.dtype)
    return apply_weights(weights, v, dropout_p), weights


def _fused(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b g s d"],
    v: Float[Tensor, "b g s e"],
    scale: float | Tensor,
    rule: Mask | None,
    bias: Tensor | Bias | None,
    dropout_p: float,
) -> Float[Tensor, "b h t e"]:
    """Attention by PyTorch's fused kernel, which never stores the weights."""
    if isinstance(scale, Tensor) or scale < 1e-30:  # the kernel's causal path is NaN for a scale of 0 or below
        q, scale = (q * scale).to(q.dtype), 1.0
    t, s = q.shape[-2], k.shape[-2]
    if rule is None and bias is None:
        return _call_kernel(q, k, v, scale, dropout_p)
    if bias is None and t == s and isinstance(rule, BandMask) and rule.is_causal:
        return _call_kernel(q, k, v, scale, dropout_p, causal=True)
    lazy = not (rule is None or isinstance(rule, DenseMask)) or not (bias is None or isinstance(bias, Tensor))
    size = BLOCK if lazy else t
    blocks = []
    for start in range(0, max(t, 1), max(size, 1)):
        rows = range(start, min(start + size, t))
        columns = range(s) if rule is None or rule.shape[1] != s else rule.key_range(rows)
        mask = None if rule is None or rule.is_full(rows) else rule.tile(rows, columns, q.device)
        block_q = q[..., rows.start : rows.stop, :]
        block_k, block_v = (x[..., columns.start : columns.stop, :] for x in (k, v))
        block_bias = _tile_bias(bias, rows, columns)
        blocks.append(_call_kernel(block_q, block_k, block_v, scale, dropout_p, mask, block_bias))
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=-2)


def _call_kernel(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b g s d"],
    v: Float[Tensor, "b g s e"],
    scale: float,
    dropout_p: float,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
) -> Float[Tensor, "b h t e"]:
    """One kernel call. Rows that allow no key see all keys in the kernel and are set to 0 afterwards."""
    added = empty = None
    if bias is not None:
        bias = bias.to(torch.promote_types(q.dtype, torch.float32))  # the precision of the kernel's scores
        forbidden = bias.isneginf() if mask is None else bias.isneginf() | ~mask
        empty = forbidden.all(-1, keepdim=True)
        added = bias.masked_fill(forbidden, float("-inf")).masked_fill(empty, 0.0)
    elif mask is not None:
        empty = ~mask.any(-1, keepdim=True)
        added = mask | empty
    if added is not None:  # the kernel takes two axes or four, and all keys
        added = added.reshape(*[1] * (4 - added.ndim), *added.shape)
        added = added.expand(*added.shape[:2], q.shape[-2], k.shape[-2])
    d, e = q.shape[-1], v.shape[-1]
    if d != e:  # fused kernels need one head dim: pad with zeros, which change no score, and cut the output
        q, k, v = (F.pad(x, (0, max(d, e) - x.shape[-1])) for x in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    options = {"is_causal": causal, "scale": scale, "enable_gqa": grouped}
    half = _half_on_cpu(q, k, v)
    if half is None:
        out = F.scaled_dot_product_attention(q, k, v, added, dropout_p, **options)
    else:
        with torch.autocast("cpu", enabled=False):
            out = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), added, dropout_p, **options).to(half)
    out = out if d == e else out[..., :e]
    return out if empty is None else out.masked_fill(empty, 0.0)


def _half_on_cpu(q: Tensor, k: Tensor, v: Tensor) -> torch.dtype | None:
    """The half-precision dtype of a call that will need gradients on a CPU, if it is faster in float32; else None.

    For short sequences the backward pass of PyTorch's CPU kernel takes two to four times as long in bfloat16 as in
    float32 (`python bench/half_attention.py`).
    """
    if q.device.type != "cpu" or k.shape[-2] > FLOAT32_KEYS:
        return None
    if not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)):
        return None
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else q.dtype
    return dtype if dtype in (torch.bfloat16, torch.float16) else None


def _tile_bias(bias: Tensor | Bias | None, rows: range, columns: range) -> Tensor | None:
    """The bias of these queries and keys; axes of size 1 broadcast."""
    if bias is None:
        return None
    if not isinstance(bias, Tensor):
        return bias.tile(rows, columns)
    part = bias.view(1, -1) if bias.ndim < 2 else bias
    part = part if part.shape[-2] == 1 else part[..., rows.start : rows.stop, :]
    return part if part.shape[-1] == 1 else part[..., columns.start : columns.stop]


def _add_axes(x: Any, axes: int) -> Any:
    """Give a tensor of `axes` axes all four of (b, h, t, d); lazy masks and biases have none to add."""
    if isinstance(x, AndMask):
        return AndMask(tuple(_add_axes(part, axes) for part in x.parts))
    if isinstance(x, DenseMask):
        return DenseMask(_add_axes(x.mask, axes))
    if not isinstance(x, Tensor) or x.ndim != axes or axes == 4:
        return x
    return x.unsqueeze(1) if axes == 3 else x[None, None]


def _remove_axes(x: Tensor, axes: int) -> Tensor:
    """The inverse of `_add_axes` for results."""
    if axes == 4:
        return x
    return x.squeeze(1) if axes == 3 else x[0, 0]
