"""Grade rotary positions (RoPE): a function that rotates pairs of features by angles that grow with position.

Axes: b batch · h heads · t tokens · d head dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.check.grading.client import Sandbox
from qkv.check.grading.exercises.common import (
    EXPLAINED,
    FIX,
    Exercise,
    GradedCheck,
    compare,
    no_grad,
    relative_error,
    require_response,
)
from qkv.check.grading.proxy import call_remote, check_shape
from qkv.check.report import Finding

if TYPE_CHECKING:
    from qkv.check.grading.rubric import GradedExercise

HEAD_DIM, LENGTH = 8, 10
LIMIT = 1e-5  # tables in float32 are fine
FORMULA_LIMIT = 1e-3
FREQUENCIES = "angles are position · base^(−2i/d), i = 0 … d/2 − 1"
ROTATION = "a pair (a, b) becomes (a cos − b sin, b cos + a sin)"
BY_OUTPUT = ("position 0", "norms preserved", "relative positions", "positions")


@dataclass(frozen=True)
class GradedRope:
    """function(x, positions) with x (b, h, t, d) and positions (t)."""

    sandbox: Sandbox
    base: float
    pairing: str

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        return check_shape(call_remote(self.sandbox, (x, positions)), tuple(x.shape)).double()

    def expected(self, x: Tensor, positions: Tensor, *, pairing: str | None = None, sign: float = 1.0) -> Tensor:
        """The formula, for either pairing."""
        return self.rotate(x, self.angles(x, positions), pairing=pairing, sign=sign)

    def angles(self, x: Tensor, positions: Tensor, *, base: float | None = None, exponent: float = 2.0) -> Tensor:
        """position · base^(−2i/d): (t, d/2)."""
        d = x.shape[-1]
        return positions.double()[:, None] * (base or self.base) ** (-exponent * torch.arange(d // 2).double() / d)

    def rotate(self, x: Tensor, angles: Tensor, *, pairing: str | None = None, sign: float = 1.0) -> Tensor:
        """Pairs of features, rotated by these angles."""
        cos, sin = angles.cos(), sign * angles.sin()
        first, second = self.split(x, pairing)
        return self.join((first * cos - second * sin, second * cos + first * sin), pairing)

    def split(self, x: Tensor, pairing: str | None = None) -> tuple[Tensor, Tensor]:
        """The first and the second features of the pairs."""
        if (pairing or self.pairing) == "halves":
            first, second = x.chunk(2, dim=-1)
            return first, second
        return x[..., 0::2], x[..., 1::2]

    def join(self, pairs: tuple[Tensor, Tensor], pairing: str | None = None) -> Tensor:
        """Put the features of pairs back in their places."""
        interleaved = (pairing or self.pairing) == "interleaved"
        return torch.stack(pairs, dim=-1).flatten(-2) if interleaved else torch.cat(pairs, dim=-1)


def prepare(sandbox: Sandbox, rubric: GradedExercise) -> GradedRope:
    sandbox.describe()  # raises here if the file does not run
    settings = rubric.interface.settings
    return GradedRope(sandbox, float(settings["base"]), settings["pairing"])


def require_response_of_rope(rope: GradedRope) -> None:
    positions = torch.arange(LENGTH)
    require_response(lambda x: rope(x, positions), _draw(57), _draw(58))


def check_output_shape(rope: GradedRope) -> list[Finding]:
    for batch, heads, length, dim in ((1, 1, 1, 2), (2, 3, LENGTH, HEAD_DIM), (1, 2, 4, 16)):
        rope(_draw(50, batch, heads, length, dim), torch.arange(length))
    return [Finding("shape", "pass", 0.0, "the shape is kept, for several batch sizes, heads, lengths and dims")]


def check_position_zero(rope: GradedRope) -> list[Finding]:
    """Position 0 rotates nothing."""
    x = _draw(51, length=4)
    out = rope(x, torch.arange(4))
    if relative_error(out[:, :, 1:], x[:, :, 1:]) <= LIMIT:
        return [Finding("position 0", "inconclusive", None, "positions 1 to 3 rotate nothing either")]
    error = relative_error(out[:, :, 0], x[:, :, 0])
    return compare("position 0", error, LIMIT, "at position 0 the vector changes", "the first angle is 0 · frequency")


def check_norms(rope: GradedRope) -> list[Finding]:
    """A rotation preserves the norm of a vector."""
    x = _draw(52)
    rotated = rope(x, torch.arange(LENGTH) + 3)
    if relative_error(rotated, x) <= LIMIT:
        return [Finding("norms preserved", "inconclusive", None, "nothing is rotated, so the norms show nothing")]
    error = relative_error(rotated.norm(dim=-1), x.norm(dim=-1))
    hint = "a rotation preserves norms: (a, b) becomes (a cos − b sin, b cos + a sin)"
    return compare("norms preserved", error, LIMIT, "the norms of vectors change", hint)


def check_relative(rope: GradedRope) -> list[Finding]:
    """The score of a query and a key depends on their distance, not on their absolute positions."""
    q, k = _draw(53), _draw(54)
    positions, moved = torch.arange(LENGTH), torch.arange(LENGTH) + 17
    scores = rope(q, positions) @ rope(k, positions).mT
    shifted = rope(q, moved) @ rope(k, moved).mT
    if relative_error(scores, q @ k.mT) <= LIMIT:
        evidence = "scores are those without positions: nothing is rotated"
        return [Finding("relative positions", "fail", None, evidence)]
    hint = "scores depend on absolute positions: rotate each pair by one angle, position × frequency"
    evidence = "17 positions further on, scores differ"
    return compare("relative positions", relative_error(shifted, scores), LIMIT, evidence, hint)


def check_positions_used(rope: GradedRope) -> list[Finding]:
    """The function uses the positions it is given, in any order."""
    generator = torch.Generator().manual_seed(55)
    x = _draw(56)
    in_order = rope(x, torch.arange(LENGTH))
    order = torch.randperm(LENGTH, generator=generator)
    error = relative_error(rope(x[..., order, :], order), in_order[..., order, :])
    hint = "use the positions argument, not 0, 1, 2, … of the sequence at hand"
    findings = compare("positions", error, LIMIT, "tokens and positions reordered alike differ", hint)
    if findings[0].verdict == "pass" and relative_error(rope(x, torch.arange(LENGTH) + 5), in_order) <= LIMIT:
        return [Finding("positions", "fail", None, "5 positions further on every vector is the same", hint)]
    return findings


def check_formula(rope: GradedRope) -> list[Finding]:
    """The output equals the formula, at small and large positions."""
    x, positions = _draw(57), torch.cat((torch.arange(6), torch.tensor([100, 1000, 1001, 4000])))
    found = rope(x, positions)
    error = relative_error(found, rope.expected(x, positions))
    evidence = f"up to position 4000 (base {rope.base:g}, pairing {rope.pairing}), the output differs from the formula"
    cause = None if error <= FORMULA_LIMIT else _explain(rope, x, positions, found)
    hint = f"{EXPLAINED}{cause[1]}{FIX}{cause[2]}" if cause else f"{FREQUENCIES}; {ROTATION}"
    findings = compare("formula", error, FORMULA_LIMIT, evidence, hint)
    return [replace(finding, family=cause[0] if cause else None) for finding in findings]


def _explain(rope: GradedRope, x: Tensor, positions: Tensor, found: Tensor) -> tuple[str, str, str] | None:
    """The family, the mistake and the fix, if a formula with this mistake gives the same output."""
    other = {"interleaved": "halves", "halves": "interleaved"}[rope.pairing]
    for cause, guess in {**_wrong_angles(rope, x, positions), **_wrong_pairs(rope, x, positions, other)}.items():
        if relative_error(found, guess) <= FORMULA_LIMIT:
            return cause
    return None


def _wrong_angles(rope: GradedRope, x: Tensor, positions: Tensor) -> dict[tuple[str, str, str], Tensor]:
    def rotated(shift: int = 0, base: float | None = None, exponent: float = 2.0) -> Tensor:
        return rope.rotate(x, rope.angles(x, positions + shift, base=base, exponent=exponent))

    guesses = {
        ("positions", "positions are one too high", "use the positions as they are given"): rotated(1),
        ("angles", "every pair rotates at the same speed", FREQUENCIES): rotated(exponent=0.0),
        ("angles", "the exponent is −i/d; expected −2i/d", FREQUENCIES): rotated(exponent=1.0),
        ("angles", "the exponent is −4i/d; expected −2i/d", FREQUENCIES): rotated(exponent=4.0),
        ("angles", "the exponent has the wrong sign", FREQUENCIES): rotated(exponent=-2.0),
        ("order of tokens", "positions 0, 1, 2, … are used, not those that are given", "use the positions argument"): (
            rope.expected(x, torch.arange(x.shape[-2]))
        ),
    }
    for base in (10.0, 100.0, 1000.0, 1e5, 5e5, 1e6):
        words = f"the base is {base:g}; expected {rope.base:g}"
        guesses[("angles", words, FREQUENCIES)] = rotated(base=base)
    return guesses


def _wrong_pairs(rope: GradedRope, x: Tensor, positions: Tensor, other: str) -> dict[tuple[str, str, str], Tensor]:
    angles = rope.angles(x, positions)
    neighbors = rope.pairing == "interleaved"
    pairs = "x[..., 0::2] with x[..., 1::2]" if neighbors else "the first half of the features with the second"
    turned = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
    turned = turned if neighbors else torch.cat((-x.chunk(2, -1)[1], x.chunk(2, -1)[0]), dim=-1)
    wrong = torch.cat((angles, angles), dim=-1) if neighbors else angles.repeat_interleave(2, dim=-1)
    repeat = "angles.repeat_interleave(2, dim=-1)" if neighbors else "torch.cat((angles, angles), dim=-1)"
    halves = torch.cat((-x.chunk(2, -1)[1], x.chunk(2, -1)[0]), dim=-1)
    others = halves if neighbors else torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
    each = angles.repeat_interleave(2, dim=-1) if neighbors else torch.cat((angles, angles), dim=-1)
    by_head = x.transpose(1, 2)
    head_angles = rope.angles(by_head, positions[: x.shape[1]])
    guesses = {
        ("pairs", f"pairs are {other}; expected {rope.pairing}", f"pair {pairs}"): (
            rope.expected(x, positions, pairing=other)
        ),
        ("direction", "it rotates the other way: the signs of the sines are swapped", ROTATION): (
            rope.expected(x, positions, sign=-1.0)
        ),
        ("nothing", "nothing is rotated", ROTATION): x,
        ("repeated angles", "the two features of a pair get different angles", f"repeat each angle: {repeat}"): (
            x * wrong.cos() + turned * wrong.sin()
        ),
        (
            "partners",
            f"a feature is rotated with its partner of the pairing {other}, by the angle of {rope.pairing}",
            f"pair {pairs}",
        ): x * each.cos() + others * each.sin(),
        ("axis", "heads are taken for positions: the rotation runs along axis 1", "positions run along axis 2"): (
            rope.rotate(by_head, head_angles).transpose(1, 2)
        ),
    }
    first, second = rope.split(x)
    cos, sin = angles.cos(), angles.sin()
    rotated = first * cos - second * sin, second * cos + first * sin
    copy = "compute both features from the ones before the rotation: keep copies of them (.clone())"
    for number, late in {"second": (rotated[0], second * cos + rotated[0] * sin),
                         "first": (first * cos - rotated[1] * sin, rotated[1])}.items():  # fmt: skip
        words = f"the {number} feature of a pair is computed from the other one after its rotation"
        guesses[("late", words, copy)] = rope.join(late)
    if neighbors:
        words = "torch.stack((first, second), dim=-1).flatten(-2) puts them back; torch.cat does not"
        guesses[("order", "the two features of a pair are not put back next to each other", words)] = rope.rotate(
            x, angles, pairing="not put back"
        )
    return guesses


def check_gradient(rope: GradedRope) -> list[Finding]:
    """The gradient is the inverse rotation."""
    x, positions = _draw(58).requires_grad_(), torch.arange(LENGTH)
    grad_output = _draw(59)
    with torch.enable_grad():
        out = rope(x, positions)
        (gradient,) = torch.autograd.grad((out * grad_output).sum(), x, allow_unused=True)
    if gradient is None:
        return [Finding("gradient", "fail", 1.0, "the output has no gradient", "part of the computation is detached")]
    direction = _draw(60)
    with torch.no_grad():  # it is linear in x, so the quotient is exact
        difference = rope(x + direction, positions) - rope(x - direction, positions)
        quotient = float((difference * grad_output).sum() / 2)
    slope = float((gradient * direction).sum())
    evidence = f"the gradient along a direction is {slope:.6g}, the difference quotient {quotient:.6g}"
    same = abs(slope - quotient) <= 1e-4 * max(abs(quotient), abs(slope), 1e-12)
    return [Finding("gradient", "pass" if same else "fail", abs(slope - quotient), evidence)]


def _draw(seed: int, batch: int = 2, heads: int = 2, length: int = LENGTH, dim: int = HEAD_DIM) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, heads, length, dim, generator=generator, dtype=torch.float64)


def validate(rubric: GradedExercise, where: str) -> None:
    settings = rubric.interface.settings
    if rubric.interface.build is not None or set(settings) != {"base", "pairing"}:
        raise ValueError(f"{where}: this exercise is a function, and interface must have base and pairing")
    if settings["pairing"] not in ("interleaved", "halves") or not settings["base"] > 0:
        raise ValueError(f'{where}: pairing must be "interleaved" or "halves", and base a positive number')


ROPE = Exercise(
    prepare,
    (
        GradedCheck(("shape",), no_grad(check_output_shape)),
        GradedCheck(("position 0",), no_grad(check_position_zero)),
        GradedCheck(("norms preserved",), no_grad(check_norms)),
        GradedCheck(("relative positions",), no_grad(check_relative)),
        GradedCheck(("positions",), no_grad(check_positions_used)),
        GradedCheck(("formula",), no_grad(check_formula)),
        GradedCheck(("gradient",), check_gradient),
    ),
    validate,
    require_response_of_rope,
    lines={
        "shape": (r"flatten|reshape|view|stack|cat\(", r"return "),
        "position 0": (r"arange|positions", r"cos|sin"),
        "norms preserved": (r"cos.*sin|sin.*cos", r"cos|sin|complex"),
        "relative positions": (r"cos.*sin|sin.*cos", r"cos|sin|complex"),
        "positions": (r"positions", r"arange"),
        "order of tokens": (r"positions", r"arange"),
        "formula": (r"cos.*sin|sin.*cos", r"sin|complex", r"return "),
        "gradient": (r"detach|no_grad|item\(|numpy", r"return "),
        "angles": (r"\b10*(\.0*)?\s*\*\*|\b1e\d|10_000|\bbase\b", r"arange"),
        "pairs": (r"\bcat\(|chunk|//\s*2|\[\.\.\.", r"view|reshape"),
        "order": (r"\bcat\(|concat", r"stack|flatten", r"return "),
        "direction": (r"cos.*sin|sin.*cos", r"sin|complex"),
        "nothing": (r"return ",),
        "repeated angles": (r"\bcat\(|repeat", r"cos|sin"),
        "partners": (r"\bcat\(|chunk|//\s*2|\[\.\.\.", r"view|reshape"),
        "late": (r"(?#last)cos.*sin|sin.*cos", r"sin"),
        "axis": (r"cos|sin|angle|size\(|shape", r"positions"),
    },
    breaks={
        "positions": ("position 0",),
        "order of tokens": ("positions",),
        **dict.fromkeys(("repeated angles", "partners", "late"), ("norms preserved", "relative positions")),
        "nothing": BY_OUTPUT,
        "axis": ("position 0", "relative positions", "positions"),
        **dict.fromkeys(("angles", "pairs", "order", "direction"), ()),
    },
    by_output=BY_OUTPUT,
)
