"""Read a recording: every attention of one run with its scale, mask, heads and positions, and the bugs it shows.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.implementation import Implementation
from qkv.check.report import Diagnosis
from qkv.check.tracing.heads import HeadMatch, find_merge_bug, find_split_bug, match_heads
from qkv.check.tracing.recorder import AttentionRecord, Recording, record_attention
from qkv.check.tracing.rotary import MeasuredRotation, find_rotary_bugs, measure_rotation
from qkv.check.tracing.scores import describe_scale, find_mask_bug, find_softmax_bug, measure_slope

OPERANDS = ("queries", "keys", "values")


@dataclass(frozen=True, eq=False)
class Reading:
    """One recorded attention, and what can be read off it."""

    attention: AttentionRecord
    recording: Recording

    @cached_property
    def matches(self) -> dict[str, HeadMatch | None]:
        """For queries, keys and values: the features that they are made of."""
        order = self.attention.order
        return {name: match_heads(getattr(self.attention, name), self.recording, order) for name in OPERANDS}

    @cached_property
    def rotations(self) -> dict[str, MeasuredRotation | None]:
        return {name: measure_rotation(getattr(self.attention, name), self.matches[name]) for name in OPERANDS}

    @cached_property
    def slope(self) -> tuple[float, float] | None:
        return measure_slope(self.attention)

    @property
    def scale(self) -> float | None:
        """The factor on q·k of the projections in all, before and after the product; None if unknown."""
        queries, keys = self.matches["queries"], self.matches["keys"]
        if self.slope is None or self.slope[1] > 1e-5 or queries is None or keys is None:
            return None
        return self.slope[0] * queries.factor * keys.factor

    @property
    def model_heads(self) -> int:
        """The number of heads of the model, also where each head is a module of its own."""
        queries = self.matches["queries"]
        if self.attention.heads > 1 or queries is None:
            return self.attention.heads
        given = self.recording.projections[queries.projection].given
        return max(given.shape[-1] // self.attention.head_dim, 1)

    def find_bugs(self, contract: Contract) -> list[Diagnosis]:
        """What is wrong with heads, softmax, mask and positions, the likely cause first."""
        bugs = [
            find_split_bug(self.attention, self.matches),
            find_merge_bug(self.attention, self.recording),
            find_softmax_bug(self.attention),
            find_mask_bug(self.attention, contract),
            *find_rotary_bugs(self.rotations, self.attention.name, promised=False),
        ]
        return [bug for bug in bugs if bug is not None]

    def find_scale_bug(self, contract: Contract) -> Diagnosis | None:
        """A scale other than the promised one."""
        promised = contract.scale_for(self.attention.head_dim)
        if self.scale is None or promised is None or abs(self.scale / promised - 1) <= 0.01:
            return None
        words = describe_scale(self.scale, self.attention.head_dim, self.model_heads)
        return Diagnosis("scale", f"the scale of q·k is {words}", self.attention.name)


def record_run(impl: Implementation, x: Tensor, token_mask: Tensor | None = None) -> Recording:
    """Record one call; if that is not possible, the recording says why."""
    try:
        with torch.enable_grad(), record_attention(impl.module, x.shape[0]) as found:
            impl.run(x, token_mask)
    except Exception as error:  # what cannot be recorded is judged as a black box
        return Recording(refused=str(error).splitlines()[0][:160] if str(error) else type(error).__name__)
    return found[0]


def read_attentions(impl: Implementation, seed: int = 21) -> tuple[list[Reading], str | None]:
    """Every attention of a run on random input, and why there is none, if so.

    The batch is as large as measuring a rotation needs: more heads in all than a head has dims.
    """
    generator = torch.Generator().manual_seed(seed)
    length = min(impl.length, 9)
    recording = record_run(impl, impl.random_input(6, length, generator))
    if recording.attentions:
        most = max(attention.head_dim / attention.heads for attention in recording.attentions)
        if 6 < 1.2 * most + 2 <= 80:
            recording = record_run(impl, impl.random_input(int(1.2 * most) + 3, length, generator))
    return [Reading(attention, recording) for attention in recording.attentions], recording.refused


def find_length_bug(impl: Implementation, readings: list[Reading]) -> Diagnosis | None:
    """Whether the same positions are rotated by other angles in a shorter sequence."""
    if not readings:
        return None
    batch, _, length, _ = readings[0].attention.queries.shape
    recording = record_run(impl, impl.random_input(batch, length - 3, torch.Generator().manual_seed(30)))
    for long, attention in zip(readings, recording.attentions, strict=False):
        short = Reading(attention, recording)
        for name in ("queries", "keys"):
            a, b = long.rotations[name], short.rotations[name]
            if a is None or b is None or a.phases is None or b.phases is None or a.pairing != b.pairing:
                continue
            if float((a.phases[: length - 3] - b.phases).abs().max()) > 1e-5:
                words = f"the angles of {name} depend on the sequence length, not on the position alone"
                return Diagnosis("rotary", words, attention.name)
    return None
