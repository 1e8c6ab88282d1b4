"""Which kinds of operations a run has: choices by value, which jump where two values are nearly equal, and weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qkv._operators import OperatorWatcher
from qkv.check.implementation import Implementation

CHOICES = ("aten.topk", "aten.sort", "aten.argsort", "aten.kthvalue", "aten.argmax", "aten.msort", "aten.round")
WEIGHTS = ("aten._softmax", "aten._safe_softmax", "aten.exp", "aten.logsumexp", "aten._scaled_dot_product", "aten.bmm")


class OperationFinder(OperatorWatcher):
    """Notes whether a run has one of some operations on floating-point values."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names, self.found = names, False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if str(func).startswith(self.names) and isinstance(args[0], Tensor) and args[0].is_floating_point():
            self.found = True
        return func(*args, **(kwargs or {}))


def makes_choices(impl: Implementation) -> bool:
    """Whether a run chooses: then a token may have no effect by chance, and rounding may change the choice."""
    return _finds(impl, CHOICES) is True


def has_weights(impl: Implementation) -> bool:
    """Whether a run has a softmax, an exponential or a product for each row of the batch; a convolution has none."""
    return _finds(impl, WEIGHTS) is not False


def _finds(impl: Implementation, names: tuple[str, ...]) -> bool | None:
    """Whether a run has one of the operations; None if it cannot be recorded."""
    finder = OperationFinder(names)
    try:
        with torch.no_grad(), finder:
            impl.run(impl.random_input(1, impl.length, torch.Generator().manual_seed(27)))
    except Exception:  # what cannot be recorded is judged as a black box
        return None
    return finder.found
