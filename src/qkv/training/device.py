"""The device that a single process trains on: chosen by the caller, or a GPU if there is one."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_CHOSEN: ContextVar[torch.device | None] = ContextVar("training device", default=None)


def training_device() -> torch.device:
    """Return the device of `use_device`, or a GPU if there is one, or the CPU."""
    return _CHOSEN.get() or torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def use_device(name: str | None) -> Iterator[None]:
    """Train on this device inside the block; None for the default.

    >>> with use_device("cpu"):
    ...     training_device()
    device(type='cpu')
    """
    token = _CHOSEN.set(None if name is None else _find_device(name))
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def _find_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        present = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
        present += ["mps"] if torch.backends.mps.is_available() else []
        raise ValueError(f"there is no device {name!r} here; there is {', '.join(present)}") from None
    if device.type == "meta":
        raise ValueError("the device meta has no memory; train on cpu, cuda or mps")
    return device
