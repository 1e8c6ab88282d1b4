"""Recording the attention of a run, whatever computes it, without changing a bit of the run.

A dispatch mode sees every operator below autograd, after all fast paths have been chosen: whole attentions are read by
`kernels`, hand-written ones found by `follow`, names come from `modules`. A function mode would not do: PyTorch
switches the fused encoder off as soon as there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from qkv.interp.recording.follow import Follower
from qkv.interp.recording.hold import Held, Holder
from qkv.interp.recording.kernels import SUFFIX, Reader, bound, in_parts, is_composite, kernel_values, reader_of
from qkv.interp.recording.modules import ModuleStack
from qkv.interp.traces.join import Calls
from qkv.interp.traces.lazy_weights import Source
from qkv.interp.traces.trace import Trace

Wanted = Collection[str] | Callable[[str], bool]


@contextmanager
def record(model: nn.Module | None = None, activations: Wanted = (), *, values: bool = False) -> Iterator[Trace]:
    """Record every attention that runs inside; the trace is complete when the block ends.

    model: whose modules give the layers their names; without it, the outermost module that is called.
    activations: names of modules whose outputs are kept too, or a function that says of each name whether it is.
    values: whether the layers' values are kept too, as `layer.values` (b, g, s, d).

    >>> import torch, qkv
    >>> model = qkv.models.GPT(qkv.models.GPTConfig(vocab_size=65, dim=32, layers=2, heads=4))
    >>> with record(model) as trace:
    ...     logits = model(torch.tensor([[1, 2, 3]]))
    >>> [(layer.name, layer.heads, layer.queries, layer.keys) for layer in trace.layers]
    [('blocks.0.attention', 4, 3, 3), ('blocks.1.attention', 4, 3, 3)]
    """
    wanted = _checked(model, activations)
    trace = Trace()
    mode = Recorder(model, wanted, values)
    with mode.stack, mode:
        yield trace
    trace._complete(mode.layers(), mode.outputs())


class Recorder(TorchDispatchMode):
    """The mode that watches a run."""

    supports_higher_order_operators = True  # so that flex_attention is refused by us, by name

    def __init__(self, model: nn.Module | None, wanted: Callable[[str], bool] | None, values: bool = False) -> None:
        super().__init__()
        self.stack = ModuleStack(model, None if wanted is None else self._keep)
        self._holder = Holder()
        self._follower = Follower(self._found, lambda: self.stack.heads, self._projects)
        self._wanted, self._values = wanted, values
        self._readers: dict[Any, tuple[str, Reader | None]] = {}
        self._calls: dict[tuple[int, str], list[Calls]] = {}
        self._order: list[tuple[str, Calls]] = []
        self._kept: dict[str, list[Held]] = {}
        self._gathered = WeakTensorKeyDictionary()  # what kernels returned

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        named = kwargs or {}
        if func not in self._readers:
            self._readers[func] = (func.__name__.split(".")[0], reader_of(func))
        name, reader = self._readers[func]
        if not isinstance(func, OpOverload):  # an operator that takes functions: nothing to follow
            return func(*args, **named)
        if reader is None and is_composite(func):
            with self:
                return in_parts(func, *args, **named)
        written = self._holder.before(func, args, named)
        if written:
            self._follower.wrote(written, name, args[0] if args else None)
        output = func(*args, **named)
        if reader is not None:
            given = bound(func, args, named)
            values = kernel_values(given) if self._values else None
            calls = self._found(reader(given, self._follower.understand), values, SUFFIX.get(name, ""))
            self._gathered[output[0] if isinstance(output, tuple) else output] = calls
        else:
            if name == "masked_fill" and args[0] in self._gathered and float(args[2]) == 0.0:
                self._gathered[args[0]].empty(args[1])
            self._follower.after(name, args, named, output)
        return output

    def _found(self, source: Source, values: Tensor | None, suffix: str = "") -> Calls:
        """Add an attention to the calls of the module that is being called."""
        values = values if self._values else None
        module = self.stack.module
        known = self._calls.setdefault((id(module), suffix), []) if module is not None else []
        for calls in reversed(known):
            if calls.continued(source, values):
                return calls
        calls = Calls(source, self._holder, values)
        self.stack.tell_cross(calls.hear)
        name = ".".join(part for part in (self.stack.name, suffix) if part) or "attention"
        self._order.append((name, calls))
        known.append(calls)
        return calls

    def _projects(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.stack.parameters

    def _keep(self, name: str, output: Any) -> None:
        tensor = first_tensor(output)
        if self._wanted is not None and tensor is not None and self._wanted(name):
            self._kept.setdefault(name, []).append(self._holder.hold(tensor))

    def layers(self) -> list:
        """What was recorded; a name that comes again gets a number."""
        counts: dict[str, int] = {}
        layers = []
        for name, calls in self._order:
            number = counts[name] = counts.get(name, -1) + 1
            layers.append(calls.layer(f"{name}@{number}" if number else name))
        return layers

    def outputs(self) -> dict[str, tuple[Tensor, ...]]:
        return {name: tuple(held.compact() for held in kept) for name, kept in self._kept.items()}


def first_tensor(output: Any) -> Tensor | None:
    """The tensor that a module returns, or the first of several."""
    if isinstance(output, Tensor):
        return output
    values = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()
    return next((value for value in values if isinstance(value, Tensor)), None)


def _checked(model: nn.Module | None, activations: Wanted) -> Callable[[str], bool] | None:
    """The question whether a module's output is kept; a ValueError for a name that the model has not."""
    if callable(activations):
        return activations
    names = {activations} if isinstance(activations, str) else set(activations)
    if model is not None:
        known = dict(model.named_modules())
        for name in names:
            if name not in known:
                near = [other for other in known if name.split(".")[-1] in other][:3] or list(known)[1:4]
                raise ValueError(f"the model has no module {name!r}; it has, for example, {', '.join(near)}")
    return names.__contains__ if names else None
