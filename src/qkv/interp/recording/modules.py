"""Where in a model an operation runs: the stack of modules being called, with their names.

The hooks are those that PyTorch calls for every module. Hooks on the modules themselves would switch the fast path of
`nn.TransformerEncoderLayer` off, and with it change the numbers that are to be observed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

HEAD_COUNTS = ("num_heads", "heads", "n_heads", "n_head", "num_attention_heads", "nhead")  # what libraries call them
# inputs of attention that are no sequence to read: those of these names, and those whose names hold such a word
VALUES, NOT_SEQUENCES = ("value", "values", "v"), ("past", "mask", "bias", "pos", "emb", "weight")


@dataclass(frozen=True)
class Call:
    """A call of a module: its name within the model, and who waits to hear whether it was handed two sequences."""

    module: nn.Module
    name: str
    cross: bool | None = None  # known from the beginning if keyword arguments were shown
    waiting: list[Callable[[bool], None]] = field(default_factory=list)


class ModuleStack:
    """The modules being called, outermost first, with their names in `model`, or in the outermost module called.

    after: called with the name and the output of every module that returns.
    everywhere: by PyTorch's hooks for every module; else by hooks on the model's own, which see keyword arguments
        before the call, but switch fast paths off.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        after: Callable[[str, Any], None] | None = None,
        *,
        everywhere: bool = True,
    ) -> None:
        self.model, self._everywhere = model, everywhere
        self.calls: list[Call] = []
        self.called: set[str] = set()  # the names of all that were called so far
        self.parameters: set[int] = set()  # where the parameters are stored: a product with one is a projection
        self._names: dict[nn.Module, str] = {}
        self._after = after
        self._given = model is not None
        self._handles: list[Any] = []
        if model is not None:
            self._learn(model)

    def __enter__(self) -> ModuleStack:
        if not self._everywhere and self.model is not None:
            for module in self.model.modules():
                self._handles.append(module.register_forward_pre_hook(self._push, with_kwargs=True))
                self._handles.append(module.register_forward_hook(self._pop, with_kwargs=True))
            return self
        self._handles = [
            register_module_forward_pre_hook(self._push),
            register_module_forward_hook(self._pop, with_kwargs=True),
        ]
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for handle in self._handles:
            handle.remove()
        self.calls.clear()

    @property
    def name(self) -> str:
        """The innermost module's name; "" outside every module."""
        return self.calls[-1].name if self.calls else ""

    @property
    def module(self) -> nn.Module | None:
        return self.calls[-1].module if self.calls else None

    @property
    def cross(self) -> bool | None:
        """Whether what runs now is attention to another sequence, where that is known from the beginning."""
        return next((call.cross for call in reversed(self.calls) if call.cross is not None), None)

    def tell_cross(self, listener: Callable[[bool], None]) -> None:
        """Tell the listener whether what runs now is attention to another sequence, as soon as it is known.

        That is when the innermost module that reads any sequence returns: only then does PyTorch show its keyword
        arguments. Outside every module it is never known.
        """
        if self.calls:
            self.calls[-1].waiting.append(listener)

    @property
    def heads(self) -> int | None:
        """How many heads the innermost module that says so has."""
        for call in reversed(self.calls):
            for name in HEAD_COUNTS:
                count = getattr(call.module, name, None)
                if isinstance(count, int) and not isinstance(count, bool):
                    return count
        return None

    def inside(self, name: str) -> bool:
        """Whether the module of that name is being called."""
        return any(call.name == name for call in self.calls)

    def _learn(self, root: nn.Module) -> None:
        refuse_opaque(root)
        for name, module in root.named_modules():
            self._names.setdefault(module, name)
        self.parameters |= {parameter.untyped_storage().data_ptr() for parameter in root.parameters()}

    def _push(self, module: nn.Module, inputs: tuple, named: dict[str, Any] | None = None) -> None:
        if module not in self._names and not self._given and not self.calls:
            self._learn(module)
        if self.calls and module is self.calls[0].module:  # the last call of the whole model ended in an exception
            self.calls.clear()
        if module in self._names:
            cross = None if named is None else _is_cross(inputs, named)
            self.calls.append(Call(module, self._names[module], cross))
            self.called.add(self._names[module])

    def _pop(self, module: nn.Module, inputs: tuple, named: dict[str, Any], output: Any) -> None:
        if module not in self._names or not any(call.module is module for call in self.calls):
            return
        while (call := self.calls.pop()).module is not module:  # calls that an exception has ended
            pass
        cross = _is_cross(inputs, named)
        if cross is None and self.calls:
            self.calls[-1].waiting.extend(call.waiting)
        elif cross is not None:
            for listener in call.waiting:
                listener(cross)
        if self._after is not None and output is not None:
            self._after(call.name, output)


def refuse_opaque(model: nn.Module) -> None:
    """A ValueError for a model whose operations PyTorch does not show one by one."""
    for name, module in model.named_modules():
        where = f"{name} ({type(module).__name__})" if name else f"this {type(module).__name__}"
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            raise ValueError(
                f"{where} is compiled, and a compiled module does not show its operations; give the module that was "
                "passed to torch.compile"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"{where} is scripted, and a scripted module does not show its operations; give the Python module it "
                "was made from"
            )


def _is_cross(inputs: tuple, named: dict[str, Any]) -> bool | None:
    """Whether a module was handed two different sequences of vectors; None if it was handed none."""
    told = [name for name in named if name not in VALUES and not any(word in name for word in NOT_SEQUENCES)]
    given = [*inputs[:2], *(named[name] for name in told)]
    sequences = [x for x in given if isinstance(x, Tensor) and x.is_floating_point() and x.dim() in (2, 3)]
    if not sequences:
        return None
    return any(x.dim() == sequences[0].dim() and x is not sequences[0] for x in sequences[1:])
