"""Learning-rate schedules: warm-up, then cosine, linear, warmup-stable-decay (WSD, decay linear or 1−√), constant,
inverse square root (2017), or minGPT's cosine over tokens.

A schedule is a function of the step, so checkpoints save nothing for it.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from qkv._config import variant

ScheduleKind = Literal["cosine", "linear", "wsd", "wsd-sqrt", "constant", "inverse-sqrt", "token-cosine"]
DECAYING = ("wsd", "wsd-sqrt")  # with a decay of `decay_steps` at the end


@variant
@dataclass(frozen=True)
class TokenCosine:
    """Numbers of minGPT's schedule, which counts tokens (CS224N A5).

    With n the tokens of all steps before, padding included: n / warmup below `warmup`, then the cosine
    (1 + cos πp)/2 with p = (n − warmup) / (final − warmup), at least `min_lr_ratio`. p is *not* clamped: after `final`
    tokens the rate rises again. minGPT sets the rate after a step, so the first step has the maximum.

    batch, epoch: tokens of a batch and of an epoch; the last batch of an epoch has the rest.
    """

    warmup: int = 0
    final: int = 1
    batch: int = 1
    epoch: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < self.final:
            raise ValueError(f"schedule.tokens: expected 0 ≤ warmup < final, got {self.warmup} and {self.final}")
        if not 1 <= self.batch <= self.epoch:
            raise ValueError(f"schedule.tokens: expected 1 ≤ batch ≤ epoch, got {self.batch} and {self.epoch}")

    def count(self, steps: int) -> int:
        """Return the tokens of the first `steps` steps.

        >>> [TokenCosine(batch=4, epoch=10).count(steps) for steps in range(5)]
        [0, 4, 8, 10, 14]
        """
        epochs, rest = divmod(steps, -(-self.epoch // self.batch))
        return epochs * self.epoch + rest * self.batch

    def lr_factor(self, step: int, least: float) -> float:
        """Compute the factor on the maximum learning rate at step `step`, from 0."""
        if step == 0:
            return 1.0
        tokens = self.count(step)
        if tokens < self.warmup:
            return tokens / self.warmup
        progress = (tokens - self.warmup) / (self.final - self.warmup)
        return max(least, 0.5 * (1 + math.cos(math.pi * progress)))


@dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rate changes: linear warm-up, then by `kind`, down to `min_lr_ratio` times the maximum.

    kind: "cosine" and "linear" decay from the end of the warm-up to the last step; "wsd" (warmup-stable-decay) stays
        constant and decays linearly over the last `decay_steps`; "wsd-sqrt" does the same with a decay that is steep
        first (1−√, Hägele et al., 2024); "constant" stays; "inverse-sqrt" falls as 1/√step, the schedule of the 2017
        transformer, see `inverse_sqrt_lr`; "token-cosine" is minGPT's, see `TokenCosine`.
    decay_steps: length of the decay of "wsd" and "wsd-sqrt"; None for a fifth of all steps.
    total_steps: number of steps that the schedule is laid out over; None for those of the run. A run of fewer steps
        makes the first part of the schedule.
    tokens: the numbers of "token-cosine".
    """

    kind: ScheduleKind = "cosine"
    warmup_steps: int = 0
    decay_steps: int | None = None
    min_lr_ratio: float = 0.0
    total_steps: int | None = None
    tokens: TokenCosine | None = None

    def __post_init__(self) -> None:
        kinds = get_args(ScheduleKind)
        if self.kind not in kinds:
            raise ValueError(f"schedule.kind must be one of {', '.join(kinds)}, got {self.kind!r}")
        if self.total_steps is not None and not 1 <= self.total_steps < math.inf:
            raise ValueError(f"schedule.total_steps must be at least 1, got {self.total_steps}")
        if (self.kind == "token-cosine") != (self.tokens is not None):
            raise ValueError(f"schedule.tokens and kind='token-cosine' need each other, got kind={self.kind!r}")
        if self.tokens is not None and (self.warmup_steps or self.total_steps is not None):
            raise ValueError("schedule.kind='token-cosine' counts tokens, not warmup_steps and total_steps")
        for name in ("warmup_steps", "decay_steps"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"schedule.{name} must be at least 0, got {value}")
        if self.decay_steps is not None and self.kind not in DECAYING:
            kinds = " or ".join(map(repr, DECAYING))
            raise ValueError(f"schedule.decay_steps={self.decay_steps} needs kind={kinds}, but kind={self.kind!r}")
        if not 0 <= self.min_lr_ratio <= 1:
            raise ValueError(f"schedule.min_lr_ratio must be in [0, 1], got {self.min_lr_ratio}")


