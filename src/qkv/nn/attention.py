"""Dot-product attention: out = softmax(β q·kᵀ + bias) v, over the keys that a query may attend to.

Axes: b batch · h heads · t queries · s keys · d head width.

Two paths, the same numbers: the plain one writes the weights out, the fused one never holds them. With a
lazy mask or a lazy bias the fused path takes the queries in blocks, so that memory grows with s and not with
t·s, and keys beyond a block's reach cost nothing.
"""

from typing import Any, Literal, Protocol, overload, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from qkv.nn import shapes
from qkv.nn.dropout import dropout as drop
from qkv.nn.heads import repeat_heads
from qkv.nn.masks import Band, Both, Dense, Mask, as_mask
from qkv.nn.masks import causal as causal_mask
from qkv.nn.softmax import hard_choice, soft_choice

BLOCK = 512  # queries at a time, where a mask or a bias must be written out


@runtime_checkable
class Bias(Protocol):
    """A matrix to be added to the scores that can show any rectangle of itself."""

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
        options = {
            "mask": mask,
            "bias": bias,
            "scale": scale,
            "causal": causal,
            "dropout_p": dropout_p,
            "hard": hard,
            "return_weights": return_weights,
        }
        return handle_torch_function(attention, (query, key, value), query, key, value, **options)
    shapes.check_attention(query, key, value)
    shapes.check_dropout(dropout_p)
    axes = query.ndim
    rule = None if mask is None else _lift(as_mask(mask), axes)
    query, key, value, scale, bias = (_lift(x, axes) for x in (query, key, value, scale, bias))
    scores_shape = (*query.shape[:-1], key.shape[-2])
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    shapes.check_scale(factor, query.shape)
    if rule is not None:
        shapes.check_mask(rule, scores_shape)
    if isinstance(bias, Tensor):
        shapes.check_bias(bias, scores_shape)
    elif bias is not None and (isinstance(bias, Mask) or not isinstance(bias, Bias)):
        raise ValueError(
            f"bias must be a floating tensor or a lazy Bias, got {type(bias).__name__}; pass a mask as mask="
        )
    if causal:
        past = causal_mask(*scores_shape[-2:])
        rule = past if rule is None else past & rule

    if return_weights or hard or key.shape[-2] == 0:
        out, weights = _plain(query, key, value, factor, rule, bias, hard, dropout_p)
        return (_drop(out, axes), _drop(weights, axes)) if return_weights else _drop(out, axes)
    return _drop(_fused(query, key, value, factor, rule, bias, dropout_p), axes)


def attend(
    weights: Float[Tensor, "b h t s"], v: Float[Tensor, "b g s e"], dropout_p: float = 0.0
) -> Float[Tensor, "b h t e"]:
    """The values averaged by given weights, each weight dropped with the given probability."""
    return drop(weights, dropout_p).to(v.dtype) @ repeat_heads(v, weights.shape[1])


def _plain(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b g s d"],
    v: Float[Tensor, "b g s e"],
    scale: float | Tensor,
    rule: Mask | None,
    bias: Tensor | Bias | None,
    hard: bool,
    dropout_p: float,
) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "b h t s"]]:
    """Attention with its weights written out; scores and softmax in float32 at least."""
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
        choice = hard_choice if hard and columns else soft_choice
        weights = choice(scores, mask).to(q.dtype)
    return attend(weights, v, dropout_p), weights


def _fused(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b g s d"],
    v: Float[Tensor, "b g s e"],
    scale: float | Tensor,
    rule: Mask | None,
    bias: Tensor | Bias | None,
    dropout_p: float,
) -> Float[Tensor, "b h t e"]:
    """Attention by PyTorch's fused kernel, which never holds the weights."""
    if isinstance(scale, Tensor) or scale < 1e-30:  # the kernel's causal path is NaN for a scale of 0 or below
        q, scale = (q * scale).to(q.dtype), 1.0
    t, s = q.shape[-2], k.shape[-2]
    if rule is None and bias is None:
        return _kernel(q, k, v, scale, dropout_p)
    if bias is None and t == s and isinstance(rule, Band) and rule.is_causal:
        return _kernel(q, k, v, scale, dropout_p, causal=True)
    written = (rule is None or isinstance(rule, Dense)) and (bias is None or isinstance(bias, Tensor))
    size = t if written else BLOCK
    blocks = []
    for start in range(0, max(t, 1), max(size, 1)):
        rows = range(start, min(start + size, t))
        columns = range(s) if rule is None or rule.shape[1] != s else rule.reach(rows)
        mask = None if rule is None or rule.open(rows) else rule.tile(rows, columns, q.device)
        part = q[..., rows.start : rows.stop, :]
        keys, values = (x[..., columns.start : columns.stop, :] for x in (k, v))
        blocks.append(_kernel(part, keys, values, scale, dropout_p, mask, _part(bias, rows, columns)))
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=-2)


def _kernel(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b g s d"],
    v: Float[Tensor, "b g s e"],
    scale: float,
    dropout_p: float,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
) -> Float[Tensor, "b h t e"]:
    """One call of the kernel; rows with nothing allowed are let through whole and emptied afterwards."""
    nothing = None
    if bias is not None:
        bias = bias.to(torch.promote_types(q.dtype, torch.float32))  # the kernel adds it to scores of that precision
        forbidden = bias.isneginf() if mask is None else bias.isneginf() | ~mask
        nothing = forbidden.all(-1, keepdim=True)
        added = bias.masked_fill(forbidden, float("-inf")).masked_fill(nothing, 0.0)
    elif mask is not None:
        nothing = ~mask.any(-1, keepdim=True)
        added = mask | nothing
    else:
        added = None
    if added is not None:  # the kernel takes a mask of two axes or of four, with as many keys as there are
        added = added.reshape(*[1] * (4 - added.ndim), *added.shape)
        added = added.expand(*added.shape[:2], q.shape[-2], k.shape[-2])
    d, e = q.shape[-1], v.shape[-1]
    if d != e:  # the fused kernels know one width; zeros add nothing to a score, and are cut off the output again
        q, k, v = (F.pad(x, (0, max(d, e) - x.shape[-1])) for x in (q, k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, added, dropout_p, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    out = out if d == e else out[..., :e]
    return out if nothing is None else out.masked_fill(nothing, 0.0)


def _part(bias: Tensor | Bias | None, rows: range, columns: range) -> Tensor | None:
    """The part of the bias for these queries and keys; axes of size 1 stand for all."""
    if bias is None:
        return None
    if not isinstance(bias, Tensor):
        return bias.tile(rows, columns)
    part = bias.view(1, -1) if bias.ndim < 2 else bias
    part = part if part.shape[-2] == 1 else part[..., rows.start : rows.stop, :]
    return part if part.shape[-1] == 1 else part[..., columns.start : columns.stop]


def _lift(x: Any, axes: int) -> Any:
    """Give a tensor of `axes` axes the missing ones of (b, h, t, d); lazy masks and biases know no axes."""
    if isinstance(x, Both):
        return Both(tuple(_lift(part, axes) for part in x.parts))
    if isinstance(x, Dense):
        return Dense(_lift(x.mask, axes))
    if not isinstance(x, Tensor) or x.ndim != axes or axes == 4:
        return x
    return x.unsqueeze(1) if axes == 3 else x[None, None]


def _drop(x: Tensor, axes: int) -> Tensor:
    return x if axes == 4 else x.squeeze(1) if axes == 3 else x[0, 0]
