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
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    beta: float | Tensor | None = None,
    allowed: Mask | Tensor | None = None,
    causal: bool = False,
    bias: Tensor | Bias | None = None,
    hard: bool = False,
    dropout: float = 0.0,
    weights: Literal[False] = False,
) -> Tensor: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    beta: float | Tensor | None = None,
    allowed: Mask | Tensor | None = None,
    causal: bool = False,
    bias: Tensor | Bias | None = None,
    hard: bool = False,
    dropout: float = 0.0,
    weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def attention(
    q: Float[Tensor, "*batch t d"],
    k: Float[Tensor, "*group s d"],
    v: Float[Tensor, "*group s e"],
    *,
    beta: float | Tensor | None = None,
    allowed: Mask | Tensor | None = None,
    causal: bool = False,
    bias: Tensor | Bias | None = None,
    hard: bool = False,
    dropout: float = 0.0,
    weights: bool = False,
) -> Float[Tensor, "*batch t e"] | tuple[Float[Tensor, "*batch t e"], Float[Tensor, "*batch t s"]]:
    """Each query's average of the values, weighted by softmax(β q·k + bias) over the keys it may attend to.

    q is (b, h, t, d), k and v are (b, h, s, d), or all three without h, or without b and h. Keys may have
    fewer heads than queries: each group of h / (key heads) queries' heads then shares one.

    beta: the inverse temperature that multiplies q·k; d^-½ if not given. A number, or a tensor such as (h, 1, 1).
    allowed: True = may attend; a boolean tensor that broadcasts to (b, h, t, s), or a lazy `Mask`.
    causal: query i sees keys up to i + (s − t) only.
    bias: added to the scores after β; a tensor that broadcasts to (b, h, t, s), or a lazy `Bias`.
    hard: all the weight on the best key (the first of equals).
    dropout: the probability with which each weight is dropped; the others grow by 1/(1 − dropout).
    weights: also return the weights (b, h, t, s): of each head, before dropout.

    A query that may attend to nothing attends to nothing: its weights and its output are 0.

    >>> q = torch.tensor([[0.0, 1.0]])
    >>> k, v = torch.eye(2), torch.tensor([[1.0], [5.0]])
    >>> out, weights = attention(q, k, v, beta=30.0, weights=True)
    >>> out.round(decimals=3).item(), weights.round(decimals=3).tolist()
    (5.0, [[0.0, 1.0]])
    """
    if has_torch_function_variadic(q, k, v):  # as PyTorch's own functions do: `qkv.interp.change` sees the whole call
        asked = {"beta": beta, "allowed": allowed, "causal": causal, "bias": bias, "hard": hard, "dropout": dropout}
        return handle_torch_function(attention, (q, k, v), q, k, v, **asked, weights=weights)  # pyright: ignore[reportArgumentType]
    shapes.check_attention(q, k, v)
    shapes.check_dropout(dropout)
    axes = q.ndim
    mask = None if allowed is None else _lift(as_mask(allowed), axes)
    q, k, v, beta, bias = (_lift(x, axes) for x in (q, k, v, beta, bias))
    scores_shape = (*q.shape[:-1], k.shape[-2])
    sharpness = q.shape[-1] ** -0.5 if beta is None else beta
    shapes.check_beta(sharpness, q.shape)
    if mask is not None:
        shapes.check_mask(mask, scores_shape)
    if isinstance(bias, Tensor):
        shapes.check_bias(bias, scores_shape)
    elif bias is not None and (isinstance(bias, Mask) or not isinstance(bias, Bias)):
        raise ValueError(
            f"bias is a floating tensor or a lazy Bias; got {type(bias).__name__}. A mask goes into allowed="
        )
    if causal:
        past = causal_mask(*scores_shape[-2:])
        mask = past if mask is None else past & mask

    if weights or hard or k.shape[-2] == 0:
        out, chosen = _plain(q, k, v, sharpness, mask, bias, hard, dropout)
        return (_drop(out, axes), _drop(chosen, axes)) if weights else _drop(out, axes)
    return _drop(_fused(q, k, v, sharpness, mask, bias, dropout), axes)


def attend(
    weights: Float[Tensor, "b h t s"], v: Float[Tensor, "b g s e"], dropout: float = 0.0
) -> Float[Tensor, "b h t e"]:
    """The values averaged by given weights, each weight dropped with the given probability."""
    return drop(weights, dropout).to(v.dtype) @ repeat_heads(v, weights.shape[1])


