"""Parts of a training run as targets: losses, gradient accumulation, splits of data."""

from qkv.check.training.find import CALLS, Call, guess, judge_training

__all__ = ["CALLS", "Call", "guess", "judge_training"]
