"""Positions that are added to the inputs, read off what the first attention gets for one token at every position.

Axes: b batch · t positions · c features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.check.implementation import Implementation
from qkv.check.report import Diagnosis
from qkv.check.tracing.readings import record_run

LONGEST = 100  # how many positions of a token are tried


def find_place(impl: Implementation, token: Tensor, given: Tensor, projection: int) -> int | None:
    """The position at which a token (b, 1, …) of a sequence of its own gives this input (b, c) of a projection."""
    rows = _inputs_of(impl, token, impl.nearest_length(LONGEST), projection)
    if rows is None or rows.shape[::2] != given.shape:
        return None
    off = (rows - given[:, None]).abs().amax((0, 2))
    best = int(off.argmin())
    return best if float(off[best]) <= 1e-6 * float(given.abs().max()) else None


def _inputs_of(impl: Implementation, token: Tensor, length: int, projection: int = 0) -> Tensor | None:
    """What a projection gets (b, t, c) if one token fills a sequence; None if that cannot be read."""
    made = record_run(impl, token.expand(-1, length, *token.shape[2:]).clone()).projections
    if projection >= len(made) or made[projection].given.numel() % (len(token) * length):
        return None
    return made[projection].given.reshape(len(token), length, -1)


def find_length_positions(impl: Implementation) -> Diagnosis | None:
    """Whether tokens get other positions before the first attention in a shorter sequence."""
    if impl.module is None:
        return None
    short, long = impl.nearest_length(7), impl.nearest_length(12)
    token = impl.random_input(2, 1, torch.Generator().manual_seed(88))
    few, many = (_inputs_of(impl, token, length) for length in (short, long))
    if short == long or few is None or many is None or few.shape[2] != many.shape[2]:
        return None
    off = (few[:, :, None] - many[:, None]).abs().amax((0, 3))  # (short, long)
    limit = 1e-6 * float(many.abs().max())
    if float((many - many[:, :1]).abs().max()) <= limit:  # no positions are added
        return None
    places = off.argmin(1).tolist()
    if float(off.amin(1).max()) > limit:
        words = "what is added to the inputs depends on the length of the sequence"
    elif places == list(range(short)):
        return None
    elif places == list(range(long - short, long)):
        words = "positions are counted from the end of the sequence"
    else:
        words = f"with {short} tokens, the first gets the position {places[0]} that it has with {long}"
    return Diagnosis("positions", words)
