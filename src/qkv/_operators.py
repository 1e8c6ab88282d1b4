"""The base class of everything that watches PyTorch's operators while a model runs."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class OperatorWatcher(TorchDispatchMode):
    """A dispatch mode that does not import PyTorch's compiler.

    PyTorch tells its compiler to leave the method `__torch_dispatch__` of a mode alone, and imports it for that, which
    takes a second. Here it is told only if something else has imported it: otherwise there is nothing to tell.
    """

    _hidden_from_dynamo = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not when the class is made; see `__enter__`."""
        return False

    def __enter__(self) -> OperatorWatcher:
        cls = type(self)
        if "torch._dynamo" in sys.modules and "_hidden_from_dynamo" not in cls.__dict__:
            cls._hidden_from_dynamo = True
            cls.__torch_dispatch__ = torch._disable_dynamo(cls.__torch_dispatch__, recursive=True)
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        raise NotImplementedError
