"""NaN and infinity: find the first module, parameter or batch that is not finite when a loss or gradient is not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qkv.data.batches import Batch
from qkv.training.distributed import local_tensor

ONLY_LOSS = "all module outputs are finite: the loss itself, or its gradient, is not"
LOSS_FUNCTION = "all module outputs are finite; the objective itself computed a loss that is not"


class NotFiniteError(ValueError):
    """A loss or a gradient is NaN or infinite; the optimizer step was not made."""


def find_first_cause(model: nn.Module, batches: list[Batch], forward: Callable[[int], Any]) -> str:
    """Describe what was not finite first: a weight, a batch, a module output, the loss or a gradient.

    forward: runs the model on the batch with that index again, as in the step, and returns the loss. Gradients are
        those of the step.
    """
    for name, parameter in model.named_parameters():
        if not is_finite(parameter):
            return f"the weights were not finite before the step, first {name}"
    for batch in batches:
        for name, tensor in batch.items():
            if not is_finite(tensor):
                return f"the batch has values that are not finite, in {name!r}"
    order: list[str] = []
    bad: list[str] = []
    with torch.no_grad(), _watch_outputs(model, order, bad):
        for index in range(len(batches)):
            loss = forward(index)
            if bad:
                return f"first in the output of {bad[0]}"
            if isinstance(loss, Tensor) and not is_finite(loss):
                return LOSS_FUNCTION
    bad_gradients = {name.rpartition(".")[0]: name for name, p in model.named_parameters() if not is_finite(p.grad)}
    for module in reversed(order):  # the backward pass visits modules in reverse order
        if module in bad_gradients:
            return (
                f"all module outputs are finite; in the backward pass first in the gradient of {bad_gradients[module]}"
            )
    return ONLY_LOSS


def is_finite(tensor: Tensor | None) -> bool:
    """Whether all numbers of a tensor are finite; None and integers are."""
    if tensor is None or not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return bool(local_tensor(tensor.detach()).isfinite().all())


@contextmanager
def _watch_outputs(model: nn.Module, order: list[str], bad: list[str]) -> Iterator[None]:
    """Append each module that ran to `order`, and each whose output is not finite to `bad`."""

    def make_hook(name: str, kind: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            order.append(name)
            if not all(is_finite(tensor) for tensor in _tensors(output)):
                bad.append(f"{name or 'the model'} ({kind})")

        return hook

    hooks = [part.register_forward_hook(make_hook(name, type(part).__name__)) for name, part in model.named_modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict | tuple | list):
        for value in output.values() if isinstance(output, dict) else output:
            yield from _tensors(value)
