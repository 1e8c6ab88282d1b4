"""Learning-rate schedules: warm-up, then cosine, warmup-stable-decay (WSD) or constant.

A schedule is a function of the step, so checkpoints save nothing for it.
"""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rate changes: linear warm-up, then by `kind`, down to `min_lr_ratio` times the maximum.

    kind: "cosine" decays from the end of the warm-up to the last step; "wsd" (warmup-stable-decay) stays constant and
        decays linearly over the last `decay_steps`; "constant" stays.
    decay_steps: length of the decay of "wsd"; None for a fifth of all steps.
    """

    kind: Literal["cosine", "wsd", "constant"] = "cosine"
    warmup_steps: int = 0
    decay_steps: int | None = None
    min_lr_ratio: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("cosine", "wsd", "constant"):
            raise ValueError(f"schedule.kind must be one of cosine, wsd, constant, got {self.kind!r}")
        for name in ("warmup_steps", "decay_steps"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"schedule.{name} must be at least 0, got {value}")
        if self.decay_steps is not None and self.kind != "wsd":
            raise ValueError(f"schedule.decay_steps={self.decay_steps} needs kind='wsd', but kind={self.kind!r}")
        if not 0 <= self.min_lr_ratio <= 1:
            raise ValueError(f"schedule.min_lr_ratio must be in [0, 1], got {self.min_lr_ratio}")


def lr_factor(schedule: ScheduleConfig, step: int, steps: int) -> float:
    """Compute the factor on the maximum learning rate at step `step` (from 0) of `steps`.

    Warm-up: (step + 1) / warmup_steps, so that the first step is not lost. Then, with p the progress in [0, 1] since
    the end of the warm-up (cosine) or the start of the decay (wsd) and m = min_lr_ratio,

        cosine  m + (1 − m)·(1 + cos πp)/2        wsd  1 − (1 − m)·p

    >>> [round(lr_factor(ScheduleConfig("cosine", warmup_steps=2), step, 6), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    >>> [round(lr_factor(ScheduleConfig("wsd", warmup_steps=1, decay_steps=2), step, 5), 3) for step in range(5)]
    [1.0, 1.0, 1.0, 1.0, 0.5]
    """
    warmup, least = schedule.warmup_steps, schedule.min_lr_ratio
    if step < warmup:
        return (step + 1) / warmup
    if schedule.kind == "constant":
        return 1.0
    if schedule.kind == "cosine":
        progress = (step - warmup) / max(steps - warmup, 1)
        return least + (1 - least) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2
    decay = schedule.decay_steps
    if decay is None:
        decay = min(steps // 5, steps - warmup)
    progress = max(step - (steps - decay), 0) / max(decay, 1)
    return 1 - (1 - least) * min(progress, 1.0)
