"""Where numbers stopped being numbers: the batch is run again, and the first module that gives others is named."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qkv.data.batches import Batch
from qkv.training.shards import local

NOTHING = "every output of a module is finite: it is the loss itself, or its gradient"


class NotFiniteError(ValueError):
    """A loss or a gradient is not a finite number; the update was not made."""


def first_cause(model: nn.Module, batches: list[Batch], forward: Callable[[int], Any]) -> str:
    """Say what was first: a weight, a batch, the output of a module, the loss, or a parameter's gradient.

    forward: runs the model on the batch of that number as it was run before. Gradients are as they were left.
    """
    for name, parameter in model.named_parameters():
        if not finite(parameter):
            return f"the weights were not finite before the step, first {name}"
    for batch in batches:
        for name, tensor in batch.items():
            if not finite(tensor):
                return f"the batch itself holds numbers that are not finite, in {name!r}"
    order: list[str] = []
    bad: list[str] = []
    with torch.no_grad(), _watched(model, order, bad):
        for number in range(len(batches)):
            forward(number)
            if bad:
                return f"first in the output of {bad[0]}"
    spoiled = {name.rpartition(".")[0]: name for name, p in model.named_parameters() if not finite(p.grad)}
    # on the way back the first module is the last of the way forth
    for module in reversed(order):
        if module in spoiled:
            return f"every output is finite; on the way back first in the gradient of {spoiled[module]}"
    return NOTHING


def finite(tensor: Tensor | None) -> bool:
    """Whether each of a tensor's numbers is finite."""
    if tensor is None or not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return bool(local(tensor.detach()).isfinite().all())


@contextmanager
def _watched(model: nn.Module, order: list[str], bad: list[str]) -> Iterator[None]:
    """While entered, `order` grows by each module that ends, `bad` by each whose output is not finite."""

    def watch(name: str, kind: str) -> Callable[[nn.Module, Any, Any], None]:
        def look(_: nn.Module, __: Any, output: Any) -> None:
            order.append(name)
            if not all(finite(tensor) for tensor in _tensors(output)):
                bad.append(f"{name or 'the model'} ({kind})")

        return look

    hooks = [part.register_forward_hook(watch(name, type(part).__name__)) for name, part in model.named_modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _tensors(value)
