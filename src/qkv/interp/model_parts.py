"""Find the parts of a model that analyses need: its stacks of blocks, and each layer's output projection.

Axes: t queries · h heads · s keys · d head dim · c model dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.interp.forward import Inputs, trace_with_output
from qkv.interp.layers import TracedLayer
from qkv.interp.traces import Trace

COMPARED_QUERIES = 4  # queries whose output is compared to verify an output projection


@dataclass(frozen=True)
class BlockStack:
    """Blocks that follow one another.

    name: of the list that holds them. blocks: names of their modules. layers: indices of their self-attention layers
    in a trace.
    """

    name: str
    blocks: tuple[str, ...]
    layers: tuple[int, ...]


def find_stacks(trace: Trace) -> tuple[BlockStack, ...]:
    """The stacks of blocks in a trace, in the order in which they ran; a block has a number in its name.

    >>> import torch, qkv
    >>> model = qkv.models.GPT(qkv.models.GPTConfig(vocab_size=65, dim=32, layers=2, heads=4))
    >>> find_stacks(qkv.interp.trace(model, torch.tensor([[1, 2, 3]])))
    (BlockStack(name='blocks', blocks=('blocks.0', 'blocks.1'), layers=(0, 1)),)
    """
    found: dict[str, tuple[list[str], list[int]]] = {}
    for index, layer in enumerate(trace.layers):
        parts = layer.name.split("@")[0].split(".")
        number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        if number is None:
            continue
        blocks, layers = found.setdefault(".".join(parts[:number]), ([], []))
        block = ".".join(parts[: number + 1])
        if block not in blocks:
            blocks.append(block)
        if not layer.cross and layer.queries == layer.keys:
            layers.append(index)
    return tuple(BlockStack(name, tuple(blocks), tuple(layers)) for name, (blocks, layers) in found.items())


def find_stack(trace: Trace, name: str | None = None) -> BlockStack:
    """The stack of that name; by default the last one with self-attention, which produces the model's output."""
    stacks = [stack for stack in find_stacks(trace) if stack.layers]
    if not stacks:
        raise ValueError(
            "the model has no stack of numbered blocks with self-attention, such as blocks.0, blocks.1; its single "
            "layers can still be analyzed"
        )
    if name is None:
        return stacks[-1]
    for stack in stacks:
        if stack.name == name:
            return stack
    raise ValueError(f"there is no stack {name!r}; there are {', '.join(stack.name for stack in stacks)}")


def callable_blocks(model: nn.Module, stack: BlockStack) -> tuple[str, ...]:
    """The names of a stack's blocks; a ValueError if one is only a list of parts that is never called."""
    modules = dict(model.named_modules())
    for name in stack.blocks:
        if isinstance(modules.get(name), nn.ModuleList | nn.ModuleDict | None):
            raise ValueError(f"{name} is a list of parts that is never called, so the block's output cannot be seen")
    return stack.blocks


@dataclass(frozen=True, eq=False)
class OutputProjection:
    """A layer's output projection: the module's name, and its matrix per head (h, d, c).

    called: whether the module is called, so that its input can be replaced; nn.MultiheadAttention's is not.
    """

    name: str
    heads: Float[Tensor, "h d c"]
    called: bool = True


@torch.no_grad()
def trace_with_projections(
    model: nn.Module, inputs: Inputs, *, batch: int = 0
) -> tuple[Trace, tuple[OutputProjection | None, ...]]:
    """A trace with values, and each layer's output projection (None if none is found)."""
    linear = {name: module for name, module in model.named_modules() if _matrix(module) is not None}
    trace, _ = trace_with_output(model, inputs, activations=linear.__contains__, values=True)
    return trace, tuple(_find_projection(model, trace, layer, linear, batch) for layer in trace.layers)


def _find_projection(
    model: nn.Module, trace: Trace, layer: TracedLayer, linear: dict[str, nn.Module], batch: int
) -> OutputProjection | None:
    """The module near the layer whose output equals its matrix applied to the heads' outputs."""
    if layer.values is None:
        return None
    dim = layer.heads * layer.values.shape[-1]
    own = dict(model.named_modules()).get(layer.name)
    if isinstance(own, nn.MultiheadAttention):
        return OutputProjection(f"{layer.name}.out_proj", _per_head(own.out_proj.weight.mT, layer), called=False)
    outputs = None
    for name in _nearby(layer.name, linear):
        weight = _matrix(linear[name])
        if weight is None or weight.shape[0] != dim or name not in trace.activations:
            continue
        returned = trace.activation(name)
        if returned.ndim == 2:
            returned = returned.unflatten(0, (layer.batch, -1))
        if returned.shape[1] != layer.queries or len(returned) != layer.batch:
            continue
        if outputs is None:
            outputs = _head_outputs(layer, batch, range(min(COMPARED_QUERIES, layer.queries)))
        bias = getattr(linear[name], "bias", None)
        expected = outputs @ weight.to(outputs) + (0 if bias is None else bias.to(outputs))
        returned = returned[batch, : len(outputs)].to(outputs)
        tolerance = 1e-3 if returned.dtype == torch.float32 and weight.element_size() > 2 else 3e-2
        if float((expected - returned).norm()) <= tolerance * float(returned.norm()) + 1e-9:
            return OutputProjection(name, _per_head(weight, layer))
    return None


def _head_outputs(layer: TracedLayer, batch: int, rows: range) -> Float[Tensor, "t hd"]:
    """The outputs Σ α v of all heads for some queries, concatenated."""
    values = head_values(layer, batch)
    parts = [layer.window(batch, head, rows, range(layer.keys)) for head in range(layer.heads)]
    return torch.cat([weights @ values[head].to(weights) for head, weights in enumerate(parts)], dim=-1)


def head_values(layer: TracedLayer, batch: int = 0) -> Float[Tensor, "h s d"]:
    """The values of each head; shared key heads are repeated."""
    if layer.values is None:
        raise ValueError(f"the values of {layer.name} were not recorded: it combines them in a way that is not seen")
    values = layer.values[batch]
    return values.repeat_interleave(layer.heads // len(values), dim=0)


def _nearby(name: str, linear: dict[str, nn.Module]) -> Iterator[str]:
    """Names of modules inside the layer's module, then inside its parent, then inside its parent's parent."""
    parts, seen = name.split("@")[0].split("."), set()
    for depth in range(len(parts), max(len(parts) - 3, -1), -1):
        around = ".".join(parts[:depth])
        for other in linear:
            if other not in seen and (other.startswith(f"{around}.") or other == around or not around):
                seen.add(other)
                yield other


def _matrix(module: nn.Module) -> Tensor | None:
    """A linear map's matrix as (in, out); None if the module is not a linear map."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or isinstance(module, nn.Embedding):
        return None
    if isinstance(module, nn.Linear):
        return weight.detach().mT
    return weight.detach() if type(module).__name__ == "Conv1D" else None  # Hugging Face's is (in, out)


def _per_head(weight: Tensor, layer: TracedLayer) -> Tensor:
    return weight.detach().unflatten(0, (layer.heads, -1))
