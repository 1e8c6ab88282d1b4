"""ModuleStack: the modules being called and their names, to tell where in a model an operation runs.

It uses PyTorch's global module hooks. Hooks on the modules themselves would disable the fast path of
`nn.TransformerEncoderLayer` and so change the numbers that are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

HEAD_COUNTS = ("num_heads", "heads", "n_heads", "n_head", "num_attention_heads", "nhead")  # libraries' names
# Arguments of attention that are not a sequence to read: these names, and names that contain one of these words.
VALUES, NOT_SEQUENCES = ("value", "values", "v"), ("past", "mask", "bias", "pos", "emb", "weight")


@dataclass(frozen=True)
class ModuleCall:
    """A running call of a module: its name in the model, and who waits to learn whether it is cross-attention."""

    module: nn.Module
    name: str
    cross: bool | None = None  # known at the start if the hook sees keyword arguments
    waiting: list[Callable[[bool], None]] = field(default_factory=list)


class ModuleStack:
    """The modules being called, outermost first, named as in `model` or in the outermost module called.

    after: called with the name and the output of every module that returns.
    use_global_hooks: use PyTorch's hooks for all modules; otherwise hooks on the model's own modules, which see keyword
        arguments before the call but disable fast paths.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        after: Callable[[str, Any], None] | None = None,
        *,
        use_global_hooks: bool = True,
    ) -> None:
        self.model, self._use_global_hooks = model, use_global_hooks
        self.calls: list[ModuleCall] = []
        self.called: set[str] = set()  # names of all modules called so far
        self.parameters: set[int] = set()  # storage of the parameters: a product with one is a projection
        self._names: dict[nn.Module, str] = {}
        self._after = after
        self._handles: list[Any] = []
        if model is not None:
            self._add_names(model)

    def __enter__(self) -> ModuleStack:
        if not self._use_global_hooks and self.model is not None:
            for module in self.model.modules():
                self._handles.append(module.register_forward_pre_hook(self._push, with_kwargs=True))
                self._handles.append(module.register_forward_hook(self._pop, with_kwargs=True))
        else:
            self._handles.append(register_module_forward_pre_hook(self._push))
            self._handles.append(register_module_forward_hook(self._pop, with_kwargs=True))
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
        """Whether the running module is cross-attention, if that is known before it returns."""
        return next((call.cross for call in reversed(self.calls) if call.cross is not None), None)

    def report_cross(self, listener: Callable[[bool], None]) -> None:
        """Tell the listener whether the running attention is cross-attention, as soon as it is known.

        That is when the innermost module that reads any sequence returns: only then does PyTorch show its keyword
        arguments. Outside every module it is never known.
        """
        if self.calls:
            self.calls[-1].waiting.append(listener)

    @property
    def heads(self) -> int | None:
        """The head count of the innermost module that has one."""
        for call in reversed(self.calls):
            for name in HEAD_COUNTS:
                count = getattr(call.module, name, None)
                if isinstance(count, int) and not isinstance(count, bool):
                    return count
        return None

    def is_inside(self, name: str) -> bool:
        """Whether the module of that name is being called."""
        return any(call.name == name for call in self.calls)

    def _add_names(self, root: nn.Module) -> None:
        refuse_opaque(root)
        for name, module in root.named_modules():
            self._names.setdefault(module, name)
        self.parameters |= {parameter.untyped_storage().data_ptr() for parameter in root.parameters()}

    def _push(self, module: nn.Module, inputs: tuple, kwargs: dict[str, Any] | None = None) -> None:
        if module not in self._names and self.model is None and not self.calls:
            self._add_names(module)
        if self.calls and module is self.calls[0].module:  # the last call of the whole model ended in an exception
            self.calls.clear()
        if module in self._names:
            cross = None if kwargs is None else _is_cross_attention(inputs, kwargs)
            self.calls.append(ModuleCall(module, self._names[module], cross))
            self.called.add(self._names[module])

    def _pop(self, module: nn.Module, inputs: tuple, kwargs: dict[str, Any], output: Any) -> None:
        if module not in self._names or not any(call.module is module for call in self.calls):
            return
        while (call := self.calls.pop()).module is not module:  # calls that an exception ended
            pass
        cross = _is_cross_attention(inputs, kwargs)
        if cross is None and self.calls:
            self.calls[-1].waiting.extend(call.waiting)
        elif cross is not None:
            for listener in call.waiting:
                listener(cross)
        if self._after is not None and output is not None:
            self._after(call.name, output)


def check_module_names(model: nn.Module, names: Iterable[str]) -> None:
    """A ValueError, with similar names, for a name that no module of the model has."""
    known = dict(model.named_modules())
    for name in names:
        if name not in known:
            near = [other for other in known if name.split(".")[-1] in other][:3] or list(known)[1:4]
            raise ValueError(f"the model has no module {name!r}; it has, for example, {', '.join(near)}")


def refuse_opaque(model: nn.Module) -> None:
    """A ValueError for a compiled or scripted model: PyTorch does not show its operations one by one."""
    for name, module in model.named_modules():
        where = f"{name} ({type(module).__name__})" if name else f"this {type(module).__name__}"
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            raise ValueError(
                f"{where} is compiled, and a compiled module does not show its operations; pass the module that was "
                "given to torch.compile"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"{where} is scripted, and a scripted module does not show its operations; pass the Python module it "
                "was made from"
            )


def _is_cross_attention(inputs: tuple, kwargs: dict[str, Any]) -> bool | None:
    """Whether a module was given two different sequences of vectors; None if it was given none."""
    names = [name for name in kwargs if name not in VALUES and not any(word in name for word in NOT_SEQUENCES)]
    arguments = [*inputs[:2], *(kwargs[name] for name in names)]
    sequences = [x for x in arguments if isinstance(x, Tensor) and x.is_floating_point() and x.dim() in (2, 3)]
    if not sequences:
        return None
    return any(x.dim() == sequences[0].dim() and x is not sequences[0] for x in sequences[1:])
