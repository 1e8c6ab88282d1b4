"""Grade CS224N's rotary positions: precompute_rotary_emb makes a cache of cosines and sines, apply_rotary_emb uses it.

Each is judged on its own: apply_rotary_emb gets a right cache, unless the one of the submission has another form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.check.grading.client import Sandbox, SubmissionError
from qkv.check.grading.exercises.common import (
    EXPLAINED,
    FIX,
    Exercise,
    GradedCheck,
    compare,
    relative_error,
)
from qkv.check.grading.probes import read_probe
from qkv.check.grading.reading import Submission
from qkv.check.report import Finding

if TYPE_CHECKING:
    from qkv.check.grading.rubric import GradedExercise

APPLIED = ("position 0", "norms preserved", "relative positions")
LIMIT = 1e-4  # tables in float32 are fine
SHIFT = 5
A, B = "x_2i", "x_2i+1"
SWAPPED = ": heads and tokens are swapped"
NOT_ROTATED = "multiply each pair of features by cos and sin of the cache"


@dataclass(frozen=True)
class Case:
    """x (b, h, t, d) and the number of positions in the cache."""

    x: Tensor
    positions: int

    @property
    def dim(self) -> int:
        return self.x.shape[-1]


@dataclass(frozen=True)
class GradedRotary:
    """The cases: equal lengths, a shorter sequence, another dim, and the first moved by SHIFT positions."""

    cases: dict[str, Case]
    tensors: dict[str, Tensor]
    values: dict[str, Any]

    def made(self, name: str) -> Tensor:
        return self._found("made", name)

    def out(self, name: str) -> Tensor:
        out, x = self._found("out", name), self.cases[name].x
        if out.shape == (*x.shape[:-1], x.shape[-1] // 2, 2):  # not flattened: judged by the shape
            return out.flatten(-2).double()
        if out.shape != x.shape:
            words = f"apply_rotary_emb gives shape {tuple(out.shape)} for x {tuple(x.shape)}"
            swapped = out.shape == x.transpose(1, 2).shape
            raise SubmissionError(f"{words}{SWAPPED if swapped else ''}")
        return out.double()

    def _found(self, kind: str, name: str) -> Tensor:
        key = f"{kind}{list(self.cases).index(name)}"
        if key in self.tensors:
            return self.tensors[key]
        errors = self.values.get("errors")
        why = errors.get(key) if isinstance(errors, dict) else None
        raise SubmissionError(str(why or self.values.get("missing") or "nothing was returned"))


def cache_of(dim: int, positions: int, base: float = 10000.0, *, start: int = 0, exponent: float = 2.0) -> Tensor:
    """cos and sin of position · base^(−2i/dim): (positions, dim / 2, 2)."""
    theta = base ** (-exponent * torch.arange(dim // 2).double() / dim)
    angles = (torch.arange(positions).double() + start)[:, None] * theta
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def rotate(
    x: Tensor, *, sign: float = 1.0, pairing: str = "interleaved", start: int = 0, swapped: bool = False
) -> Tensor:
    """The formula on x (b, h, t, d)."""
    cache = cache_of(x.shape[-1], x.shape[-2], start=start)
    cos, sin = cache[..., 0], sign * cache[..., 1]
    cos, sin = (sin, cos) if swapped else (cos, sin)
    if pairing == "halves":
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    a, b = x[..., 0::2], x[..., 1::2]
    out = a * cos - b * sin, b * cos + a * sin
    return torch.cat(out, dim=-1) if pairing == "not put back" else torch.stack(out, dim=-1).flatten(-2)


def prepare(sandbox: Sandbox, rubric: GradedExercise) -> GradedRotary:
    names = rubric.interface.settings
    file = None
    if isinstance(sandbox.source, Submission):
        found = sandbox.source.find_definition([names["precompute"]])
        file = found[0].path if found else None
    sandbox.describe_function()
    x = _draw(80, 2, 2, 10, 8)
    moved = torch.cat((_draw(81, 2, 2, SHIFT, 8), x), dim=2)
    cases = {
        "whole": Case(x, 10),
        "shorter": Case(_draw(82, 1, 3, 6, 8), 20),
        "dim": Case(_draw(83, 2, 1, 7, 16), 7),
        "moved": Case(moved, 10 + SHIFT),
        "other": Case(_draw(84, 2, 2, 10, 8), 10),
        "other moved": Case(torch.cat((_draw(85, 2, 2, SHIFT, 8), _draw(84, 2, 2, 10, 8)), dim=2), 10 + SHIFT),
    }
    sent = {f"x{n}": case.x for n, case in enumerate(cases.values())}
    sent |= {f"cache{n}": cache_of(case.dim, case.positions) for n, case in enumerate(cases.values())}
    arguments = {
        "apply": sandbox.name,
        "precompute": names["precompute"],
        "file": file,
        "cases": [{"dim": case.dim, "positions": case.positions} for case in cases.values()],
    }
    tensors, values = sandbox.probe(read_probe("rotary"), arguments, sent)
    return GradedRotary(cases, tensors, values)


def require_response_of_rotary(rotary: GradedRotary) -> None:
    outs = [tensor for name, tensor in rotary.tensors.items() if name.startswith("out")]
    if outs and not all(bool(out.isfinite().all()) for out in outs):
        raise SubmissionError("for ordinary inputs its output has NaN or infinite values")
    if outs and all(bool((out == out.flatten()[0]).all()) for out in outs):
        raise SubmissionError("its output is the same for every input")


def check_cache_shape(rotary: GradedRotary) -> list[Finding]:
    shapes = {name: tuple(rotary.made(name).shape) for name in rotary.cases}
    for name, case in rotary.cases.items():
        expected = (case.positions, case.dim // 2, 2)
        if shapes[name] != expected or rotary.values.get(f"complex{list(rotary.cases).index(name)}"):
            is_complex = rotary.values.get("complex0")
            got = f"complex numbers of shape {shapes[name][:-1]}" if is_complex else str(shapes[name])
            evidence = f"precompute_rotary_emb({case.dim}, {case.positions}) gives {got}, expected {expected}"
            hint = "stack cos and sin along a new last axis: (max_positions, dim / 2, 2)"
            return [Finding("cache shape", "fail", None, evidence, hint)]
    return [Finding("cache shape", "pass", 0.0, "(max_positions, dim / 2, 2), for several dims")]


def check_cache_values(rotary: GradedRotary) -> list[Finding]:
    worst, cause = 0.0, None
    for name, case in rotary.cases.items():
        found, expected = rotary.made(name).double(), cache_of(case.dim, case.positions)
        if found.shape != expected.shape:
            evidence = f"the cache has shape {tuple(found.shape)}, so its values cannot be compared"
            return [Finding("cache values", "fail", None, evidence, "it needs cos and sin in its last axis")]
        error = relative_error(found, expected)
        if error > LIMIT and cause is None:
            cause = _explain_cache(found, case)
        worst = max(worst, error)
    hint = cause or "angles are position · 10000^(−2i/dim) for i = 0 … dim/2 − 1; cos first, then sin"
    families = {"positions": "cache positions", "sin comes": "cache order"}
    family = next((name for part, name in families.items() if part in (cause or "")), None)
    found = compare("cache values", worst, LIMIT, "the cache differs from cos and sin of the angles", hint)
    return [replace(finding, family=family) for finding in found]


def _explain_cache(found: Tensor, case: Case) -> str | None:
    dim, positions = case.dim, case.positions
    guesses = {
        "explained exactly: sin comes first, then cos": cache_of(dim, positions).flip(-1),
        "explained exactly: positions begin at 1; expected 0": cache_of(dim, positions, start=1),
        "explained exactly: the exponent is −i/dim; expected −2i/dim": cache_of(dim, positions, exponent=1.0),
        "explained exactly: the exponent is −4i/dim; expected −2i/dim": cache_of(dim, positions, exponent=4.0),
        "explained exactly: the exponent has the wrong sign": cache_of(dim, positions, exponent=-2.0),
        "explained exactly: every pair has the same frequency": cache_of(dim, positions, exponent=0.0),
        "explained exactly: the exponent counts i from 1; expected from 0": _from_one(dim, positions),
    }
    angle = float(torch.atan2(found[1, 1, 1], found[1, 1, 0]))  # of position 1 and pair 1: base^(−2/dim)
    if 0 < angle < 1:
        base = angle ** (-dim / 2)
        guesses[f"explained exactly: the base is {base:.4g}; expected 10000"] = cache_of(dim, positions, base)
    return next((words for words, guess in guesses.items() if relative_error(found, guess) <= LIMIT), None)


def _from_one(dim: int, positions: int) -> Tensor:
    theta = 10000.0 ** (-2 * (torch.arange(dim // 2).double() + 1) / dim)
    angles = torch.arange(positions).double()[:, None] * theta
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def check_output_shape(rotary: GradedRotary) -> list[Finding]:
    for name in ("whole", "dim"):
        rotary.out(name)
        shape, x = tuple(rotary.tensors[f"out{list(rotary.cases).index(name)}"].shape), rotary.cases[name].x
        if shape != tuple(x.shape):
            evidence = f"apply_rotary_emb gives shape {shape} for x {tuple(x.shape)}"
            hint = "put the pairs back into one axis: .flatten(-2) after torch.stack((first, second), dim=-1)"
            return [Finding("shape", "fail", None, evidence, hint, "order")]
    return [Finding("shape", "pass", 0.0, "the shape of x is kept")]


def check_shorter(rotary: GradedRotary) -> list[Finding]:
    """A sequence shorter than the cache uses the beginning of the cache."""
    whole = rotary.out("whole")
    out, x = rotary.out("shorter"), rotary.cases["shorter"].x
    if relative_error(out, rotate(x)) <= LIMIT:
        return [Finding("shorter sequences", "pass", 0.0, "6 tokens with a cache of 20 positions use the first 6")]
    if relative_error(out, rotate(x, start=14)) <= LIMIT:
        evidence = "6 tokens with a cache of 20 positions use the last 6 positions"
        return [Finding("shorter sequences", "fail", None, evidence, "cut the cache: rope_cache[:T]")]
    if relative_error(whole, rotate(rotary.cases["whole"].x)) > LIMIT:  # wrong in itself: judged by the formula
        return [Finding("shorter sequences", "pass", None, "6 tokens with a cache of 20 positions give the shape of x")]
    evidence = "6 tokens with a cache of 20 positions are rotated by other angles than the first 6"
    return [Finding("shorter sequences", "fail", None, evidence, "cut the cache: rope_cache[:T]")]


def check_position_zero(rotary: GradedRotary) -> list[Finding]:
    x, out = rotary.cases["whole"].x, rotary.out("whole")
    if relative_error(out, x) <= LIMIT:
        return [Finding("position 0", "inconclusive", None, "nothing is rotated at any position", NOT_ROTATED)]
    error = relative_error(out[:, :, 0], x[:, :, 0])
    hint = "the angle of the first token is 0, so its cos is 1 and its sin is 0: check which term gets which"
    return compare("position 0", error, LIMIT, "at position 0 the vector changes", hint)


def check_norms(rotary: GradedRotary) -> list[Finding]:
    x, out = rotary.cases["whole"].x, rotary.out("whole")
    if relative_error(out, x) <= LIMIT:
        return [Finding("norms preserved", "inconclusive", None, "nothing is rotated, so the norms show nothing")]
    hint = "a rotation preserves norms: (a, b) becomes (a cos − b sin, b cos + a sin)"
    return compare("norms preserved", relative_error(out.norm(dim=-1), x.norm(dim=-1)), LIMIT, "norms change", hint)


def check_relative(rotary: GradedRotary) -> list[Finding]:
    """Scores depend on distances: with SHIFT tokens before them they stay the same."""
    q, k = rotary.out("whole"), rotary.out("other")
    scores = q @ k.mT
    moved = rotary.out("moved")[:, :, SHIFT:] @ rotary.out("other moved")[:, :, SHIFT:].mT
    if relative_error(scores, rotary.cases["whole"].x @ rotary.cases["other"].x.mT) <= LIMIT:
        evidence, hint = "scores are the same as without positions", "rotate each token by the angle of its position"
        if relative_error(q, rotary.cases["whole"].x) <= LIMIT:
            evidence, hint = "nothing is rotated: scores are those without positions", NOT_ROTATED
        return [Finding("relative positions", "fail", None, evidence, hint)]
    hint = "scores depend on absolute positions: rotate each pair by one angle, position × frequency, along the tokens"
    evidence = f"{SHIFT} positions further on, scores differ"
    return compare("relative positions", relative_error(moved, scores), LIMIT, evidence, hint)


def check_formula(rotary: GradedRotary) -> list[Finding]:
    worst, causes = 0.0, None
    for name in ("whole", "dim", "moved"):
        x, out = rotary.cases[name].x, rotary.out(name)
        error = relative_error(out, rotate(x))
        if error > LIMIT:
            fitting = [cause for cause, guess in _guesses(x).items() if relative_error(out, guess) <= LIMIT]
            causes = fitting if causes is None else [cause for cause in causes if cause in fitting]
        worst = max(worst, error)
    hint, family = f"({A}, {B}) becomes ({A} cos − {B} sin, {B} cos + {A} sin)", None
    if causes:
        family, cause, fix = causes[0]
        hint = f"{EXPLAINED}{cause}{FIX}{fix}"
    found = compare("formula", worst, LIMIT, "its output differs from the formula's", hint)
    return [replace(finding, family=family) for finding in found]


def _guesses(x: Tensor) -> dict[tuple[str, str, str], Tensor]:
    """What mistakes give for x: the family, the mistake and the fix of each."""
    right = f"rotate each pair: ({A} cos − {B} sin, {B} cos + {A} sin)"
    guesses = {
        ("pairs", f"pairs are halves (i and i + d/2); expected neighbors ({A} and {B})", "pair x[..., 0::2] with "
         "x[..., 1::2]"): rotate(x, pairing="halves"),
        ("order", "the two features of a pair are not put back next to each other", "torch.stack((first, second), "
         "dim=-1).flatten(-2) puts them back; torch.cat does not"): rotate(x, pairing="not put back"),
        ("rotation", "it rotates the other way: the signs of the sines are swapped", right): rotate(x, sign=-1.0),
        ("rotation", "cos and sin are swapped", "the cache has cos first, then sin"): rotate(x, swapped=True),
        ("rotation", "nothing is rotated", NOT_ROTATED): x,
        ("rotation", "the input is added to the rotated vectors", right): rotate(x) + x,
        ("axis", "heads are taken for positions: the rotation runs along axis 1", "x is (batch, heads, tokens, dim): "
         "positions run along axis 2"): rotate(x.transpose(1, 2)).transpose(1, 2),
    }  # fmt: skip
    cache = cache_of(x.shape[-1], x.shape[-2])
    cos, sin, a, b = cache[..., 0], cache[..., 1], x[..., 0::2], x[..., 1::2]
    terms = {f"{A} cos": a * cos, f"{A} sin": a * sin, f"{B} cos": b * cos, f"{B} sin": b * sin}
    first, second = a * cos - b * sin, b * cos + a * sin
    copy = "compute both features from the ones before the rotation: keep copies of them (.clone())"
    halves = torch.cat((-x.chunk(2, -1)[1], x.chunk(2, -1)[0]), dim=-1)
    each_cos, each_sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
    guesses[("pairs", "a feature is rotated with its partner of the other pairing (i and i + d/2)", "rotate neighbors: "
             "x[..., 0::2] with x[..., 1::2]")] = x * each_cos + halves * each_sin  # fmt: skip
    turned = torch.stack((-b, a), dim=-1).flatten(-2)
    twice_cos, twice_sin = torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
    guesses[("pairs", "the two features of a pair get different angles", "repeat each angle: "
             "repeat_interleave(2, dim=-1), not torch.cat")] = x * twice_cos + turned * twice_sin  # fmt: skip
    late = {"second": (first, b * cos + first * sin), "first": (a * cos - second * sin, second)}
    for number, pair in late.items():
        cause = f"the {number} feature of a pair is computed from the other one after its rotation"
        guesses[(f"rotation, {number}", cause, copy)] = torch.stack(pair, dim=-1).flatten(-2)
    for (one, left), (two, added) in permutations(terms.items(), 2):
        for sign, words in ((1.0, "+"), (-1.0, "−")):
            value, text = left + sign * added, f"{one} {words} {two}"
            for number, pair in (("first", (value, second)), ("second", (first, value))):
                expected = f"{A} cos − {B} sin" if number == "first" else f"{B} cos + {A} sin"
                cause = f"the {number} feature of a pair becomes {text}; expected {expected}"
                guesses[(f"rotation, {number}", cause, right)] = torch.stack(pair, dim=-1).flatten(-2)
    return guesses


def _draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def validate(rubric: GradedExercise, where: str) -> None:
    if rubric.interface.build is not None or set(rubric.interface.settings) != {"precompute"}:
        raise ValueError(
            f'{where}: this exercise is a function, and interface has precompute = "precompute_rotary_emb"'
        )


ROTARY_CACHE = Exercise(
    prepare,
    (
        GradedCheck(("cache shape",), check_cache_shape),
        GradedCheck(("cache values",), check_cache_values),
        GradedCheck(("shape",), check_output_shape),
        GradedCheck(("shorter sequences",), check_shorter),
        GradedCheck(("position 0",), check_position_zero),
        GradedCheck(("norms preserved",), check_norms),
        GradedCheck(("relative positions",), check_relative),
        GradedCheck(("formula",), check_formula),
    ),
    validate,
    require_response_of_rotary,
    also=("precompute_rotary_emb",),
    lines={
        "cache shape": (r"stack|cat\(|polar|zeros\(",),
        "cache values": (r"\b10*(\.0*)?\s*(\*\*|,)|10000|1e4|10_000", r"arange", r"cos"),
        "cache positions": (r"arange\(\s*1|\+\s*1\b|range\(\s*1", r"arange|linspace|range\(", r"cos"),
        "cache order": (r"sin\b.*cos|cos.*sin", r"cos"),
        "shorter sequences": (r"rope_cache\[|cache\[", r"rope_cache|cache"),
        "formula": (r"cos.*sin|sin.*cos", r"view_as_complex|\[\.\.\., *1|stack|cat\(", r"sin", r"return "),
        "position 0": (r"cos.*sin|sin.*cos", r"cos|sin|complex"),
        "norms preserved": (r"cos.*sin|sin.*cos", r"cos|sin|complex"),
        "relative positions": (r"cos.*sin|sin.*cos", r"cos|sin|complex", r"shape|size\("),
        "pairs": (r"\bcat\(|chunk|//\s*2|\[\.\.\.", r"view|reshape"),
        "order": (r"\bcat\(|concat", r"stack|flatten", r"return "),
        "rotation": (r"cos.*sin|sin.*cos", r"sin|complex"),
        "rotation, first": (r"0::2\]\s*=", r"cos.*sin|sin.*cos", r"sin|complex"),
        "rotation, second": (r"1::2\]\s*=", r"(?#last)cos.*sin|sin.*cos", r"sin|complex"),
        "axis": (r"(shape|size)\W*(\(|\[)?1\b|=.*\.shape|=.*size\(", r"cache"),
    },
    fixes={"shorter sequences": "cut the cache to the length of the sequence: rope_cache[:T]"},
    owners={"cache shape": ("precompute_rotary_emb",), "cache values": ("precompute_rotary_emb",)},
    breaks={
        **dict.fromkeys(("pairs", "order", "rotation", "rotation, first", "rotation, second"), APPLIED),
        "axis": ("relative positions",),
    },
    by_output=APPLIED,
)
