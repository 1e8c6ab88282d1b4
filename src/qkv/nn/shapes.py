"""What the arguments of attention must look like, said in one sentence when they do not.

Axes: b batch · h heads · t queries · s keys · d head width.
"""

import math

import torch
from torch import Tensor

from qkv.nn.masks import Both, Dense, Mask

LAYOUT = "q (b, h, t, d), k (b, h, s, d) and v (b, h, s, d), or without h, or without b and h"


def check_attention(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise a ValueError unless the three fit together."""
    named = {"q": q, "k": k, "v": v}
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in named.items())
    if not 2 <= q.ndim <= 4 or len({x.ndim for x in named.values()}) > 1:
        raise ValueError(f"attention takes {LAYOUT}; got {shapes}")
    if not all(x.is_floating_point() for x in named.values()) or len({x.dtype for x in named.values()}) > 1:
        types = ", ".join(f"{name} {x.dtype}" for name, x in named.items())
        raise ValueError(f"attention takes q, k and v of one floating dtype; got {types}")
    if len({x.device for x in named.values()}) > 1:
        places = ", ".join(f"{name} on {x.device}" for name, x in named.items())
        raise ValueError(f"attention takes q, k and v on one device; got {places}")
    if q.shape[-1] == 0:
        raise ValueError(f"queries and keys need a width d of at least 1; got {shapes}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"queries and keys need the same width d; got {q.shape[-1]} and {k.shape[-1]} ({shapes})")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"each key needs a value; got {k.shape[-2]} keys and {v.shape[-2]} values ({shapes})")
    if q.ndim > 2 and not q.shape[0] == k.shape[0] == v.shape[0]:
        raise ValueError(f"q, k and v need the same batch size b; got {shapes}")
    if q.ndim == 4:
        heads, groups = q.shape[1], k.shape[1]
        if groups != v.shape[1]:
            raise ValueError(f"keys and values need the same number of heads; got {shapes}")
        if groups == 0 or heads % groups:
            raise ValueError(
                f"{heads} heads of queries do not share {groups} heads of keys evenly; "
                f"numbers of key heads that fit: {divisors(heads)}"
            )


def check_scale(scale: float | Tensor, shape: torch.Size) -> None:
    """Raise a ValueError unless β is a finite number, or a tensor that broadcasts over (b, h, t, 1)."""
    if isinstance(scale, Tensor):
        _check_broadcast("scale", tuple(scale.shape), (*shape[:-1], 1))
    elif not math.isfinite(scale):
        raise ValueError(f"beta is a finite number; got {scale}. For its limit, the hard choice, say hard=True")


def check_dropout(dropout: float) -> None:
    """Raise a ValueError unless dropout is a probability below 1."""
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout is a probability from 0 to below 1; got {dropout}")


def check_mask(mask: Mask, shape: tuple[int, ...]) -> None:
    """Raise a ValueError unless the mask fits scores of shape (b, h, t, s)."""
    t, s = shape[-2:]
    for part in mask.parts if isinstance(mask, Both) else (mask,):
        queries, keys = part.shape
        if queries not in (None, t) or not (keys == s or (keys == 1 and isinstance(part, Dense))):
            raise ValueError(
                f"the mask is for {'any number of' if queries is None else queries} queries and {keys} keys; there are "
                f"{t} queries and {s} keys"
            )
        corner = part.tile(range(min(t, 1)), range(min(s, 1)))
        _check_broadcast("mask", (*corner.shape[:-2], 1 if queries is None else queries, keys), shape)


def check_bias(bias: Tensor, shape: tuple[int, ...]) -> None:
    """Raise a ValueError unless the bias is floating and broadcasts to (b, h, t, s)."""
    if not bias.is_floating_point():
        raise ValueError(
            f"bias is added to the scores, so it is floating; got {bias.dtype}. A boolean mask goes into allowed="
        )
    _check_broadcast("bias", tuple(bias.shape), shape)


def divisors(number: int) -> list[int]:
    """The whole numbers that divide it.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]


def _check_broadcast(name: str, got: tuple[int, ...], shape: tuple[int, ...]) -> None:
    try:
        fits = torch.broadcast_shapes(got, shape) == torch.Size(shape)
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(f"{name} of shape {got} does not broadcast to the scores' shape (b, h, t, s) = {shape}")
