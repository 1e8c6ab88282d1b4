"""Read a recording: every attention of one run with its scale, mask, heads and positions, and the bugs it shows.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.check.contract import Contract
from qkv.check.implementation import Implementation
from qkv.check.influence import name_pattern
from qkv.check.report import Diagnosis
from qkv.check.tracing.heads import (
    HeadMatch,
    RowMatch,
    find_merge_bug,
    find_split_bug,
    grouped_layout,
    match_features,
    match_heads,
    match_rows,
    rows_layout,
)
from qkv.check.tracing.recorder import AttentionRecord, Recording, record_attention
from qkv.check.tracing.rotary import MeasuredRotation, find_rotary_bugs, measure_rotation
from qkv.check.tracing.scores import (
    STRAIGHT,
    describe_scale,
    find_mask_bug,
    find_shifted_weights,
    find_softmax_bug,
    measure_slope,
)

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
        queries, keys = (self.matches[name] or self.rows[name] for name in ("queries", "keys"))
        if self.slope is None or self.slope[1] > STRAIGHT or queries is None or keys is None:
            return None
        return self.slope[0] * queries.factor * keys.factor

    @cached_property
    def feature_scales(self) -> Tensor | None:
        """The factor on q·k of the projections for each feature, where they come from several projections."""
        if self.slope is None or self.slope[1] > STRAIGHT or self.scale is not None:
            return None
        order = self.attention.order
        factors = [match_features(getattr(self.attention, name), self.recording, order) for name in OPERANDS[:2]]
        if factors[0] is None or factors[1] is None:
            return None
        return self.slope[0] * factors[0] * factors[1]

    @cached_property
    def normed_scales(self) -> tuple[float, ...]:
        """The factor on the product of normalized queries and keys, under each convention; empty if they are not.

        With a norm without gain between projections and product, every query has the same size: the factor is that on
        queries and keys as they are, of mean square 1, or of length 1. Norms with a gain are recognized before any
        rotation, at the first position, and only the factor on what they give is known.
        """
        if self.slope is None or self.slope[1] > STRAIGHT or self.scale is not None:
            return ()
        slope, sizes = self.slope[0], []
        for operand in (self.attention.queries, self.attention.keys):
            size = operand.pow(2).mean(-1).sqrt()
            middle = float(size.mean())
            if float((size - middle).abs().max()) > 2e-3 * middle:
                return (slope,) if self._has_gains() else ()
            sizes.append(middle)
        total = slope * sizes[0] * sizes[1]
        return slope, total, total * self.attention.head_dim

    def _has_gains(self) -> bool:
        """Whether queries and keys at the first position lie on an ellipsoid: a norm, then a gain for each feature."""
        for operand in (self.attention.queries, self.attention.keys):
            squares = operand[:, :, 0].flatten(0, 1).pow(2)
            if squares.shape[0] < squares.shape[1] + 2:
                return False
            ones = torch.ones(squares.shape[0], 1, dtype=squares.dtype)
            solved = torch.linalg.lstsq(squares, ones).solution
            gains = solved.clamp(min=1e-300).rsqrt() * squares.shape[1] ** -0.5
            if float((squares @ solved - 1).abs().max()) > 1e-3 or not 0.4 < float(gains.mean()) < 2.5:
                return False
        return True

    @cached_property
    def rows(self) -> dict[str, RowMatch | None]:
        """For queries and keys: the features that their rows are made of, in whatever order."""
        order = self.attention.order
        return {name: match_rows(getattr(self.attention, name), self.recording, order) for name in OPERANDS[:2]}

    @property
    def grouped(self) -> str | None:
        """How query heads share key heads; None if they share none."""
        if self.matches["keys"] is not None and self.matches["queries"] is not None:
            return grouped_layout(self.matches["keys"])
        return rows_layout(self.rows["queries"], self.rows["keys"])

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
            find_split_bug(self.attention, self.matches, self.recording),
            find_merge_bug(self.attention, self.recording),
            find_shifted_weights(self.attention),
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
    recording = _record_random(impl, seed)
    return [Reading(attention, recording) for attention in recording.attentions], recording.refused


def read_unfinished(impl: Implementation, seed: int = 21) -> list[Reading]:
    """The softmaxes of a run whose weights could not be followed to the values; only their scores can be read."""
    recording = _record_random(impl, seed)
    return [Reading(attention, recording) for attention in recording.unfinished]


class _Softmaxes(TorchDispatchMode):
    """Keeps what every softmax gives, whatever becomes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "").startswith("_softmax."):
            self.results.append(out)
        return out


def find_unmasked_softmax(impl: Implementation) -> Diagnosis | None:
    """Which softmaxes see later keys, where their weights do not meet the values one by one.

    Differential attention, for example, subtracts the weights of two softmaxes.
    """
    n = impl.nearest_length(11)
    try:
        with torch.no_grad(), _Softmaxes() as kept:
            impl.run(impl.random_input(2, n, torch.Generator().manual_seed(22)))
    except Exception:  # kernels that bear no such mode
        return None
    seen = [(out.abs() > 1e-30).flatten(0, -3).any(0) for out in kept.results if out.shape[-2:] == (n, n) != out.shape]
    patterns = [name_pattern(one) for one in seen] if n > 3 else []
    wrong = [place for place, pattern in enumerate(patterns) if pattern == "bidirectional"]
    if not wrong or any(pattern not in ("bidirectional", "causal") for pattern in patterns):
        return None
    if len(wrong) == len(patterns):
        return Diagnosis("no mask", "there is no causal mask before the softmax")
    numbers = ", ".join(str(place + 1) for place in wrong)
    words = f"of {len(patterns)} softmaxes, number {numbers} has no causal mask: it sees later keys, the others do not"
    return Diagnosis("leak", words)


def _record_random(impl: Implementation, seed: int) -> Recording:
    generator = torch.Generator().manual_seed(seed)
    length = min(impl.length, impl.nearest_length(9))
    recording = _of_target(impl, record_run(impl, impl.random_input(6, length, generator)), length)
    if recording.attentions:
        most = max(attention.head_dim / _key_heads(attention) for attention in recording.attentions)
        slopes = [measure_slope(attention) for attention in recording.attentions]
        if any(slope is not None and slope[1] > STRAIGHT for slope in slopes):  # biases that depend on the content?
            most = max(2 * attention.head_dim + 5 for attention in recording.attentions)
        if 6 < 1.2 * most + 2 <= 180:
            x = impl.random_input(int(1.2 * most) + 3, length, generator)
            recording = _of_target(impl, record_run(impl, x), length)
    return recording


def _of_target(impl: Implementation, recording: Recording, length: int) -> Recording:
    """The recording without what runs on the other sequence alone."""
    if impl.source is None:
        return recording
    own = tuple(attention for attention in recording.attentions if attention.weights.shape[-2] == length)
    return replace(recording, attentions=own)


def _key_heads(attention: AttentionRecord) -> int:
    """The number of different key heads; query heads may share one."""
    return len(torch.unique(attention.keys[0, :, 0], dim=0))


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
