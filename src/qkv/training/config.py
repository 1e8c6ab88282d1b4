"""How a model is trained, in numbers: what the loop needs to know beside model, data and objective."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from qkv._config import from_plain, to_plain

MOST_STEPS = 10**12  # a slip of the keyboard: a run that long would never end


@dataclass(frozen=True)
class Optimiser:
    """What turns gradients into steps.

    name: "adamw", or "muon": Muon for the matrices inside blocks, AdamW for everything else.
    lr: AdamW's largest learning rate. muon_lr: Muon's, whose steps have another size. The schedule scales both.
    weight_decay: decoupled, for matrices; never for norms and biases; for tables of vectors if decay_tables.
    """

    name: Literal["adamw", "muon"] = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decay_tables: bool = False
    muon_lr: float = 0.02
    momentum: float = 0.95

    def __post_init__(self) -> None:
        _one_of("optimiser.name", self.name, ("adamw", "muon"))
        for name in ("lr", "muon_lr", "weight_decay"):
            _at_least("optimiser." + name, getattr(self, name), 0)
        _positive("optimiser.epsilon", self.epsilon)
        for name, value in (("betas", self.betas[0]), ("betas", self.betas[1]), ("momentum", self.momentum)):
            if not 0 <= value < 1:
                raise ValueError(f"optimiser.{name} is from 0 up to, but not, 1; got {value}")


@dataclass(frozen=True)
class Schedule:
    """How the learning rate moves: up over `warmup` steps, then by its kind, down to `floor` times the largest.

    kind: "cosine" falls from the end of the warm-up to the last step; "wsd" (warm-up, stable, decay) stays until the
        last `decay` steps and falls in a straight line; "constant" stays.
    decay: for "wsd", how many steps the fall takes; a fifth of all if not given.
    """

    kind: Literal["cosine", "wsd", "constant"] = "cosine"
    warmup: int = 0
    decay: int | None = None
    floor: float = 0.0

    def __post_init__(self) -> None:
        _one_of("schedule.kind", self.kind, ("cosine", "wsd", "constant"))
        _at_least("schedule.warmup", self.warmup, 0)
        if self.decay is not None:
            _at_least("schedule.decay", self.decay, 0)
            if self.kind != "wsd":
                raise ValueError(f"schedule.decay={self.decay} belongs to kind='wsd'; the kind is {self.kind!r}")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"schedule.floor is a share of the learning rate, from 0 to 1; got {self.floor}")


@dataclass(frozen=True)
class Saving:
    """What is written down, and when: in steps, 0 for never. The last step is always saved and evaluated.

    keep_last: how many checkpoints stay; the best stays besides.
    best: which number of the evaluation decides what is best ("" for none); larger: whether more of it is better.
    """

    log_every: int = 10
    evaluate_every: int = 0
    checkpoint_every: int = 500
    keep_last: int = 2
    best: str = ""
    larger: bool = True

    def __post_init__(self) -> None:
        for name, least in (("log_every", 1), ("evaluate_every", 0), ("checkpoint_every", 0), ("keep_last", 1)):
            _at_least("saving." + name, getattr(self, name), least)


@dataclass(frozen=True)
class Settings:
    """Everything the loop is told.

    steps: how many updates. accumulate: how many batches an update is made of.
    clip: the largest norm of the gradient; None for any.
    average: the decay of an exponential average of the weights (0.999, say), which is then what is evaluated and
        exported; 0 for none.
    dtype: what matrices are multiplied in; "auto" is bfloat16 on GPUs that have it and float32 elsewhere.
    recompute: whether blocks compute what is inside them again on the way back: less memory, a third more time.
    workers: how many processes prepare batches; the batches are the same for any number.
    parallel: under torchrun, "ddp" keeps a whole copy in each process, "fsdp" a share of everything.

    >>> Settings(steps=100, optimiser=Optimiser(lr=3e-4)).optimiser.lr
    0.0003
    >>> Settings(steps=0)
    Traceback (most recent call last):
    ValueError: steps is at least 1; got 0
    """

    steps: int
    seed: int = 0
    accumulate: int = 1
    clip: float | None = 1.0
    average: float = 0.0
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    recompute: bool = False
    workers: int = 0
    parallel: Literal["ddp", "fsdp"] = "ddp"
    optimiser: Optimiser = field(default_factory=Optimiser)
    schedule: Schedule = field(default_factory=Schedule)
    saving: Saving = field(default_factory=Saving)

    def __post_init__(self) -> None:
        _at_least("steps", self.steps, 1)
        if self.steps > MOST_STEPS:
            raise ValueError(f"steps is at most {MOST_STEPS:,}; got {self.steps:,}")
        _at_least("accumulate", self.accumulate, 1)
        _at_least("workers", self.workers, 0)
        _one_of("dtype", self.dtype, ("auto", "float32", "bfloat16"))
        _one_of("parallel", self.parallel, ("ddp", "fsdp"))
        if self.clip is not None:
            _positive("clip", self.clip)
        if not 0 <= self.average < 1:
            raise ValueError(f"average is from 0 (none) up to, but not, 1; got {self.average}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is a whole number from 0 to 2^63 - 1; got {self.seed}")
        fall = self.schedule.decay or 0
        if self.schedule.warmup + fall > self.steps:
            raise ValueError(
                f"a warm-up of {self.schedule.warmup} and a decay of {fall} do not fit into steps={self.steps}"
            )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON and TOML."""
        return to_plain(self)

    @classmethod
    def from_dict(cls, plain: Any, where: str = "settings") -> "Settings":
        """The inverse of `as_dict`; a field that is not there, or does not fit, is a ValueError that names it."""
        return from_plain(cls, plain, where)


def _one_of(name: str, value: str, options: tuple[str, ...]) -> None:
    if value not in options:
        raise ValueError(f"{name} is one of {', '.join(options)}; got {value!r}")


def _at_least(name: str, value: float | int, least: int) -> None:
    if not least <= value < math.inf:
        raise ValueError(f"{name} is at least {least}; got {value}")


def _positive(name: str, value: float | int) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is above 0; got {value}")