def inverse_sqrt_lr(dim: int, warmup_steps: int, step: int | None = None) -> float:
    """Compute the learning rate of Vaswani et al. (2017), dim^(−½) · min(step^(−½), step · warmup_steps^(−3/2)).

    step: from 1, as in the paper; None for the end of the warm-up, where it is largest: (dim · warmup_steps)^(−½), the
        `lr` that belongs to the kind "inverse-sqrt".

    >>> [f"{inverse_sqrt_lr(512, 4000, step):.3g}" for step in (1, None, 100_000)]
    ['1.75e-07', '0.000699', '0.00014']
    """
    if min(dim, warmup_steps) < 1 or (step is not None and step < 1):
        raise ValueError(f"dim, warmup_steps and step must be at least 1, got {dim}, {warmup_steps} and {step}")
    step = warmup_steps if step is None else step
    return dim**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def lr_factor(schedule: ScheduleConfig, step: int, steps: int) -> float:
    """Compute the factor on the maximum learning rate at step `step` (from 0) of `steps`, or of schedule.total_steps.

    Warm-up: (step + 1) / warmup_steps, so that the first step is not lost. Then, with p the progress in [0, 1] since
    the end of the warm-up (cosine, linear) or the start of the decay (wsd) and m = min_lr_ratio,

        cosine  m + (1 − m)·(1 + cos πp)/2        linear, wsd  1 − (1 − m)·p        wsd-sqrt  1 − (1 − m)·√p

    "inverse-sqrt" is √(warmup_steps / (step + 1)), at least m.

    >>> [round(lr_factor(ScheduleConfig("cosine", warmup_steps=2), step, 6), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    >>> [round(lr_factor(ScheduleConfig("linear", warmup_steps=2), step, 6), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    >>> [round(lr_factor(ScheduleConfig("wsd", warmup_steps=1, decay_steps=2), step, 5), 3) for step in range(5)]
    [1.0, 1.0, 1.0, 1.0, 0.5]
    >>> [round(lr_factor(ScheduleConfig("wsd-sqrt", decay_steps=4), step, 6), 3) for step in range(6)]
    [1.0, 1.0, 1.0, 0.5, 0.293, 0.134]
    """
    warmup, least = schedule.warmup_steps, schedule.min_lr_ratio
    if schedule.tokens is not None:
        return schedule.tokens.lr_factor(step, least)
    steps = schedule.total_steps or steps
    if step < warmup:
        return (step + 1) / warmup
    if schedule.kind == "inverse-sqrt":
        return max(least, math.sqrt(max(warmup, 1) / (step + 1)))
    if schedule.kind == "constant":
        return 1.0
    if schedule.kind in DECAYING:
        decay = schedule.decay_steps
        if decay is None:
            decay = min(steps // 5, steps - warmup)
        progress = max(step - (steps - decay), 0) / max(decay, 1)
    else:
        progress = (step - warmup) / max(steps - warmup, 1)
    progress = min(progress, 1.0)
    if schedule.kind == "cosine":
        return least + (1 - least) * (1 + math.cos(math.pi * progress)) / 2
    if schedule.kind in ("linear", "wsd"):
        return 1 - (1 - least) * progress
    if schedule.kind == "wsd-sqrt":
        return 1 - (1 - least) * math.sqrt(progress)
    raise NotImplementedError(f"lr_factor has no formula for schedule.kind={schedule.kind!r}; add it there")