def _plain(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b g s d"],
    v: Float[Tensor, "b g s e"],
    beta: float | Tensor,
    mask: Mask | None,
    bias: Tensor | Bias | None,
    hard: bool,
    dropout: float,
) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "b h t s"]]:
    """Attention with its weights written out; scores and softmax in float32 at least."""
    rows, columns = range(q.shape[-2]), range(k.shape[-2])
    exact = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        scores = (q.to(exact) @ repeat_heads(k, q.shape[1]).to(exact).mT) * beta
        allowed = None if mask is None else mask.tile(rows, columns, q.device)
        if bias is not None:
            added = bias if isinstance(bias, Tensor) else bias.tile(rows, columns)
            scores = scores + added.to(exact)
            finite = ~added.isneginf()  # a bias of −∞ forbids, as a mask does
            allowed = finite if allowed is None else allowed & finite
        choice = hard_choice if hard and columns else soft_choice
        weights = choice(scores, allowed).to(q.dtype)
    return attend(weights, v, dropout), weights


def _fused(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b g s d"],
    v: Float[Tensor, "b g s e"],
    beta: float | Tensor,
    mask: Mask | None,
    bias: Tensor | Bias | None,
    dropout: float,
) -> Float[Tensor, "b h t e"]:
    """Attention by PyTorch's fused kernel, which never holds the weights."""
    if isinstance(beta, Tensor) or beta < 1e-30:  # the kernel's causal path is NaN for a scale of 0 or below
        q, beta = (q * beta).to(q.dtype), 1.0
    t, s = q.shape[-2], k.shape[-2]
    if mask is None and bias is None:
        return _kernel(q, k, v, beta, dropout)
    if bias is None and t == s and isinstance(mask, Band) and mask.is_causal:
        return _kernel(q, k, v, beta, dropout, causal=True)
    written = (mask is None or isinstance(mask, Dense)) and (bias is None or isinstance(bias, Tensor))
    size = t if written else BLOCK
    blocks = []
    for start in range(0, max(t, 1), max(size, 1)):
        rows = range(start, min(start + size, t))
        columns = range(s) if mask is None or mask.shape[1] != s else mask.reach(rows)
        allowed = None if mask is None or mask.open(rows) else mask.tile(rows, columns, q.device)
        part = q[..., rows.start : rows.stop, :]
        keys, values = (x[..., columns.start : columns.stop, :] for x in (k, v))
        blocks.append(_kernel(part, keys, values, beta, dropout, allowed, _part(bias, rows, columns)))
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=-2)


def _kernel(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b g s d"],
    v: Float[Tensor, "b g s e"],
    beta: float,
    dropout: float,
    allowed: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
) -> Float[Tensor, "b h t e"]:
    """One call of the kernel; rows with nothing allowed are let through whole and emptied afterwards."""
    nothing = None
    if bias is not None:
        bias = bias.to(torch.promote_types(q.dtype, torch.float32))  # the kernel adds it to scores of that precision
        forbidden = bias.isneginf() if allowed is None else bias.isneginf() | ~allowed
        nothing = forbidden.all(-1, keepdim=True)
        added = bias.masked_fill(forbidden, float("-inf")).masked_fill(nothing, 0.0)
    elif allowed is not None:
        nothing = ~allowed.any(-1, keepdim=True)
        added = allowed | nothing
    else:
        added = None
    if added is not None:  # the kernel takes a mask of two axes or of four, with as many keys as there are
        added = added.reshape(*[1] * (4 - added.ndim), *added.shape)
        added = added.expand(*added.shape[:2], q.shape[-2], k.shape[-2])
    d, e = q.shape[-1], v.shape[-1]
    if d != e:  # the fused kernels know one width; zeros add nothing to a score, and are cut off the output again
        q, k, v = (F.pad(x, (0, max(d, e) - x.shape[-1])) for x in (q, k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, added, dropout, causal, scale=beta, enable_gqa=q.shape[1] != k.shape[1]
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
        return Dense(_lift(x.allowed, axes))
    if not isinstance(x, Tensor) or x.ndim != axes or axes == 4:
        return x
    return x.unsqueeze(1) if axes == 3 else x[None, None]


def _drop(x: Tensor, axes: int) -> Tensor:
    return x if axes == 4 else x.squeeze(1) if axes == 3 else x[0, 0]
