"""Split and merge attention heads, repeat key heads for grouped-query attention (GQA), and check argument shapes.

Axes: b batch · h query heads · g key heads · t queries · s keys · d head dim · c model dim = h·d.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.nn.masks import AndMask, DenseMask, Mask


def split_heads(x: Float[Tensor, "b t c"], heads: int) -> Float[Tensor, "b h t d"]:
    """Split the features into heads: head i holds features i·d to (i+1)·d.

    >>> split_heads(torch.zeros(1, 5, 8), heads=2).shape
    torch.Size([1, 2, 5, 4])
    """
    return x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(1, 2)


def merge_heads(x: Float[Tensor, "b h t d"]) -> Float[Tensor, "b t c"]:
    """Concatenate the heads: the inverse of `split_heads`.

    >>> x = torch.randn(1, 5, 8)
    >>> torch.equal(merge_heads(split_heads(x, 2)), x)
    True
    """
    return x.transpose(1, 2).flatten(-2)


def repeat_heads(x: Float[Tensor, "b g s d"], heads: int) -> Float[Tensor, "b h s d"]:
    """Repeat key or value heads for grouped-query attention: query heads 0 … h/g−1 share the first, and so on."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def divisors(number: int) -> list[int]:
    """The positive divisors of a number, up to 10,000: a hostile size must not take hours.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [candidate for candidate in range(1, min(number, 10_000) + 1) if number % candidate == 0]


def check_attention(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise a ValueError unless query, key and value fit together."""
    named = {"query": query, "key": key, "value": value}
    for name, x in named.items():
        if not isinstance(x, Tensor):
            raise ValueError(
                f"{name} must be a torch tensor, got a {type(x).__name__}; convert it: torch.as_tensor({name})"
            )
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in named.items())
    if not 2 <= query.ndim <= 4 or len({x.ndim for x in named.values()}) > 1:
        raise ValueError(
            "attention takes query (b, h, t, d), key (b, h, s, d) and value (b, h, s, d), or all without h, or without "
            f"b and h; got {shapes}"
        )
    if not all(x.is_floating_point() for x in named.values()) or len({x.dtype for x in named.values()}) > 1:
        types = ", ".join(f"{name} {x.dtype}" for name, x in named.items())
        raise ValueError(f"query, key and value must have one floating dtype, got {types}")
    if len({x.device for x in named.values()}) > 1:
        devices = ", ".join(f"{name} on {x.device}" for name, x in named.items())
        raise ValueError(f"query, key and value must be on one device, got {devices}")
    if query.shape[-1] == 0:
        raise ValueError(f"the head dim d must be at least 1, got {shapes}")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query and key must have the same head dim d, got {shapes}")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"there must be one value per key, got {key.shape[-2]} keys and {value.shape[-2]} values")
    if query.ndim > 2 and not query.shape[0] == key.shape[0] == value.shape[0]:
        raise ValueError(f"query, key and value must have the same batch size b, got {shapes}")
    if query.ndim == 4:
        _check_heads(query.shape[1], key.shape[1], value.shape[1])


def _check_heads(query_heads: int, key_heads: int, value_heads: int) -> None:
    if key_heads != value_heads:
        raise ValueError(f"key and value must have the same number of heads, got {key_heads} and {value_heads}")
    if key_heads == 0 or query_heads % key_heads:
        raise ValueError(
            f"{query_heads} query heads cannot share {key_heads} key heads evenly; try {divisors(query_heads)}"
        )


def check_scale(scale: float | Tensor, query_shape: torch.Size) -> None:
    """Raise a ValueError unless the scale is a finite number, or a tensor that broadcasts to (b, h, t, 1)."""
    if isinstance(scale, Tensor):
        _check_broadcast("scale", tuple(scale.shape), (*query_shape[:-1], 1))
    elif not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number, got {scale}; for the limit of a large scale use hard=True")


def check_dropout(dropout_p: float) -> None:
    """Raise a ValueError unless the dropout probability is in [0, 1)."""
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"the dropout probability must be in [0, 1), got {dropout_p}")


def check_mask(mask: Mask, shape: tuple[int, ...]) -> None:
    """Raise a ValueError unless the mask fits scores of shape (b, h, t, s)."""
    t, s = shape[-2:]
    for part in mask.parts if isinstance(mask, AndMask) else (mask,):
        queries, keys = part.shape
        if queries not in (None, t) or not (keys == s or (keys == 1 and isinstance(part, DenseMask))):
            number = "any number of" if queries is None else queries
            raise ValueError(f"the mask is for {number} queries and {keys} keys, got {t} queries and {s} keys")
        corner = part.tile(range(min(t, 1)), range(min(s, 1)))
        _check_broadcast("mask", (*corner.shape[:-2], 1 if queries is None else queries, keys), shape)


def check_bias(bias: Tensor, shape: tuple[int, ...]) -> None:
    """Raise a ValueError unless the bias is floating and broadcasts to (b, h, t, s)."""
    if not bias.is_floating_point():
        raise ValueError(f"bias must be a floating tensor, got {bias.dtype}; pass a boolean mask as mask=")
    _check_broadcast("bias", tuple(bias.shape), shape)


def _check_broadcast(name: str, got: tuple[int, ...], shape: tuple[int, ...]) -> None:
    fits = len(got) <= len(shape) and all(a in (1, b) for a, b in zip(reversed(got), reversed(shape), strict=False))
    if not fits:
        raise ValueError(f"{name} of shape {got} does not broadcast to the scores' shape (b, h, t, s) = {shape}")
