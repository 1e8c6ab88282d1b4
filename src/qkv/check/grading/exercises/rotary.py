"""Rotary positions: a function that turns pairs of features by angles that grow with position.

Axes: b batch · h heads · t tokens · d head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.check.finding import Finding
from qkv.check.grading.exercises.common import without_gradients
from qkv.check.grading.exercises.exercise import Exercise, Producer, equality
from qkv.check.grading.proxy import crossed, of_shape
from qkv.check.grading.remote import Remote

if TYPE_CHECKING:
    from qkv.check.grading.rubric import Rubric

WIDTH, LENGTH = 8, 10
LIMIT = 1e-5  # tables in float32 are fine


@dataclass(frozen=True)
class Rotary:
    """function(x, positions) with x (b, h, t, d) and positions (t)."""

    remote: Remote
    base: float
    pairing: str

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        return of_shape(crossed(self.remote, (x, positions)), tuple(x.shape)).double()

    def expected(self, x: Tensor, positions: Tensor, *, pairing: str | None = None, sign: float = 1.0) -> Tensor:
        """The formula, for either pairing."""
        d = x.shape[-1]
        angles = sign * positions.double()[:, None] * self.base ** (-torch.arange(0, d, 2).double() / d)
        cos, sin = angles.cos(), angles.sin()
        if (pairing or self.pairing) == "interleaved":
            first, second = x[..., 0::2], x[..., 1::2]
            return torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def prepare(remote: Remote, rubric: Rubric) -> Rotary:
    remote.describe()
    settings = rubric.interface.settings
    return Rotary(remote, float(settings["base"]), settings["pairing"])


def shape(rotary: Rotary) -> list[Finding]:
    for batch, heads, length, width in ((1, 1, 1, 2), (2, 3, LENGTH, WIDTH), (1, 2, 4, 16)):
        rotary(_draw(50, batch, heads, length, width), torch.arange(length))
    return [Finding("shape", "pass", 0.0, "the shape is kept, for several batches, heads, lengths and widths")]


def start(rotary: Rotary) -> list[Finding]:
    """At position 0 nothing is turned."""
    x = _draw(51, length=4)
    out = rotary(x, torch.arange(4))
    if _off(out[:, :, 1:], x[:, :, 1:]) <= LIMIT:
        return [Finding("position 0", "inconclusive", None, "at positions 1 to 3 nothing is turned either")]
    off = _off(out[:, :, 0], x[:, :, 0])
    return equality("position 0", off, LIMIT, "at position 0 the vector is changed", "the first angle is 0 · frequency")


def norm(rotary: Rotary) -> list[Finding]:
    """Turning keeps lengths."""
    x = _draw(52)
    turned = rotary(x, torch.arange(LENGTH) + 3)
    if _off(turned, x) <= LIMIT:
        return [Finding("lengths kept", "inconclusive", None, "nothing is turned, so lengths say nothing")]
    off = _off(turned.norm(dim=-1), x.norm(dim=-1))
    hint = "a rotation keeps lengths: (a, b) becomes (a cos − b sin, b cos + a sin)"
    return equality("lengths kept", off, LIMIT, "lengths of vectors change", hint)


def relative(rotary: Rotary) -> list[Finding]:
    """The score of a query and a key depends on how far apart they are, not on where they stand."""
    q, k = _draw(53), _draw(54)
    places, moved = torch.arange(LENGTH), torch.arange(LENGTH) + 17
    scores, shifted, plain = (a @ b.mT for a, b in (
        (rotary(q, places), rotary(k, places)),
        (rotary(q, moved), rotary(k, moved)),
        (q, k),
    ))  # fmt: skip
    if _off(scores, plain) <= LIMIT:
        return [Finding("only distances", "fail", None, "scores are those without positions: nothing is turned")]
    hint = "scores depend on where tokens stand: a pair turns by one angle, and by position × frequency"
    return equality("only distances", _off(shifted, scores), LIMIT, "17 places further on, scores differ", hint)


def positions_read(rotary: Rotary) -> list[Finding]:
    """The positions that are handed in count, in any order and far out."""
    generator = torch.Generator().manual_seed(55)
    x, worst = _draw(56), 0.0
    start_at = rotary(x, torch.arange(LENGTH))
    places = torch.randperm(LENGTH, generator=generator)
    worst = _off(rotary(x[..., places, :], places), start_at[..., places, :])
    hint = "positions are the ones handed in, not 0, 1, 2, … of the text at hand"
    findings = equality("positions", worst, LIMIT, "tokens and positions reordered alike differ", hint)
    if findings[0].verdict == "pass" and _off(rotary(x, torch.arange(LENGTH) + 5), start_at) <= LIMIT:
        return [Finding("positions", "fail", None, "5 places further on every vector is the same", hint)]
    return findings


def formula(rotary: Rotary) -> list[Finding]:
    """The written formula, near and far."""
    x, places = _draw(57), torch.cat((torch.arange(6), torch.tensor([100, 1000, 1001, 4000])))
    found = rotary(x, places)
    expected = rotary.expected(x, places)
    off = _off(found, expected)
    words = f"for positions to 4000, base {rotary.base:g}, {rotary.pairing} pairs, it differs from the formula"
    return equality("formula", off, 1e-3, words, None if off <= 1e-3 else _diagnosis(rotary, x, places, found))


def _diagnosis(rotary: Rotary, x: Tensor, places: Tensor, found: Tensor) -> str | None:
    other = {"interleaved": "halves", "halves": "interleaved"}[rotary.pairing]
    base = Rotary(rotary.remote, 1.0, rotary.pairing)
    guesses = {
        f"pairs are {other}; agreed is {rotary.pairing}": rotary.expected(x, places, pairing=other),
        "it turns the other way: the signs of the sines are swapped": rotary.expected(x, places, sign=-1.0),
        "positions are one too high": rotary.expected(x, places + 1),
        "every pair turns at the same speed": base.expected(x, places),
        "nothing is turned": x,
    }
    said = next((words for words, guess in guesses.items() if _off(found, guess) <= 1e-3), None)
    return f"explained exactly: {said}" if said else None


def gradient(rotary: Rotary) -> list[Finding]:
    """The gradient is the rotation backwards."""
    x, places = _draw(58).requires_grad_(), torch.arange(LENGTH)
    way = _draw(59)
    with torch.enable_grad():
        out = rotary(x, places)
        (slope,) = torch.autograd.grad((out * way).sum(), x, allow_unused=True)
    if slope is None:
        return [Finding("gradient", "fail", 1.0, "the output has no gradient", "something detaches on the way")]
    along = _draw(60)
    with torch.no_grad():
        quotient = float(((rotary(x + along, places) - rotary(x - along, places)) * way).sum() / 2)  # it is linear
    found = float((slope * along).sum())
    evidence = f"the gradient along a direction is {found:.6g}, the difference quotient {quotient:.6g}"
    same = abs(found - quotient) <= 1e-4 * max(abs(quotient), abs(found), 1e-12)
    return [Finding("gradient", "pass" if same else "fail", abs(found - quotient), evidence)]


def _draw(seed: int, batch: int = 2, heads: int = 2, length: int = LENGTH, width: int = WIDTH) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, heads, length, width, generator=generator, dtype=torch.float64)


def _off(found: Tensor, expected: Tensor) -> float:
    off = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-12))
    return off if off == off else float("inf")


def validate(rubric: Rubric, where: str) -> None:
    settings = rubric.interface.settings
    if rubric.interface.build is not None or set(settings) != {"base", "pairing"}:
        raise ValueError(f"{where}: this exercise is a function, and interface has base and pairing")
    if settings["pairing"] not in ("interleaved", "halves") or not settings["base"] > 0:
        raise ValueError(f'{where}: pairing is "interleaved" or "halves", base a positive number')


ROTARY = Exercise(
    prepare,
    (
        Producer(("shape",), without_gradients(shape)),
        Producer(("position 0",), without_gradients(start)),
        Producer(("lengths kept",), without_gradients(norm)),
        Producer(("only distances",), without_gradients(relative)),
        Producer(("positions",), without_gradients(positions_read)),
        Producer(("formula",), without_gradients(formula)),
        Producer(("gradient",), gradient),
    ),
    validate,
)
