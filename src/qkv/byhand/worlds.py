"""Ways to continue from rounded numbers, as the first axis of every array; one evaluation gives them all.

World 0 continues with unrounded numbers, world 1 with those that were written, world 2 also rounds what was not written
down, and the next ones mix them number by number. The worlds from MIXED on only measure how far rounding can move a
number: up to FINE every rounded number is half a unit off, up or down at random; in the rest those that were not
written down are off ten times as much.
"""

import zlib
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # of floats, whole numbers or flags

MIXED, FINE, WORLDS = 6, 14, 20
REACH = 2.5  # rounding moves a number by up to so many times its mean deviation in the worlds that measure it
COARSE = 10.0


@lru_cache(maxsize=1024)
def _signs(name: str, shape: tuple[int, ...]) -> Array:
    """+1 or -1 in the worlds that measure rounding, 0 in the others; the same for the same name and shape."""
    signs = np.random.default_rng(zlib.crc32(name.encode())).choice([-1.0, 1.0], (WORLDS, *shape))
    signs[:MIXED] = 0
    return signs


@lru_cache(maxsize=1024)
def choose_written(name: str, shape: tuple[int, ...]) -> Array:
    """Where each world continues with the number written down: nowhere, everywhere, or here and there."""
    chosen = np.random.default_rng(zlib.crc32(name.encode()) + 1).integers(0, 2, (WORLDS, *shape)).astype(bool)
    chosen[0], chosen[1:3], chosen[MIXED:] = False, True, True
    return chosen


def round_half_up(values: Array, places: int) -> Array:
    """Rounded as people do: 0.0005 to 0.001, also where the nearest float lies below."""
    return np.round(values + np.sign(values) * 1e-9, places)


def round_hidden(values: Array, places: int, name: str) -> Array:
    """A result that was not written down, in every world."""
    values = np.repeat(values, WORLDS, 0) if len(values) == 1 else values.copy()
    values[2] = round_half_up(values[2], places)
    unit = 10.0**-places
    dropped = np.abs(values[1] - round_half_up(values[1], places)) > 1e-9
    off = _signs(name, values.shape[1:])[MIXED:] * np.where(dropped, unit / 2, 0.0)
    off[FINE - MIXED :] *= COARSE
    values[MIXED:] += off
    return values


def continue_from(written: Array, unit: Array, prediction: Array, certain: Array, name: str) -> Array:
    """The numbers that each world continues with. certain: where the person can only have continued as written."""
    known = ~np.isnan(written)
    chosen = (choose_written(name, written.shape) | certain) & known
    differs = np.abs(prediction[[0, 3]] - written) > 1e-9 * np.maximum(1.0, np.abs(written))
    dropped = differs.any(0)  # in world 3 also numbers that no slip explains
    off = np.where(dropped & np.isfinite(written), unit / 2, 0.0)
    return np.where(chosen, written, prediction) + _signs(name, written.shape) * off


def reach(prediction: Array, tolerance: float | Array) -> tuple[Array, Array]:
    """How far rounding can move each number from the one that follows from the written ones: fine and coarse.

    tolerance: how far rounding to fewer digits than those written may move a number.
    """
    off = np.square(prediction[MIXED:] - prediction[1])
    off = np.where(np.isfinite(off), off, 0.0)
    fine, coarse = off[: FINE - MIXED].sum(0) / (FINE - MIXED), off[FINE - MIXED :].sum(0) / (WORLDS - FINE)
    return REACH * np.sqrt(fine), np.minimum(REACH * np.sqrt(coarse), tolerance)
