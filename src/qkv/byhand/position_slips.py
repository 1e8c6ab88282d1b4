"""Slips with positions: sinusoids computed in another way, positions that some projections did not get."""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.expressions import Array, ref
from qkv.byhand.formulas import GIVEN, Formulas, StepFormulas, symbol
from qkv.byhand.slips import Slip, join_names, rename

PROJECTIONS = ("queries", "keys", "values")


def position_slips(problem: StepFormulas, formulas: Formulas) -> Iterator[Slip]:
    """All slips with positions; none if the problem has none."""
    given = problem.given.get(f"{GIVEN}positions")
    if given is None:
        return
    _, _, tokens, dim = given.shape
    if np.allclose(given[0, 0], _sinusoids(tokens, dim), atol=1e-12):
        for name, table, cost in _other_sinusoids(tokens, dim):
            yield Slip(name, cost, {"positions": ex.constant(table[None, None])}, scope="whole")
    readers = [step for step in PROJECTIONS if "inputs" in formulas[step].names]
    for count in (1, 2):
        for chosen in itertools.combinations(readers, count):
            changes = {step: rename(formulas[step], {"inputs": "x"}) for step in chosen}
            name = f"the positions were not added for {join_names([symbol(step) for step in chosen])}"
            yield Slip(name, 4.2, changes, scope="whole")
    late = {
        step: ex.add(rename(formulas[step], {"inputs": "x"}), ref("positions"))
        for step in readers
        if formulas[step].op == "matmul" and problem.given.get(f"{GIVEN}w{step[0]}", given).shape[-1] == dim
    }
    if late:
        yield Slip("the positions were added after the projections, not before", 5.5, late, scope="whole")


def _other_sinusoids(tokens: int, dim: int) -> Iterator[tuple[str, Array, float]]:
    """Position encodings that are easily confused with sin(p·10000^(−2i/c)) and cos, alternating."""
    pairs = np.arange(dim) // 2
    right = _sinusoids(tokens, dim)
    angles = np.arange(tokens)[:, None] * 10000.0 ** (-2 * pairs / dim)
    features, half = np.arange(dim), (dim + 1) // 2
    blocks = np.concatenate([np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])], 1)
    yield "the positions were counted from 1 instead of 0", _sinusoids(tokens, dim, first=1), 4.0
    yield "sine and cosine are exchanged in the positions", np.where(features % 2, np.sin(angles), np.cos(angles)), 4.5
    yield "the angles of the positions were taken in degrees", _sinusoids(tokens, dim, unit=math.pi / 180), 5.0
    yield "only sines in the positions", np.sin(angles), 6.0
    yield "only cosines in the positions", np.cos(angles), 6.0
    if dim > 2:
        yield (
            "the positions have a frequency for each feature instead of each pair: 10000^(−j/c)",
            _sinusoids(tokens, dim, exponents=features / dim),
            5.5,
        )
        exponents = 2 * features / dim
        yield "the frequencies of the positions count features, not pairs", _sinusoids(tokens, dim, exponents), 5.5
        yield "a factor 2 is missing in the exponents of the positions", _sinusoids(tokens, dim, pairs / dim), 5.5
        yield "all features of the positions have the frequency 1", _sinusoids(tokens, dim, 0 * pairs), 6.0
        for base in (1000.0, 100.0):
            name = f"{base:.0f} instead of 10000 in the positions"
            yield name, _sinusoids(tokens, dim, 2 * pairs / dim * math.log(base, 10000)), 6.0
        if blocks.shape == right.shape and half * 2 == dim:
            yield "the positions have all sines first, then all cosines", blocks, 5.0


def _sinusoids(tokens: int, dim: int, exponents: Array | None = None, first: int = 0, unit: float = 1.0) -> Array:
    """(tokens, dim): sines at even features from 0, cosines at odd ones, of position · 10000^(−exponent)."""
    exponents = 2 * (np.arange(dim) // 2) / dim if exponents is None else exponents
    angles = unit * (np.arange(tokens)[:, None] + first) * 10000.0**-exponents
    return np.where(np.arange(dim) % 2, np.cos(angles), np.sin(angles))
