"""record(): capture the attention of a model that is assumed to be right, without changing a bit of the run.

A dispatch mode sees every operator below autograd, after all fast paths were chosen. Fused attention is read by
`kernels`, hand-written attention is found by `softmax_finder`, names come from `module_stack`. A TorchFunctionMode
would not work: PyTorch disables the fused encoder when one is active.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils.weak import WeakTensorKeyDictionary

from qkv._operators import OperatorWatcher
from qkv.interp.layers import TracedLayer
from qkv.interp.lazy_weights import WeightSource
from qkv.interp.recording.joining import HeldTensor, LayerCalls, TensorHolder
from qkv.interp.recording.kernels import (
    SUFFIX,
    Reader,
    bind_arguments,
    find_reader,
    is_composite,
    read_values,
    run_decomposed,
)
from qkv.interp.recording.module_stack import ModuleStack, check_module_names
from qkv.interp.recording.softmax_finder import SoftmaxFinder
from qkv.interp.traces import Trace

ModuleFilter = Collection[str] | Callable[[str], bool]


@contextmanager
def record(model: nn.Module | None = None, activations: ModuleFilter = (), *, values: bool = False) -> Iterator[Trace]:
    """Record every attention that runs inside the block; the trace is complete when the block ends.

    model: its modules name the layers; by default the outermost module that is called.
    activations: names of modules whose outputs are recorded too, or a function from name to bool.
    values: also record the layers' values, as `layer.values` (b, g, s, d).

    >>> import torch, qkv
    >>> model = qkv.models.GPT(qkv.models.GPTConfig(vocab_size=65, dim=32, layers=2, heads=4))
    >>> with record(model) as trace:
    ...     logits = model(torch.tensor([[1, 2, 3]]))
    >>> [(layer.name, layer.heads, layer.queries, layer.keys) for layer in trace.layers]
    [('blocks.0.attention', 4, 3, 3), ('blocks.1.attention', 4, 3, 3)]
    """
    trace = Trace()
    mode = Recorder(model, _activation_filter(model, activations), values)
    with mode.stack, mode:
        yield trace
    trace._complete(mode.layers(), mode.activations())


class Recorder(OperatorWatcher):
    """The dispatch mode that watches a run."""

    supports_higher_order_operators = True  # so that flex_attention is refused by us, by name

    def __init__(
        self, model: nn.Module | None, keep_activation: Callable[[str], bool] | None, keep_values: bool = False
    ) -> None:
        super().__init__()
        self.stack = ModuleStack(model, None if keep_activation is None else self._add_activation)
        self._holder = TensorHolder()
        self._finder = SoftmaxFinder(self._add_attention, lambda: self.stack.heads, self._is_parameter, self._holder)
        self._keep_activation, self._keep_values = keep_activation, keep_values
        self._readers: dict[Any, tuple[str, Reader | None]] = {}
        self._calls: dict[tuple[int, str], list[LayerCalls]] = {}
        self._order: list[tuple[str, LayerCalls]] = []
        self._activations: dict[str, list[HeldTensor]] = {}
        self._outputs = WeakTensorKeyDictionary()  # outputs of fused kernels

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func not in self._readers:
            self._readers[func] = (func.__name__.split(".")[0], find_reader(func))
        name, reader = self._readers[func]
        if not isinstance(func, OpOverload):  # an operator that takes functions: nothing to follow
            return func(*args, **kwargs)
        if reader is None and is_composite(func):
            with self:
                return run_decomposed(func, *args, **kwargs)
        output = self._finder.run(name, func, args, kwargs)
        if reader is not None:
            arguments = bind_arguments(func, args, kwargs)
            values = read_values(arguments) if self._keep_values else None
            source = reader(arguments, self._finder.analyze_bias)
            calls = self._add_attention(source, values, SUFFIX.get(name, ""))
            self._outputs[output[0] if isinstance(output, tuple) else output] = calls
        else:
            if name == "masked_fill" and args[0] in self._outputs and float(args[2]) == 0.0:
                self._outputs[args[0]].mark_empty(args[1])
            self._finder.after(name, args, kwargs, output)
        return output

    def _add_attention(self, source: WeightSource, values: Tensor | None, suffix: str = "") -> LayerCalls:
        """Add an attention to the calls of the module that is running."""
        values = values if self._keep_values else None
        module = self.stack.module
        earlier = self._calls.setdefault((id(module), suffix), []) if module is not None else []
        for calls in reversed(earlier):
            if calls.join(source, values):
                return calls
        calls = LayerCalls(source, self._holder, values)
        self.stack.report_cross(calls.set_cross)
        name = ".".join(part for part in (self.stack.name, suffix) if part) or "attention"
        self._order.append((name, calls))
        earlier.append(calls)
        return calls

    def _is_parameter(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.stack.parameters

    def _add_activation(self, name: str, output: Any) -> None:
        tensor = first_tensor(output)
        if self._keep_activation is not None and tensor is not None and self._keep_activation(name):
            self._activations.setdefault(name, []).append(self._holder.hold(tensor))

    def layers(self) -> list[TracedLayer]:
        """The recorded layers; a repeated name gets a number: name@1."""
        counts: dict[str, int] = {}
        layers = []
        for name, calls in self._order:
            number = counts[name] = counts.get(name, -1) + 1
            layers.append(calls.layer(f"{name}@{number}" if number else name))
        return layers

    def activations(self) -> dict[str, tuple[Tensor, ...]]:
        """The recorded outputs of modules, one per call."""
        return {name: tuple(held.compact() for held in calls) for name, calls in self._activations.items()}


def first_tensor(output: Any) -> Tensor | None:
    """The tensor that a module returns, or the first of several."""
    if isinstance(output, Tensor):
        return output
    values: Any = ()
    if isinstance(output, dict):
        values = output.values()
    elif isinstance(output, tuple | list):
        values = output
    return next((value for value in values if isinstance(value, Tensor)), None)


def _activation_filter(model: nn.Module | None, activations: ModuleFilter) -> Callable[[str], bool] | None:
    """Whether a module's output is recorded, by its name; a ValueError for a name that the model does not have."""
    if callable(activations):
        return activations
    names = {activations} if isinstance(activations, str) else set(activations)
    if model is not None:
        check_module_names(model, names)
    return names.__contains__ if names else None
