"""Training configuration: TrainConfig (steps, grad_clip, EMA, precision, …), CheckpointConfig (save, keep, best)."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from qkv._config import from_dict, to_dict
from qkv.training.optimizers import OptimizerConfig
from qkv.training.schedules import ScheduleConfig

MAX_STEPS = 10**12  # anything longer is a typing mistake: such a run would never end


@dataclass(frozen=True)
class CheckpointConfig:
    """How often to log, evaluate and save, in steps; 0 means never. The last step is always evaluated and saved.

    keep_last: number of recent checkpoints to keep; the best one is kept as well.
    average_last: checkpoint averaging: the trained model has the mean of the weights of so many last checkpoints, not
        those of the best one; 1 averages nothing.
    best_metric: metric of the evaluation that selects the best checkpoint; "" selects none.
    greater_is_better: whether a larger value of `best_metric` is better.
    """

    log_every: int = 10
    evaluate_every: int = 0
    checkpoint_every: int = 500
    keep_last: int = 2
    average_last: int = 1
    best_metric: str = ""
    greater_is_better: bool = True

    def __post_init__(self) -> None:
        least_values = {"log_every": 1, "evaluate_every": 0, "checkpoint_every": 0, "keep_last": 1, "average_last": 1}
        for name, least in least_values.items():
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise ValueError(f"checkpoint.{name} must be at least {least}, got {value}")
        if self.average_last > self.keep_last:
            raise ValueError(
                f"checkpoint.average_last={self.average_last} needs as many checkpoints, got keep_last={self.keep_last}"
            )
        if self.average_last > 1 and self.best_metric:
            raise ValueError(
                f"checkpoint.average_last={self.average_last} takes the last checkpoints and best_metric="
                f"{self.best_metric!r} the best one; set best_metric='' to average"
            )


@dataclass(frozen=True)
class TrainConfig:
    """Everything the training loop needs besides model, data and objective.

    Args:
        steps: number of optimizer steps.
        grad_accumulation: number of batches that one step accumulates gradients over.
        grad_clip: gradient clipping: largest norm of the gradient; None for no clipping.
        ema_decay: decay of an exponential moving average (EMA) of the weights, such as 0.999, which is then what is
            evaluated and exported; 0 for none.
        dtype: dtype of matrix products (mixed precision by autocast); "auto" is bfloat16 on GPUs that support it and
            float32 elsewhere.
        activation_checkpointing: recompute the activations of each block in the backward pass: less memory, about a
            third more time.
        num_workers: number of processes that prepare batches; the batches are the same for any number.
        parallel: under torchrun, "ddp" keeps a copy of the model in each process, "fsdp" shards it.
        disable_malloc_trim: keep freed memory in the process (see `disable_malloc_trim`): faster steps on CPUs with
            glibc. This is a setting of the whole process, so it is off by default.

    >>> TrainConfig(steps=100, optimizer=OptimizerConfig(lr=3e-4)).optimizer.lr
    0.0003
    >>> TrainConfig(steps=0)
    Traceback (most recent call last):
    ValueError: steps must be at least 1, got 0
    """

    steps: int
    seed: int = 0
    grad_accumulation: int = 1
    grad_clip: float | None = 1.0
    ema_decay: float = 0.0
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    activation_checkpointing: bool = False
    num_workers: int = 0
    parallel: Literal["ddp", "fsdp"] = "ddp"
    disable_malloc_trim: bool = False
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("grad_accumulation", 1), ("num_workers", 0)):
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if self.steps > MAX_STEPS:
            raise ValueError(f"steps must be at most {MAX_STEPS:,}, got {self.steps:,}")
        for name, options in (("dtype", ("auto", "float32", "bfloat16")), ("parallel", ("ddp", "fsdp"))):
            value = getattr(self, name)
            if value not in options:
                raise ValueError(f"{name} must be one of {', '.join(options)}, got {value!r}")
        if self.grad_clip is not None and not 0 < self.grad_clip < math.inf:
            raise ValueError(f"grad_clip must be above 0 and finite, got {self.grad_clip}")
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must be in [0, 1), got {self.ema_decay}; 0 keeps no average")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be in [0, 2^63), got {self.seed}")
        warmup, decay = self.schedule.warmup_steps, self.schedule.decay_steps or 0
        laid_out = self.schedule.total_steps or self.steps
        if warmup + decay > laid_out:
            raise ValueError(f"{warmup} warm-up steps and {decay} decay steps do not fit into steps={laid_out}")

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data for JSON and TOML."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, plain: Any, where: str = "TrainConfig") -> "TrainConfig":
        """Inverse of `to_dict`. A wrong field raises a ValueError that names it, and `where` it came from."""
        return from_dict(cls, plain, where)
