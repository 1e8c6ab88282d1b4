"""Rotary positions, measured: the matrix by which each place turns a head, and what it says.

Axes: b batch · h heads · t places · d head width · p pairs of widths.
"""

from __future__ import annotations

import cmath
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from qkv.check.diagnosis import Diagnosis
from qkv.check.inside.heads import Match


@dataclass(frozen=True, eq=False)
class Turn:
    """How an operand is turned: `phases` (t, p), complex, of the pairs of widths.

    pairing: "halves" turns width i with i + r/2, "interleaved" 2i with 2i + 1; r is how many widths are turned.
    """

    kind: Literal["none", "turned", "by head", "other"]
    pairing: str = ""
    turned: int = 0
    width: int = 0
    phases: Tensor | None = None

    @property
    def steady(self) -> float:
        """How far the phases are from growing evenly with the place."""
        assert self.phases is not None
        steps = self.phases[1:] / self.phases[:-1]
        return float((steps - steps[:1]).abs().max()) if len(steps) else 0.0


def turn_of(operand: Tensor, match: Match | None) -> Turn | None:
    """Measure it; None if the operand is not known as a turned projection, or there are too few examples."""
    if match is None:
        return None
    b, h, t, d = operand.shape
    after, before = operand / match.factor, match.plain
    size = float(before.abs().max()) or 1.0
    if float((after - before).abs().max()) <= 1e-6 * size:
        return Turn("none", width=d)
    if b * h < d + 1:
        return None
    x, y = (part.permute(2, 0, 1, 3).reshape(t, b * h, d) for part in (before, after))
    solved = torch.linalg.lstsq(x, y).solution.mT  # (t, d, d): y = R x
    if float((x @ solved.mT - y).abs().max()) > 2e-2 * size:
        return _by_head(before, after, size)
    return _read(solved)


def _by_head(before: Tensor, after: Tensor, size: float) -> Turn:
    b, h, t, d = before.shape
    if b * t < d + 1 or h < 2:
        return Turn("other", width=d)
    x, y = (part.permute(1, 0, 2, 3).reshape(h, b * t, d) for part in (before, after))
    solved = torch.linalg.lstsq(x, y).solution
    fits = float((x @ solved - y).abs().max()) <= 1e-6 * size
    return Turn("by head" if fits else "other", width=d)


def _read(turns: Tensor) -> Turn:
    """Which widths turn together, and by how much at each place."""
    d = turns.shape[-1]
    away = turns - torch.diag_embed(turns.diagonal(dim1=1, dim2=2))
    strength = away.abs().amax(0)  # (d, d)
    moved = [i for i in range(d) if float(strength[i].max()) > 1e-4]
    partner = {i: int(strength[i].argmax()) for i in moved}
    r = len(moved)
    if r < 2 or any(partner.get(j) != i for i, j in partner.items()):
        return Turn("other", width=d)
    halves = all(abs(i - j) == r // 2 for i, j in partner.items())
    pairs = all(abs(i - j) == 1 for i, j in partner.items())
    pairing = "interleaved" if pairs and r > 2 else "halves" if halves else "irregular"
    firsts = [i for i in moved if i < partner[i]]
    phases = torch.stack(
        [torch.complex(turns[:, i, i].contiguous(), turns[:, partner[i], i].contiguous()) for i in firsts], dim=1
    )
    return Turn("turned", pairing, r, d, phases)


def described(turn: Turn) -> str:
    """In words."""
    if turn.kind != "turned" or turn.phases is None:
        return {"none": "not turned", "by head": "turned by head, not by place", "other": "changed otherwise"}[
            turn.kind
        ]
    share = "" if turn.turned == turn.width else f" over {turn.turned} of {turn.width} widths"
    return f"turned by place, pairs as {turn.pairing}{share}"


def turn_mistakes(turns: dict[str, Turn | None], where: str, *, promised: bool) -> list[Diagnosis]:
    """What is wrong with the turns of queries, keys and values; `promised`: rotary positions over all widths."""
    queries, keys, values = (turns.get(name) for name in ("queries", "keys", "values"))
    found = []

    def say(words: str, family: str = "rotary") -> None:
        found.append(Diagnosis(family, words, where))

    if values is not None and values.kind in ("turned", "by head"):
        say("values are turned too")
    if queries is None or keys is None:
        return found
    if "by head" in (queries.kind, keys.kind):
        say("positions run over the heads, not over the tokens: two axes are swapped")
    elif {queries.kind, keys.kind} == {"none", "turned"}:
        say("only queries are turned" if keys.kind == "none" else "only keys are turned")
    elif queries.kind == keys.kind == "turned":
        found += _compared(queries, keys, where, promised)
    elif promised and queries.kind == keys.kind == "none":
        say("neither queries nor keys are turned")
    elif promised and "other" in (queries.kind, keys.kind):
        say("queries or keys are changed by something that is no rotation of pairs")
    return found


def _compared(queries: Turn, keys: Turn, where: str, promised: bool) -> list[Diagnosis]:
    a, b = queries.phases, keys.phases
    assert a is not None and b is not None

    def say(words: str, family: str = "rotary") -> list[Diagnosis]:
        return [Diagnosis(family, words, where)]

    if queries.pairing != keys.pairing:
        return say(f"queries are paired as {queries.pairing}, keys as {keys.pairing}")
    if a.shape != b.shape:
        return say(f"{queries.turned} widths of queries are turned, {keys.turned} of keys")
    close = lambda x, y: bool(len(x)) and float((x - y).abs().max()) <= 1e-5  # noqa: E731
    if close(b, a.conj()):
        return say("keys are turned the other way: the sign of the sine")
    for shift in (1, -1):
        ahead, behind = (b[:-1], a[1:]) if shift > 0 else (b[1:], a[:-1])
        if not close(a, b) and close(ahead, behind):
            return say(f"keys are turned as if they stood one place {'further' if shift > 0 else 'earlier'}")
    size = max(float((a.abs() - 1).abs().max()), float((b.abs() - 1).abs().max()))
    off = max(queries.steady, keys.steady)
    if 1e-6 < off <= 0.2 and size <= 0.02:
        return say(f"angles are off by up to {off:.2g} from even steps: they are computed in low precision")
    if off > 0.2:
        return say("angles do not grow evenly with the place")
    if not close(a, b):
        return say("queries and keys are turned by different angles at the same place")
    if promised:
        return _standard(queries, where)
    return []


def _standard(turn: Turn, where: str) -> list[Diagnosis]:
    """All widths are turned, by place × frequency, and frequencies fall evenly on a logarithmic scale."""
    assert turn.phases is not None
    if turn.turned < turn.width:
        words = f"only {turn.turned} of {turn.width} widths are turned"
        return [Diagnosis("rotary", words, where)]
    if float((turn.phases[0] - 1).abs().max()) > 1e-5:
        return [Diagnosis("rotary", "the first place is turned already: places are counted from 1", where)]
    steps = [cmath.phase(complex(z)) for z in (turn.phases[1] / turn.phases[0]).tolist()]
    if len(steps) > 2 and all(step > 0 for step in steps):
        logs = torch.tensor(steps, dtype=torch.float64).log()
        gaps = logs[1:] - logs[:-1]
        if float((gaps - gaps.mean()).abs().max()) > 1e-4 * max(1.0, float(gaps.abs().max())):
            return [Diagnosis("rotary", "frequencies do not fall evenly on a logarithmic scale", where)]
    if all(step < 0 for step in steps):
        return [Diagnosis("rotary", "queries and keys are both turned backwards", where)]
    return []
