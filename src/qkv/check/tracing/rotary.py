"""Rotary positions (RoPE), measured: the matrix by which each position rotates a head, and bugs that it shows.

Axes: b batch · h heads · t positions · d head dim · p pairs of dims.
"""

from __future__ import annotations

import cmath
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from qkv.check.report import Diagnosis
from qkv.check.tracing.heads import HeadMatch


@dataclass(frozen=True, eq=False)
class MeasuredRotation:
    """How an operand is rotated.

    Args:
        pairing: "halves" rotates dim i with i + r/2, "interleaved" 2i with 2i + 1, where r dims are rotated.
        rotated_dims: r. dims: the head dim.
        phases: (t, p), complex: the rotation of each pair at each position.
    """

    kind: Literal["none", "rotated", "by head", "other"]
    pairing: str = ""
    rotated_dims: int = 0
    dims: int = 0
    phases: Tensor | None = None

    @property
    def unevenness(self) -> float:
        """How far the angles are from growing evenly with the position."""
        assert self.phases is not None
        steps = self.phases[1:] / self.phases[:-1]
        return float((steps - steps[:1]).abs().max()) if len(steps) else 0.0

    def __str__(self) -> str:
        if self.kind == "rotated":
            share = "" if self.rotated_dims == self.dims else f" over {self.rotated_dims} of {self.dims} dims"
            return f"rotated by position, pairs as {self.pairing}{share}"
        words = {"none": "not rotated", "by head": "rotated by head, not by position", "other": "changed otherwise"}
        return words[self.kind]


def measure_rotation(operand: Tensor, match: HeadMatch | None) -> MeasuredRotation | None:
    """The rotation from the projection to the operand; None if it cannot be measured, or there are too few examples."""
    if match is None:
        return None
    b, h, t, d = operand.shape
    after, before = operand / match.factor, match.plain
    size = float(before.abs().max()) or 1.0
    if float((after - before).abs().max()) <= 1e-6 * size:
        return MeasuredRotation("none", dims=d)
    if b * h < d + 1:
        return None
    x, y = (part.permute(2, 0, 1, 3).reshape(t, b * h, d) for part in (before, after))
    if int(torch.linalg.matrix_rank(x).min()) < d:  # few different tokens: many matrices fit
        return None
    solved = torch.linalg.lstsq(x, y).solution.mT  # (t, d, d): y = R x
    if float((x @ solved.mT - y).abs().max()) <= 2e-2 * size:
        return _read_rotation(solved)
    if b * t < d + 1 or h < 2:
        return MeasuredRotation("other", dims=d)
    x, y = (part.permute(1, 0, 2, 3).reshape(h, b * t, d) for part in (before, after))
    solved = torch.linalg.lstsq(x, y).solution  # one matrix per head
    fits = float((x @ solved - y).abs().max()) <= 1e-6 * size
    return MeasuredRotation("by head" if fits else "other", dims=d)


