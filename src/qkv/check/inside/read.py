"""One run of a subject, recorded and read: every attention with its scale, its mask, its heads and its positions.

Axes: b batch · h heads · t queries · s keys · d head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.diagnosis import Diagnosis
from qkv.check.inside.heads import Match, match_of, merge_mistake, split_mistake
from qkv.check.inside.scores import mask_mistake, slope_of, softmax_mistake
from qkv.check.inside.seen import Recording, Seen
from qkv.check.inside.turns import Turn, turn_mistakes, turn_of
from qkv.check.inside.watch import watch
from qkv.check.subject import Subject

OPERANDS = ("queries", "keys", "values")


@dataclass(frozen=True, eq=False)
class Reading:
    """One attention, and what is read off it."""

    seen: Seen
    recording: Recording

    @cached_property
    def matches(self) -> dict[str, Match | None]:
        return {name: match_of(getattr(self.seen, name), self.recording, self.seen.order) for name in OPERANDS}

    @cached_property
    def turns(self) -> dict[str, Turn | None]:
        return {name: turn_of(getattr(self.seen, name), self.matches[name]) for name in OPERANDS}

    @cached_property
    def slope(self) -> tuple[float, float] | None:
        return slope_of(self.seen)

    @property
    def scale(self) -> float | None:
        """What q·k of the projections is multiplied by in all, before and after the product; None if not known."""
        queries, keys = self.matches["queries"], self.matches["keys"]
        if self.slope is None or self.slope[1] > 1e-5 or queries is None or keys is None:
            return None
        return self.slope[0] * queries.factor * keys.factor

    def mistakes(self, contract: Contract) -> list[Diagnosis]:
        """What is wrong with heads, softmax, mask and positions, the likeliest cause first."""
        found = [
            split_mistake(self.seen, self.matches),
            merge_mistake(self.seen, self.recording),
            softmax_mistake(self.seen),
            mask_mistake(self.seen, contract),
            *turn_mistakes(self.turns, self.seen.name, promised=False),
        ]
        return [diagnosis for diagnosis in found if diagnosis is not None]


def recorded(subject: Subject, x: Tensor, present: Tensor | None = None) -> Recording:
    """One call of the subject, recorded; why it could not be, if so."""
    try:
        with torch.enable_grad(), watch(subject.module, x.shape[0]) as found:
            subject.run(x, present)
    except Exception as error:  # what cannot be watched is judged from outside
        return Recording(refused=str(error).splitlines()[0][:160] if str(error) else type(error).__name__)
    return found[0]


def length_mistake(subject: Subject, found: list[Reading]) -> Diagnosis | None:
    """Whether the same places are turned by other angles in a shorter text."""
    if not found:
        return None
    length = found[0].seen.queries.shape[2]
    x = subject.draw(found[0].seen.queries.shape[0], length - 3, torch.Generator().manual_seed(30))
    recording = recorded(subject, x)
    for long, seen in zip(found, recording.seen, strict=False):
        short = Reading(seen, recording)
        for name in ("queries", "keys"):
            a, b = long.turns[name], short.turns[name]
            if a is None or b is None or a.phases is None or b.phases is None or a.pairing != b.pairing:
                continue
            if float((a.phases[: length - 3] - b.phases).abs().max()) > 1e-5:
                words = f"the angles of {name} depend on the length of the text, not on the place alone"
                return Diagnosis("rotary", words, seen.name)
    return None


def readings(subject: Subject, seed: int = 21) -> tuple[list[Reading], str | None]:
    """Every attention of a run on random input, and why there is none, if so.

    The batch is as large as measuring a rotation needs: more heads in all than a head has widths.
    """
    generator = torch.Generator().manual_seed(seed)
    length = min(subject.length, 9)
    recording = recorded(subject, subject.draw(6, length, generator))
    if recording.seen:
        most = max(seen.width / seen.heads for seen in recording.seen)
        if 6 < 1.2 * most + 2 <= 80:
            recording = recorded(subject, subject.draw(int(1.2 * most) + 3, length, generator))
    return [Reading(seen, recording) for seen in recording.seen], recording.refused
