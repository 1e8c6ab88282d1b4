"""Whether code chooses by value: top-k attention, routers and sorting jump where two values are nearly equal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qkv._operators import OperatorWatcher
from qkv.check.implementation import Implementation

CHOICES = ("aten.topk", "aten.sort", "aten.argsort", "aten.kthvalue", "aten.argmax", "aten.msort", "aten.round")


class ChoiceRecorder(OperatorWatcher):
    """Notes whether an operation chooses among floating-point values."""

    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if str(func).startswith(CHOICES) and isinstance(args[0], Tensor) and args[0].is_floating_point():
            self.found = True
        return func(*args, **(kwargs or {}))


def makes_choices(impl: Implementation) -> bool:
    """Whether a run chooses: then a token may have no effect by chance, and rounding may change the choice."""
    recorder = ChoiceRecorder()
    try:
        with torch.no_grad(), recorder:
            impl.run(impl.random_input(1, impl.length, torch.Generator().manual_seed(27)))
    except Exception:  # what cannot be recorded is judged as a black box
        return False
    return recorder.found
