"""The learning rate as a function of the step: nothing to save, nothing to restore."""

import math

from qkv.training.config import Schedule


def factor(schedule: Schedule, step: int, steps: int) -> float:
    """What the largest learning rate is multiplied by at update `step` (from 0) of `steps`.

    Warm-up: (step + 1) / warmup, so that the first update is not lost. Then, with p the share of the way that is done
    from the end of the warm-up (cosine) or the start of the decay (wsd) to the end,

        cosine  floor + (1 − floor)·(1 + cos πp)/2        wsd  1 − (1 − floor)·p

    >>> [round(factor(Schedule("cosine", warmup=2), step, 6), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    >>> [round(factor(Schedule("wsd", warmup=1, decay=2), step, 5), 3) for step in range(5)]
    [1.0, 1.0, 1.0, 1.0, 0.5]
    """
    if step < schedule.warmup:
        return (step + 1) / schedule.warmup
    if schedule.kind == "constant":
        return 1.0
    if schedule.kind == "cosine":
        done = (step - schedule.warmup) / max(steps - schedule.warmup, 1)
        return schedule.floor + (1 - schedule.floor) * (1 + math.cos(math.pi * min(done, 1.0))) / 2
    fall = fall_length(schedule, steps)
    done = max(step - (steps - fall), 0) / max(fall, 1)
    return 1 - (1 - schedule.floor) * min(done, 1.0)


def fall_length(schedule: Schedule, steps: int) -> int:
    """How many steps the decay of "wsd" takes."""
    return min(steps // 5, steps - schedule.warmup) if schedule.decay is None else schedule.decay