def _read_rotation(matrices: Tensor) -> MeasuredRotation:
    """Which dims rotate together, and by how much at each position; matrices (t, d, d)."""
    d = matrices.shape[-1]
    off_diagonal = matrices - torch.diag_embed(matrices.diagonal(dim1=1, dim2=2))
    strength = off_diagonal.abs().amax(0)  # (d, d)
    rotated = [i for i in range(d) if float(strength[i].max()) > 1e-4]
    partner = {i: int(strength[i].argmax()) for i in rotated}
    r = len(rotated)
    if r < 2 or any(partner.get(j) != i for i, j in partner.items()):
        return MeasuredRotation("other", dims=d)
    pairing = "irregular"
    if r > 2 and all(abs(i - j) == 1 for i, j in partner.items()):
        pairing = "interleaved"
    elif all(abs(i - j) == r // 2 for i, j in partner.items()):
        pairing = "halves"
    firsts = [i for i in rotated if i < partner[i]]
    phases = [torch.complex(matrices[:, i, i].contiguous(), matrices[:, partner[i], i].contiguous()) for i in firsts]
    return MeasuredRotation("rotated", pairing, r, d, torch.stack(phases, dim=1))


def find_rotary_bugs(rotations: dict[str, MeasuredRotation | None], where: str, *, promised: bool) -> list[Diagnosis]:
    """What is wrong with the rotations of queries, keys and values; promised: RoPE over the whole head dim."""
    queries, keys, values = (rotations.get(name) for name in ("queries", "keys", "values"))
    bugs = []
    if values is not None and values.kind in ("rotated", "by head"):
        bugs.append("values are rotated too")
    if queries is not None and keys is not None:
        bug = _find_query_key_bug(queries, keys, promised)
        bugs += [] if bug is None else [bug]
    return [Diagnosis("rotary", words, where) for words in bugs]


def _find_query_key_bug(queries: MeasuredRotation, keys: MeasuredRotation, promised: bool) -> str | None:
    kinds = (queries.kind, keys.kind)
    if "by head" in kinds:
        return "positions run over the heads, not over the tokens: two axes are swapped"
    if kinds == ("rotated", "none"):
        return "only queries are rotated"
    if kinds == ("none", "rotated"):
        return "only keys are rotated"
    if kinds == ("rotated", "rotated"):
        return _find_angle_bug(queries, keys) or (_find_frequency_bug(queries) if promised else None)
    if promised and kinds == ("none", "none"):
        return "neither queries nor keys are rotated"
    if promised and "other" in kinds:
        return "queries or keys are changed by something other than a rotation of pairs"
    return None


def _find_angle_bug(queries: MeasuredRotation, keys: MeasuredRotation) -> str | None:
    """Queries and keys are rotated differently, or unevenly."""
    a, b = queries.phases, keys.phases
    assert a is not None and b is not None
    if queries.pairing != keys.pairing:
        return f"queries are paired as {queries.pairing}, keys as {keys.pairing}"
    if a.shape != b.shape:
        return f"{queries.rotated_dims} dims of queries are rotated, {keys.rotated_dims} of keys"
    equal = _phases_equal(a, b)
    if _phases_equal(b, a.conj()):
        return "keys are rotated the other way: the sign of the sine"
    if not equal and _phases_equal(b[:-1], a[1:]):
        return "keys are rotated as if they were one position further"
    if not equal and _phases_equal(b[1:], a[:-1]):
        return "keys are rotated as if they were one position earlier"
    stretch = max(float((a.abs() - 1).abs().max()), float((b.abs() - 1).abs().max()))
    uneven = max(queries.unevenness, keys.unevenness)
    if 2e-5 < uneven <= 0.2 and stretch <= 0.02:  # float32 has 2e-6
        return f"angles are off by up to {uneven:.2g} from even steps: they are computed in low precision"
    if uneven > 0.2:
        return "angles do not grow evenly with the position"
    if not equal:
        return "queries and keys are rotated by different angles at the same position"
    return None


def _phases_equal(x: Tensor, y: Tensor) -> bool:
    return bool(len(x)) and float((x - y).abs().max()) <= 1e-5


def _find_frequency_bug(rotation: MeasuredRotation) -> str | None:
    """RoPE rotates the whole head dim by position × frequency, with frequencies that fall geometrically.

    Frequencies that fall faster in between are those of longer contexts (NTK by parts, YaRN, Llama 3), and YaRN
    multiplies all by one temperature; frequencies that do not fall, or fall by even steps, are a mistake.
    """
    assert rotation.phases is not None
    turn = (rotation.phases[1] / rotation.phases[0]).angle().abs()
    too_slow_to_see = bool(len(turn)) and float(turn.min()) < 1e-3
    if rotation.rotated_dims < rotation.dims and not too_slow_to_see:
        return f"only {rotation.rotated_dims} of {rotation.dims} dims are rotated"
    if float((rotation.phases[0] / rotation.phases[0].abs() - 1).abs().max()) > 1e-5:
        return "the first position is already rotated: positions are counted from 1"
    steps = [cmath.phase(complex(z)) for z in (rotation.phases[1] / rotation.phases[0]).tolist()]
    if len(steps) > 2 and all(step > 0 for step in steps):
        falls = torch.tensor(steps, dtype=torch.float64).diff()
        if bool((falls >= 0).any()):
            return "frequencies do not fall from one pair of features to the next"
        if float((falls - falls.mean()).abs().max()) <= 1e-4 * float(falls.abs().max()):
            return "frequencies fall by even steps, not geometrically"
    if all(step < 0 for step in steps):
        return "queries and keys are both rotated backwards"
    return None
